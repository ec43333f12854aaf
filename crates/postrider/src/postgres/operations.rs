//! Operations and the audit log on PostgreSQL. Leases go by the database's own clock.

use std::time::Duration;

use jiff::Timestamp;
use jiff_sqlx::ToSqlx as _;
use sqlx::Row as _;
use sqlx::postgres::PgRow;
use uuid::Uuid;

use super::{Postgres, PostgresTx};
use crate::store::{
    Claim, LogEntry, LogPage, LogQuery, NewOperation, Operation, OperationEnd, OperationKind, OperationState,
    Operations, SCANNED, StoreError, StoreErrorKind,
};

/// Who works on it counts for as long as his lease.
macro_rules! columns {
    () => {
        "id::text AS id, kind, state, plan::text AS plan, done, skipped, COALESCE(total, 0) AS total, rate, created_by, \
         reason, created_at, started_at, finished_at, error, \
         CASE WHEN lease_until > now() AND state = 'running' THEN lease_owner END AS runner"
    };
}

const CREATE: &str = "INSERT INTO postrider.operation (id, kind, state, plan, total, rate, created_by, reason) \
     VALUES ($1::uuid, $2, 'planned', $3::jsonb, 0, $4, $5, $6)";

const ADD: &str = "WITH items AS ( \
         INSERT INTO postrider.operation_item (operation_id, seq, subject) \
         SELECT id, total + nr, subject FROM postrider.operation, \
             UNNEST($2::text[]) WITH ORDINALITY AS item (subject, nr) WHERE id = $1::uuid RETURNING seq \
     ) \
     UPDATE postrider.operation SET total = total + (SELECT count(*) FROM items) WHERE id = $1::uuid";

const ONE: &str = concat!("SELECT ", columns!(), " FROM postrider.operation WHERE id = $1::uuid");

const NEWEST: &str = concat!(
    "SELECT ",
    columns!(),
    " FROM postrider.operation \
     WHERE (created_at, id) < (CASE WHEN $1::uuid IS NULL THEN 'infinity' \
     ELSE (SELECT created_at FROM postrider.operation WHERE id = $1::uuid) END, coalesce($1::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')) \
     ORDER BY created_at DESC, id DESC LIMIT $2"
);

const CLAIM: &str = concat!(
    "UPDATE postrider.operation SET state = 'running', started_at = COALESCE(started_at, now()), lease_owner = $3, \
         lease_until = now() + $4 \
     WHERE id = (SELECT id FROM postrider.operation \
         WHERE state IN ('planned', 'running') AND (lease_until IS NULL OR lease_until < now() OR lease_owner = $3) \
           AND ($1::uuid IS NULL OR id = $1::uuid) AND ($2::text[] IS NULL OR kind = ANY($2)) \
           AND ($5::text[] IS NULL OR created_by <> ALL($5)) \
         ORDER BY created_at LIMIT 1 FOR UPDATE SKIP LOCKED) \
     RETURNING ",
    columns!()
);

/// Locks the operation until the chunk is committed: who cancels waits for it.
const RENEW: &str = "UPDATE postrider.operation SET lease_until = now() + $3 \
     WHERE id = $1::uuid AND lease_owner = $2 AND state = 'running'";

/// One item after the other by the key, however many wait behind them: see the inbox. Written as `ORDER BY seq LIMIT $2`, PostgreSQL read all that
/// were left, twice, whether its statistics knew the operation or not. Whoever changes items (retention does) has locked the operation, as we have
/// by now, so none moves between the probe and the delete.
const TAKE: &str = "WITH RECURSIVE next AS ( \
         (SELECT seq, ctid AS place, 1 AS nr FROM postrider.operation_item WHERE operation_id = $1::uuid ORDER BY seq LIMIT 1) \
         UNION ALL \
         SELECT item.seq, item.place, nr + 1 FROM next CROSS JOIN LATERAL (SELECT seq, ctid AS place FROM postrider.operation_item \
             WHERE operation_id = $1::uuid AND seq > next.seq ORDER BY seq LIMIT 1) item \
         WHERE nr < $2 \
     ) \
     DELETE FROM postrider.operation_item WHERE ctid = ANY (ARRAY(SELECT place FROM next)) RETURNING seq, subject";

const ADVANCE: &str =
    "UPDATE postrider.operation SET done = done + $2, skipped = skipped + $3 WHERE id = $1::uuid";

const FINISH: &str = "UPDATE postrider.operation SET state = $3, error = $4, finished_at = now(), lease_owner = NULL, \
         lease_until = NULL \
     WHERE id = $1::uuid AND lease_owner = $2 AND state = 'running'";

const RELEASE: &str = "UPDATE postrider.operation SET lease_owner = NULL, lease_until = NULL \
     WHERE id = $1::uuid AND lease_owner = $2";

const CANCEL: &str = "WITH cancelled AS ( \
         UPDATE postrider.operation SET state = 'cancelled', finished_at = now(), lease_owner = NULL, lease_until = NULL \
         WHERE id = $1::uuid AND state IN ('planned', 'running') RETURNING id \
     ), left_over AS ( \
         DELETE FROM postrider.operation_item WHERE operation_id IN (SELECT id FROM cancelled) \
     ) \
     INSERT INTO postrider.audit_log (actor, action, subject, reason) \
     SELECT $2, 'operation.cancelled', 'operation/' || id, NULLIF($3, '') FROM cancelled";

const TURN: &str = "INSERT INTO postrider.schedule (name, last_at) SELECT $1, $2 WHERE $2 <= clock_timestamp() \
     ON CONFLICT (name) DO UPDATE SET last_at = EXCLUDED.last_at WHERE schedule.last_at < EXCLUDED.last_at";

const RECORD: &str = "INSERT INTO postrider.audit_log (actor, action, subject, reason, detail) \
     SELECT actor, action, subject, reason, detail::jsonb \
     FROM UNNEST($1::text[], $2::text[], $3::text[], $4::text[], $5::text[]) AS e (actor, action, subject, reason, detail)";

const LOG: &str = "SELECT at, actor, action, subject, reason, detail::text FROM postrider.audit_log \
     WHERE subject = $1 ORDER BY id DESC LIMIT $2";

const LOG_PAGE: &str = "SELECT at, actor, action, subject, reason, detail::text, id FROM postrider.audit_log \
     WHERE ($1::bigint IS NULL OR id < $1) AND ($2::bigint IS NULL OR id >= $2) AND ($3::text IS NULL OR actor = $3) \
       AND ($4::text IS NULL OR action = $4) AND ($5::text IS NULL OR subject = $5) \
     ORDER BY id DESC LIMIT $6";

impl Operations for Postgres {
    async fn create_operation(
        &self,
        tx: &mut PostgresTx,
        operation: &NewOperation,
    ) -> Result<(), StoreError> {
        let insert = sqlx::query(CREATE)
            .bind(operation.id.to_string())
            .bind(operation.kind.as_str())
            .bind(json(&operation.plan))
            .bind(operation.rate)
            .bind(&operation.created_by)
            .bind(&operation.reason);
        self.limited("creating an operation", insert.execute(tx.ours())).await?;
        let entry = LogEntry {
            at: self.clock().now(),
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
        tx: &mut PostgresTx,
        operation: Uuid,
        subjects: Vec<String>,
    ) -> Result<u64, StoreError> {
        let added = subjects.len() as u64;
        let insert = sqlx::query(ADD).bind(operation.to_string()).bind(subjects);
        self.limited("adding items to an operation", insert.execute(tx.ours())).await?;
        Ok(added)
    }

    async fn operation(&self, id: Uuid) -> Result<Option<Operation>, StoreError> {
        let select = sqlx::query(ONE).bind(id.to_string()).fetch_optional(self.pool());
        self.limited("reading an operation", select).await?.as_ref().map(read).transpose()
    }

    async fn operations(&self, before: Option<Uuid>, limit: usize) -> Result<Vec<Operation>, StoreError> {
        let select = sqlx::query(NEWEST)
            .bind(before.map(|id| id.to_string()))
            .bind(i64::try_from(limit).unwrap_or(i64::MAX))
            .fetch_all(self.pool());
        self.limited("reading the operations", select).await?.iter().map(read).collect()
    }

    async fn claim_operation(
        &self,
        which: &Claim,
        runner: &str,
        lease: Duration,
    ) -> Result<Option<Operation>, StoreError> {
        let (id, kinds, not_for) = which.parts();
        let id = id.map(|id| id.to_string());
        let claim = sqlx::query(CLAIM).bind(id).bind(kinds).bind(runner).bind(lease);
        let claim = claim.bind(not_for.map(<[String]>::to_vec));
        let claim = claim.fetch_optional(self.pool());
        self.limited("claiming an operation", claim).await?.as_ref().map(read).transpose()
    }

    async fn next_items(
        &self,
        tx: &mut PostgresTx,
        operation: Uuid,
        runner: &str,
        limit: usize,
        lease: Duration,
    ) -> Result<Option<Vec<String>>, StoreError> {
        let renew = sqlx::query(RENEW).bind(operation.to_string()).bind(runner).bind(lease);
        let renewed = self.limited("renewing the lease of an operation", renew.execute(tx.ours())).await?;
        if renewed.rows_affected() == 0 {
            return Ok(None);
        }
        let take = sqlx::query_as(TAKE)
            .bind(operation.to_string())
            .bind(i64::try_from(limit).unwrap_or(i64::MAX))
            .fetch_all(tx.ours());
        let mut items: Vec<(i64, String)> = self.limited("taking items of an operation", take).await?;
        items.sort_unstable();
        Ok(Some(items.into_iter().map(|(_, subject)| subject).collect()))
    }

    async fn advance(
        &self,
        tx: &mut PostgresTx,
        operation: Uuid,
        done: u64,
        skipped: u64,
    ) -> Result<(), StoreError> {
        let number = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        let update =
            sqlx::query(ADVANCE).bind(operation.to_string()).bind(number(done)).bind(number(skipped));
        self.limited("counting items of an operation", update.execute(tx.ours())).await?;
        Ok(())
    }

    async fn finish_operation(&self, id: Uuid, runner: &str, end: OperationEnd) -> Result<bool, StoreError> {
        let (state, error) = match end {
            OperationEnd::Done => (OperationState::Done, None),
            OperationEnd::Failed(error) => (OperationState::Failed, Some(error.replace('\0', "\u{fffd}"))),
        };
        let update = sqlx::query(FINISH).bind(id.to_string()).bind(runner).bind(state.as_str()).bind(error);
        Ok(self.limited("ending an operation", update.execute(self.pool())).await?.rows_affected() > 0)
    }

    async fn release_operation(&self, id: Uuid, runner: &str) -> Result<(), StoreError> {
        let update = sqlx::query(RELEASE).bind(id.to_string()).bind(runner).execute(self.pool());
        self.limited("giving an operation back", update).await?;
        Ok(())
    }

    async fn cancel_operation(&self, id: Uuid, actor: &str, reason: &str) -> Result<bool, StoreError> {
        let cancel = sqlx::query(CANCEL).bind(id.to_string()).bind(actor).bind(reason).execute(self.pool());
        Ok(self.limited("cancelling an operation", cancel).await?.rows_affected() > 0)
    }

    async fn take_turn(&self, tx: &mut PostgresTx, name: &str, at: Timestamp) -> Result<bool, StoreError> {
        let take = sqlx::query(TURN).bind(name).bind(at.to_sqlx()).execute(tx.ours());
        Ok(self.limited("taking a turn", take).await?.rows_affected() > 0)
    }

    async fn record(&self, tx: &mut PostgresTx, entries: Vec<LogEntry>) -> Result<(), StoreError> {
        fn column<'a, T>(entries: &'a [LogEntry], of: impl Fn(&'a LogEntry) -> T) -> Vec<T> {
            entries.iter().map(of).collect()
        }
        let insert = sqlx::query(RECORD)
            .bind(column(&entries, |entry| entry.actor.as_str()))
            .bind(column(&entries, |entry| entry.action.as_str()))
            .bind(column(&entries, |entry| entry.subject.as_str()))
            .bind(column(&entries, |entry| entry.reason.as_deref()))
            .bind(column(&entries, |entry| entry.detail.as_ref().map(json)));
        self.limited("writing the audit log", insert.execute(tx.ours())).await?;
        Ok(())
    }

    async fn log_of(&self, subject: &str, limit: usize) -> Result<Vec<LogEntry>, StoreError> {
        let select = sqlx::query(LOG)
            .bind(subject)
            .bind(i64::try_from(limit).unwrap_or(i64::MAX))
            .fetch_all(self.pool());
        let rows = self.limited("reading the audit log", select).await?;
        rows.iter().map(logged).collect::<Result<_, _>>().map_err(unreadable)
    }

    async fn log(&self, query: &LogQuery) -> Result<LogPage, StoreError> {
        let floor = if query.is_indexed() { None } else { self.log_floor(query.before).await? };
        let select = sqlx::query(LOG_PAGE)
            .bind(query.before)
            .bind(floor)
            .bind(&query.actor)
            .bind(&query.action)
            .bind(&query.subject)
            .bind(i64::try_from(query.limit).unwrap_or(i64::MAX))
            .fetch_all(self.pool());
        let rows = self.limited("reading the audit log", select).await?;
        let entry = |row: &PgRow| -> Result<_, Unreadable> { Ok((row.try_get::<i64, _>(6)?, logged(row)?)) };
        let found = rows.iter().map(entry).collect::<Result<Vec<_>, _>>().map_err(unreadable)?;
        Ok(LogPage::of(found, query.limit, floor))
    }
}

impl Postgres {
    /// How far a search without an index looks.
    async fn log_floor(&self, before: Option<i64>) -> Result<Option<i64>, StoreError> {
        let last = sqlx::query_scalar::<_, Option<i64>>("SELECT max(id) + 1 FROM postrider.audit_log");
        let last = self.limited("reading the audit log", last.fetch_one(self.pool())).await?;
        Ok(before.or(last).map(|from| from - i64::from(SCANNED)))
    }
}

fn logged(row: &PgRow) -> Result<LogEntry, Unreadable> {
    Ok(LogEntry {
        at: row.try_get::<jiff_sqlx::Timestamp, _>(0)?.to_jiff(),
        actor: row.try_get(1)?,
        action: row.try_get(2)?,
        subject: row.try_get(3)?,
        reason: row.try_get(4)?,
        detail: row.try_get::<Option<&str>, _>(5)?.map(serde_json::from_str).transpose()?,
    })
}

/// As jsonb takes it.
fn json(value: &serde_json::Value) -> String {
    value.to_string().replace("\\u0000", "\\ufffd")
}

type Unreadable = Box<dyn std::error::Error + Send + Sync>;

fn read(row: &PgRow) -> Result<Operation, StoreError> {
    let columns = || -> Result<Operation, Unreadable> {
        let count = |column: &str| row.try_get::<i64, _>(column).map(i64::unsigned_abs);
        let moment = |column: &str| -> Result<Option<Timestamp>, sqlx::Error> {
            Ok(row.try_get::<Option<jiff_sqlx::Timestamp>, _>(column)?.map(jiff_sqlx::Timestamp::to_jiff))
        };
        let (kind, state): (&str, &str) = (row.try_get("kind")?, row.try_get("state")?);
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
            created_at: row.try_get::<jiff_sqlx::Timestamp, _>("created_at")?.to_jiff(),
            started_at: moment("started_at")?,
            finished_at: moment("finished_at")?,
            error: row.try_get("error")?,
            runner: row.try_get("runner")?,
        })
    };
    columns().map_err(unreadable)
}

fn unreadable(cause: Unreadable) -> StoreError {
    let message = format!(
        "a row of operation or audit_log cannot be read: {cause}; it was changed by hand or by a newer binary"
    );
    StoreError::new(StoreErrorKind::Other, message).because(cause)
}
