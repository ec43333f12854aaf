//! Looking after the outbox, so that it never grows without end: partitions ahead of time, and an end for what is old.

use std::future::Future;
use std::path::PathBuf;
use std::time::Duration;

use super::{RelayId, Store, StoreError};

/// Keeps an outbox from growing without end. What is not published is never removed.
pub trait Housekeeping: Store {
    /// One round: makes partitions ahead, and archives and removes what is older than the rules keep. One process at a time
    /// does it; nothing when another is at it. Never makes a writer wait for longer than a quarter of a second.
    ///
    /// A crash at any point leaves the rest to the next round; an archived event may then be in two archive files.
    fn keep_house(
        &self,
        worker: &RelayId,
        rules: &HouseRules,
    ) -> impl Future<Output = Result<Option<Kept>, StoreError>> + Send;

    /// What a round would do now. Changes nothing, and waits for nobody.
    fn would_keep_house(&self, rules: &HouseRules) -> impl Future<Output = Result<Kept, StoreError>> + Send;
}

/// How long what is kept, and where it goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HouseRules {
    /// Published events stay at least this long.
    pub keep: Duration,
    /// Then they go here.
    pub archive: Archive,
    /// How much time a partition spans.
    pub partition: PartitionSpan,
    /// How many partitions are made ahead.
    pub ahead: u16,
}

impl Default for HouseRules {
    fn default() -> Self {
        Self {
            keep: Duration::from_hours(30 * 24),
            archive: Archive::Nowhere,
            partition: PartitionSpan::Week,
            ahead: 4,
        }
    }
}

/// Where events go that are older than the outbox keeps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Archive {
    /// They are removed.
    Nowhere,
    /// Into a table beside the outbox, with `_archive` after its name.
    Table,
    /// Into compressed files of this folder, one JSON document a line.
    Files(PathBuf),
}

/// How much time a partition spans.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PartitionSpan {
    /// A day, for millions of events a day.
    Day,
    /// A week.
    Week,
    /// A month, for few events.
    Month,
}

impl PartitionSpan {
    /// The word for it, in config and in SQL.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
        }
    }
}

/// What a round did.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct Kept {
    /// Partitions that were made.
    pub partitions_made: Vec<String>,
    /// Partitions that were archived or dropped.
    pub partitions_ended: Vec<String>,
    /// Old partitions that stay, because events in them are not published.
    pub partitions_kept: Vec<String>,
    /// Events that were archived.
    pub archived: u64,
    /// Events that were removed from the outbox.
    pub removed: u64,
    /// What could not be done now and is tried again in the next round.
    pub postponed: Vec<String>,
}
