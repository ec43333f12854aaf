//! `[log]` and `[telemetry]`: what others can see of a process.

use serde::Deserialize;
use tracing_subscriber::EnvFilter;
use url::Url;

use super::secret::Secret;

/// What is written to stderr.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Log {
    pub(crate) format: LogFormat,
    pub(crate) level: String,
}

impl Log {
    /// Whether its level can be used. A word that is no level would be the name of a part of the program, and everything else silent.
    pub(super) fn is_understood(&self) -> bool {
        const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
        let is_level = |one: &str| LEVELS.iter().any(|level| one.trim().eq_ignore_ascii_case(level));
        let names_a_part = |one: &str| one.contains(['=', '[', ']']) || one.contains("::");
        !self.level.trim().is_empty()
            && self.level.split(',').all(|one| one.is_empty() || is_level(one) || names_a_part(one))
            && EnvFilter::try_new(&self.level).is_ok()
    }
}

/// For whom it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    /// For people.
    Text,
    /// For machines.
    Json,
}

/// Where spans go.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Telemetry {
    pub(crate) otlp_endpoint: Secret,
    pub(crate) otlp_headers: Secret,
    pub(crate) service_name: String,
}

impl Telemetry {
    /// Where spans are posted to; nothing where none is wanted.
    pub(crate) fn traces_url(&self) -> Option<Url> {
        let base = self.otlp_endpoint.get()?;
        let url = format!("{}/v1/traces", base.trim_end_matches('/')).parse::<Url>().ok()?;
        matches!(url.scheme(), "http" | "https").then_some(url)
    }

    /// What is sent along, a name and a value each.
    pub(crate) fn headers(&self) -> Option<Vec<(&str, &str)>> {
        let pairs =
            self.otlp_headers.get().unwrap_or_default().split(',').filter(|pair| !pair.trim().is_empty());
        pairs.map(|pair| pair.split_once('=').map(|(name, value)| (name.trim(), value.trim()))).collect()
    }

    /// What is wrong with it: the setting, and the rule.
    pub(super) fn broken_rule(&self) -> Option<(&'static str, String)> {
        if self.otlp_endpoint.get().is_some() && self.traces_url().is_none() {
            return Some((
                "telemetry.otlp_endpoint",
                "must be a url such as http://localhost:4318".to_owned(),
            ));
        }
        if self.headers().is_none() {
            return Some((
                "telemetry.otlp_headers",
                "must be name=value, several with commas between".to_owned(),
            ));
        }
        None
    }
}
