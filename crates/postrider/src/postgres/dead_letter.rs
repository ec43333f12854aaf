//! Dead letters on PostgreSQL: nothing of them is lost, not even a NUL.

use std::borrow::Cow;
use std::ops::Range;

use jiff_sqlx::ToSqlx as _;
use serde::{Deserialize, Serialize};
use sqlx::postgres::PgRow;
use sqlx::{PgPool, Row as _};

use super::Postgres;
use crate::broker::{Headers, Properties};
use crate::envelope::{AggregateId, EventId, OrderingKey, TenantId};
use crate::store::{DeadLetter, DeadLetters, StoreError, StoreErrorKind};
use crate::topology::{ConsumerName, QueueName};

const COLLECT: &str = "INSERT INTO postrider.dead_letter (key, event_id, event_type, group_id, consumer_name, queue, \
     exchange, routing_key, reason, error, error_class, attempts, first_failed_at, dead_at, properties, headers, body, \
     exact, aggregate_id, ordering_key, fingerprint, replay_of, replays) \
     SELECT key, event_id, event_type, group_id, consumer_name, queue, exchange, routing_key, reason, error, error_class, \
     attempts, first_failed_at, dead_at, properties::jsonb, headers::jsonb, body, exact, aggregate_id, ordering_key, \
     fingerprint, replay_of, replays \
     FROM UNNEST($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], \
     $9::text[], $10::text[], $11::text[], $12::int[], $13::timestamptz[], $14::timestamptz[], $15::text[], $16::text[], \
     $17::bytea[], $18::bytea[], $19::text[], $20::text[], $21::text[], $22::bigint[], $23::int[]) AS letter (key, \
     event_id, event_type, group_id, consumer_name, queue, exchange, routing_key, reason, error, error_class, attempts, \
     first_failed_at, dead_at, properties, headers, body, exact, aggregate_id, ordering_key, fingerprint, replay_of, \
     replays) \
     ON CONFLICT (key) DO NOTHING";

/// Bytes that one statement stores. Hundreds of letters of a megabyte each take longer than a statement may, and then they would be
/// tried all together again, for ever.
const PART: usize = 8 << 20;

/// Runs of at most so many bytes, or of one that has more.
fn parts(sizes: &[usize], most: usize) -> Vec<Range<usize>> {
    let (mut parts, mut start, mut bytes) = (Vec::new(), 0, 0_usize);
    for (place, size) in sizes.iter().enumerate() {
        if place > start && bytes.saturating_add(*size) > most {
            parts.push(start..place);
            (start, bytes) = (place, 0);
        }
        bytes = bytes.saturating_add(*size);
    }
    if start < sizes.len() {
        parts.push(start..sizes.len());
    }
    parts
}

/// What is needed to read a whole letter.
macro_rules! whole {
    () => {
        "key, event_id, event_type, group_id, aggregate_id, ordering_key, consumer_name, queue, exchange, routing_key, \
         reason, error, error_class, attempts, first_failed_at, dead_at, properties::text AS properties, \
         headers::text AS headers, body, exact"
    };
}
pub(super) use whole;

const NEWEST: &str = concat!(
    "SELECT ",
    whole!(),
    " FROM postrider.dead_letter WHERE status = 'open' ORDER BY dead_at DESC, id DESC LIMIT $1"
);

impl DeadLetters for Postgres {
    async fn collect(&self, mut letters: Vec<DeadLetter>) -> Result<(), StoreError> {
        if letters.is_empty() {
            return Ok(());
        }
        // Sorted, so that two collectors with the same letters wait for each other instead of deadlocking.
        letters.sort_by(|a, b| a.key.cmp(&b.key));
        let tables = letters.iter().map(Tables::of).collect::<Result<Vec<_>, _>>().map_err(|cause| {
            StoreError::new(
                StoreErrorKind::Other,
                format!("the headers of a dead letter cannot be written: {cause}"),
            )
        })?;
        let sizes: Vec<_> = letters.iter().map(|letter| letter.body.len() + letter.error.len()).collect();
        // What is stored when a later part fails is known when all of them come again.
        for part in parts(&sizes, PART) {
            let storing = insert(self.pool(), &letters[part.clone()], &tables[part]);
            self.limited("storing dead letters", storing).await?;
        }
        Ok(())
    }

    async fn dead_letters(&self, limit: usize) -> Result<Vec<DeadLetter>, StoreError> {
        let select = sqlx::query(NEWEST).bind(i64::try_from(limit).unwrap_or(i64::MAX));
        let rows = self.limited("reading dead letters", select.fetch_all(self.pool())).await?;
        rows.iter().map(dead_letter).collect::<Result<_, _>>().map_err(unreadable)
    }
}

pub(super) fn unreadable(cause: Unreadable) -> StoreError {
    let message =
        format!("a row of dead_letter cannot be read: {cause}; it was changed by hand or by a newer binary");
    StoreError::new(StoreErrorKind::Other, message).because(cause)
}

/// Everything of a dead letter in which a NUL may stand, as it was.
#[derive(Serialize, Deserialize)]
struct Exact<'a> {
    key: Cow<'a, str>,
    event_type: Option<Cow<'a, str>>,
    exchange: Cow<'a, str>,
    routing_key: Cow<'a, str>,
    reason: Cow<'a, str>,
    error: Cow<'a, str>,
    error_class: Option<Cow<'a, str>>,
    properties: Cow<'a, Properties>,
    headers: Cow<'a, Headers>,
}

impl<'a> Exact<'a> {
    fn of(letter: &'a DeadLetter) -> Self {
        Self {
            key: Cow::Borrowed(&letter.key),
            event_type: letter.event_type.as_deref().map(Cow::Borrowed),
            exchange: Cow::Borrowed(&letter.exchange),
            routing_key: Cow::Borrowed(&letter.routing_key),
            reason: Cow::Borrowed(&letter.reason),
            error: Cow::Borrowed(&letter.error),
            error_class: letter.error_class.as_deref().map(Cow::Borrowed),
            properties: Cow::Borrowed(&letter.properties),
            headers: Cow::Borrowed(&letter.headers),
        }
    }

    fn texts(&self) -> impl Iterator<Item = &str> {
        let always = [&self.key, &self.exchange, &self.routing_key, &self.reason, &self.error];
        let maybe = [self.event_type.as_ref(), self.error_class.as_ref()];
        always.into_iter().chain(maybe.into_iter().flatten()).map(AsRef::as_ref)
    }
}

/// Properties and headers as jsonb takes them; and the exact texts, if a NUL stands anywhere.
struct Tables {
    properties: String,
    headers: String,
    exact: Option<Vec<u8>>,
}

impl Tables {
    fn of(letter: &DeadLetter) -> Result<Self, serde_json::Error> {
        const NUL: &str = "\\u0000";
        const SHOWN: &str = "\\ufffd";
        let mut properties = serde_json::to_string(&letter.properties)?;
        let mut headers = serde_json::to_string(&letter.headers)?;
        let exact = Exact::of(letter);
        let has_nul = exact.texts().any(|text| text.contains('\0'))
            || properties.contains(NUL)
            || headers.contains(NUL);
        // Hardly any has one, and to write all of it once more costs as much as the rest.
        if !has_nul {
            return Ok(Self { properties, headers, exact: None });
        }
        properties = properties.replace(NUL, SHOWN);
        headers = headers.replace(NUL, SHOWN);
        Ok(Self { properties, headers, exact: Some(serde_json::to_vec(&exact)?) })
    }
}

/// Text as PostgreSQL takes it.
fn shown(text: &str) -> Cow<'_, str> {
    if text.contains('\0') { Cow::Owned(text.replace('\0', "\u{fffd}")) } else { Cow::Borrowed(text) }
}

async fn insert(pool: &PgPool, letters: &[DeadLetter], tables: &[Tables]) -> Result<(), sqlx::Error> {
    fn column<'a, T>(letters: &'a [DeadLetter], of: impl Fn(&'a DeadLetter) -> T) -> Vec<T> {
        letters.iter().map(of).collect()
    }
    let text = |of: fn(&DeadLetter) -> &str| column(letters, move |letter| shown(of(letter)));
    let maybe = |of: fn(&DeadLetter) -> Option<&str>| column(letters, move |letter| of(letter).map(shown));

    sqlx::query(COLLECT)
        .bind(text(|letter| &letter.key))
        .bind(maybe(|letter| letter.event_id.as_ref().map(AsRef::as_ref)))
        .bind(maybe(|letter| letter.event_type.as_deref()))
        .bind(maybe(|letter| letter.tenant.as_ref().map(AsRef::as_ref)))
        .bind(maybe(|letter| letter.consumer.as_ref().map(AsRef::as_ref)))
        .bind(text(|letter| letter.queue.as_str()))
        .bind(text(|letter| &letter.exchange))
        .bind(text(|letter| &letter.routing_key))
        .bind(text(|letter| &letter.reason))
        .bind(text(|letter| &letter.error))
        .bind(maybe(|letter| letter.error_class.as_deref()))
        .bind(column(letters, |letter| i32::try_from(letter.attempts).unwrap_or(i32::MAX)))
        .bind(column(letters, |letter| letter.first_failed_at.to_sqlx()))
        .bind(column(letters, |letter| letter.dead_at.to_sqlx()))
        .bind(tables.iter().map(|table| table.properties.as_str()).collect::<Vec<_>>())
        .bind(tables.iter().map(|table| table.headers.as_str()).collect::<Vec<_>>())
        .bind(column(letters, |letter| letter.body.as_ref()))
        .bind(tables.iter().map(|table| table.exact.as_deref()).collect::<Vec<_>>())
        .bind(maybe(|letter| letter.aggregate_id.as_ref().map(AsRef::as_ref)))
        .bind(maybe(|letter| letter.ordering_key.as_ref().map(AsRef::as_ref)))
        .bind(column(letters, DeadLetter::fingerprint))
        .bind(column(letters, |letter| letter.replay_of().map(|id| id.0)))
        .bind(column(letters, |letter| i32::try_from(letter.replays()).unwrap_or(i32::MAX)))
        .execute(pool)
        .await?;
    Ok(())
}

pub(super) type Unreadable = Box<dyn std::error::Error + Send + Sync>;

pub(super) fn dead_letter(row: &PgRow) -> Result<DeadLetter, Unreadable> {
    let text = |column: &str| row.try_get::<String, _>(column);
    let maybe = |column: &str| row.try_get::<Option<String>, _>(column);
    let time = |column: &str| Ok::<_, sqlx::Error>(row.try_get::<jiff_sqlx::Timestamp, _>(column)?.to_jiff());
    let mut letter = DeadLetter {
        key: text("key")?,
        event_id: maybe("event_id")?.map(EventId::new).transpose()?,
        event_type: maybe("event_type")?,
        tenant: maybe("group_id")?.map(TenantId::new).transpose()?,
        aggregate_id: maybe("aggregate_id")?.map(AggregateId::new).transpose()?,
        ordering_key: maybe("ordering_key")?.map(OrderingKey::new).transpose()?,
        consumer: maybe("consumer_name")?.map(ConsumerName::new).transpose()?,
        queue: QueueName::new(text("queue")?)?,
        exchange: text("exchange")?,
        routing_key: text("routing_key")?,
        reason: text("reason")?,
        error: text("error")?,
        error_class: maybe("error_class")?,
        attempts: u32::try_from(row.try_get::<i32, _>("attempts")?)?,
        first_failed_at: time("first_failed_at")?,
        dead_at: time("dead_at")?,
        properties: serde_json::from_str(row.try_get("properties")?)?,
        headers: serde_json::from_str(row.try_get("headers")?)?,
        body: row.try_get::<Vec<u8>, _>("body")?.into(),
    };
    if let Some(exact) = row.try_get::<Option<&[u8]>, _>("exact")? {
        let exact: Exact = serde_json::from_slice(exact)?;
        letter.key = exact.key.into_owned();
        letter.event_type = exact.event_type.map(Cow::into_owned);
        letter.exchange = exact.exchange.into_owned();
        letter.routing_key = exact.routing_key.into_owned();
        letter.reason = exact.reason.into_owned();
        letter.error = exact.error.into_owned();
        letter.error_class = exact.error_class.map(Cow::into_owned);
        letter.properties = exact.properties.into_owned();
        letter.headers = exact.headers.into_owned();
    }
    Ok(letter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_has_so_many_bytes_or_one_letter() {
        assert!(parts(&[], 10).is_empty());
        assert_eq!(parts(&[1, 2, 3], 10), vec![0..3; 1]);
        assert_eq!(parts(&[5, 5, 1, 30, 30, 1, 9], 10), [0..2, 2..3, 3..4, 4..5, 5..7]);
        assert_eq!(parts(&[0; 500], 10), vec![0..500; 1]);
    }
}
