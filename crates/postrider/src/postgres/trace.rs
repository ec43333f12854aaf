//! Where one event went.

use sqlx::Row as _;
use sqlx::postgres::PgRow;

use super::Postgres;
use super::dead_letter::unreadable;
use super::letters::{read_summary, summary};
use crate::envelope::EventId;
use crate::store::{AppliedStep, HeldStep, OutboxStatus, OutboxStep, StoreError, Trace, Traces};

/// The event's own row is found by the time its id was registered with, those that send it again by the event they name.
const OUTBOX: &str = "SELECT o.id, o.aggregate_type || '.' || o.event_type, o.status, o.target_queue, o.created_at, \
         o.published_at, o.attempts, o.last_error, o.position, o.group_id, o.verbatim, o.exchange, o.routing_key \
     FROM postrider.event_outbox_id known \
         JOIN postrider.event_outbox o ON o.created_at = known.created_at AND o.id = known.id WHERE known.id = $1 \
     UNION ALL \
     SELECT id, aggregate_type || '.' || event_type, status, target_queue, created_at, published_at, attempts, last_error, \
         position, group_id, verbatim, exchange, routing_key FROM postrider.event_outbox WHERE event_id = $1 AND id <> $1 \
     ORDER BY position";

const APPLIED: &str = "SELECT consumer_name, processed_at FROM postrider.event_inbox WHERE consumer_name = ANY( \
         ARRAY(SELECT name FROM postrider.consumer) || ARRAY(SELECT registration ->> 'inbox' FROM postrider.consumer) || ARRAY(SELECT DISTINCT consumer_name FROM postrider.dead_letter \
         WHERE event_id = $1 AND consumer_name IS NOT NULL)) AND event_id = $1 ORDER BY processed_at";

const LETTERS: &str =
    concat!("SELECT ", summary!(), " FROM postrider.dead_letter WHERE event_id = $1 ORDER BY dead_at, id");

const HELD: &str = "SELECT h.consumer_name, (SELECT first.event_id FROM postrider.held_event first \
         WHERE first.consumer_name = h.consumer_name AND first.ordering_key COLLATE \"C\" = h.ordering_key \
         ORDER BY first.position LIMIT 1) \
     FROM postrider.held_event h WHERE h.event_id = $1 ORDER BY h.consumer_name";

impl Traces for Postgres {
    async fn trace(&self, event: &EventId) -> Result<Trace, StoreError> {
        let rows = sqlx::query(OUTBOX).bind(event.as_str()).fetch_all(self.pool());
        let rows = self.limited("looking for an event in the outbox", rows).await?;
        let outbox = rows.iter().map(step).collect::<Result<_, _>>();
        let outbox = outbox.map_err(|cause: sqlx::Error| unreadable(cause.into()))?;
        let marks = sqlx::query_as(APPLIED).bind(event.as_str()).fetch_all(self.pool());
        let marks: Vec<(String, jiff_sqlx::Timestamp)> =
            self.limited("looking for an event in the inbox", marks).await?;
        let applied =
            marks.into_iter().map(|(consumer, at)| AppliedStep { consumer, at: at.to_jiff() }).collect();
        let letters = sqlx::query(LETTERS).bind(event.as_str()).fetch_all(self.pool());
        let letters = self.limited("looking for an event among the dead letters", letters).await?;
        let dead_letters = letters.iter().map(read_summary).collect::<Result<_, _>>().map_err(unreadable)?;
        let held = sqlx::query_as(HELD).bind(event.as_str()).fetch_all(self.pool());
        let held: Vec<(String, String)> = self.limited("looking for an event among the held", held).await?;
        let held = held.into_iter().map(|(consumer, head)| HeldStep { consumer, head }).collect();
        Ok(Trace { outbox, applied, dead_letters, held })
    }
}

fn step(row: &PgRow) -> Result<OutboxStep, sqlx::Error> {
    let published: Option<jiff_sqlx::Timestamp> = row.try_get(5)?;
    Ok(OutboxStep {
        row_id: row.try_get(0)?,
        tenant: row.try_get(9)?,
        event_type: row.try_get(1)?,
        status: OutboxStatus::from_name(row.try_get(2)?).unwrap_or(OutboxStatus::Pending),
        target_queue: row.try_get(3)?,
        exchange: row.try_get(11)?,
        routing_key: row.try_get(12)?,
        created_at: row.try_get::<jiff_sqlx::Timestamp, _>(4)?.to_jiff(),
        published_at: published.map(jiff_sqlx::Timestamp::to_jiff),
        attempts: u32::try_from(row.try_get::<i32, _>(6)?).unwrap_or(0),
        last_error: row.try_get(7)?,
        replaces: row.try_get::<Option<&[u8]>, _>(10)?.and_then(OutboxStep::replaced),
    })
}
