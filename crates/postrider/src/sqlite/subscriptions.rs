//! Push subscriptions on SQLite.

use futures_util::FutureExt as _;
use jiff::Timestamp;
use sqlx::{AssertSqlSafe, SqliteConnection};

use super::Sqlite;
use super::controls::{log, said};
use super::error::from_sqlite;
use super::outbox::time;
use crate::envelope::EventId;
use crate::push::{Attempt, SigningSecret, Subscription};
use crate::store::{KEPT_ATTEMPTS, StoreError, StoreErrorKind, StoredSubscription, Subscriptions};
use crate::topology::ConsumerName;

impl Subscriptions for Sqlite {
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
        let change = self.change(&subscription.name, by);
        let (secret, reason) = (secret.cloned(), reason.to_owned());
        self.writer().run(|connection| create(connection, change, settings, secret, reason).boxed()).await
    }

    async fn remove_subscription(
        &self,
        name: &ConsumerName,
        by: &str,
        reason: &str,
    ) -> Result<bool, StoreError> {
        let (change, reason) = (self.change(name, by), reason.to_owned());
        self.writer().run(|connection| remove(connection, change, reason).boxed()).await
    }

    async fn subscriptions(&self) -> Result<Vec<StoredSubscription>, StoreError> {
        let select = "SELECT settings, version, created_by, created_at, \
                          (SELECT count(*) FROM push_secret WHERE subscription = name AND (expires_at IS NULL OR expires_at > ?)) \
                      FROM push_subscription ORDER BY name";
        let now = self.clock().now().as_microsecond();
        let rows: Vec<(String, i64, String, i64, i64)> =
            sqlx::query_as(select).bind(now).fetch_all(self.readers()).await.map_err(from_sqlite)?;
        let read = |(settings, version, created_by, created_at, secrets): (String, i64, String, i64, i64)| {
            Ok(StoredSubscription {
                subscription: serde_json::from_str(&settings).map_err(|_| unreadable("a subscription"))?,
                version: u64::try_from(version).unwrap_or(0),
                secrets: u32::try_from(secrets).unwrap_or(0),
                created_by,
                created_at: time(created_at),
            })
        };
        rows.into_iter().map(read).collect()
    }

    async fn rotate_secret(
        &self,
        name: &ConsumerName,
        secret: &SigningSecret,
        old_until: Timestamp,
        by: &str,
        reason: &str,
    ) -> Result<bool, StoreError> {
        let (change, secret, until) = (self.change(name, by), secret.clone(), old_until.as_microsecond());
        let reason = reason.to_owned();
        self.writer().run(move |connection| rotate(connection, change, secret, until, reason).boxed()).await
    }

    async fn signing_secrets(&self, name: &ConsumerName) -> Result<Vec<SigningSecret>, StoreError> {
        let select = "SELECT secret FROM push_secret \
                      WHERE subscription = ? AND (expires_at IS NULL OR expires_at > ?) ORDER BY \"no\" DESC";
        let select = sqlx::query_scalar(select).bind(name.as_str()).bind(self.clock().now().as_microsecond());
        let secrets: Vec<String> = select.fetch_all(self.readers()).await.map_err(from_sqlite)?;
        secrets.iter().map(|text| SigningSecret::parse(text).map_err(|_| unreadable("a secret"))).collect()
    }

    async fn record_attempts(
        &self,
        consumer: &ConsumerName,
        attempts: Vec<Attempt>,
    ) -> Result<(), StoreError> {
        let consumer = consumer.to_string();
        self.writer().run(|connection| record(connection, consumer, attempts).boxed()).await
    }

    async fn attempts(
        &self,
        consumer: &ConsumerName,
        event: Option<&EventId>,
        limit: u32,
    ) -> Result<Vec<Attempt>, StoreError> {
        let select = "SELECT event_id, attempt, at, took_ms, status, error, answer FROM push_attempt \
                      WHERE consumer_name = ?1 AND (?2 IS NULL OR event_id = ?2) ORDER BY \"no\" DESC LIMIT ?3";
        let select =
            sqlx::query_as(select).bind(consumer.as_str()).bind(event.map(EventId::as_str)).bind(limit);
        let rows: Vec<Tried> = select.fetch_all(self.readers()).await.map_err(from_sqlite)?;
        rows.into_iter().map(|row| attempt(row, consumer)).collect()
    }

    /// A question each: in one file, without a round trip, that is no more than one about all of them.
    async fn last_attempts(&self, consumers: &[ConsumerName]) -> Result<Vec<Attempt>, StoreError> {
        let mut last = Vec::new();
        for consumer in consumers {
            last.extend(self.attempts(consumer, None, 1).await?);
        }
        Ok(last)
    }
}

/// An attempt as its table has it.
type Tried = (String, u32, i64, i64, Option<u16>, Option<String>, String);

fn attempt(
    (event_id, attempt, at, took_ms, status, error, answer): Tried,
    consumer: &ConsumerName,
) -> Result<Attempt, StoreError> {
    Ok(Attempt {
        consumer: consumer.clone(),
        event_id: EventId::new(event_id).map_err(|_| unreadable("an attempt"))?,
        attempt,
        at: time(at),
        took_ms: u64::try_from(took_ms).unwrap_or(0),
        status,
        error,
        answer,
    })
}

/// Who changes which subscription, and when.
struct Change {
    name: String,
    by: String,
    now: i64,
}

impl Sqlite {
    fn change(&self, name: &ConsumerName, by: &str) -> Change {
        Change { name: name.to_string(), by: by.to_owned(), now: self.clock().now().as_microsecond() }
    }
}

async fn create(
    connection: &mut SqliteConnection,
    change: Change,
    settings: String,
    secret: Option<SigningSecret>,
    reason: String,
) -> Result<bool, StoreError> {
    let Change { name, by, now } = change;
    let insert = "INSERT INTO push_subscription (name, settings, created_by, created_at, updated_at) \
                  VALUES (?, ?, ?, ?4, ?4) ON CONFLICT DO NOTHING";
    let insert = sqlx::query(insert).bind(&name).bind(settings).bind(&by).bind(now);
    if insert.execute(&mut *connection).await.map_err(from_sqlite)?.rows_affected() == 0 {
        return Ok(false);
    }
    if let Some(secret) = secret {
        keep_secret(connection, &name, &secret, now).await?;
    }
    log(connection, now, &by, "push.add", &name, said(&reason)).await?;
    Ok(true)
}

async fn remove(
    connection: &mut SqliteConnection,
    change: Change,
    reason: String,
) -> Result<bool, StoreError> {
    let Change { name, by, now } = change;
    let delete = sqlx::query("DELETE FROM push_subscription WHERE name = ?").bind(&name);
    if delete.execute(&mut *connection).await.map_err(from_sqlite)?.rows_affected() == 0 {
        return Ok(false);
    }
    let delete = sqlx::query("DELETE FROM push_secret WHERE subscription = ?").bind(&name);
    delete.execute(&mut *connection).await.map_err(from_sqlite)?;
    log(connection, now, &by, "push.remove", &name, said(&reason)).await?;
    Ok(true)
}

async fn rotate(
    connection: &mut SqliteConnection,
    change: Change,
    secret: SigningSecret,
    until: i64,
    reason: String,
) -> Result<bool, StoreError> {
    let Change { name, by, now } = change;
    let update = "UPDATE push_subscription SET version = version + 1, updated_at = ? WHERE name = ?";
    let update = sqlx::query(update).bind(now).bind(&name);
    if update.execute(&mut *connection).await.map_err(from_sqlite)?.rows_affected() == 0 {
        return Ok(false);
    }
    let ending = "UPDATE push_secret SET expires_at = ?1 \
                  WHERE subscription = ?2 AND (expires_at IS NULL OR expires_at > ?1)";
    let ending = sqlx::query(ending).bind(until).bind(&name);
    ending.execute(&mut *connection).await.map_err(from_sqlite)?;
    keep_secret(connection, &name, &secret, now).await?;
    log(connection, now, &by, "push.rotate-secret", &name, said(&reason)).await?;
    Ok(true)
}

async fn keep_secret(
    connection: &mut SqliteConnection,
    name: &str,
    secret: &SigningSecret,
    now: i64,
) -> Result<(), StoreError> {
    let insert = "INSERT INTO push_secret (subscription, secret, created_at) VALUES (?, ?, ?)";
    let insert = sqlx::query(insert).bind(name).bind(secret.reveal()).bind(now);
    insert.execute(connection).await.map(|_| ()).map_err(from_sqlite)
}

async fn record(
    connection: &mut SqliteConnection,
    consumer: String,
    attempts: Vec<Attempt>,
) -> Result<(), StoreError> {
    let insert = "INSERT INTO push_attempt (consumer_name, event_id, attempt, at, took_ms, status, error, answer) \
                  VALUES (?, ?, ?, ?, ?, ?, ?, ?)";
    for attempt in attempts {
        let insert = sqlx::query(insert)
            .bind(&consumer)
            .bind(attempt.event_id.as_str())
            .bind(attempt.attempt)
            .bind(attempt.at.as_microsecond())
            .bind(i64::try_from(attempt.took_ms).unwrap_or(i64::MAX))
            .bind(attempt.status)
            .bind(attempt.error)
            .bind(attempt.answer);
        insert.execute(&mut *connection).await.map_err(from_sqlite)?;
    }
    for kind in ["error IS NULL", "error IS NOT NULL"] {
        let forget = format!(
            "DELETE FROM push_attempt WHERE consumer_name = ?1 AND {kind} AND \"no\" <= ( \
             SELECT \"no\" FROM push_attempt WHERE consumer_name = ?1 AND {kind} ORDER BY \"no\" DESC LIMIT 1 OFFSET ?2)"
        );
        let most = i64::try_from(KEPT_ATTEMPTS).unwrap_or(i64::MAX);
        let forget = sqlx::query(AssertSqlSafe(forget)).bind(&consumer).bind(most);
        forget.execute(&mut *connection).await.map_err(from_sqlite)?;
    }
    Ok(())
}

fn unreadable(what: &str) -> StoreError {
    let text = format!("{what} in the SQLite file cannot be read; it was not written by this version");
    StoreError::new(StoreErrorKind::Other, text)
}
