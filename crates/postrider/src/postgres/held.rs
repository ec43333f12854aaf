//! Held events on PostgreSQL. Due times and leases go by the database's own clock.

use std::collections::HashMap;
use std::time::Duration;

use sqlx::Row as _;
use sqlx::postgres::PgRow;

use super::letters::sent_elsewhere;
use super::{Postgres, PostgresTx};
use crate::envelope::{EventId, OrderingKey};
use crate::store::{Held, HeldEvent, HeldHead, HeldKey, HeldState, StoreError, StoreErrorKind, pack, unpack};
use crate::topology::{ConsumerName, ExchangeName, RoutingKey};

macro_rules! insert {
    ($conflict:literal) => {
        concat!(
            "INSERT INTO postrider.held_event (consumer_name, ordering_key, event_id, state, attempt, due_at, error, \
                 exchange, routing_key, head, body, letter) \
             SELECT $1, ordering_key, event_id, state, attempt, now() + delay * interval '1 microsecond', error, exchange, \
                 routing_key, head, body, letter \
             FROM UNNEST($2::text[], $3::text[], $4::text[], $5::int[], $6::bigint[], $7::text[], $8::text[], $9::text[], \
                 $10::bytea[], $11::bytea[], $12::text[]) WITH ORDINALITY AS held (ordering_key, event_id, state, attempt, delay, \
                 error, exchange, routing_key, head, body, letter, nth) \
             ORDER BY nth ON CONFLICT (consumer_name, event_id) ",
            $conflict
        )
    };
}

const HOLD: &str = insert!("DO NOTHING");

const HOLD_HEAD: &str = insert!(
    "DO UPDATE SET state = EXCLUDED.state, attempt = EXCLUDED.attempt, due_at = EXCLUDED.due_at, error = EXCLUDED.error, \
     exchange = EXCLUDED.exchange, routing_key = EXCLUDED.routing_key, head = EXCLUDED.head, body = EXCLUDED.body, \
     letter = EXCLUDED.letter, lease_owner = NULL, lease_until = NULL"
);

/// One step into the index a key. With `= ANY($2)` PostgreSQL reads all that a consumer holds while its statistics do not know the
/// consumer: 20 ms instead of 0.8 for 67 keys among 20,000 events.
const HEADS: &str = "SELECT head.ordering_key, head.event_id, head.state FROM UNNEST($2::text[]) AS asked (key) \
     CROSS JOIN LATERAL (SELECT ordering_key, event_id, state FROM postrider.held_event \
         WHERE consumer_name = $1 AND ordering_key COLLATE \"C\" = asked.key ORDER BY position LIMIT 1) head";

/// The consumer is compared so that the index of the events is the only one that fits, as below.
const EVENTS: &str = "SELECT held.event_id, held.ordering_key, held.state, held.attempt, held.error, held.exchange, held.routing_key, \
         held.head, held.body, held.letter FROM UNNEST($2::text[]) AS asked (id) \
     CROSS JOIN LATERAL (SELECT * FROM postrider.held_event WHERE event_id = asked.id AND consumer_name || '' = $1) held";

/// One held event. The consumer is compared so that the index of the events is the only one that fits; by that of the keys PostgreSQL
/// would read all that a consumer holds, for the same reason.
macro_rules! one {
    ($what:literal) => {
        concat!($what, " WHERE event_id = $2 AND consumer_name || '' = $1")
    };
}

const RENEW: &str = concat!(
    one!("UPDATE postrider.held_event SET lease_until = now() + $4 * interval '1 microsecond'"),
    " AND lease_owner = $3"
);

const LET_GO: &str = one!("DELETE FROM postrider.held_event");

/// Steps from key to key, so that a key with many followers costs no more than one with none.
macro_rules! keys {
    () => {
        "WITH RECURSIVE key AS ( \
             SELECT min(ordering_key COLLATE \"C\") AS name FROM postrider.held_event WHERE consumer_name = $1 \
             UNION ALL \
             SELECT (SELECT min(ordering_key COLLATE \"C\") FROM postrider.held_event \
                     WHERE consumer_name = $1 AND ordering_key COLLATE \"C\" > key.name) \
             FROM key WHERE key.name IS NOT NULL)"
    };
}

/// The positions of their heads.
macro_rules! heads {
    () => {
        "(SELECT (SELECT min(position) FROM postrider.held_event WHERE consumer_name = $1 AND ordering_key COLLATE \"C\" = key.name) \
          FROM key WHERE key.name IS NOT NULL)"
    };
}

const CLAIM: &str = concat!(
    keys!(),
    ", due AS ( \
         SELECT position FROM postrider.held_event WHERE position IN ",
    heads!(),
    " AND state = 'waiting' AND due_at <= now() \
           AND (lease_until IS NULL OR lease_until < now()) \
         ORDER BY position LIMIT $4 FOR UPDATE SKIP LOCKED) \
     UPDATE postrider.held_event held SET lease_owner = $2, lease_until = now() + $3 * interval '1 microsecond' \
     FROM due WHERE held.position = due.position \
     RETURNING held.event_id, held.ordering_key, held.state, held.attempt, held.error, held.exchange, held.routing_key, \
         held.head, held.body, held.letter"
);

const RELEASE_KEY: &str = "WITH released AS ( \
         DELETE FROM postrider.held_event \
         WHERE consumer_name = $1 AND ordering_key COLLATE \"C\" = $2 AND state = 'parked' RETURNING event_id) \
     INSERT INTO postrider.audit_log (actor, action, subject, reason) \
     SELECT $3, 'consumer.release', $1, COALESCE(NULLIF($4, '') || ': ', '') || 'ordering key ' || $2 || ', head ' || event_id \
     FROM released";

/// The letter that the row names counts, or the last that a replay made of it since: a copy of the event may die once more under the name of
/// the first. What contradicts the event has its id, too, and comes of no replay. Rows from before they named a letter go by the last one of
/// their event: one that was discarded before says nothing of a replay that is on its way.
///
/// The status stands otherwise than the indexes of open letters have it, so that none of them fits: until it has statistics PostgreSQL would
/// read every open letter for each parked key, once a second; and the number as a sum, lest it walk down the primary key. What is parked is the
/// head of its key: those behind it, of which there may be very many, are not read.
const RELEASE_DISCARDED: &str = concat!(
    keys!(),
    " DELETE FROM postrider.held_event held WHERE position IN ",
    heads!(),
    " AND state = 'parked' \
       AND (SELECT d.status = 'discarded' OR ",
    sent_elsewhere!(),
    " FROM postrider.dead_letter d WHERE d.event_id = held.event_id AND d.consumer_name = $1 \
           AND (held.letter IS NULL OR d.key = held.letter OR (d.replay_of IS NOT NULL AND d.id + 0 > \
               (SELECT named.id FROM postrider.dead_letter named WHERE named.key = held.letter))) \
         ORDER BY d.id + 0 DESC LIMIT 1) \
       AND (held.letter IS NOT NULL \
            OR NOT EXISTS (SELECT FROM postrider.dead_letter letter WHERE letter.event_id = held.event_id \
                           AND letter.consumer_name = $1 AND letter.status || '' = 'open'))"
);

const KEYS: &str = "SELECT head.consumer_name, head.ordering_key, key.events, head.event_id, head.state, head.attempt, \
         head.due_at, head.held_at, head.error \
     FROM (SELECT consumer_name, ordering_key, count(*) AS events, min(position) AS position FROM postrider.held_event \
           WHERE $1::text IS NULL OR consumer_name = $1 GROUP BY consumer_name, ordering_key \
           ORDER BY min(position) LIMIT $2) key \
     JOIN postrider.held_event head USING (position) ORDER BY position";

impl Held for Postgres {
    async fn hold(&self, consumer: &ConsumerName, events: Vec<HeldEvent>) -> Result<(), StoreError> {
        self.write_held(HOLD, consumer, events).await
    }

    async fn hold_head(&self, consumer: &ConsumerName, event: HeldEvent) -> Result<(), StoreError> {
        self.write_held(HOLD_HEAD, consumer, vec![event]).await
    }

    async fn held_heads(
        &self,
        consumer: &ConsumerName,
        keys: &[OrderingKey],
    ) -> Result<HashMap<OrderingKey, HeldHead>, StoreError> {
        let keys: Vec<&str> = keys.iter().map(AsRef::as_ref).collect();
        let select = sqlx::query(HEADS).bind(consumer.as_str()).bind(keys);
        let rows = self.limited("looking for held events", select.fetch_all(self.pool())).await?;
        let read = |row: &PgRow| {
            let state = HeldState::from_word(row.try_get(2)?);
            let head = HeldHead { event_id: EventId::new(row.try_get::<String, _>(1)?)?, state };
            Ok((OrderingKey::new(row.try_get::<String, _>(0)?)?, head))
        };
        rows.iter().map(read).collect::<Result<_, _>>().map_err(unreadable)
    }

    async fn held_events(
        &self,
        consumer: &ConsumerName,
        events: &[EventId],
    ) -> Result<Vec<HeldEvent>, StoreError> {
        let events: Vec<&str> = events.iter().map(AsRef::as_ref).collect();
        let select = sqlx::query(EVENTS).bind(consumer.as_str()).bind(events);
        let rows = self.limited("reading held events", select.fetch_all(self.pool())).await?;
        rows.iter().map(event).collect::<Result<_, _>>().map_err(unreadable)
    }

    async fn claim_held(
        &self,
        consumer: &ConsumerName,
        owner: &str,
        lease: Duration,
        limit: usize,
    ) -> Result<Vec<HeldEvent>, StoreError> {
        let claim = sqlx::query(CLAIM)
            .bind(consumer.as_str())
            .bind(owner)
            .bind(micros(lease))
            .bind(i64::try_from(limit).unwrap_or(i64::MAX));
        let rows = self.limited("claiming held events", claim.fetch_all(self.pool())).await?;
        rows.iter().map(event).collect::<Result<_, _>>().map_err(unreadable)
    }

    async fn renew_held(
        &self,
        consumer: &ConsumerName,
        owner: &str,
        event: &EventId,
        lease: Duration,
    ) -> Result<(), StoreError> {
        let renew = sqlx::query(RENEW).bind(consumer.as_str()).bind(event.as_str()).bind(owner);
        self.limited("renewing a lease", renew.bind(micros(lease)).execute(self.pool())).await?;
        Ok(())
    }

    async fn let_go(
        &self,
        tx: &mut PostgresTx,
        consumer: &ConsumerName,
        event: &EventId,
    ) -> Result<(), StoreError> {
        let delete = sqlx::query(LET_GO).bind(consumer.as_str()).bind(event.as_str());
        self.limited("letting a held event go", delete.execute(tx.ours())).await?;
        Ok(())
    }

    async fn release_key(
        &self,
        consumer: &ConsumerName,
        key: &OrderingKey,
        by: &str,
        reason: &str,
    ) -> Result<u64, StoreError> {
        let release =
            sqlx::query(RELEASE_KEY).bind(consumer.as_str()).bind(key.as_str()).bind(by).bind(reason);
        let done = self.limited("releasing a parked key", release.execute(self.pool())).await?;
        Ok(done.rows_affected())
    }

    async fn release_discarded(&self, consumer: &ConsumerName) -> Result<u64, StoreError> {
        let release = sqlx::query(RELEASE_DISCARDED).bind(consumer.as_str());
        let done = self.limited("releasing parked keys", release.execute(self.pool())).await?;
        Ok(done.rows_affected())
    }

    async fn held_keys(
        &self,
        consumer: Option<&ConsumerName>,
        limit: usize,
    ) -> Result<Vec<HeldKey>, StoreError> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let select = sqlx::query(KEYS).bind(consumer.map(AsRef::as_ref)).bind(limit);
        let rows = self.limited("reading held keys", select.fetch_all(self.pool())).await?;
        rows.iter().map(key).collect::<Result<_, _>>().map_err(unreadable)
    }
}

impl Postgres {
    async fn write_held(
        &self,
        sql: &'static str,
        consumer: &ConsumerName,
        events: Vec<HeldEvent>,
    ) -> Result<(), StoreError> {
        fn column<'a, T>(events: &'a [HeldEvent], of: impl Fn(&'a HeldEvent) -> T) -> Vec<T> {
            events.iter().map(of).collect()
        }
        if events.is_empty() {
            return Ok(());
        }
        let heads = events.iter().map(|event| pack(&event.message)).collect::<Result<Vec<_>, _>>()?;
        let write = sqlx::query(sql)
            .bind(consumer.as_str())
            .bind(column(&events, |event| event.key.as_str()))
            .bind(column(&events, |event| event.event_id.as_str()))
            .bind(column(&events, |event| event.state.as_str()))
            .bind(column(&events, |event| i32::try_from(event.attempt).unwrap_or(i32::MAX)))
            .bind(column(&events, |event| micros(event.delay)))
            // PostgreSQL keeps no NUL in text.
            .bind(column(&events, |event| event.error.replace('\0', "\u{fffd}")))
            .bind(column(&events, |event| event.exchange.as_str()))
            .bind(column(&events, |event| event.routing_key.as_str()))
            .bind(heads)
            .bind(column(&events, |event| event.message.body.as_ref()))
            .bind(column(&events, |event| event.letter.as_deref()));
        self.limited("holding events", write.execute(self.pool())).await?;
        Ok(())
    }
}

/// No longer than a hundred years: an interval has its limits.
fn micros(duration: Duration) -> i64 {
    const CENTURY: i64 = 100 * 366 * 86_400 * 1_000_000;
    i64::try_from(duration.as_micros()).unwrap_or(CENTURY).min(CENTURY)
}

type Unreadable = Box<dyn std::error::Error + Send + Sync>;

fn event(row: &PgRow) -> Result<HeldEvent, Unreadable> {
    Ok(HeldEvent {
        event_id: EventId::new(row.try_get::<String, _>(0)?)?,
        key: OrderingKey::new(row.try_get::<String, _>(1)?)?,
        state: HeldState::from_word(row.try_get(2)?),
        attempt: u32::try_from(row.try_get::<i32, _>(3)?)?,
        delay: Duration::ZERO,
        error: row.try_get(4)?,
        letter: row.try_get(9)?,
        exchange: ExchangeName::new(row.try_get::<String, _>(5)?)?,
        routing_key: RoutingKey::new(row.try_get::<String, _>(6)?)?,
        message: unpack(row.try_get(7)?, row.try_get(8)?)?,
    })
}

fn key(row: &PgRow) -> Result<HeldKey, Unreadable> {
    Ok(HeldKey {
        consumer: ConsumerName::new(row.try_get::<String, _>(0)?)?,
        key: OrderingKey::new(row.try_get::<String, _>(1)?)?,
        events: u64::try_from(row.try_get::<i64, _>(2)?)?,
        head: EventId::new(row.try_get::<String, _>(3)?)?,
        state: HeldState::from_word(row.try_get(4)?),
        attempt: u32::try_from(row.try_get::<i32, _>(5)?)?,
        due_at: row.try_get::<jiff_sqlx::Timestamp, _>(6)?.to_jiff(),
        since: row.try_get::<jiff_sqlx::Timestamp, _>(7)?.to_jiff(),
        error: row.try_get(8)?,
    })
}

fn unreadable(cause: Unreadable) -> StoreError {
    let message =
        format!("a row of held_event cannot be read: {cause}; it was changed by hand or by a newer binary");
    StoreError::new(StoreErrorKind::Other, message).because(cause)
}
