//! The outbox on PostgreSQL: appending. A batch is one INSERT.

use std::sync::LazyLock;
use std::time::Duration;

use jiff_sqlx::ToSqlx as _;
use sqlx::postgres::PgArguments;
use sqlx::{Arguments as _, PgConnection};

use super::error::failed;
use super::table::{OutboxTable, Statement};
use super::{Postgres, PostgresTx};
use crate::clock::Clock;
use crate::envelope::{Envelope, Event, EventId, MAX_PAYLOAD_BYTES, Ordering, OrderingKey};
use crate::store::{
    Ask, Backlog, Horizon, Opening, Outbox, OutboxRow, RelayId, RowResult, SlotLease, StoreError,
    StreamState, Verbatim,
};

/// Rows come in the order of the arrays, so positions are in the order of the events. UNNEST stands among the columns: as a table
/// PostgreSQL would store each of the arrays and read it back, row by row. An array of one is for all rows ([`once`]), and one that
/// is too short ends in NULLs ([`if_any`]).
pub(super) const APPEND: &str = "INSERT INTO {outbox} (id, group_id, subsidiary_id, aggregate_type, aggregate_id, \
     event_type, body, content_type, occurred_at, ordering_key, causation_id, correlation_id, traceparent, tracestate, \
     exchange, routing_key, target_queue, available_at, headers) \
     SELECT id, CASE cardinality($2) WHEN 1 THEN ($2)[1] ELSE group_id END, subsidiary_id, \
     CASE cardinality($4) WHEN 1 THEN ($4)[1] ELSE aggregate_type END, aggregate_id, \
     CASE cardinality($6) WHEN 1 THEN ($6)[1] ELSE event_type END, body, \
     CASE cardinality($8) WHEN 1 THEN ($8)[1] ELSE content_type END, \
     CASE cardinality($9) WHEN 1 THEN ($9)[1] ELSE occurred_at END, \
     CASE cardinality($10) WHEN 1 THEN ($10)[1] ELSE ordering_key END, causation_id, correlation_id, traceparent, \
     tracestate, CASE cardinality($15) WHEN 1 THEN ($15)[1] ELSE exchange END, routing_key, target_queue, \
     COALESCE(available_at, now()), headers::jsonb \
     FROM (SELECT UNNEST($1::text[]) AS id, UNNEST($2::text[]) AS group_id, UNNEST($3::text[]) AS subsidiary_id, \
     UNNEST($4::text[]) AS aggregate_type, UNNEST($5::text[]) AS aggregate_id, UNNEST($6::text[]) AS event_type, \
     UNNEST($7::bytea[]) AS body, UNNEST($8::text[]) AS content_type, UNNEST($9::timestamptz[]) AS occurred_at, \
     UNNEST($10::text[]) AS ordering_key, UNNEST($11::text[]) AS causation_id, UNNEST($12::text[]) AS correlation_id, \
     UNNEST($13::text[]) AS traceparent, UNNEST($14::text[]) AS tracestate, UNNEST($15::text[]) AS exchange, \
     UNNEST($16::text[]) AS routing_key, UNNEST($17::text[]) AS target_queue, UNNEST($18::timestamptz[]) AS available_at, \
     UNNEST($19::text[]) AS headers) AS event";

/// About as many bytes as a row takes besides its body.
const ROW_BYTES: usize = 160;

impl Outbox for Postgres {
    fn outbox_name(&self) -> String {
        self.table.to_string()
    }

    /// Into this outbox, whichever of the database's outboxes the transaction was begun on.
    async fn append(&self, tx: &mut PostgresTx, events: Vec<Event>) -> Result<Vec<EventId>, StoreError> {
        tx.append_by(&self.statements.append, events).await
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

/// Appends events in a transaction that you opened yourself with sqlx, on any pool of yours. They are committed when you commit it.
///
/// They go into the default outbox, `postrider.event_outbox`, and no payload may be larger than [`MAX_PAYLOAD_BYTES`]. Whoever has a
/// [`Postgres`] at hand has its table and its limit with [`Postgres::append_in`].
///
/// After an error the transaction cannot go on: roll it back.
///
/// Never drop sqlx while it begins, as a web server does to the handler of a client that hung up: the connection goes back to the pool with a
/// transaction open, and what others then write on it alone is lost. [`Store::begin`](crate::Store::begin) survives that; with a pool of
/// your own, begin in a task: `tokio::spawn(async move { pool.begin().await })`.
///
/// ```no_run
/// # use postrider::{Clock, Event, postgres::append_in};
/// # async fn place(pool: sqlx::PgPool, clock: Clock) -> Result<(), Box<dyn std::error::Error>> {
/// let mut transaction = pool.begin().await?;
/// sqlx::query("INSERT INTO customer_order VALUES ('order-42')").execute(&mut *transaction).await?;
/// let placed = Event::new("shop.order.placed")?.aggregate_id("order-42")?;
/// append_in(&mut transaction, &clock, vec![placed]).await?;
/// transaction.commit().await?; // the order and its event, or neither
/// # Ok(()) }
/// ```
pub async fn append_in(
    connection: &mut PgConnection,
    clock: &Clock,
    events: Vec<Event>,
) -> Result<Vec<EventId>, StoreError> {
    events.iter().try_for_each(|event| event.check_size(MAX_PAYLOAD_BYTES))?;
    append(connection, clock, &DEFAULT, events, "the caller's connection").await
}

impl Postgres {
    /// Appends events to this outbox in a transaction that you opened yourself with sqlx, as [`append_in`] does to the default one. It has to
    /// be on this database.
    pub async fn append_in(
        &self,
        connection: &mut PgConnection,
        events: Vec<Event>,
    ) -> Result<Vec<EventId>, StoreError> {
        let max = self.inner.max_payload_bytes;
        events.iter().try_for_each(|event| event.check_size(max))?;
        append(connection, self.clock(), &self.statements.append, events, &self.inner.place).await
    }
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
    let text = |of: fn(&NewRow) -> &str| rows.iter().map(of);
    let maybe = |of: fn(&NewRow) -> Option<&str>| rows.iter().map(of);

    // Once, instead of growing to it by doubling.
    let mut arguments = PgArguments::default();
    arguments.reserve(19, rows.iter().map(|row| row.envelope.payload.bytes().len() + ROW_BYTES).sum());
    sqlx::query_with(statement.sql(), arguments)
        .bind(text(|row| row.envelope.id.as_str()).collect::<Vec<_>>())
        .bind(once(maybe(|row| row.envelope.tenant.group.as_ref().map(AsRef::as_ref))))
        .bind(if_any(maybe(|row| row.envelope.tenant.subsidiary.as_ref().map(AsRef::as_ref))))
        .bind(once(text(|row| row.envelope.event_type.aggregate_type())))
        .bind(if_any(maybe(|row| row.envelope.aggregate_id.as_ref().map(AsRef::as_ref))))
        .bind(once(text(|row| row.envelope.event_type.action())))
        .bind(rows.iter().map(|row| row.envelope.payload.bytes().as_ref()).collect::<Vec<_>>())
        .bind(once(text(|row| row.envelope.payload.content_type())))
        .bind(once(rows.iter().map(|row| row.envelope.occurred_at.to_sqlx())))
        .bind(once(maybe(|row| row.ordering_key.as_deref())))
        .bind(if_any(maybe(|row| row.envelope.causation_id.as_ref().map(AsRef::as_ref))))
        .bind(if_any(maybe(|row| row.envelope.correlation_id.as_ref().map(AsRef::as_ref))))
        .bind(if_any(maybe(|row| row.envelope.trace.traceparent.as_deref())))
        .bind(if_any(maybe(|row| row.envelope.trace.tracestate.as_deref())))
        .bind(once(maybe(|row| row.exchange.as_deref())))
        .bind(if_any(maybe(|row| row.routing_key.as_deref())))
        .bind(if_any(maybe(|row| row.target_queue.as_deref())))
        .bind(if_any(rows.iter().map(|row| row.available_at)))
        .bind(if_any(rows.iter().map(|row| row.envelope.attributes.to_json())))
        .execute(connection)
        .await?;
    Ok(())
}

/// A column, as an array of one where all rows have the same: what PostgreSQL spends on the elements of arrays is a good part of an
/// append, and most columns of a batch say the same in every row.
fn once<T: PartialEq>(rows: impl Iterator<Item = T>) -> Vec<T> {
    let mut column: Vec<T> = rows.collect();
    if column.iter().skip(1).all(|row| Some(row) == column.first()) {
        column.truncate(1);
    }
    column
}

/// A column, empty where no row has anything in it.
fn if_any<T>(rows: impl Iterator<Item = Option<T>>) -> Vec<Option<T>> {
    let column: Vec<Option<T>> = rows.collect();
    if column.iter().all(Option::is_none) { Vec::new() } else { column }
}
