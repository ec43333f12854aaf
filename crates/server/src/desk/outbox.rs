//! The outbox: what waits, what stands still, and how it goes on.

use async_trait::async_trait;
use postrider::EventId;
use postrider::store::{
    self, Backlog, OutboxDesk, ParkedKey, RowFilter, RowPage, RowView, StoreError, StreamState, Unpark,
};
use serde::Serialize;

use super::{Answer, StoreDesk};
use crate::wiring::WholeStore;

/// How an outbox stands.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct OutboxReport {
    pub(crate) due: u64,
    pub(crate) later: u64,
    pub(crate) dead: u64,
    pub(crate) parked_keys: u64,
    pub(crate) oldest_due: Option<jiff::Timestamp>,
    /// How rows are found now: `cdc` or `poll`.
    pub(crate) mode: &'static str,
    /// How much of its log the database keeps for the stream.
    pub(crate) stream_lag_bytes: Option<u64>,
    /// Which relay streams.
    pub(crate) streamed_by: Option<String>,
    pub(crate) parked: Vec<ParkedKey>,
}

/// How an outbox stands, with so many of its parked keys.
pub(crate) async fn report<S: store::Outbox + OutboxDesk>(
    store: &S,
    parked: usize,
) -> Result<OutboxReport, StoreError> {
    let stream: Option<StreamState> = store.stream_state().await?;
    let Backlog { due, later, dead, parked_keys, oldest_due } = store.backlog().await?;
    let mode = if stream.is_some() { "cdc" } else { "poll" };
    let (stream_lag_bytes, streamed_by) =
        stream.map(|stream| (stream.lag_bytes, stream.relay.to_string())).unzip();
    let parked = store.parked(parked).await?;
    Ok(OutboxReport {
        due,
        later,
        dead,
        parked_keys,
        oldest_due,
        mode,
        stream_lag_bytes,
        streamed_by,
        parked,
    })
}

#[async_trait]
pub(crate) trait Outbox {
    /// How it stands.
    async fn outbox(&self, parked: usize) -> Answer<OutboxReport>;
    /// A page of events, the newest first.
    async fn rows(&self, filter: &RowFilter, limit: usize) -> Answer<RowPage>;
    /// One event with its payload.
    async fn row(&self, id: &EventId) -> Answer<Option<RowView>>;
    /// Gives dead events new attempts.
    async fn unpark(&self, target: &Unpark, by: &str, reason: Option<&str>) -> Answer<Vec<EventId>>;
}

#[async_trait]
impl<S: WholeStore> Outbox for StoreDesk<S> {
    async fn outbox(&self, parked: usize) -> Answer<OutboxReport> {
        Ok(report(&self.store, parked).await?)
    }

    async fn rows(&self, filter: &RowFilter, limit: usize) -> Answer<RowPage> {
        Ok(self.store.list(filter, limit).await?)
    }

    async fn row(&self, id: &EventId) -> Answer<Option<RowView>> {
        Ok(self.store.find(id).await?)
    }

    async fn unpark(&self, target: &Unpark, by: &str, reason: Option<&str>) -> Answer<Vec<EventId>> {
        let subject = match target {
            Unpark::Key(key) => format!("ordering_key/{key}"),
            Unpark::Event(id) => format!("event/{id}"),
        };
        self.record(by, "outbox.unparked", subject, reason).await?;
        Ok(self.store.unpark(target).await?)
    }
}
