//! `[migration]`: from an old bus to a new one.

use serde::Deserialize;

/// From an old bus to a new one.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Migration {
    #[allow(
        dead_code,
        reason = "read once `postrider migration` exists; the seed's variable is accepted already"
    )]
    pub(crate) dual_publish: bool,
}
