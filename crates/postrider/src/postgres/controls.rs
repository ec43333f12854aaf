//! Pauses and crash marks on PostgreSQL.

use sqlx::Row as _;
use sqlx::postgres::PgRow;

use super::Postgres;
use crate::store::{Controls, Crashes, Pause, StoreError};
use crate::topology::ConsumerName;

/// The log tells of it only when something changed.
const PAUSE: &str = "WITH paused AS ( \
         INSERT INTO postrider.consumer_control (consumer_name, paused_by, reason) VALUES ($1, $2, $3) \
         ON CONFLICT DO NOTHING RETURNING consumer_name) \
     INSERT INTO postrider.audit_log (actor, action, subject, reason) \
     SELECT $2, 'consumer.pause', consumer_name, $3 FROM paused";

const RESUME: &str = "WITH resumed AS ( \
         DELETE FROM postrider.consumer_control WHERE consumer_name = $1 RETURNING consumer_name) \
     INSERT INTO postrider.audit_log (actor, action, subject, reason) \
     SELECT $2, 'consumer.resume', consumer_name, NULLIF($3, '') FROM resumed";

const PAUSES: &str = "SELECT consumer_name, paused_by, reason, since FROM postrider.consumer_control \
     WHERE $1::text IS NULL OR consumer_name = $1 ORDER BY consumer_name COLLATE \"C\"";

impl Controls for Postgres {
    async fn pause(&self, consumer: &ConsumerName, by: &str, reason: &str) -> Result<bool, StoreError> {
        let write = sqlx::query(PAUSE).bind(consumer.as_str()).bind(by).bind(reason);
        let done = self.limited("pausing a consumer", write.execute(self.pool())).await?;
        Ok(done.rows_affected() > 0)
    }

    async fn resume(&self, consumer: &ConsumerName, by: &str, reason: &str) -> Result<bool, StoreError> {
        let write = sqlx::query(RESUME).bind(consumer.as_str()).bind(by).bind(reason);
        let done = self.limited("resuming a consumer", write.execute(self.pool())).await?;
        Ok(done.rows_affected() > 0)
    }

    async fn pause_of(&self, consumer: &ConsumerName) -> Result<Option<Pause>, StoreError> {
        Ok(self.read_pauses(Some(consumer)).await?.pop())
    }

    async fn pauses(&self) -> Result<Vec<Pause>, StoreError> {
        self.read_pauses(None).await
    }
}

impl Postgres {
    async fn read_pauses(&self, consumer: Option<&ConsumerName>) -> Result<Vec<Pause>, StoreError> {
        let select = sqlx::query(PAUSES).bind(consumer.map(AsRef::as_ref));
        // A row whose name is none was not written by us, and pauses nobody.
        let read = async {
            let rows = select.fetch_all(self.pool()).await?;
            rows.iter().filter_map(|row| pause(row).transpose()).collect()
        };
        self.limited("reading which consumers are paused", read).await
    }
}

fn pause(row: &PgRow) -> Result<Option<Pause>, sqlx::Error> {
    let Ok(consumer) = ConsumerName::new(row.try_get::<String, _>(0)?) else { return Ok(None) };
    let since = row.try_get::<jiff_sqlx::Timestamp, _>(3)?.to_jiff();
    Ok(Some(Pause { consumer, by: row.try_get(1)?, reason: row.try_get(2)?, since }))
}

impl Crashes for Postgres {
    async fn crash_marks(&self, consumer: &ConsumerName) -> Result<Vec<String>, StoreError> {
        let select = "WITH old AS (DELETE FROM postrider.consumer_crash \
                 WHERE consumer_name = $1 AND last_at < now() - interval '30 days') \
             SELECT mark FROM postrider.consumer_crash \
             WHERE consumer_name = $1 AND last_at >= now() - interval '30 days'";
        let select = sqlx::query_scalar(select).bind(consumer.as_str());
        self.limited("reading crash marks", select.fetch_all(self.pool())).await
    }

    async fn unfinished(&self, consumer: &ConsumerName, mark: &str) -> Result<u32, StoreError> {
        let select = "SELECT times FROM postrider.consumer_crash WHERE consumer_name = $1 AND mark = $2";
        let select = sqlx::query_scalar(select).bind(consumer.as_str()).bind(mark);
        let times: Option<i32> =
            self.limited("looking for crash marks", select.fetch_optional(self.pool())).await?;
        Ok(u32::try_from(times.unwrap_or(0)).unwrap_or(0))
    }

    async fn begun(&self, consumer: &ConsumerName, mark: &str) -> Result<(), StoreError> {
        let write = "INSERT INTO postrider.consumer_crash (consumer_name, mark) VALUES ($1, $2) \
             ON CONFLICT (consumer_name, mark) DO UPDATE SET times = consumer_crash.times + 1, last_at = now()";
        let write = sqlx::query(write).bind(consumer.as_str()).bind(mark);
        self.limited("marking that handling begins", write.execute(self.pool())).await?;
        Ok(())
    }

    async fn ended(&self, consumer: &ConsumerName, mark: &str) -> Result<(), StoreError> {
        let write = "DELETE FROM postrider.consumer_crash WHERE consumer_name = $1 AND mark = $2";
        let write = sqlx::query(write).bind(consumer.as_str()).bind(mark);
        self.limited("marking that handling ended", write.execute(self.pool())).await?;
        Ok(())
    }
}
