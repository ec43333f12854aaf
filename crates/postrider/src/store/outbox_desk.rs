//! What people ask of an outbox: what waits, what failed and why, and to let it go on.

use std::collections::HashMap;
use std::future::Future;

use jiff::Timestamp;
use serde::Serialize;

use super::{OutboxStatus, Store, StoreError};
use crate::envelope::{AggregateId, Event, EventId, OrderingKey, Payload, PayloadHash, TenantId};

/// The outbox as people see it.
pub trait OutboxDesk: Store {
    /// A page of rows, the newest first. Where no index answers the filter, [`SCANNED`](super::SCANNED) rows are looked at and
    /// no more, however many there are.
    fn list(
        &self,
        filter: &RowFilter,
        limit: usize,
    ) -> impl Future<Output = Result<RowPage, StoreError>> + Send;

    /// One row, with its payload.
    fn find(&self, id: &EventId) -> impl Future<Output = Result<Option<RowView>, StoreError>> + Send;

    /// What those of these events say that were committed. One that never was here, or that the outbox does not keep any more, is not
    /// among them. A few statements, however many are asked for.
    fn committed(
        &self,
        ids: &[EventId],
    ) -> impl Future<Output = Result<HashMap<EventId, Committed>, StoreError>> + Send;

    /// Keys that stand still behind a dead event, those with most behind them first.
    fn parked(&self, limit: usize) -> impl Future<Output = Result<Vec<ParkedKey>, StoreError>> + Send;

    /// Gives the dead events of a key new attempts, the first of them at once. Returns their ids; none if nothing was dead.
    fn unpark(&self, target: &Unpark) -> impl Future<Output = Result<Vec<EventId>, StoreError>> + Send;
}

/// Which dead events get new attempts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unpark {
    /// Those of a key.
    Key(OrderingKey),
    /// One, by its id: how those without a key are named.
    Event(EventId),
}

/// Which rows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RowFilter {
    /// In this state.
    pub status: Option<OutboxStatus>,
    /// Of this ordering key.
    pub key: Option<OrderingKey>,
    /// All words of the type but the last.
    pub aggregate_type: Option<String>,
    /// The last word of the type.
    pub event_type: Option<String>,
    /// Of this entity.
    pub aggregate_id: Option<AggregateId>,
    /// Of this tenant.
    pub tenant: Option<TenantId>,
    /// Before this place: what the page before named as the next.
    pub before: Option<i64>,
}

impl RowFilter {
    /// Whether walking an index finds nothing but what fits.
    pub(crate) fn is_indexed(&self) -> bool {
        let Self { status, key, aggregate_type, event_type, aggregate_id, tenant, .. } = self;
        let unpublished = status.is_some_and(|status| status != OutboxStatus::Published);
        let one_entity = aggregate_type.is_some() && aggregate_id.is_some();
        let anything = key.is_none()
            && aggregate_type.is_none()
            && event_type.is_none()
            && aggregate_id.is_none()
            && tenant.is_none();
        unpublished || one_entity || anything
    }
}

/// A page of rows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RowPage {
    /// The rows.
    pub rows: Vec<RowView>,
    /// Where to go on, if there may be more: a page may be short, or empty, because enough was looked at.
    pub next: Option<i64>,
}

impl RowPage {
    /// Of what was found down to `floor`, where the looking stopped for its length.
    pub(crate) fn of(rows: Vec<RowView>, limit: usize, floor: Option<i64>) -> Self {
        let last = rows.last().filter(|_| rows.len() == limit).and_then(|row| row.position.parse().ok());
        Self { rows, next: last.or(floor) }
    }
}

/// A row as people see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RowView {
    /// The event's id.
    pub id: String,
    /// Its place in the order, as text: it may have more digits than JSON's numbers keep.
    pub position: String,
    /// What happened.
    #[serde(rename = "type")]
    pub event_type: String,
    /// To which entity.
    pub aggregate_id: Option<String>,
    /// What it keeps its order with.
    pub key: Option<String>,
    /// Whose it is.
    pub group_id: Option<String>,
    /// The part of the group, where it names one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subsidiary_id: Option<String>,
    /// The exchange that it is published to, where it names one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exchange: Option<String>,
    /// The key that it is published with, where it names one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub routing_key: Option<String>,
    /// The one queue it goes to, past every exchange.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_queue: Option<String>,
    /// `pending`, `published`, `failed` or `dead`.
    pub status: String,
    /// How often publishing it failed.
    pub attempts: i32,
    /// When it was committed, or nearly.
    pub created_at: Timestamp,
    /// Not tried before.
    pub available_at: Timestamp,
    /// When it was marked as published.
    pub published_at: Option<Timestamp>,
    /// Why the last attempt failed.
    pub last_error: Option<String>,
    /// What it says, as text; only where one row was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload: Option<String>,
}

/// What a committed event says, by which a repeat of it is told from another event with its id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed {
    /// What happened.
    pub event_type: String,
    /// Of its payload.
    pub payload_hash: PayloadHash,
    /// Whose it is.
    pub tenant: Option<String>,
    /// Which entity it is about.
    pub aggregate_id: Option<String>,
}

impl Committed {
    pub(crate) fn new(
        event_type: String,
        body: Vec<u8>,
        tenant: Option<String>,
        aggregate_id: Option<String>,
    ) -> Self {
        // Of JSON by what it looks like, so the content type does not matter.
        Self { event_type, payload_hash: Payload::new("", body).hash(), tenant, aggregate_id }
    }

    /// Whether an event with the same id is this one again. Two tenants, or two entities, that number their events alike have two events:
    /// called a repeat, the second would be lost. Where one of both names none that says nothing, as in the inbox.
    pub fn is_repeated_by(&self, event: &Event) -> bool {
        self.event_type == event.event_type.as_str()
            && self.payload_hash == event.payload.hash()
            && !differ(self.tenant.as_deref(), event.tenant.group.as_ref().map(AsRef::as_ref))
            && !differ(self.aggregate_id.as_deref(), event.aggregate_id.as_ref().map(AsRef::as_ref))
    }
}

fn differ(before: Option<&str>, now: Option<&str>) -> bool {
    matches!((before, now), (Some(before), Some(now)) if before != now)
}

/// A key that stands still.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ParkedKey {
    /// The key.
    pub key: String,
    /// The dead event at its head.
    pub event_id: String,
    /// Why it is dead.
    pub error: Option<String>,
    /// How often it was tried.
    pub attempts: i32,
    /// When it died, or nearly.
    pub since: Timestamp,
    /// Events behind it.
    pub waiting: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_tenant_or_entity_under_an_id_is_no_repeat_and_one_that_is_not_named_says_nothing() {
        let event = |tenant: &str, aggregate: &str| {
            let mut event =
                Event::new("shop.order.placed").unwrap().json(&serde_json::json!({"n": 1})).unwrap();
            if !tenant.is_empty() {
                event = event.tenant(tenant).unwrap();
            }
            if !aggregate.is_empty() {
                event = event.aggregate_id(aggregate).unwrap();
            }
            event
        };
        let known = |tenant: Option<&str>, aggregate: Option<&str>| {
            let body = br#"{ "n": 1 }"#.to_vec();
            let (tenant, aggregate) = (tenant.map(str::to_owned), aggregate.map(str::to_owned));
            Committed::new("shop.order.placed".to_owned(), body, tenant, aggregate)
        };
        let full = known(Some("a"), Some("1"));
        for (again, same) in [
            (event("a", "1"), true),
            (event("", ""), true),
            (event("b", "1"), false),
            (event("b", ""), false),
            (event("a", "2"), false),
            (Event::new("shop.order.paid").unwrap().json(&serde_json::json!({"n": 1})).unwrap(), false),
            (Event::new("shop.order.placed").unwrap().json(&serde_json::json!({"n": 2})).unwrap(), false),
        ] {
            assert_eq!(full.is_repeated_by(&again), same, "{again:?}");
        }
        assert!(known(None, None).is_repeated_by(&event("b", "2")));
    }
}
