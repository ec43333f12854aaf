//! Held events on SQLite.

use std::collections::HashMap;
use std::time::Duration;

use futures_util::FutureExt as _;
use sqlx::sqlite::SqliteRow;
use sqlx::{AssertSqlSafe, Row as _, SqliteConnection};

use super::controls::log;
use super::error::from_sqlite;
use super::letters::sent_elsewhere;
use super::outbox::time;
use super::{Sqlite, SqliteTx};
use crate::envelope::{EventId, OrderingKey};
use crate::store::{Held, HeldEvent, HeldHead, HeldKey, HeldState, StoreError, StoreErrorKind, pack, unpack};
use crate::topology::{ConsumerName, ExchangeName, RoutingKey};

const INSERT: &str = "INSERT INTO held_event (consumer_name, ordering_key, event_id, state, attempt, due_at, error, exchange, \
     routing_key, head, body, held_at, letter) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (consumer_name, event_id) DO ";

const UPDATE: &str = "UPDATE SET state = excluded.state, attempt = excluded.attempt, due_at = excluded.due_at, \
     error = excluded.error, exchange = excluded.exchange, routing_key = excluded.routing_key, head = excluded.head, \
     body = excluded.body, letter = excluded.letter, lease_owner = NULL, lease_until = NULL";

/// Steps from key to key, so that a key with many followers costs no more than one with none. `?1` consumer, `?2` owner,
/// `?3` now, `?4` when the lease ends, `?5` how many.
const CLAIM: &str = "WITH RECURSIVE key (name) AS (
         SELECT min(ordering_key) FROM held_event WHERE consumer_name = ?1
         UNION ALL
         SELECT (SELECT min(ordering_key) FROM held_event WHERE consumer_name = ?1 AND ordering_key > key.name)
         FROM key WHERE key.name IS NOT NULL),
     head (position) AS (
         SELECT (SELECT min(position) FROM held_event WHERE consumer_name = ?1 AND ordering_key = key.name)
         FROM key WHERE key.name IS NOT NULL)
     UPDATE held_event SET lease_owner = ?2, lease_until = ?4
     WHERE position IN (
         SELECT position FROM held_event
         WHERE position IN (SELECT position FROM head) AND state = 'waiting' AND due_at <= ?3
             AND (lease_until IS NULL OR lease_until < ?3)
         ORDER BY position LIMIT ?5)
     RETURNING event_id, ordering_key, state, attempt, error, exchange, routing_key, head, body, letter";

/// The letter that the row names counts, or the last that a replay made of it since: a copy of the event may die once more under the name of
/// the first. What contradicts the event has its id, too, and comes of no replay. Rows from before they named a letter go by the last one of
/// their event: one that was discarded before says nothing of a replay that is on its way.
///
/// What is parked is the head of its key: those behind it, of which there may be very many, are not read.
const RELEASE_DISCARDED: &str = concat!(
    "WITH RECURSIVE name (of) AS (
         SELECT min(ordering_key) FROM held_event WHERE consumer_name = ?1
         UNION ALL
         SELECT (SELECT min(ordering_key) FROM held_event WHERE consumer_name = ?1 AND ordering_key > name.of)
         FROM name WHERE name.of IS NOT NULL)
     DELETE FROM held_event WHERE position IN (
         SELECT (SELECT min(position) FROM held_event WHERE consumer_name = ?1 AND ordering_key = name.of)
         FROM name WHERE name.of IS NOT NULL)
     AND state = 'parked'
     AND (SELECT d.status = 'discarded' OR ",
    sent_elsewhere!(),
    " FROM dead_letter d WHERE d.event_id = held_event.event_id AND d.consumer_name = ?1
           AND (held_event.letter IS NULL OR d.key = held_event.letter OR (d.replay_of IS NOT NULL AND d.id >
               (SELECT named.id FROM dead_letter named WHERE named.key = held_event.letter)))
         ORDER BY d.id DESC LIMIT 1)
     AND (held_event.letter IS NOT NULL
          OR NOT EXISTS (SELECT 1 FROM dead_letter letter WHERE letter.event_id = held_event.event_id
                         AND letter.consumer_name = ?1 AND letter.status = 'open'))"
);

const KEYS: &str =
    "SELECT head.consumer_name, head.ordering_key, key.events, head.event_id, head.state, head.attempt,
         head.due_at, head.held_at, head.error
     FROM (SELECT count(*) AS events, min(position) AS position FROM held_event
           WHERE ?1 IS NULL OR consumer_name = ?1 GROUP BY consumer_name, ordering_key
           ORDER BY min(position) LIMIT ?2) key
     JOIN held_event head USING (position) ORDER BY position";

impl Held for Sqlite {
    async fn hold(&self, consumer: &ConsumerName, events: Vec<HeldEvent>) -> Result<(), StoreError> {
        self.write_held("NOTHING", consumer, events).await
    }

    async fn hold_head(&self, consumer: &ConsumerName, event: HeldEvent) -> Result<(), StoreError> {
        self.write_held(UPDATE, consumer, vec![event]).await
    }

    async fn held_heads(
        &self,
        consumer: &ConsumerName,
        keys: &[OrderingKey],
    ) -> Result<HashMap<OrderingKey, HeldHead>, StoreError> {
        // Of a row's other columns SQLite takes those of the row with the least position.
        let select = "SELECT ordering_key, event_id, state, min(position) FROM held_event \
                      WHERE consumer_name = ? AND ordering_key IN (SELECT value FROM json_each(?)) GROUP BY ordering_key";
        let keys: Vec<&str> = keys.iter().map(AsRef::as_ref).collect();
        let select = sqlx::query_as(select).bind(consumer.as_str()).bind(serde_json::json!(keys).to_string());
        let rows: Vec<(String, String, String, i64)> =
            select.fetch_all(self.readers()).await.map_err(from_sqlite)?;
        let read = |(key, id, state, _): (String, String, String, i64)| {
            let head = HeldHead { event_id: EventId::new(id)?, state: HeldState::from_word(&state) };
            Ok((OrderingKey::new(key)?, head))
        };
        rows.into_iter().map(read).collect::<Result<_, _>>().map_err(unreadable)
    }

    async fn held_events(
        &self,
        consumer: &ConsumerName,
        events: &[EventId],
    ) -> Result<Vec<HeldEvent>, StoreError> {
        let select = "SELECT event_id, ordering_key, state, attempt, error, exchange, routing_key, head, body, letter FROM held_event \
                      WHERE consumer_name = ? AND event_id IN (SELECT value FROM json_each(?))";
        let events: Vec<&str> = events.iter().map(AsRef::as_ref).collect();
        let select = sqlx::query(select).bind(consumer.as_str()).bind(serde_json::json!(events).to_string());
        let rows = select.fetch_all(self.readers()).await.map_err(from_sqlite)?;
        rows.iter().map(event).collect::<Result<_, _>>().map_err(unreadable)
    }

    async fn claim_held(
        &self,
        consumer: &ConsumerName,
        owner: &str,
        lease: Duration,
        limit: usize,
    ) -> Result<Vec<HeldEvent>, StoreError> {
        // Looking costs no write, and mostly there is nothing.
        let any = "SELECT EXISTS (SELECT 1 FROM held_event WHERE consumer_name = ?)";
        let any = sqlx::query_scalar(any).bind(consumer.as_str()).fetch_one(self.readers());
        if !any.await.map_err(from_sqlite)? {
            return Ok(Vec::new());
        }
        let now = self.clock().now().as_microsecond();
        let (consumer, owner) = (consumer.to_string(), owner.to_owned());
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let until = now.saturating_add(micros(lease));
        let times = [now, until, limit];
        self.writer().run(move |connection| claim(connection, consumer, owner, times).boxed()).await
    }

    async fn renew_held(
        &self,
        consumer: &ConsumerName,
        owner: &str,
        event: &EventId,
        lease: Duration,
    ) -> Result<(), StoreError> {
        let renew = "UPDATE held_event SET lease_until = ? WHERE consumer_name = ? AND event_id = ? AND lease_owner = ?";
        let until = self.clock().now().as_microsecond().saturating_add(micros(lease));
        let (consumer, event, owner) = (consumer.to_string(), event.to_string(), owner.to_owned());
        let renewing = self.writer().run(move |connection| {
            async move {
                let renew = sqlx::query(renew).bind(until).bind(consumer).bind(event).bind(owner);
                renew.execute(connection).await.map(|_| ()).map_err(from_sqlite)
            }
            .boxed()
        });
        renewing.await
    }

    async fn let_go(
        &self,
        tx: &mut SqliteTx,
        consumer: &ConsumerName,
        event: &EventId,
    ) -> Result<(), StoreError> {
        let delete = "DELETE FROM held_event WHERE consumer_name = ? AND event_id = ?";
        let delete = sqlx::query(delete).bind(consumer.as_str()).bind(event.as_str());
        let done = delete.execute(tx.connection().await?).await;
        if done.is_err() {
            tx.fail();
        }
        done.map(|_| ()).map_err(from_sqlite)
    }

    async fn release_key(
        &self,
        consumer: &ConsumerName,
        key: &OrderingKey,
        by: &str,
        reason: &str,
    ) -> Result<u64, StoreError> {
        let now = self.clock().now().as_microsecond();
        let said = if reason.is_empty() { String::new() } else { format!("{reason}: ") };
        let reason = format!("{said}ordering key {key}");
        let (consumer, key, by) = (consumer.to_string(), key.to_string(), by.to_owned());
        self.writer().run(move |connection| release(connection, consumer, key, by, reason, now).boxed()).await
    }

    async fn release_discarded(&self, consumer: &ConsumerName) -> Result<u64, StoreError> {
        // Looking costs no write, and mostly there is nothing.
        let any = "SELECT EXISTS (SELECT 1 FROM held_event WHERE consumer_name = ? AND state = 'parked')";
        let any = sqlx::query_scalar(any).bind(consumer.as_str()).fetch_one(self.readers());
        if !any.await.map_err(from_sqlite)? {
            return Ok(0);
        }
        let consumer = consumer.to_string();
        self.writer().run(move |connection| release_discarded(connection, consumer).boxed()).await
    }

    async fn held_keys(
        &self,
        consumer: Option<&ConsumerName>,
        limit: usize,
    ) -> Result<Vec<HeldKey>, StoreError> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let select = sqlx::query(KEYS).bind(consumer.map(AsRef::<str>::as_ref)).bind(limit);
        let rows = select.fetch_all(self.readers()).await.map_err(from_sqlite)?;
        rows.iter().map(key).collect::<Result<_, _>>().map_err(unreadable)
    }
}

impl Sqlite {
    async fn write_held(
        &self,
        conflict: &'static str,
        consumer: &ConsumerName,
        events: Vec<HeldEvent>,
    ) -> Result<(), StoreError> {
        if events.is_empty() {
            return Ok(());
        }
        let now = self.clock().now().as_microsecond();
        let consumer = consumer.to_string();
        let work = (conflict, consumer, events, now);
        self.writer().run(move |connection| insert(connection, work).boxed()).await
    }
}

async fn insert(
    connection: &mut SqliteConnection,
    (conflict, consumer, events, now): (&'static str, String, Vec<HeldEvent>, i64),
) -> Result<(), StoreError> {
    // The text is made of constants.
    let sql = format!("{INSERT}{conflict}");
    for event in events {
        sqlx::query(AssertSqlSafe(sql.as_str()))
            .bind(&consumer)
            .bind(event.key.as_str())
            .bind(event.event_id.as_str())
            .bind(event.state.as_str())
            .bind(event.attempt)
            .bind(now.saturating_add(micros(event.delay)))
            .bind(&event.error)
            .bind(event.exchange.as_str())
            .bind(event.routing_key.as_str())
            .bind(pack(&event.message)?)
            .bind(event.message.body.to_vec())
            .bind(now)
            .bind(event.letter)
            .execute(&mut *connection)
            .await
            .map_err(from_sqlite)?;
    }
    Ok(())
}

async fn claim(
    connection: &mut SqliteConnection,
    consumer: String,
    owner: String,
    [now, until, limit]: [i64; 3],
) -> Result<Vec<HeldEvent>, StoreError> {
    let claim = sqlx::query(CLAIM).bind(consumer).bind(owner).bind(now).bind(until).bind(limit);
    let rows = claim.fetch_all(connection).await.map_err(from_sqlite)?;
    rows.iter().map(event).collect::<Result<_, _>>().map_err(unreadable)
}

async fn release_discarded(connection: &mut SqliteConnection, consumer: String) -> Result<u64, StoreError> {
    let done = sqlx::query(RELEASE_DISCARDED).bind(consumer).execute(connection).await;
    done.map(|done| done.rows_affected()).map_err(from_sqlite)
}

async fn release(
    connection: &mut SqliteConnection,
    consumer: String,
    key: String,
    by: String,
    reason: String,
    now: i64,
) -> Result<u64, StoreError> {
    let delete = "DELETE FROM held_event WHERE consumer_name = ? AND ordering_key = ? AND state = 'parked'";
    let delete = sqlx::query(delete).bind(&consumer).bind(&key);
    let released = delete.execute(&mut *connection).await.map_err(from_sqlite)?.rows_affected();
    if released > 0 {
        log(connection, now, &by, "consumer.release", &consumer, Some(&reason)).await?;
    }
    Ok(released)
}

/// No longer than a hundred years, so that adding to it stays within 64 bits.
fn micros(duration: Duration) -> i64 {
    const CENTURY: i64 = 100 * 366 * 86_400 * 1_000_000;
    i64::try_from(duration.as_micros()).unwrap_or(CENTURY).min(CENTURY)
}

type Unreadable = Box<dyn std::error::Error + Send + Sync>;

fn event(row: &SqliteRow) -> Result<HeldEvent, Unreadable> {
    Ok(HeldEvent {
        event_id: EventId::new(row.try_get::<String, _>(0)?)?,
        key: OrderingKey::new(row.try_get::<String, _>(1)?)?,
        state: HeldState::from_word(row.try_get(2)?),
        attempt: row.try_get(3)?,
        delay: Duration::ZERO,
        error: row.try_get(4)?,
        letter: row.try_get(9)?,
        exchange: ExchangeName::new(row.try_get::<String, _>(5)?)?,
        routing_key: RoutingKey::new(row.try_get::<String, _>(6)?)?,
        message: unpack(row.try_get(7)?, row.try_get(8)?)?,
    })
}

fn key(row: &SqliteRow) -> Result<HeldKey, Unreadable> {
    Ok(HeldKey {
        consumer: ConsumerName::new(row.try_get::<String, _>(0)?)?,
        key: OrderingKey::new(row.try_get::<String, _>(1)?)?,
        events: u64::try_from(row.try_get::<i64, _>(2)?)?,
        head: EventId::new(row.try_get::<String, _>(3)?)?,
        state: HeldState::from_word(row.try_get(4)?),
        attempt: row.try_get(5)?,
        due_at: time(row.try_get(6)?),
        since: time(row.try_get(7)?),
        error: row.try_get(8)?,
    })
}

fn unreadable(cause: Unreadable) -> StoreError {
    let message =
        format!("a row of held_event cannot be read: {cause}; it was changed by hand or by a newer binary");
    StoreError::new(StoreErrorKind::Other, message).because(cause)
}
