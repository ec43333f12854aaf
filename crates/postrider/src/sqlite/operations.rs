//! Operations and the audit log on SQLite. Whoever has the writer is alone, so looking and changing need no lock between them.

use std::sync::LazyLock;
use std::time::Duration;

use futures_util::FutureExt as _;
use jiff::Timestamp;
use serde_json::json;
use sqlx::sqlite::SqliteRow;
use sqlx::{Arguments as _, Row as _, SqliteConnection};
use uuid::Uuid;

use super::bulk::Insert;
use super::controls::said;
use super::error::from_sqlite;
use super::outbox::time;
use super::{Sqlite, SqliteTx};
use crate::store::{
    Claim, LogEntry, LogPage, LogQuery, NewOperation, Operation, OperationEnd, OperationKind, OperationState,
    Operations, SCANNED, StoreError, StoreErrorKind,
};

macro_rules! columns {
    () => {
        "id, kind, state, plan, done, skipped, total, rate, created_by, reason, created_at, started_at, finished_at, error, \
         lease_owner, lease_until"
    };
}

impl Operations for Sqlite {
    async fn create_operation(&self, tx: &mut SqliteTx, operation: &NewOperation) -> Result<(), StoreError> {
        let insert = "INSERT INTO operation (id, kind, state, plan, rate, created_by, reason, created_at) \
                      VALUES (?, ?, 'planned', ?, ?, ?, ?, ?)";
        let now = self.clock().now();
        let query = sqlx::query(insert)
            .bind(operation.id.to_string())
            .bind(operation.kind.as_str())
            .bind(operation.plan.to_string())
            .bind(operation.rate)
            .bind(operation.created_by.clone())
            .bind(operation.reason.clone())
            .bind(now.as_microsecond());
        tx.execute(query).await?;
        let entry = LogEntry {
            at: now,
            actor: operation.created_by.clone(),
            action: "operation.created".to_owned(),
            subject: format!("operation/{}", operation.id),
            reason: operation.reason.clone(),
            detail: Some(operation.plan.clone()),
        };
        self.record(tx, vec![entry]).await
    }

    async fn add_items(
        &self,
        tx: &mut SqliteTx,
        operation: Uuid,
        subjects: Vec<String>,
    ) -> Result<u64, StoreError> {
        let insert = "INSERT INTO operation_item (operation_id, seq, subject) \
                      SELECT operation.id, total + 1 + item.key, item.value FROM operation, json_each(?2) AS item \
                      WHERE operation.id = ?1";
        let subjects = json!(subjects).to_string();
        let added = tx.execute(sqlx::query(insert).bind(operation.to_string()).bind(subjects)).await?;
        let total = "UPDATE operation SET total = total + ? WHERE id = ?";
        let count = i64::try_from(added).unwrap_or(i64::MAX);
        tx.execute(sqlx::query(total).bind(count).bind(operation.to_string())).await?;
        Ok(added)
    }

    async fn operation(&self, id: Uuid) -> Result<Option<Operation>, StoreError> {
        let select = concat!("SELECT ", columns!(), " FROM operation WHERE id = ?");
        let query = sqlx::query(select).bind(id.to_string());
        let row = query.fetch_optional(self.readers()).await.map_err(from_sqlite)?;
        row.as_ref().map(|row| read(row, self.clock().now())).transpose()
    }

    async fn operations(&self, before: Option<Uuid>, limit: usize) -> Result<Vec<Operation>, StoreError> {
        let select = concat!(
            "SELECT ",
            columns!(),
            " FROM operation WHERE (created_at, id) < (iif(?1 IS NULL, 9223372036854775807, \
                 (SELECT created_at FROM operation WHERE id = ?1)), coalesce(?1, '')) \
             ORDER BY created_at DESC, id DESC LIMIT ?2"
        );
        let query = sqlx::query(select).bind(before.map(|id| id.to_string()));
        let query = query.bind(i64::try_from(limit).unwrap_or(i64::MAX));
        let rows = query.fetch_all(self.readers()).await.map_err(from_sqlite)?;
        rows.iter().map(|row| read(row, self.clock().now())).collect()
    }

    async fn claim_operation(
        &self,
        which: &Claim,
        runner: &str,
        lease: Duration,
    ) -> Result<Option<Operation>, StoreError> {
        let (which, runner, now) = (which.clone(), runner.to_owned(), self.clock().now());
        let claim = self.writer().run(|file| claim(file, which, runner, now, lease).boxed());
        claim.await
    }

    async fn next_items(
        &self,
        tx: &mut SqliteTx,
        operation: Uuid,
        runner: &str,
        limit: usize,
        lease: Duration,
    ) -> Result<Option<Vec<String>>, StoreError> {
        let renew =
            "UPDATE operation SET lease_until = ?3 WHERE id = ?1 AND lease_owner = ?2 AND state = 'running'";
        let until = later(self.clock().now(), lease);
        let renew = sqlx::query(renew).bind(operation.to_string()).bind(runner.to_owned()).bind(until);
        if tx.execute(renew).await? == 0 {
            return Ok(None);
        }
        let take = "DELETE FROM operation_item WHERE operation_id = ?1 AND seq IN ( \
                        SELECT seq FROM operation_item WHERE operation_id = ?1 ORDER BY seq LIMIT ?2) \
                    RETURNING seq, subject";
        let take =
            sqlx::query_as(take).bind(operation.to_string()).bind(i64::try_from(limit).unwrap_or(i64::MAX));
        let taken = take.fetch_all(tx.connection().await?).await.map_err(from_sqlite);
        if taken.is_err() {
            tx.fail();
        }
        let mut items: Vec<(i64, String)> = taken?;
        items.sort_unstable();
        Ok(Some(items.into_iter().map(|(_, subject)| subject).collect()))
    }

    async fn advance(
        &self,
        tx: &mut SqliteTx,
        operation: Uuid,
        done: u64,
        skipped: u64,
    ) -> Result<(), StoreError> {
        let number = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        let update = "UPDATE operation SET done = done + ?, skipped = skipped + ? WHERE id = ?";
        let query = sqlx::query(update).bind(number(done)).bind(number(skipped)).bind(operation.to_string());
        tx.execute(query).await.map(|_| ())
    }

    async fn finish_operation(&self, id: Uuid, runner: &str, end: OperationEnd) -> Result<bool, StoreError> {
        let (state, error) = match end {
            OperationEnd::Done => (OperationState::Done, None),
            OperationEnd::Failed(error) => (OperationState::Failed, Some(error)),
        };
        let update = "UPDATE operation SET state = ?3, error = ?4, finished_at = ?5, lease_owner = NULL, lease_until = NULL \
                      WHERE id = ?1 AND lease_owner = ?2 AND state = 'running'";
        let query = sqlx::query(update)
            .bind(id.to_string())
            .bind(runner.to_owned())
            .bind(state.as_str())
            .bind(error)
            .bind(self.clock().now().as_microsecond());
        let mut tx = self.writer_tx();
        let ended = tx.execute(query).await?;
        tx.commit().await?;
        Ok(ended > 0)
    }

    async fn release_operation(&self, id: Uuid, runner: &str) -> Result<(), StoreError> {
        let update =
            "UPDATE operation SET lease_owner = NULL, lease_until = NULL WHERE id = ? AND lease_owner = ?";
        let mut tx = self.writer_tx();
        tx.execute(sqlx::query(update).bind(id.to_string()).bind(runner.to_owned())).await?;
        tx.commit().await.map(|_| ())
    }

    async fn cancel_operation(&self, id: Uuid, actor: &str, reason: &str) -> Result<bool, StoreError> {
        let now = self.clock().now();
        let update = "UPDATE operation SET state = 'cancelled', finished_at = ?, lease_owner = NULL, lease_until = NULL \
                      WHERE id = ? AND state IN ('planned', 'running')";
        let mut tx = self.writer_tx();
        let ended = tx.execute(sqlx::query(update).bind(now.as_microsecond()).bind(id.to_string())).await?;
        if ended > 0 {
            let left_over =
                sqlx::query("DELETE FROM operation_item WHERE operation_id = ?").bind(id.to_string());
            tx.execute(left_over).await?;
            let entry = LogEntry {
                at: now,
                actor: actor.to_owned(),
                action: "operation.cancelled".to_owned(),
                subject: format!("operation/{id}"),
                reason: said(reason).map(str::to_owned),
                detail: None,
            };
            self.record(&mut tx, vec![entry]).await?;
        }
        tx.commit().await?;
        Ok(ended > 0)
    }

    async fn take_turn(&self, tx: &mut SqliteTx, name: &str, at: Timestamp) -> Result<bool, StoreError> {
        if at > self.clock().now() {
            return Ok(false);
        }
        let take = "INSERT INTO schedule (name, last_at) VALUES (?, ?) ON CONFLICT (name) \
                    DO UPDATE SET last_at = excluded.last_at WHERE schedule.last_at < excluded.last_at";
        let taken = tx.execute(sqlx::query(take).bind(name.to_owned()).bind(at.as_microsecond())).await?;
        Ok(taken > 0)
    }

    async fn record(&self, tx: &mut SqliteTx, entries: Vec<LogEntry>) -> Result<(), StoreError> {
        static INSERT: LazyLock<Insert> = LazyLock::new(|| {
            Insert::new("INSERT INTO audit_log (at, actor, action, subject, reason, detail) VALUES", 6)
        });
        let written = INSERT
            .execute(tx.connection().await?, entries, |entry, columns| {
                columns.add(entry.at.as_microsecond())?;
                columns.add(entry.actor)?;
                columns.add(entry.action)?;
                columns.add(entry.subject)?;
                columns.add(entry.reason)?;
                columns.add(entry.detail.map(|detail| detail.to_string()))
            })
            .await;
        if written.is_err() {
            tx.fail();
        }
        written
    }

    async fn log_of(&self, subject: &str, limit: usize) -> Result<Vec<LogEntry>, StoreError> {
        let select = "SELECT at, actor, action, reason, detail FROM audit_log WHERE subject = ? ORDER BY id DESC LIMIT ?";
        let query = sqlx::query_as(select).bind(subject).bind(i64::try_from(limit).unwrap_or(i64::MAX));
        let rows: Vec<LogRow> = query.fetch_all(self.readers()).await.map_err(from_sqlite)?;
        let entry = |(at, actor, action, reason, detail): LogRow| {
            let detail = detail.map(|detail| serde_json::from_str(&detail)).transpose();
            let detail = detail.map_err(|error| unreadable(&error.into()))?;
            Ok(LogEntry { at: time(at), actor, action, subject: subject.to_owned(), reason, detail })
        };
        rows.into_iter().map(entry).collect()
    }

    async fn log(&self, query: &LogQuery) -> Result<LogPage, StoreError> {
        let select = "SELECT id, at, actor, action, subject, reason, detail FROM audit_log \
             WHERE (?1 IS NULL OR id < ?1) AND (?2 IS NULL OR id >= ?2) AND (?3 IS NULL OR actor = ?3) \
               AND (?4 IS NULL OR action = ?4) AND (?5 IS NULL OR subject = ?5) \
             ORDER BY id DESC LIMIT ?6";
        let floor = if query.is_indexed() { None } else { self.log_floor(query.before).await? };
        let rows: Vec<NumberedRow> = sqlx::query_as(select)
            .bind(query.before)
            .bind(floor)
            .bind(&query.actor)
            .bind(&query.action)
            .bind(&query.subject)
            .bind(i64::try_from(query.limit).unwrap_or(i64::MAX))
            .fetch_all(self.readers())
            .await
            .map_err(from_sqlite)?;
        let entry = |(number, at, actor, action, subject, reason, detail): NumberedRow| {
            let detail = detail.map(|detail| serde_json::from_str(&detail)).transpose();
            let detail = detail.map_err(|error| unreadable(&error.into()))?;
            Ok((number, LogEntry { at: time(at), actor, action, subject, reason, detail }))
        };
        let found = rows.into_iter().map(entry).collect::<Result<_, StoreError>>()?;
        Ok(LogPage::of(found, query.limit, floor))
    }
}

impl Sqlite {
    /// How far a search without an index looks.
    async fn log_floor(&self, before: Option<i64>) -> Result<Option<i64>, StoreError> {
        let last = sqlx::query_scalar::<_, Option<i64>>("SELECT max(id) + 1 FROM audit_log");
        let last = last.fetch_one(self.readers()).await.map_err(from_sqlite)?;
        Ok(before.or(last).map(|from| from - i64::from(SCANNED)))
    }
}

/// Its number, when, who, what, to what, why, and the details.
type NumberedRow = (i64, i64, String, String, String, Option<String>, Option<String>);

/// When, who, what, why, and the details.
type LogRow = (i64, String, String, Option<String>, Option<String>);

async fn claim(
    file: &mut SqliteConnection,
    which: Claim,
    runner: String,
    now: Timestamp,
    lease: Duration,
) -> Result<Option<Operation>, StoreError> {
    let claim = concat!(
        "UPDATE operation SET state = 'running', started_at = coalesce(started_at, ?1), lease_owner = ?2, lease_until = ?3
         WHERE id = (SELECT id FROM operation
             WHERE state IN ('planned', 'running') AND (lease_until IS NULL OR lease_until < ?1 OR lease_owner = ?2)
               AND (?4 IS NULL OR id = ?4) AND (?5 IS NULL OR kind IN (SELECT value FROM json_each(?5)))
               AND (?6 IS NULL OR created_by NOT IN (SELECT value FROM json_each(?6)))
             ORDER BY created_at LIMIT 1)
         RETURNING ",
        columns!()
    );
    let (id, kinds, not_for) = which.parts();
    let query = sqlx::query(claim)
        .bind(now.as_microsecond())
        .bind(runner)
        .bind(later(now, lease))
        .bind(id.map(|id| id.to_string()))
        .bind(kinds.map(|kinds| json!(kinds).to_string()))
        .bind(not_for.map(|people| json!(people).to_string()));
    // All rows, so that the statement is over: it writes as it is read.
    let rows = query.fetch_all(file).await.map_err(from_sqlite)?;
    rows.first().map(|row| read(row, now)).transpose()
}

fn later(now: Timestamp, lease: Duration) -> i64 {
    now.saturating_add(lease).unwrap_or(Timestamp::MAX).as_microsecond()
}

type Unreadable = Box<dyn std::error::Error + Send + Sync>;

fn read(row: &SqliteRow, now: Timestamp) -> Result<Operation, StoreError> {
    let columns = || -> Result<Operation, Unreadable> {
        let count = |column: &str| row.try_get::<i64, _>(column).map(i64::unsigned_abs);
        let moment = |column: &str| row.try_get::<Option<i64>, _>(column);
        let (kind, state): (&str, &str) = (row.try_get("kind")?, row.try_get("state")?);
        let leased = moment("lease_until")?.is_some_and(|until| until > now.as_microsecond());
        let runner: Option<String> = row.try_get("lease_owner")?;
        Ok(Operation {
            id: Uuid::parse_str(row.try_get("id")?)?,
            kind: OperationKind::from_name(kind).ok_or_else(|| format!("unknown kind {kind:?}"))?,
            state: OperationState::from_name(state).ok_or_else(|| format!("unknown state {state:?}"))?,
            plan: serde_json::from_str(row.try_get("plan")?)?,
            done: count("done")?,
            skipped: count("skipped")?,
            total: count("total")?,
            rate: row.try_get("rate")?,
            created_by: row.try_get("created_by")?,
            reason: row.try_get("reason")?,
            created_at: time(row.try_get("created_at")?),
            started_at: moment("started_at")?.map(time),
            finished_at: moment("finished_at")?.map(time),
            error: row.try_get("error")?,
            runner: runner.filter(|_| leased),
        })
    };
    columns().map_err(|error| unreadable(&error))
}

fn unreadable(error: &Unreadable) -> StoreError {
    let text = format!("a row of operation or audit_log cannot be read back ({error}); it stays where it is");
    StoreError::new(StoreErrorKind::Other, text)
}
