//! What the benchmark's handlers do: a row each, in a table without a key.

use futures_util::future::BoxFuture;
use postrider::Failure;
use postrider::handler::{BatchLimits, batch_handler_fn, handler_fn};
use postrider::postgres::Postgres;
use postrider::registry::Registry;
use postrider::sqlite::Sqlite;
use postrider::store::{Backend, Store as _};

/// A store that effects can be written to.
pub(crate) trait Effects: Backend {
    /// Makes the table.
    async fn make_effects(&self) -> anyhow::Result<()>;

    /// Writes a row for each id in one statement, with so many bytes in it.
    fn write_effects(tx: &mut Self::Tx, ids: Vec<String>, bytes: usize)
    -> BoxFuture<'_, Result<(), Failure>>;

    /// Handlers that write a row for each event.
    fn effects(batch: usize) -> Registry<Self> {
        if batch == 1 {
            let one = handler_fn::<Self, _>(|tx, event| {
                Self::write_effects(tx, vec![event.envelope.id.to_string()], 0)
            });
            return Registry::new().on("#", one);
        }
        let many = batch_handler_fn::<Self, _>(|tx, events| {
            Self::write_effects(tx, events.iter().map(|event| event.envelope.id.to_string()).collect(), 0)
        });
        Registry::new().on_batch("#", BatchLimits { max_size: batch, ..BatchLimits::default() }, many)
    }
}

impl Effects for Postgres {
    async fn make_effects(&self) -> anyhow::Result<()> {
        let table = "CREATE SCHEMA IF NOT EXISTS postrider_bench;
            DROP TABLE IF EXISTS postrider_bench.effect;
            CREATE TABLE postrider_bench.effect (id text NOT NULL, body bytea NOT NULL)";
        sqlx::raw_sql(table).execute(self.pool()).await?;
        Ok(())
    }

    fn write_effects(
        tx: &mut Self::Tx,
        ids: Vec<String>,
        bytes: usize,
    ) -> BoxFuture<'_, Result<(), Failure>> {
        Box::pin(async move {
            let insert =
                "INSERT INTO postrider_bench.effect (id, body) SELECT id, $2 FROM unnest($1::text[]) id";
            sqlx::query(insert).bind(ids).bind(vec![b'x'; bytes]).execute(tx.connection()).await?;
            Ok(())
        })
    }
}

impl Effects for Sqlite {
    async fn make_effects(&self) -> anyhow::Result<()> {
        let mut tx = self.begin().await?;
        let table = "CREATE TABLE IF NOT EXISTS effect (id TEXT NOT NULL, body BLOB NOT NULL)";
        sqlx::query(table).execute(tx.connection().await?).await?;
        self.commit(tx).await?;
        Ok(())
    }

    fn write_effects(
        tx: &mut Self::Tx,
        ids: Vec<String>,
        bytes: usize,
    ) -> BoxFuture<'_, Result<(), Failure>> {
        Box::pin(async move {
            let insert = "INSERT INTO effect (id, body) SELECT value, ?2 FROM json_each(?1)";
            let ids = serde_json::to_string(&ids)?;
            sqlx::query(insert).bind(ids).bind(vec![b'x'; bytes]).execute(tx.connection().await?).await?;
            Ok(())
        })
    }
}
