//! The environment: the only place where it is read.
#![allow(clippy::disallowed_methods, reason = "this is the one door to the environment")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::layers::{ConfigError, Layers};

/// Names that other programs and the seeds use, and the settings they stand for.
const KNOWN_ELSEWHERE: [(&str, &str); 17] = [
    ("DATABASE_URL", "store.url"),
    ("RABBITMQ_URL", "broker.url"),
    ("RABBITMQ_HOST", "broker.host"),
    ("RABBITMQ_PORT", "broker.port"),
    ("RABBITMQ_USER", "broker.user"),
    ("RABBITMQ_PASS", "broker.password"),
    ("RABBITMQ_MANAGEMENT_URL", "broker.management_url"),
    ("REDIS_URL", "redis.url"),
    ("REDIS_HOST", "redis.host"),
    ("REDIS_PORT", "redis.port"),
    ("REDIS_PASSWORD", "redis.password"),
    ("REDIS_STATE_DB", "redis.state_db"),
    ("METRICS_TOKEN", "http.metrics_token"),
    ("ENABLE_DUAL_PUBLISH", "migration.dual_publish"),
    ("OTEL_EXPORTER_OTLP_ENDPOINT", "telemetry.otlp_endpoint"),
    ("OTEL_EXPORTER_OTLP_HEADERS", "telemetry.otlp_headers"),
    ("OTEL_SERVICE_NAME", "telemetry.service_name"),
];

const PREFIX: &str = "POSTRIDER_";

/// The variables of the process, or of a test.
#[derive(Debug, Clone, Default)]
pub(crate) struct Environment(BTreeMap<String, String>);

/// A value that somebody set, and where.
#[derive(Debug)]
pub(super) struct Override {
    pub(super) origin: String,
    pub(super) key: String,
    pub(super) value: String,
}

impl Environment {
    /// The variables this process was started with. What is not UTF-8 is none of ours.
    pub(crate) fn of_process() -> Self {
        let text = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
        Self(text.collect())
    }

    /// A file named by `POSTRIDER_CONFIG`.
    pub(super) fn config_file(&self) -> Option<PathBuf> {
        self.0.get("POSTRIDER_CONFIG").filter(|path| !path.is_empty()).map(PathBuf::from)
    }

    /// Whether somebody asked for no colours.
    pub(crate) fn no_color(&self) -> bool {
        self.0.get("NO_COLOR").is_some_and(|value| !value.is_empty())
    }

    /// The editor that this person wants.
    pub(crate) fn editor(&self) -> Option<String> {
        let named =
            ["VISUAL", "EDITOR"].iter().find_map(|name| self.0.get(*name).filter(|value| !value.is_empty()));
        named.cloned()
    }

    /// Who is at the keyboard, for the audit log.
    pub(crate) fn actor(&self) -> String {
        let named = ["SUDO_USER", "USER", "LOGNAME"];
        let named = named.iter().find_map(|name| self.0.get(*name).filter(|value| !value.is_empty()));
        named.map_or_else(|| "cli".to_owned(), |user| format!("cli:{user}"))
    }

    /// What the environment sets: first the names that others use too, then our own, which win. The defaults have every setting.
    pub(super) fn overrides(&self, defaults: &Layers<'_>) -> Result<Vec<Override>, ConfigError> {
        let mut all = Vec::new();
        for (name, key) in KNOWN_ELSEWHERE {
            if let Some((origin, value)) = self.value(name)?.filter(|(_, value)| !value.is_empty()) {
                all.push(Override { origin, key: key.to_owned(), value: port_alone(value) });
            }
        }
        for (name, value) in &self.0 {
            let Some(name) = name.strip_prefix(PREFIX) else { continue };
            // HTTP__CERT_FILE is a setting; BROKER__PASSWORD_FILE is the file that has BROKER__PASSWORD.
            let secret = name.strip_suffix("_FILE").filter(|_| meant(name, defaults).is_none());
            let name = secret.unwrap_or(name);
            if name.contains("__") {
                if let Some((origin, value)) = self.value(&format!("{PREFIX}{name}"))? {
                    let key = name.to_ascii_lowercase().replace("__", ".");
                    all.push(Override { origin, key, value });
                }
            } else if let Some(key) = meant(name, defaults).filter(|_| !value.starts_with(OF_KUBERNETES)) {
                let meant = key.to_ascii_uppercase().replace('.', "__");
                let problem = format!("there is no such setting; did you mean {PREFIX}{meant}?");
                return Err(ConfigError { origin: format!("{PREFIX}{name}"), key: String::new(), problem });
            }
        }
        Ok(all)
    }

    /// The value of a variable, or of the file that `NAME_FILE` names.
    fn value(&self, name: &str) -> Result<Option<(String, String)>, ConfigError> {
        let file_name = format!("{name}_FILE");
        match (self.0.get(name), self.0.get(&file_name).filter(|path| !path.is_empty())) {
            (Some(value), None) => Ok(Some((name.to_owned(), value.clone()))),
            (None, Some(path)) => {
                let text = std::fs::read_to_string(Path::new(path)).map_err(|error| ConfigError {
                    origin: file_name.clone(),
                    key: String::new(),
                    problem: format!("cannot read {path}: {error}"),
                })?;
                Ok(Some((file_name, text.trim_end_matches(['\r', '\n']).to_owned())))
            }
            (Some(value), Some(_)) if !value.is_empty() => {
                let problem = format!("{name} is set too; keep one of them");
                Err(ConfigError { origin: file_name, key: String::new(), problem })
            }
            (Some(_), Some(_)) => {
                Self(self.0.iter().filter(|(key, _)| *key != name).map(own).collect()).value(name)
            }
            (None, None) => Ok(None),
        }
    }
}

fn own((name, value): (&String, &String)) -> (String, String) {
    (name.clone(), value.clone())
}

/// What the ports of services begin with that Kubernetes tells of.
const OF_KUBERNETES: &str = "tcp://";

/// Kubernetes sets `REDIS_PORT=tcp://10.0.0.1:6379` for a service named redis; the port is at its end.
fn port_alone(value: String) -> String {
    match value.strip_prefix(OF_KUBERNETES).and_then(|address| address.rsplit_once(':')) {
        Some((_, port)) => port.to_owned(),
        None => value,
    }
}

/// The setting of this name, also where it has one underscore and two belong: `RELAY_BATCH_SIZE`. No other name is taken for one, because
/// Kubernetes sets `POSTRIDER_HTTP_SERVICE_HOST` for a service named postrider-http.
fn meant(name: &str, defaults: &Layers<'_>) -> Option<String> {
    let name = name.to_ascii_lowercase().replace("__", "_");
    defaults.flat().into_keys().find(|key| key.replace('.', "_") == name)
}

#[cfg(test)]
impl<const N: usize> From<[(&str, &str); N]> for Environment {
    fn from(variables: [(&str, &str); N]) -> Self {
        Self(variables.map(|(name, value)| (name.to_owned(), value.to_owned())).into())
    }
}
