//! Where one event went.

use super::Sqlite;
use super::error::from_sqlite;
use super::letters::{read_summary, summary};
use super::outbox::time;
use crate::envelope::EventId;
use crate::store::{AppliedStep, HeldStep, OutboxStatus, OutboxStep, StoreError, Trace, Traces};

const OUTBOX: &str = "SELECT id, aggregate_type || '.' || event_type, status, target_queue, created_at, published_at, \
         attempts, last_error, group_id, verbatim, exchange, routing_key \
     FROM event_outbox WHERE id = ?1 OR event_id = ?1 ORDER BY position";

/// The marks have the consumer first in their key, so the consumers that could have one are asked for.
const APPLIED: &str = "SELECT consumer_name, processed_at FROM event_inbox WHERE event_id = ?1 AND consumer_name IN ( \
         SELECT name FROM consumer UNION SELECT registration ->> 'inbox' FROM consumer UNION SELECT consumer_name FROM dead_letter WHERE event_id = ?1) \
     ORDER BY processed_at";

const LETTERS: &str =
    concat!("SELECT ", summary!(), " FROM dead_letter WHERE event_id = ? ORDER BY dead_at, id");

const HELD: &str = "SELECT h.consumer_name, (SELECT first.event_id FROM held_event first \
         WHERE first.consumer_name = h.consumer_name AND first.ordering_key = h.ordering_key \
         ORDER BY first.position LIMIT 1) \
     FROM held_event h WHERE h.event_id = ? ORDER BY h.consumer_name";

type Row = (
    String,
    String,
    String,
    Option<String>,
    i64,
    Option<i64>,
    u32,
    Option<String>,
    Option<String>,
    Option<Vec<u8>>,
    Option<String>,
    Option<String>,
);

impl Traces for Sqlite {
    async fn trace(&self, event: &EventId) -> Result<Trace, StoreError> {
        let rows = sqlx::query_as(OUTBOX).bind(event.as_str()).fetch_all(self.readers());
        let rows: Vec<Row> = rows.await.map_err(from_sqlite)?;
        let marks = sqlx::query_as(APPLIED).bind(event.as_str()).fetch_all(self.readers());
        let marks: Vec<(String, i64)> = marks.await.map_err(from_sqlite)?;
        let letters = sqlx::query(LETTERS).bind(event.as_str()).fetch_all(self.readers());
        let letters = letters.await.map_err(from_sqlite)?;
        let held = sqlx::query_as(HELD).bind(event.as_str()).fetch_all(self.readers());
        let held: Vec<(String, String)> = held.await.map_err(from_sqlite)?;
        Ok(Trace {
            outbox: rows.into_iter().map(step).collect(),
            applied: marks.into_iter().map(|(consumer, at)| AppliedStep { consumer, at: time(at) }).collect(),
            dead_letters: letters.iter().map(read_summary).collect::<Result<_, _>>()?,
            held: held.into_iter().map(|(consumer, head)| HeldStep { consumer, head }).collect(),
        })
    }
}

fn step(row: Row) -> OutboxStep {
    let (
        row_id,
        event_type,
        status,
        target_queue,
        created_at,
        published_at,
        attempts,
        last_error,
        tenant,
        head,
        exchange,
        routing_key,
    ) = row;
    OutboxStep {
        row_id,
        tenant,
        event_type,
        status: OutboxStatus::from_name(&status).unwrap_or(OutboxStatus::Pending),
        target_queue,
        exchange,
        routing_key,
        created_at: time(created_at),
        published_at: published_at.map(time),
        attempts,
        last_error,
        replaces: head.as_deref().and_then(OutboxStep::replaced),
    }
}
