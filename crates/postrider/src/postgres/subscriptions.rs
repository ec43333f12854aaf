//! Push subscriptions on PostgreSQL.

use jiff::Timestamp;
use jiff_sqlx::ToSqlx as _;
use sqlx::Row as _;
use sqlx::postgres::PgRow;

use super::Postgres;
use crate::envelope::EventId;
use crate::push::{Attempt, SigningSecret, Subscription};
use crate::store::{KEPT_ATTEMPTS, StoreError, StoreErrorKind, StoredSubscription, Subscriptions};
use crate::topology::ConsumerName;

const CREATE: &str = "WITH made AS ( \
         INSERT INTO postrider.push_subscription (name, settings, created_by) VALUES ($1, $2::jsonb, $3) \
         ON CONFLICT DO NOTHING RETURNING name), \
     signed AS (INSERT INTO postrider.push_secret (subscription, secret) SELECT name, $4 FROM made WHERE $4 IS NOT NULL) \
     INSERT INTO postrider.audit_log (actor, action, subject, reason) \
     SELECT $3, 'push.add', name, NULLIF($5, '') FROM made";

const REMOVE: &str = "WITH gone AS (DELETE FROM postrider.push_subscription WHERE name = $1 RETURNING name) \
     INSERT INTO postrider.audit_log (actor, action, subject, reason) \
     SELECT $2, 'push.remove', name, NULLIF($3, '') FROM gone";

const ALL: &str = "SELECT s.settings::text, s.version, s.created_by, s.created_at, \
         (SELECT count(*) FROM postrider.push_secret \
          WHERE subscription = s.name AND (expires_at IS NULL OR expires_at > now())) \
     FROM postrider.push_subscription s ORDER BY s.name COLLATE \"C\"";

const ROTATE: &str = "WITH changed AS ( \
         UPDATE postrider.push_subscription SET version = version + 1, updated_at = now() WHERE name = $1 RETURNING name), \
     ending AS (UPDATE postrider.push_secret SET expires_at = LEAST(expires_at, $3) FROM changed \
         WHERE subscription = changed.name AND (expires_at IS NULL OR expires_at > $3)), \
     signed AS (INSERT INTO postrider.push_secret (subscription, secret) SELECT name, $2 FROM changed) \
     INSERT INTO postrider.audit_log (actor, action, subject, reason) \
     SELECT $4, 'push.rotate-secret', name, NULLIF($5, '') FROM changed";

const SECRETS: &str = "SELECT secret FROM postrider.push_secret \
     WHERE subscription = $1 AND (expires_at IS NULL OR expires_at > now()) ORDER BY no DESC";

/// The two limits are worked out once each. Looked for from each row, as one question with `old.error` in it, they cost 1,000 rows for every
/// row there is, every second.
const RECORD: &str = "WITH recorded AS ( \
         INSERT INTO postrider.push_attempt (consumer_name, event_id, attempt, at, took_ms, status, error, answer) \
         SELECT $1, * FROM UNNEST($2::text[], $3::int[], $4::timestamptz[], $5::bigint[], $6::int[], $7::text[], $8::text[])) \
     DELETE FROM postrider.push_attempt WHERE consumer_name = $1 AND no <= CASE WHEN error IS NULL \
         THEN (SELECT no FROM postrider.push_attempt \
               WHERE consumer_name = $1 AND error IS NULL ORDER BY no DESC OFFSET $9 LIMIT 1) \
         ELSE (SELECT no FROM postrider.push_attempt \
               WHERE consumer_name = $1 AND error IS NOT NULL ORDER BY no DESC OFFSET $9 LIMIT 1) END";

const ATTEMPTS: &str = "SELECT event_id, attempt, at, took_ms, status, error, answer FROM postrider.push_attempt \
     WHERE consumer_name = $1 AND ($2::text IS NULL OR event_id = $2) ORDER BY no DESC LIMIT $3";

/// A probe of the key for each name: however many attempts there are, one row of each is read.
const LAST: &str = "SELECT tried.event_id, tried.attempt, tried.at, tried.took_ms, tried.status, tried.error, tried.answer, asked.name \
     FROM UNNEST($1::text[]) AS asked (name) CROSS JOIN LATERAL ( \
         SELECT event_id, attempt, at, took_ms, status, error, answer FROM postrider.push_attempt \
         WHERE consumer_name = asked.name ORDER BY no DESC LIMIT 1) tried";

impl Subscriptions for Postgres {
    async fn create_subscription(
        &self,
        subscription: &Subscription,
        secret: Option<&SigningSecret>,
        by: &str,
        reason: &str,
    ) -> Result<bool, StoreError> {
        let settings = serde_json::to_string(subscription).map_err(|error| {
            StoreError::new(StoreErrorKind::Other, format!("the subscription cannot be written: {error}"))
        })?;
        let write = sqlx::query(CREATE)
            .bind(subscription.name.as_str())
            .bind(settings)
            .bind(by)
            .bind(secret.map(SigningSecret::reveal))
            .bind(reason);
        let done = self.limited("storing a push subscription", write.execute(self.pool())).await?;
        Ok(done.rows_affected() > 0)
    }

    async fn remove_subscription(
        &self,
        name: &ConsumerName,
        by: &str,
        reason: &str,
    ) -> Result<bool, StoreError> {
        let write = sqlx::query(REMOVE).bind(name.as_str()).bind(by).bind(reason);
        let done = self.limited("removing a push subscription", write.execute(self.pool())).await?;
        Ok(done.rows_affected() > 0)
    }

    async fn subscriptions(&self) -> Result<Vec<StoredSubscription>, StoreError> {
        let read = sqlx::query(ALL).fetch_all(self.pool());
        let rows = self.limited("reading the push subscriptions", read).await?;
        rows.iter().map(stored).collect()
    }

    async fn rotate_secret(
        &self,
        name: &ConsumerName,
        secret: &SigningSecret,
        old_until: Timestamp,
        by: &str,
        reason: &str,
    ) -> Result<bool, StoreError> {
        let write = sqlx::query(ROTATE).bind(name.as_str()).bind(secret.reveal());
        let write = write.bind(old_until.to_sqlx()).bind(by).bind(reason);
        let done = self.limited("rotating a signing secret", write.execute(self.pool())).await?;
        Ok(done.rows_affected() > 0)
    }

    async fn signing_secrets(&self, name: &ConsumerName) -> Result<Vec<SigningSecret>, StoreError> {
        let select = sqlx::query_scalar(SECRETS).bind(name.as_str());
        let secrets: Vec<String> =
            self.limited("reading what signs requests", select.fetch_all(self.pool())).await?;
        secrets.iter().map(|text| SigningSecret::parse(text).map_err(|_| unreadable(name.as_str()))).collect()
    }

    async fn record_attempts(
        &self,
        consumer: &ConsumerName,
        attempts: Vec<Attempt>,
    ) -> Result<(), StoreError> {
        let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        let events: Vec<&str> = attempts.iter().map(|one| one.event_id.as_str()).collect();
        let numbers: Vec<i32> =
            attempts.iter().map(|one| i32::try_from(one.attempt).unwrap_or(i32::MAX)).collect();
        let times: Vec<_> = attempts.iter().map(|one| one.at.to_sqlx()).collect();
        let took: Vec<i64> = attempts.iter().map(|one| number(one.took_ms)).collect();
        let statuses: Vec<Option<i32>> = attempts.iter().map(|one| one.status.map(i32::from)).collect();
        let errors: Vec<Option<&str>> = attempts.iter().map(|one| one.error.as_deref()).collect();
        let answers: Vec<&str> = attempts.iter().map(|one| one.answer.as_str()).collect();
        let write = sqlx::query(RECORD)
            .bind(consumer.as_str())
            .bind(events)
            .bind(numbers)
            .bind(times)
            .bind(took)
            .bind(statuses)
            .bind(errors)
            .bind(answers)
            .bind(i64::try_from(KEPT_ATTEMPTS).unwrap_or(i64::MAX));
        self.limited("recording attempts", write.execute(self.pool())).await?;
        Ok(())
    }

    async fn attempts(
        &self,
        consumer: &ConsumerName,
        event: Option<&EventId>,
        limit: u32,
    ) -> Result<Vec<Attempt>, StoreError> {
        let select = sqlx::query(ATTEMPTS)
            .bind(consumer.as_str())
            .bind(event.map(EventId::as_str))
            .bind(i64::from(limit));
        let rows = self.limited("reading attempts", select.fetch_all(self.pool())).await?;
        rows.iter().map(|row| attempt(row, consumer).ok_or_else(|| unreadable(consumer.as_str()))).collect()
    }

    async fn last_attempts(&self, consumers: &[ConsumerName]) -> Result<Vec<Attempt>, StoreError> {
        let names: Vec<&str> = consumers.iter().map(ConsumerName::as_str).collect();
        let select = sqlx::query(LAST).bind(names).fetch_all(self.pool());
        let rows = self.limited("reading the last attempts", select).await?;
        let read = |row: &PgRow| attempt(row, &ConsumerName::new(row.try_get::<String, _>(7).ok()?).ok()?);
        rows.iter().map(|row| read(row).ok_or_else(|| unreadable("an attempt"))).collect()
    }
}

fn stored(row: &PgRow) -> Result<StoredSubscription, StoreError> {
    let read = || -> Option<StoredSubscription> {
        Some(StoredSubscription {
            subscription: serde_json::from_str(row.try_get(0).ok()?).ok()?,
            version: u64::try_from(row.try_get::<i64, _>(1).ok()?).ok()?,
            created_by: row.try_get(2).ok()?,
            created_at: row.try_get::<jiff_sqlx::Timestamp, _>(3).ok()?.to_jiff(),
            secrets: u32::try_from(row.try_get::<i64, _>(4).ok()?).ok()?,
        })
    };
    read().ok_or_else(|| unreadable("of a row"))
}

fn attempt(row: &PgRow, consumer: &ConsumerName) -> Option<Attempt> {
    Some(Attempt {
        consumer: consumer.clone(),
        event_id: EventId::new(row.try_get::<String, _>(0).ok()?).ok()?,
        attempt: u32::try_from(row.try_get::<i32, _>(1).ok()?).ok()?,
        at: row.try_get::<jiff_sqlx::Timestamp, _>(2).ok()?.to_jiff(),
        took_ms: u64::try_from(row.try_get::<i64, _>(3).ok()?).ok()?,
        status: row.try_get::<Option<i32>, _>(4).ok()?.and_then(|status| u16::try_from(status).ok()),
        error: row.try_get(5).ok()?,
        answer: row.try_get(6).ok()?,
    })
}

fn unreadable(what: &str) -> StoreError {
    let text = format!(
        "what postrider.push_subscription, push_secret or push_attempt have of {what} cannot be read; it was not written by \
         this version"
    );
    StoreError::new(StoreErrorKind::Other, text)
}
