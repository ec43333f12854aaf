//! Forgetting what the inbox has long known, a step at a time, by age.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::FutureExt as _;
use jiff::Timestamp;
use sqlx::SqliteConnection;

use super::Sqlite;
use super::error::from_sqlite;
use super::outbox::time;
use crate::store::{Forgotten, InboxMemory, StoreError};
use crate::topology::ConsumerName;

impl InboxMemory for Sqlite {
    /// One process has the file, so the duty is always this one's.
    async fn forget(
        &self,
        _worker: &str,
        keep: Duration,
        most: u32,
    ) -> Result<Option<Forgotten>, StoreError> {
        let before = self.clock().now().saturating_sub(keep).unwrap_or(Timestamp::MIN).as_microsecond();
        let marks = self.writer().run(move |connection| forget(connection, before, most).boxed()).await?;
        Ok(Some(Forgotten { marks, more: marks >= u64::from(most) }))
    }

    async fn forgotten_before(&self, consumer: &ConsumerName) -> Result<Option<Timestamp>, StoreError> {
        let select = "SELECT forgotten_before FROM inbox_memory WHERE consumer_name = ?";
        let select = sqlx::query_scalar(select).bind(consumer.as_str()).fetch_optional(self.readers());
        Ok(select.await.map_err(from_sqlite)?.map(time))
    }
}

async fn forget(connection: &mut SqliteConnection, before: i64, most: u32) -> Result<u64, StoreError> {
    let delete = "DELETE FROM event_inbox WHERE (consumer_name, event_id) IN ( \
                      SELECT consumer_name, event_id FROM event_inbox WHERE processed_at < ? \
                      ORDER BY processed_at LIMIT ?) \
                  RETURNING consumer_name, processed_at";
    let gone: Vec<(String, i64)> = sqlx::query_as(delete)
        .bind(before)
        .bind(most)
        .fetch_all(&mut *connection)
        .await
        .map_err(from_sqlite)?;
    let mut newest = BTreeMap::new();
    for (consumer, at) in &gone {
        let newest = newest.entry(consumer.as_str()).or_insert(*at);
        *newest = (*newest).max(*at);
    }
    for (consumer, at) in newest {
        let note = "INSERT INTO inbox_memory (consumer_name, forgotten_before) VALUES (?, ?) ON CONFLICT DO UPDATE \
                    SET forgotten_before = max(forgotten_before, excluded.forgotten_before)";
        let note = sqlx::query(note).bind(consumer).bind(at + 1);
        note.execute(&mut *connection).await.map_err(from_sqlite)?;
    }
    Ok(gone.len() as u64)
}
