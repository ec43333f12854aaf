//! A row of the outbox, read back as the event it is.

use jiff::Timestamp;
use sqlx::Row as _;
use sqlx::sqlite::SqliteRow;

use crate::envelope::{Attributes, Envelope, EventType, Payload, Tenant, TraceContext};
use crate::store::{LetterId, OutboxRow, RowId, read_head};
use crate::text::InvalidText;

type ReadError = Box<dyn std::error::Error + Send + Sync>;

/// What a plain INSERT wrote and nobody can publish.
pub(in crate::sqlite) struct Unreadable {
    pub(in crate::sqlite) position: i64,
    pub(in crate::sqlite) error: String,
}

/// Reads a claimed row. The columns are named by their place in the claim, because names cost time on this path.
pub(in crate::sqlite) fn read(row: &SqliteRow) -> Result<OutboxRow, Unreadable> {
    let position = row.get(0);
    read_row(row, position).map_err(|error| Unreadable { position, error: format!("not an event: {error}") })
}

fn read_row(row: &SqliteRow, position: i64) -> Result<OutboxRow, ReadError> {
    let created_at = time(row.try_get(1)?);
    let envelope = Envelope {
        id: row.try_get::<&str, _>(2)?.try_into()?,
        tenant: Tenant { group: parse(row, 3)?, subsidiary: parse(row, 4)? },
        event_type: EventType::from_parts(row.try_get(5)?, row.try_get(7)?)?,
        aggregate_id: parse(row, 6)?,
        payload: payload(row.try_get(8)?, row.try_get(9)?, row.try_get(10)?),
        occurred_at: row.try_get::<Option<i64>, _>(11)?.map_or(created_at, time),
        ordering_key: parse(row, 12)?,
        causation_id: parse(row, 13)?,
        correlation_id: parse(row, 14)?,
        trace: TraceContext { traceparent: row.try_get(15)?, tracestate: row.try_get(16)? },
        attributes: Attributes::from_json(row.try_get::<Option<&str>, _>(23)?.map(str::as_bytes)),
    };
    let verbatim = match row.try_get::<Option<&[u8]>, _>(21)? {
        Some(head) => Some(read_head(head, envelope.payload.bytes().clone())?),
        None => None,
    };
    Ok(OutboxRow {
        verbatim,
        dead_letter: row.try_get::<Option<i64>, _>(22)?.map(LetterId),
        row: RowId { position, created_at },
        slot: Some(0),
        envelope,
        exchange: parse(row, 17)?,
        routing_key: parse(row, 18)?,
        target_queue: parse(row, 19)?,
        attempts: row.try_get(20)?,
    })
}

fn payload(text: Option<&str>, body: Option<&[u8]>, content_type: Option<&str>) -> Payload {
    let bytes = body.or(text.map(str::as_bytes)).unwrap_or_default();
    Payload::new(content_type.unwrap_or("application/json"), bytes.to_vec())
}

fn parse<T>(row: &SqliteRow, column: usize) -> Result<Option<T>, ReadError>
where
    T: for<'t> TryFrom<&'t str, Error = InvalidText>,
{
    let text: Option<&str> = row.try_get(column)?;
    Ok(text.map(T::try_from).transpose()?)
}

/// What no calendar has becomes the nearest time it has.
pub(in crate::sqlite) fn time(micros: i64) -> Timestamp {
    let end = if micros < 0 { Timestamp::MIN } else { Timestamp::MAX };
    Timestamp::from_microsecond(micros).unwrap_or(end)
}
