//! What the ledger is measured against: double entry as a function in SQL, as one would write it, called once for each transfer.
//!
//! It locks both accounts in order, writes the transfer under its event's unique id, two lines, and both balances, and commits.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use postrider::Clock;
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tokio::task::JoinSet;

/// Clients that call it at the same time.
const CLIENTS: u32 = 20;

const TABLES: &str = "
    CREATE SCHEMA plain;
    CREATE TABLE plain.account (id int PRIMARY KEY, balance bigint NOT NULL DEFAULT 0);
    CREATE TABLE plain.transfer (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, event text NOT NULL UNIQUE, made_at timestamptz NOT NULL DEFAULT now());
    CREATE TABLE plain.line (
        transfer bigint NOT NULL REFERENCES plain.transfer, account int NOT NULL REFERENCES plain.account,
        amount bigint NOT NULL, PRIMARY KEY (transfer, account));
    CREATE INDEX ON plain.line (account);
    CREATE FUNCTION plain.post(of_event text, giver int, taker int, how_much bigint) RETURNS bigint LANGUAGE plpgsql AS $$
    DECLARE made bigint;
    BEGIN
        PERFORM FROM plain.account WHERE id IN (giver, taker) ORDER BY id FOR UPDATE;
        INSERT INTO plain.transfer (event) VALUES (of_event) RETURNING id INTO made;
        INSERT INTO plain.line VALUES (made, giver, -how_much), (made, taker, how_much);
        UPDATE plain.account SET balance = balance - how_much WHERE id = giver;
        UPDATE plain.account SET balance = balance + how_much WHERE id = taker;
        RETURN made;
    END $$;";

/// The function and its tables, in the benchmark's own database.
pub(crate) struct PlainSql {
    pool: PgPool,
}

impl PlainSql {
    /// Makes them, with so many accounts.
    pub(crate) async fn open(url: &str, accounts: usize) -> anyhow::Result<Self> {
        let pool = PgPoolOptions::new().max_connections(CLIENTS).connect(url).await?;
        sqlx::raw_sql(TABLES).execute(&pool).await?;
        let filled = sqlx::query("INSERT INTO plain.account SELECT generate_series(0, $1)");
        filled.bind(i32::try_from(accounts)?).execute(&pool).await?;
        Ok(Self { pool })
    }

    /// Posts the transfers, each a call and a commit of its own, and says how long all took.
    pub(crate) async fn post(
        &self,
        round: usize,
        transfers: Arc<Vec<(usize, usize)>>,
        clock: &Clock,
    ) -> anyhow::Result<Duration> {
        let (next, start) = (Arc::new(AtomicUsize::new(0)), clock.monotonic());
        let mut clients = JoinSet::new();
        for _ in 0..CLIENTS {
            let (pool, next, transfers) = (self.pool.clone(), next.clone(), transfers.clone());
            clients.spawn(async move {
                let mut connection = pool.acquire().await?;
                while let Some((number, (giver, taker))) = {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    transfers.get(number).map(|transfer| (number, *transfer))
                } {
                    sqlx::query("SELECT plain.post($1, $2, $3, 1)")
                        .bind(format!("evt_{round}_{number}"))
                        .bind(i32::try_from(giver)?)
                        .bind(i32::try_from(taker)?)
                        .execute(&mut *connection)
                        .await?;
                }
                anyhow::Ok(())
            });
        }
        while let Some(ended) = clients.join_next().await {
            ended??;
        }
        Ok(clock.since(start))
    }

    /// Ends its connections.
    pub(crate) async fn close(self) {
        self.pool.close().await;
    }
}
