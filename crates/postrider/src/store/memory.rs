//! How long the inbox remembers, and what it has forgotten.

use std::future::Future;
use std::time::Duration;

use jiff::Timestamp;

use super::{Store, StoreError};
use crate::topology::ConsumerName;

/// Keeps the inbox from growing without end, and knows how far back it can be trusted.
pub trait InboxMemory: Store {
    /// Forgets a step of what was applied longer ago than `keep`. What it forgets it notes in the same transaction, so a crash
    /// at any point leaves an inbox that knows what it does not know. Of several workers one does it at a time: nothing when
    /// that is another.
    fn forget(
        &self,
        worker: &str,
        keep: Duration,
        most: u32,
    ) -> impl Future<Output = Result<Option<Forgotten>, StoreError>> + Send;

    /// Events of this consumer that were applied before this time may be forgotten; nothing if none was.
    fn forgotten_before(
        &self,
        consumer: &ConsumerName,
    ) -> impl Future<Output = Result<Option<Timestamp>, StoreError>> + Send;
}

/// What a step forgot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forgotten {
    /// Marks that are gone.
    pub marks: u64,
    /// Whether there may be more.
    pub more: bool,
}
