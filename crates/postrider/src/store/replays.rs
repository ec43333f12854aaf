//! Published events, in the outbox or in its archive, that are sent again.

use std::future::Future;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{Operations, Outbox, OutboxRow, StoreError};
use crate::envelope::{EventId, TenantId};
use crate::topology::ConsumerName;

/// Finding published events again. Rows that themselves sent something again are none.
pub trait Replays: Outbox + Operations {
    /// How many published events match, in the outbox and in its archive table. Archive files are not read.
    fn count_events(&self, filter: &EventFilter) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// Writes what matches now as the items of an operation, in the order of the outbox, at most `limit` of them. Returns how
    /// many.
    fn freeze_events(
        &self,
        tx: &mut Self::Tx,
        operation: Uuid,
        filter: &EventFilter,
        limit: Option<u64>,
    ) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// Those of these items that are still kept anywhere, in the order of the outbox.
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

/// Names a row in the list of an operation: its position, and when it was written, in microseconds, which tells the partition.
pub(crate) fn read_item(item: &str) -> Option<(i64, i64)> {
    let (position, created_at) = item.split_once('/')?;
    Some((position.parse().ok()?, created_at.parse().ok()?))
}
