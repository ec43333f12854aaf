//! What somebody would write in an afternoon, as a measure: a poller of sixty lines over a table of the usual shape.
//!
//! It takes 500 rows with SKIP LOCKED, publishes them all at once, marks them and commits. It keeps no order, holds its
//! locks while it waits for the broker, and does not notice a message that no queue wanted.

use std::time::Duration;

use futures_util::future::try_join_all;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel};
use postrider::Clock;
use sqlx::{PgPool, Row as _};

use super::Load;

/// The poller and its table, in a schema of its own.
pub(super) struct Naive {
    pool: PgPool,
    channel: Channel,
    _connection: lapin::Connection,
    queue: String,
}

impl Naive {
    /// Makes the table.
    pub(super) async fn open(pool: &PgPool, broker: &str, queue: &str) -> anyhow::Result<Self> {
        let table = "DROP SCHEMA IF EXISTS postrider_bench CASCADE; CREATE SCHEMA postrider_bench;
            CREATE TABLE postrider_bench.event_outbox (
                id uuid PRIMARY KEY, group_id uuid NOT NULL, subsidiary_id uuid, aggregate_type text NOT NULL,
                aggregate_id uuid NOT NULL, event_type text NOT NULL, payload jsonb NOT NULL,
                status text NOT NULL DEFAULT 'pending', available_at timestamptz NOT NULL DEFAULT now(),
                attempts int NOT NULL DEFAULT 0, created_at timestamptz NOT NULL DEFAULT now());
            CREATE INDEX ON postrider_bench.event_outbox (status, available_at);
            CREATE INDEX ON postrider_bench.event_outbox (aggregate_type, aggregate_id)";
        sqlx::raw_sql(table).execute(pool).await?;
        let connection = lapin::Connection::connect(broker, lapin::ConnectionProperties::default()).await?;
        let channel = connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        Ok(Self { pool: pool.clone(), channel, _connection: connection, queue: queue.to_owned() })
    }

    /// Fills the table.
    pub(super) async fn fill(&self, load: Load) -> anyhow::Result<()> {
        sqlx::query("TRUNCATE postrider_bench.event_outbox").execute(&self.pool).await?;
        sqlx::query(
            "INSERT INTO postrider_bench.event_outbox (id, group_id, aggregate_type, aggregate_id, event_type, payload)
             SELECT gen_random_uuid(), gen_random_uuid(), 'bench.item', gen_random_uuid(), 'made',
                    jsonb_build_object('number', n, 'filling', repeat('x', $2)) FROM generate_series(1, $1) n",
        )
        .bind(i64::try_from(load.events)?)
        .bind(i32::try_from(load.bytes.saturating_sub(32))?)
        .execute(&self.pool)
        .await?;
        // As it would be in a database that has been at work for a while; else every pass reads the whole table.
        sqlx::query("ANALYZE postrider_bench.event_outbox").execute(&self.pool).await?;
        Ok(())
    }

    /// Publishes everything.
    pub(super) async fn drain(&self, clock: &Clock) -> anyhow::Result<Duration> {
        let start = clock.monotonic();
        while self.pass().await? > 0 {}
        Ok(clock.since(start))
    }

    async fn pass(&self) -> anyhow::Result<usize> {
        let mut tx = self.pool.begin().await?;
        let rows = sqlx::query(
            "SELECT id::text, aggregate_type, aggregate_id::text, event_type, payload::text FROM postrider_bench.event_outbox
             WHERE status = 'pending' AND available_at <= now()
             ORDER BY available_at LIMIT 500 FOR UPDATE SKIP LOCKED",
        )
        .fetch_all(&mut *tx)
        .await?;
        let ids = rows.iter().map(|row| row.try_get(0)).collect::<Result<Vec<String>, _>>()?;
        let sending = rows.iter().zip(&ids).map(|(row, id)| async move {
            let mut headers = FieldTable::default();
            for (name, column) in [("x-aggregate-type", 1), ("x-event-type", 3)] {
                headers.insert(name.into(), AMQPValue::LongString(row.try_get::<&str, _>(column)?.into()));
            }
            headers.insert("x-event-id".into(), AMQPValue::LongString(id.as_str().into()));
            let properties = BasicProperties::default()
                .with_delivery_mode(2)
                .with_message_id(id.as_str().into())
                .with_headers(headers);
            let body = row.try_get::<&str, _>(4)?.as_bytes();
            let options = BasicPublishOptions::default();
            let publish =
                self.channel.basic_publish("".into(), self.queue.as_str().into(), options, body, properties);
            publish.await?.await?;
            anyhow::Ok(())
        });
        try_join_all(sending).await?;
        sqlx::query(
            "UPDATE postrider_bench.event_outbox SET status = 'published' WHERE id = ANY($1::text[]::uuid[])",
        )
        .bind(&ids)
        .execute(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(ids.len())
    }

    /// Removes the table.
    pub(super) async fn remove(self) -> anyhow::Result<()> {
        sqlx::raw_sql("DROP SCHEMA postrider_bench CASCADE").execute(&self.pool).await?;
        Ok(())
    }
}
