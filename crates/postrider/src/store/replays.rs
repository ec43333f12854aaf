//! Published events, in the outbox, its archive table or its archive files, that are sent again.

use std::future::Future;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{Operations, Outbox, OutboxRow, StoreError};
use crate::envelope::{EventId, TenantId};
use crate::topology::ConsumerName;

/// Finding published events again. Rows that themselves sent something again are none.
///
/// The items of such an operation are numbered by the positions of their events. So an event is an item once, wherever it is
/// found, twice even, and the order is that of the outbox, whatever is read first.
pub trait Replays: Outbox + Operations {
    /// How many published events match, in the outbox and in its archive table. Archive files are not read.
    fn count_events(&self, filter: &EventFilter) -> impl Future<Output = Result<Found, StoreError>> + Send;

    /// Adds what matches now to the items of an operation, at most `limit` of them, the oldest first. Returns how many items it
    /// has now.
    fn freeze_events(
        &self,
        tx: &mut Self::Tx,
        operation: Uuid,
        filter: &EventFilter,
        limit: Option<u64>,
    ) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// Adds events that were read elsewhere, with their positions; those that are items already stay as they are. Then leaves out
    /// what is beyond the limit.
    fn freeze_documents(
        &self,
        tx: &mut Self::Tx,
        operation: Uuid,
        documents: Vec<(i64, String)>,
        limit: Option<u64>,
    ) -> impl Future<Output = Result<Frozen, StoreError>> + Send;

    /// Those of these items that are still kept in a table, in the order of the outbox.
    fn take_events(
        &self,
        tx: &mut Self::Tx,
        items: &[String],
    ) -> impl Future<Output = Result<Vec<OutboxRow>, StoreError>> + Send;

    /// Makes a consumer's inbox forget that it has applied these events. When `tx` commits, the next delivery of each is applied
    /// once, and known again.
    fn forget_events(
        &self,
        tx: &mut Self::Tx,
        consumer: &ConsumerName,
        events: &[EventId],
    ) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// What the names of this outbox's archive files begin with.
    fn archive_name(&self) -> String;
}

/// Which published events.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventFilter {
    /// All words of the type but the last.
    pub aggregate_type: Option<String>,
    /// The last word of the type.
    pub event_type: Option<String>,
    /// Whose they are.
    pub tenant: Option<TenantId>,
    /// Written to the outbox at this time or after it.
    pub from: Timestamp,
    /// Written to the outbox before this time.
    pub to: Timestamp,
}

/// How many events match, and where they are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Found {
    /// In the outbox.
    pub live: u64,
    /// In its archive table, or on the way to where the archive is.
    pub archived: u64,
}

/// How an operation's items stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frozen {
    /// How many there are.
    pub total: u64,
    /// With a limit that is reached: the position of the last. Nothing after it can be an item.
    pub up_to: Option<i64>,
}

/// Names a row in the list of an operation: its position, and when it was written, in microseconds, which tells the partition.
pub(crate) fn read_item(item: &str) -> Option<(i64, i64)> {
    let (position, created_at) = item.split_once('/')?;
    Some((position.parse().ok()?, created_at.parse().ok()?))
}
