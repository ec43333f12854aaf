//! The name of this machine, for ids and for the headers of dead letters.

use std::sync::OnceLock;

/// The host's name; `localhost` when it does not say.
pub(crate) fn name() -> &'static str {
    static NAME: OnceLock<String> = OnceLock::new();
    NAME.get_or_init(|| {
        let found = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let found = found.trim();
        if found.is_empty() { "localhost".to_owned() } else { found.to_owned() }
    })
}
