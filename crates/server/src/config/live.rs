//! The configuration in force: as it was read at the start, with what a reload may change while everything runs.

use std::sync::Arc;

use tokio::sync::watch;

use super::Config;

/// Settings that a reload puts in force; every other one needs a restart.
const TAKEN_UP: [&str; 8] = [
    "log.level",
    "http.read_only",
    "http.requests_per_second",
    "http.metrics_token",
    "http.cert_file",
    "http.key_file",
    "egress.allow",
    "push",
];

/// A handle on the configuration. Cheap to clone; all clones see the same.
#[derive(Debug, Clone)]
pub(crate) struct Live(watch::Sender<Arc<Config>>);

impl Live {
    /// As it was read.
    pub(crate) fn new(config: Config) -> Self {
        Self(watch::Sender::new(Arc::new(config)))
    }

    /// As it is now.
    pub(crate) fn now(&self) -> Arc<Config> {
        self.0.borrow().clone()
    }

    /// Puts in force what may change of a new reading. Returns the names of the settings that changed: those that are in force now,
    /// and those that wait for a restart.
    pub(crate) fn take_up(&self, new: Config) -> (Vec<String>, Vec<String>) {
        let old = self.now();
        let changed: Vec<String> = old.changed(&new).into_iter().map(str::to_owned).collect();
        let (taken, waiting): (Vec<_>, Vec<_>) = changed.into_iter().partition(|key| is_taken_up(key));
        let mut config = Config::clone(&old);
        let (http, fresh) = (&mut config.settings.http, new.settings.http);
        http.read_only = fresh.read_only;
        http.requests_per_second = fresh.requests_per_second;
        http.metrics_token = fresh.metrics_token;
        (http.cert_file, http.key_file) = (fresh.cert_file, fresh.key_file);
        config.settings.log.level = new.settings.log.level;
        (config.settings.egress, config.settings.push) = (new.settings.egress, new.settings.push);
        (config.push, config.allowed) = (new.push, new.allowed);
        config.values.retain(|key, _| !is_taken_up(key));
        config.values.extend(new.values.into_iter().filter(|(key, _)| is_taken_up(key)));
        self.0.send_replace(Arc::new(config));
        (taken, waiting)
    }
}

fn is_taken_up(key: &str) -> bool {
    TAKEN_UP.iter().any(|taken| {
        key == *taken || key.strip_prefix(taken).is_some_and(|rest| rest.starts_with(['.', '[']))
    })
}
