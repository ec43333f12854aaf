//! Pauses and crash marks on SQLite.

use futures_util::FutureExt as _;
use sqlx::SqliteConnection;

use super::Sqlite;
use super::error::from_sqlite;
use super::outbox::time;
use crate::store::{Controls, Crashes, Pause, StoreError};
use crate::topology::ConsumerName;

impl Controls for Sqlite {
    async fn pause(&self, consumer: &ConsumerName, by: &str, reason: &str) -> Result<bool, StoreError> {
        let now = self.clock().now().as_microsecond();
        let (name, by, reason) = (consumer.to_string(), by.to_owned(), reason.to_owned());
        self.writer().run(move |connection| pause(connection, name, by, reason, now).boxed()).await
    }

    async fn resume(&self, consumer: &ConsumerName, by: &str, reason: &str) -> Result<bool, StoreError> {
        let now = self.clock().now().as_microsecond();
        let (name, by, reason) = (consumer.to_string(), by.to_owned(), reason.to_owned());
        self.writer().run(move |connection| resume(connection, name, by, reason, now).boxed()).await
    }

    async fn pause_of(&self, consumer: &ConsumerName) -> Result<Option<Pause>, StoreError> {
        let pauses = self.pauses().await?;
        Ok(pauses.into_iter().find(|pause| pause.consumer == *consumer))
    }

    async fn pauses(&self) -> Result<Vec<Pause>, StoreError> {
        let select =
            "SELECT consumer_name, paused_by, reason, since FROM consumer_control ORDER BY consumer_name";
        let rows: Vec<(String, String, String, i64)> =
            sqlx::query_as(select).fetch_all(self.readers()).await.map_err(from_sqlite)?;
        // A row whose name is none was not written by us, and pauses nobody.
        let pause = |(name, by, reason, since): (String, String, String, i64)| {
            Some(Pause { consumer: ConsumerName::new(name).ok()?, by, reason, since: time(since) })
        };
        Ok(rows.into_iter().filter_map(pause).collect())
    }
}

async fn pause(
    connection: &mut SqliteConnection,
    name: String,
    by: String,
    reason: String,
    now: i64,
) -> Result<bool, StoreError> {
    let insert = "INSERT INTO consumer_control (consumer_name, paused_by, reason, since) VALUES (?, ?, ?, ?) \
                  ON CONFLICT DO NOTHING";
    let insert = sqlx::query(insert).bind(&name).bind(&by).bind(&reason).bind(now);
    let changed = insert.execute(&mut *connection).await.map_err(from_sqlite)?.rows_affected() > 0;
    if changed {
        log(connection, now, &by, "consumer.pause", &name, Some(&reason)).await?;
    }
    Ok(changed)
}

async fn resume(
    connection: &mut SqliteConnection,
    name: String,
    by: String,
    reason: String,
    now: i64,
) -> Result<bool, StoreError> {
    let delete = sqlx::query("DELETE FROM consumer_control WHERE consumer_name = ?").bind(&name);
    let changed = delete.execute(&mut *connection).await.map_err(from_sqlite)?.rows_affected() > 0;
    if changed {
        log(connection, now, &by, "consumer.resume", &name, said(&reason)).await?;
    }
    Ok(changed)
}

/// A reason, if one was given.
pub(super) fn said(reason: &str) -> Option<&str> {
    Some(reason).filter(|reason| !reason.is_empty())
}

/// Who changed what, in the transaction that changes it.
pub(super) async fn log(
    connection: &mut SqliteConnection,
    now: i64,
    actor: &str,
    action: &str,
    subject: &str,
    reason: Option<&str>,
) -> Result<(), StoreError> {
    let insert = "INSERT INTO audit_log (at, actor, action, subject, reason) VALUES (?, ?, ?, ?, ?)";
    let insert = sqlx::query(insert).bind(now).bind(actor).bind(action).bind(subject).bind(reason);
    insert.execute(connection).await.map(|_| ()).map_err(from_sqlite)
}

impl Crashes for Sqlite {
    async fn crash_marks(&self, consumer: &ConsumerName) -> Result<Vec<String>, StoreError> {
        const MONTH: i64 = 30 * 86_400 * 1_000_000;
        let old = self.clock().now().as_microsecond() - MONTH;
        let select = "SELECT mark FROM consumer_crash WHERE consumer_name = ? AND last_at >= ?";
        let select = sqlx::query_scalar(select).bind(consumer.as_str()).bind(old);
        let marks: Vec<String> = select.fetch_all(self.readers()).await.map_err(from_sqlite)?;
        if !marks.is_empty() {
            let delete =
                "DELETE FROM consumer_crash WHERE consumer_name = ? AND last_at < CAST(? AS INTEGER)";
            let texts = [consumer.to_string(), old.to_string()];
            self.writer().run(move |connection| execute(connection, delete, texts, None).boxed()).await?;
        }
        Ok(marks)
    }

    async fn unfinished(&self, consumer: &ConsumerName, mark: &str) -> Result<u32, StoreError> {
        let select = "SELECT times FROM consumer_crash WHERE consumer_name = ? AND mark = ?";
        let select = sqlx::query_scalar(select).bind(consumer.as_str()).bind(mark);
        let times: Option<u32> = select.fetch_optional(self.readers()).await.map_err(from_sqlite)?;
        Ok(times.unwrap_or(0))
    }

    async fn begun(&self, consumer: &ConsumerName, mark: &str) -> Result<(), StoreError> {
        let now = self.clock().now().as_microsecond();
        let (name, mark) = (consumer.to_string(), mark.to_owned());
        let write = "INSERT INTO consumer_crash (consumer_name, mark, times, last_at) VALUES (?, ?, 1, ?) \
                     ON CONFLICT DO UPDATE SET times = times + 1, last_at = excluded.last_at";
        self.writer().run(move |connection| execute(connection, write, [name, mark], Some(now)).boxed()).await
    }

    async fn ended(&self, consumer: &ConsumerName, mark: &str) -> Result<(), StoreError> {
        let (name, mark) = (consumer.to_string(), mark.to_owned());
        let delete = "DELETE FROM consumer_crash WHERE consumer_name = ? AND mark = ?";
        self.writer().run(move |connection| execute(connection, delete, [name, mark], None).boxed()).await
    }
}

async fn execute(
    connection: &mut SqliteConnection,
    sql: &'static str,
    texts: [String; 2],
    now: Option<i64>,
) -> Result<(), StoreError> {
    let mut query = sqlx::query(sql);
    for text in texts {
        query = query.bind(text);
    }
    if let Some(now) = now {
        query = query.bind(now);
    }
    query.execute(connection).await.map(|_| ()).map_err(from_sqlite)
}
