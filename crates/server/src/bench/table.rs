//! The state of the outbox table that a measurement finds: full of history, or kept from being cleaned up.

use postrider::postgres::Postgres;
use postrider::store::Store as _;
use postrider::topology::QueueName;
use sqlx::{Postgres as Driver, Transaction};

/// Adds so many rows that are published already.
pub(crate) async fn add_published(
    store: &Postgres,
    rows: usize,
    bytes: usize,
    queue: &QueueName,
) -> anyhow::Result<()> {
    const STEP: usize = 100_000;
    let insert = "INSERT INTO postrider.event_outbox (id, aggregate_type, aggregate_id, event_type, body, status,
                      published_at, target_queue)
                  SELECT gen_random_uuid()::text, 'bench.item', 'item-' || n % 5000, 'made',
                      convert_to(repeat('x', $2), 'UTF8'), 'published', now(), $3 FROM generate_series(1, $1) n";
    let mut left = rows;
    while left > 0 {
        let step = left.min(STEP);
        sqlx::query(insert)
            .bind(i64::try_from(step)?)
            .bind(i32::try_from(bytes)?)
            .bind(queue.as_str())
            .execute(store.pool())
            .await?;
        left -= step;
    }
    Ok(())
}

/// A transaction that somebody left open: while it lasts, nothing that was deleted or updated since can be cleaned up.
pub(crate) struct Held(Transaction<'static, Driver>);

impl Held {
    /// Opens it.
    pub(crate) async fn open(store: &Postgres) -> anyhow::Result<Self> {
        let mut transaction = store.pool().begin().await?;
        sqlx::query("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ").execute(&mut *transaction).await?;
        sqlx::query("SELECT txid_current()").execute(&mut *transaction).await?;
        Ok(Self(transaction))
    }

    /// Ends it.
    pub(crate) async fn end(self) -> anyhow::Result<()> {
        Ok(self.0.rollback().await?)
    }
}

/// Removes the benchmark's rows.
pub(crate) async fn forget(store: &Postgres, queue: &QueueName) -> anyhow::Result<()> {
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
pub(crate) async fn forget_inbox(store: &Postgres, queue: &QueueName) -> anyhow::Result<()> {
    let delete = "DELETE FROM postrider.event_inbox WHERE starts_with(consumer_name, $1)";
    sqlx::query(delete).bind(queue.as_str()).execute(store.pool()).await?;
    Ok(())
}
