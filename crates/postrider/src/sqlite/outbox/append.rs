//! Events into the outbox, many rows a statement.

use std::sync::LazyLock;

use sqlx::sqlite::SqliteArguments;
use sqlx::{Arguments as _, SqliteConnection};

use crate::clock::Clock;
use crate::envelope::{Envelope, Event, EventId, Payload};
use crate::sqlite::bulk::Insert;
use crate::store::StoreError;
use crate::topology::{ExchangeName, QueueName, RoutingKey};

static INSERT: LazyLock<Insert> = LazyLock::new(|| {
    let head = "INSERT INTO event_outbox (id, group_id, subsidiary_id, aggregate_type, aggregate_id, event_type, payload, \
                body, content_type, available_at, created_at, occurred_at, ordering_key, causation_id, correlation_id, \
                traceparent, tracestate, exchange, routing_key, target_queue, headers) VALUES";
    Insert::new(head, 21)
});

/// Writes the events and returns their ids, in order. After an error the transaction must be rolled back.
pub(in crate::sqlite) async fn append(
    connection: &mut SqliteConnection,
    events: Vec<Event>,
    clock: &Clock,
) -> Result<Vec<EventId>, StoreError> {
    let rows: Vec<NewRow> = events.into_iter().map(|event| NewRow::new(event, clock)).collect();
    let ids = rows.iter().map(|row| row.envelope.id.clone()).collect();
    let now = clock.now().as_microsecond();
    INSERT.execute(connection, rows, |row, arguments| row.bind(now, arguments)).await?;
    Ok(ids)
}

struct NewRow {
    envelope: Envelope,
    exchange: Option<ExchangeName>,
    routing_key: Option<RoutingKey>,
    target_queue: Option<QueueName>,
    available_at: i64,
}

impl NewRow {
    fn new(mut event: Event, clock: &Clock) -> Self {
        Self {
            exchange: event.exchange.take(),
            routing_key: event.routing_key.take(),
            target_queue: event.target_queue.take(),
            available_at: event.available_at.map_or(0, jiff::Timestamp::as_microsecond),
            envelope: event.into_envelope(clock),
        }
    }

    fn bind(self, now: i64, arguments: &mut SqliteArguments) -> Result<(), sqlx::error::BoxDynError> {
        let event = self.envelope;
        let mut text = |value: Option<&str>| arguments.add(value.map(str::to_owned));
        text(Some(event.id.as_str()))?;
        text(event.tenant.group.as_ref().map(AsRef::as_ref))?;
        text(event.tenant.subsidiary.as_ref().map(AsRef::as_ref))?;
        text(Some(event.event_type.aggregate_type()))?;
        text(event.aggregate_id.as_ref().map(AsRef::as_ref))?;
        text(Some(event.event_type.action()))?;
        let json = json_text(&event.payload);
        text(json)?;
        let body = json.is_none().then(|| event.payload.bytes().to_vec());
        arguments.add(body)?;
        arguments.add(event.payload.content_type().to_owned())?;
        arguments.add(self.available_at)?;
        arguments.add(now)?;
        arguments.add(event.occurred_at.as_microsecond())?;
        // An empty key says that there is none, whatever the aggregate.
        let mut text = |value: Option<&str>| arguments.add(value.map(str::to_owned));
        text(Some(event.ordering_key.as_ref().map_or("", AsRef::as_ref)))?;
        text(event.causation_id.as_ref().map(AsRef::as_ref))?;
        text(event.correlation_id.as_ref().map(AsRef::as_ref))?;
        text(event.trace.traceparent.as_deref())?;
        text(event.trace.tracestate.as_deref())?;
        text(self.exchange.as_ref().map(AsRef::as_ref))?;
        text(self.routing_key.as_ref().map(AsRef::as_ref))?;
        text(self.target_queue.as_ref().map(AsRef::as_ref))?;
        arguments.add(event.attributes.to_json())?;
        Ok(())
    }
}

/// The payload as text that people can query; nothing if it is not JSON, whatever its content type says.
fn json_text(payload: &Payload) -> Option<&str> {
    let text = std::str::from_utf8(payload.bytes()).ok().filter(|_| payload.is_json())?;
    serde_json::from_str::<serde::de::IgnoredAny>(text).ok().map(|_| text)
}
