//! How the outbox is cut on PostgreSQL.

use serde::Deserialize;

/// How much time a partition of the outbox spans.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum PartitionChoice {
    /// A day.
    Day,
    /// A week.
    Week,
    /// A month.
    Month,
}

impl PartitionChoice {
    /// At most so many days.
    pub(crate) fn days(self) -> u64 {
        match self {
            Self::Day => 1,
            Self::Week => 7,
            Self::Month => 31,
        }
    }
}
