//! The outbox on PostgreSQL: appending. A batch is one INSERT.

use std::sync::LazyLock;
use std::time::Duration;

use jiff_sqlx::ToSqlx as _;
use sqlx::PgConnection;

use super::error::failed;
use super::table::{OutboxTable, Statement};
use super::{Postgres, PostgresTx};
use crate::clock::Clock;
use crate::envelope::{Envelope, Event, EventId, MAX_PAYLOAD_BYTES, Ordering, OrderingKey};
use crate::store::{
    Ask, Backlog, Horizon, Opening, Outbox, OutboxRow, RelayId, RowResult, SlotLease, StoreError,
    StreamState, Verbatim,
};

/// Rows of UNNEST come in the order of the arrays, so positions are in the order of the events.
pub(super) const APPEND: &str = "INSERT INTO {outbox} (id, group_id, subsidiary_id, aggregate_type, aggregate_id, \
     event_type, body, content_type, occurred_at, ordering_key, causation_id, correlation_id, traceparent, tracestate, \
     exchange, routing_key, target_queue, available_at, headers) \
     SELECT id, group_id, subsidiary_id, aggregate_type, aggregate_id, event_type, body, content_type, occurred_at, \
     ordering_key, causation_id, correlation_id, traceparent, tracestate, exchange, routing_key, target_queue, \
     COALESCE(available_at, now()), headers::jsonb \
     FROM UNNEST($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::bytea[], $8::text[], \
     $9::timestamptz[], $10::text[], $11::text[], $12::text[], $13::text[], $14::text[], $15::text[], $16::text[], \
     $17::text[], $18::timestamptz[], $19::text[]) AS event (id, group_id, subsidiary_id, aggregate_type, aggregate_id, \
     event_type, body, content_type, occurred_at, ordering_key, causation_id, correlation_id, traceparent, tracestate, \
     exchange, routing_key, target_queue, available_at, headers)";

impl Outbox for Postgres {
    fn outbox_name(&self) -> String {
        self.table.to_string()
    }

    async fn append(&self, tx: &mut PostgresTx, events: Vec<Event>) -> Result<Vec<EventId>, StoreError> {
        tx.append(events).await
    }

    async fn append_verbatim(&self, tx: &mut PostgresTx, messages: Vec<Verbatim>) -> Result<(), StoreError> {
        self.insert_verbatim(tx, messages).await
    }

    async fn backlog(&self) -> Result<Backlog, StoreError> {
        self.read_backlog().await
    }

    async fn lease(&self, relay: &RelayId, lease: Duration) -> Result<Vec<SlotLease>, StoreError> {
        self.lease_slots(relay, lease).await
    }

    async fn release(&self, relay: &RelayId) -> Result<(), StoreError> {
        self.release_slots(relay).await
    }

    async fn claim(&self, relay: &RelayId, ask: Ask) -> Result<Vec<OutboxRow>, StoreError> {
        self.claim_rows(relay, ask).await
    }

    async fn horizon(&self) -> Result<Horizon, StoreError> {
        self.read_horizon().await
    }

    async fn settle(&self, relay: &RelayId, results: Vec<RowResult>) -> Result<usize, StoreError> {
        self.settle_rows(relay, results).await
    }

    async fn wait(&self, at_most: Duration) {
        self.wake.wait(at_most).await;
    }

    async fn open_stream(&self, relay: &RelayId, lease: Duration) -> Result<Opening, StoreError> {
        self.open_row_stream(relay, lease).await
    }

    async fn close_stream(&self, relay: &RelayId) -> Result<(), StoreError> {
        self.close_row_stream(relay).await
    }

    async fn stream_state(&self) -> Result<Option<StreamState>, StoreError> {
        self.read_stream_state().await
    }

    async fn failing_keys(&self) -> Result<Vec<OrderingKey>, StoreError> {
        self.read_failing_keys().await
    }
}

/// Appends events in a transaction that you opened yourself with sqlx. They are committed when you commit it.
///
/// After an error the transaction cannot go on: roll it back.
pub async fn append_in(
    connection: &mut PgConnection,
    clock: &Clock,
    events: Vec<Event>,
) -> Result<Vec<EventId>, StoreError> {
    events.iter().try_for_each(|event| event.check_size(MAX_PAYLOAD_BYTES))?;
    append(connection, clock, &DEFAULT, events, "the caller's connection").await
}

/// The statement for the default table, which is all that a caller without a store has.
static DEFAULT: LazyLock<Statement> = LazyLock::new(|| OutboxTable::default().statement(APPEND));

pub(super) async fn append(
    connection: &mut PgConnection,
    clock: &Clock,
    statement: &Statement,
    events: Vec<Event>,
    place: &str,
) -> Result<Vec<EventId>, StoreError> {
    if events.is_empty() {
        return Ok(Vec::new());
    }
    let rows: Vec<NewRow> = events.into_iter().map(|event| NewRow::new(event, clock)).collect();
    insert(connection, statement, &rows)
        .await
        .map_err(|cause| failed("appending to the outbox", place, cause))?;
    Ok(rows.into_iter().map(|row| row.envelope.id).collect())
}

/// An event with everything filled in, and what only the row knows.
struct NewRow {
    envelope: Envelope,
    /// As the column has it: absent for the aggregate's, empty for none.
    ordering_key: Option<String>,
    exchange: Option<String>,
    routing_key: Option<String>,
    target_queue: Option<String>,
    available_at: Option<jiff_sqlx::Timestamp>,
}

impl NewRow {
    fn new(mut event: Event, clock: &Clock) -> Self {
        let ordering_key = match &event.ordering {
            Ordering::Aggregate => None,
            Ordering::Key(key) => Some(key.as_str().to_owned()),
            Ordering::Free => Some(String::new()),
        };
        Self {
            ordering_key,
            exchange: event.exchange.take().map(Into::into),
            routing_key: event.routing_key.take().map(Into::into),
            target_queue: event.target_queue.take().map(Into::into),
            available_at: event.available_at.take().map(jiff_sqlx::ToSqlx::to_sqlx),
            envelope: event.into_envelope(clock),
        }
    }
}

async fn insert(
    connection: &mut PgConnection,
    statement: &Statement,
    rows: &[NewRow],
) -> Result<(), sqlx::Error> {
    fn column<'a, T>(rows: &'a [NewRow], of: impl Fn(&'a NewRow) -> T) -> Vec<T> {
        rows.iter().map(of).collect()
    }
    let text = |of: fn(&NewRow) -> &str| column(rows, of);
    let maybe = |of: fn(&NewRow) -> Option<&str>| column(rows, of);

    sqlx::query(statement.sql())
        .bind(text(|row| row.envelope.id.as_str()))
        .bind(maybe(|row| row.envelope.tenant.group.as_ref().map(AsRef::as_ref)))
        .bind(maybe(|row| row.envelope.tenant.subsidiary.as_ref().map(AsRef::as_ref)))
        .bind(text(|row| row.envelope.event_type.aggregate_type()))
        .bind(maybe(|row| row.envelope.aggregate_id.as_ref().map(AsRef::as_ref)))
        .bind(text(|row| row.envelope.event_type.action()))
        .bind(column(rows, |row| row.envelope.payload.bytes().as_ref()))
        .bind(text(|row| row.envelope.payload.content_type()))
        .bind(column(rows, |row| row.envelope.occurred_at.to_sqlx()))
        .bind(maybe(|row| row.ordering_key.as_deref()))
        .bind(maybe(|row| row.envelope.causation_id.as_ref().map(AsRef::as_ref)))
        .bind(maybe(|row| row.envelope.correlation_id.as_ref().map(AsRef::as_ref)))
        .bind(maybe(|row| row.envelope.trace.traceparent.as_deref()))
        .bind(maybe(|row| row.envelope.trace.tracestate.as_deref()))
        .bind(maybe(|row| row.exchange.as_deref()))
        .bind(maybe(|row| row.routing_key.as_deref()))
        .bind(maybe(|row| row.target_queue.as_deref()))
        .bind(column(rows, |row| row.available_at))
        .bind(column(rows, |row| row.envelope.attributes.to_json()))
        .execute(connection)
        .await?;
    Ok(())
}
