//! The table of dead letters on SQLite.

use futures_util::FutureExt as _;
use sqlx::sqlite::SqliteRow;
use sqlx::{Row as _, SqliteConnection};

use super::Sqlite;
use super::error::from_sqlite;
use super::outbox::time;
use crate::store::{DeadLetter, DeadLetters, StoreError, StoreErrorKind};

/// What is needed to read a whole letter.
macro_rules! whole {
    () => {
        "\"key\", event_id, event_type, group_id, aggregate_id, ordering_key, consumer_name, queue, exchange, routing_key, \
         reason, error, error_class, attempts, first_failed_at, dead_at, properties, headers, body"
    };
}
pub(super) use whole;

impl DeadLetters for Sqlite {
    async fn collect(&self, letters: Vec<DeadLetter>) -> Result<(), StoreError> {
        if letters.is_empty() {
            return Ok(());
        }
        self.writer().run(|connection| collect(connection, letters).boxed()).await
    }

    async fn dead_letters(&self, limit: usize) -> Result<Vec<DeadLetter>, StoreError> {
        let select = concat!(
            "SELECT ",
            whole!(),
            " FROM dead_letter WHERE status = 'open' ORDER BY dead_at DESC, id DESC LIMIT ?"
        );
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let rows = sqlx::query(select).bind(limit).fetch_all(self.readers()).await.map_err(from_sqlite)?;
        rows.iter().map(read).collect()
    }
}

async fn collect(connection: &mut SqliteConnection, letters: Vec<DeadLetter>) -> Result<(), StoreError> {
    let insert = r#"
        INSERT INTO dead_letter ("key", event_id, event_type, group_id, consumer_name, queue, exchange, routing_key, reason,
            error, error_class, fingerprint, attempts, first_failed_at, dead_at, properties, headers, body, aggregate_id,
            ordering_key, replay_of, replays)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
        ON CONFLICT ("key") DO NOTHING"#;
    for letter in letters {
        let fingerprint = letter.fingerprint();
        let (replay_of, replays) = (letter.replay_of().map(|id| id.0), letter.replays());
        let properties = serde_json::to_string(&letter.properties).map_err(unwritable)?;
        let headers = serde_json::to_string(&letter.headers).map_err(unwritable)?;
        sqlx::query(insert)
            .bind(letter.key)
            .bind(letter.event_id.map(String::from))
            .bind(letter.event_type)
            .bind(letter.tenant.map(String::from))
            .bind(letter.consumer.map(String::from))
            .bind(String::from(letter.queue))
            .bind(letter.exchange)
            .bind(letter.routing_key)
            .bind(letter.reason)
            .bind(letter.error)
            .bind(letter.error_class)
            .bind(fingerprint)
            .bind(letter.attempts)
            .bind(letter.first_failed_at.as_microsecond())
            .bind(letter.dead_at.as_microsecond())
            .bind(properties)
            .bind(headers)
            .bind(letter.body.to_vec())
            .bind(letter.aggregate_id.map(String::from))
            .bind(letter.ordering_key.map(String::from))
            .bind(replay_of)
            .bind(replays)
            .execute(&mut *connection)
            .await
            .map_err(from_sqlite)?;
    }
    Ok(())
}

pub(super) fn read(row: &SqliteRow) -> Result<DeadLetter, StoreError> {
    read_columns(row).map_err(|error| {
        let text = format!("a dead letter cannot be read back ({error}); it stays in the table dead_letter");
        StoreError::new(StoreErrorKind::Other, text).because(error)
    })
}

fn read_columns(row: &SqliteRow) -> Result<DeadLetter, Box<dyn std::error::Error + Send + Sync>> {
    let text = |column| row.try_get::<Option<&str>, _>(column);
    Ok(DeadLetter {
        key: row.try_get("key")?,
        event_id: text("event_id")?.map(TryFrom::try_from).transpose()?,
        event_type: row.try_get("event_type")?,
        tenant: text("group_id")?.map(TryFrom::try_from).transpose()?,
        aggregate_id: text("aggregate_id")?.map(TryFrom::try_from).transpose()?,
        ordering_key: text("ordering_key")?.map(TryFrom::try_from).transpose()?,
        consumer: text("consumer_name")?.map(TryFrom::try_from).transpose()?,
        queue: row.try_get::<&str, _>("queue")?.try_into()?,
        exchange: row.try_get("exchange")?,
        routing_key: row.try_get("routing_key")?,
        reason: row.try_get("reason")?,
        error: row.try_get("error")?,
        error_class: row.try_get("error_class")?,
        attempts: row.try_get("attempts")?,
        first_failed_at: time(row.try_get("first_failed_at")?),
        dead_at: time(row.try_get("dead_at")?),
        properties: serde_json::from_str(row.try_get("properties")?)?,
        headers: serde_json::from_str(row.try_get("headers")?)?,
        body: row.try_get::<Vec<u8>, _>("body")?.into(),
    })
}

fn unwritable(error: serde_json::Error) -> StoreError {
    let text = "a dead letter's headers cannot be written as JSON; it was not stored and stays in its queue";
    StoreError::new(StoreErrorKind::Invalid, text).because(error)
}
