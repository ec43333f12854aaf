//! The state of the outbox table that a measurement finds: full of history, or kept from being cleaned up.

use postrider::postgres::Postgres;
use postrider::store::Store as _;
use postrider::topology::QueueName;
use sqlx::{AssertSqlSafe, Postgres as Driver, Transaction};

/// Ids in the order of time, as those of events are: a number behind one of them for each row. Random ones fill their index much more slowly.
const IDS: &str = "(SELECT n, first || '-' || lpad(n::text, 6, '0') AS id
    FROM (SELECT postrider.new_id() AS first OFFSET 0) AS made, generate_series(1, $1) n) AS numbered";

/// Adds so many rows that are published already.
pub(super) async fn add_published(
    store: &Postgres,
    rows: usize,
    bytes: usize,
    queue: &QueueName,
) -> anyhow::Result<()> {
    let insert = format!(
        "INSERT INTO postrider.event_outbox (id, aggregate_type, aggregate_id, event_type, body, status,
             published_at, target_queue)
         SELECT id, 'bench.item', 'item-' || n % 5000, 'made', convert_to(repeat('x', $2), 'UTF8'), 'published', now(), $3
         FROM {IDS}"
    );
    for step in steps(rows) {
        sqlx::query(AssertSqlSafe(insert.as_str()))
            .bind(step)
            .bind(i32::try_from(bytes)?)
            .bind(queue.as_str())
            .execute(store.pool())
            .await?;
    }
    Ok(())
}

/// Cleans up behind the filling, so that what is measured next does not share its processors with that. Who may not is measured beside it.
pub(super) async fn settle(store: &Postgres) -> anyhow::Result<()> {
    let all = "VACUUM (ANALYZE) postrider.event_outbox, postrider.event_inbox, postrider.dead_letter";
    let mut connection = store.pool().acquire().await?;
    sqlx::query("SET statement_timeout = 0").execute(&mut *connection).await?;
    for sql in [all, "CHECKPOINT"] {
        if let Err(error) = sqlx::query(sql).execute(&mut *connection).await {
            eprintln!("{sql}: {error}");
        }
    }
    sqlx::query("RESET statement_timeout").execute(&mut *connection).await?;
    Ok(())
}

/// So many rows, some at a time: a statement has a time limit.
fn steps(rows: usize) -> impl Iterator<Item = i64> {
    const STEP: usize = 20_000;
    let step = move |done: usize| i64::try_from((rows - done).min(STEP)).unwrap_or(i64::MAX);
    (0..rows).step_by(STEP).map(step)
}

/// Adds so many rows to every other list that grows: jobs, all done, the audit log, and operations.
pub(super) async fn add_others(store: &Postgres, rows: usize, queue: &QueueName) -> anyhow::Result<()> {
    let mut tx = store.begin().await?;
    sqlx::query("SET LOCAL statement_timeout = 0").execute(tx.connection()).await?;
    for sql in [
        "INSERT INTO postrider.progress_job (job, group_id, announces, status, total, done, unshown, kept_items, created_at, finished_at)
             SELECT $2 || '-' || n, $2, 'bench.items.made', 'DONE', 9, 9, false, false, now() - n * interval '1 second', now()
             FROM generate_series(1, $1) n",
        "INSERT INTO postrider.audit_log (at, actor, action, subject, reason)
             SELECT now() - n * interval '1 second', $2, 'consumer.pause', 'consumer/' || n % 1000, 'a measurement'
             FROM generate_series(1, $1) n",
        "INSERT INTO postrider.operation (id, kind, state, plan, total, created_by, created_at, finished_at)
             SELECT gen_random_uuid(), 'replay_letters', 'done', '{}', 0, $2, now() - n * interval '1 second', now()
             FROM generate_series(1, $1) n",
    ] {
        sqlx::query(sql).bind(i64::try_from(rows)?).bind(queue.as_str()).execute(tx.connection()).await?;
    }
    store.commit(tx).await?;
    Ok(())
}

/// Removes them.
pub(super) async fn forget_others(store: &Postgres, queue: &QueueName) -> anyhow::Result<()> {
    let mut tx = store.begin().await?;
    sqlx::query("SET LOCAL statement_timeout = 0").execute(tx.connection()).await?;
    for sql in [
        "DELETE FROM postrider.progress_job WHERE group_id = $1",
        "DELETE FROM postrider.audit_log WHERE actor = $1",
        "DELETE FROM postrider.operation WHERE created_by = $1",
    ] {
        sqlx::query(sql).bind(queue.as_str()).execute(tx.connection()).await?;
    }
    store.commit(tx).await?;
    Ok(())
}

/// Adds so many events that a consumer of the benchmark has applied.
pub(super) async fn add_applied(store: &Postgres, rows: usize, queue: &QueueName) -> anyhow::Result<()> {
    let insert = format!(
        "INSERT INTO postrider.event_inbox (consumer_name, event_id, payload_hash)
         SELECT $2 || '.before', id, sha256('x') FROM {IDS}"
    );
    for step in steps(rows) {
        sqlx::query(AssertSqlSafe(insert.as_str()))
            .bind(step)
            .bind(queue.as_str())
            .execute(store.pool())
            .await?;
    }
    Ok(())
}

/// Adds so many dead letters, of as many groups as those that are measured.
pub(super) async fn add_letters(
    store: &Postgres,
    rows: usize,
    bytes: usize,
    queue: &QueueName,
) -> anyhow::Result<()> {
    let insert = format!(
        "INSERT INTO postrider.dead_letter (key, event_id, event_type, queue, exchange, routing_key, reason, error, error_class,
             fingerprint, attempts, first_failed_at, dead_at, properties, headers, body)
         SELECT id, id, 'bench.item.made', $3, 'bench', 'bench.item.made', 'retries_exhausted', 'connection refused',
             'class-' || n % 200, $3 || '/before-' || n % 200, 11, now(), now() - n * interval '1 second', '{{}}', '{{}}',
             convert_to(repeat('x', $2), 'UTF8')
         FROM {IDS}"
    );
    for step in steps(rows) {
        let added = sqlx::query(AssertSqlSafe(insert.as_str()))
            .bind(step)
            .bind(i32::try_from(bytes)?)
            .bind(queue.as_str());
        added.execute(store.pool()).await?;
    }
    Ok(())
}

/// A transaction that somebody left open: while it lasts, nothing that was deleted or updated since can be cleaned up.
pub(super) struct Held(Transaction<'static, Driver>);

impl Held {
    /// Opens it.
    pub(super) async fn open(store: &Postgres) -> anyhow::Result<Self> {
        let mut transaction = store.pool().begin().await?;
        sqlx::query("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ").execute(&mut *transaction).await?;
        sqlx::query("SELECT txid_current()").execute(&mut *transaction).await?;
        Ok(Self(transaction))
    }

    /// Ends it.
    pub(super) async fn end(self) -> anyhow::Result<()> {
        Ok(self.0.rollback().await?)
    }
}

/// Removes the benchmark's rows.
pub(super) async fn forget(store: &Postgres, queue: &QueueName) -> anyhow::Result<()> {
    let mut tx = store.begin().await?;
    sqlx::query("SET LOCAL statement_timeout = 0").execute(tx.connection()).await?;
    sqlx::query(
        "WITH gone AS (DELETE FROM postrider.event_outbox WHERE target_queue = $1 RETURNING id)
         DELETE FROM postrider.event_outbox_id WHERE id IN (SELECT id FROM gone)",
    )
    .bind(queue.as_str())
    .execute(tx.connection())
    .await?;
    store.commit(tx).await?;
    Ok(())
}

/// Removes what the benchmark's consumers, which are named after its queue, have marked as applied.
pub(super) async fn forget_inbox(store: &Postgres, queue: &QueueName) -> anyhow::Result<()> {
    let delete = "DELETE FROM postrider.event_inbox WHERE starts_with(consumer_name, $1)";
    let mut tx = store.begin().await?;
    sqlx::query("SET LOCAL statement_timeout = 0").execute(tx.connection()).await?;
    sqlx::query(delete).bind(queue.as_str()).execute(tx.connection()).await?;
    store.commit(tx).await?;
    Ok(())
}

/// Removes the benchmark's dead letters and their counts.
pub(super) async fn forget_letters(store: &Postgres, queue: &QueueName) -> anyhow::Result<()> {
    let mut tx = store.begin().await?;
    for sql in [
        "SET LOCAL statement_timeout = 0",
        "DELETE FROM postrider.dead_letter_hour WHERE fingerprint IN \
             (SELECT fingerprint FROM postrider.dead_letter_group WHERE queue = $1)",
        "DELETE FROM postrider.dead_letter_group WHERE queue = $1",
        "DELETE FROM postrider.dead_letter WHERE queue = $1",
    ] {
        let statement = sqlx::query(sql);
        let statement = if sql.contains("$1") { statement.bind(queue.as_str()) } else { statement };
        statement.execute(tx.connection()).await?;
    }
    store.commit(tx).await?;
    Ok(())
}

/// Removes what was published over HTTP.
pub(super) async fn forget_published(store: &Postgres) -> anyhow::Result<()> {
    let delete = "DELETE FROM postrider.event_outbox WHERE aggregate_type = 'bench.http'";
    let mut tx = store.begin().await?;
    sqlx::query("SET LOCAL statement_timeout = 0").execute(tx.connection()).await?;
    sqlx::query(delete).execute(tx.connection()).await?;
    store.commit(tx).await?;
    Ok(())
}
