//! The database that others are copied from: it has the schema, and nobody may connect to it.

use anyhow::{Context, Result};
use postrider::Clock;
use postrider::postgres::{Postgres, PostgresConfig};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};
use url::Url;

pub(super) const NAME: &str = "postrider_template";
/// Under this name until it is whole: who finds the other one finds all of it.
const DRAFT: &str = "postrider_template_draft";
/// Any number that nobody else locks.
const LOCK: i64 = 0x7465_6d70;

/// Makes it, unless it is there. One that an older build made is as good: whoever opens a copy applies what is missing.
pub(super) async fn make(server: &str) -> Result<()> {
    let mut door = PgConnection::connect(server).await.context("no connection to the shared PostgreSQL")?;
    if !is_there(&mut door).await? {
        sqlx::query("SELECT pg_advisory_lock($1)").bind(LOCK).execute(&mut door).await?;
        if !is_there(&mut door).await? {
            migrate_draft(&mut door, server).await?;
        }
    }
    // The lock ends with the connection.
    Ok(door.close().await?)
}

async fn is_there(door: &mut PgConnection) -> Result<bool> {
    let found = sqlx::query_scalar("SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)");
    Ok(found.bind(NAME).fetch_one(door).await?)
}

async fn migrate_draft(door: &mut PgConnection, server: &str) -> Result<()> {
    for sql in [
        format!("DROP DATABASE IF EXISTS {DRAFT} WITH (FORCE)"),
        format!("CREATE DATABASE {DRAFT} TEMPLATE template0"),
    ] {
        door.execute(AssertSqlSafe(sql)).await?;
    }
    let mut url = Url::parse(server).context("DATABASE_URL is not an address")?;
    url.set_path(DRAFT);
    let store = Postgres::connect(PostgresConfig::new(url.as_str()), Clock::system()).await?;
    store.migrate().await?;
    store.close().await;
    for sql in [
        // A copy of what somebody is connected to is refused; the server itself connects to clean up.
        format!("ALTER DATABASE {DRAFT} ALLOW_CONNECTIONS false"),
        format!("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = '{DRAFT}'"),
        format!("ALTER DATABASE {DRAFT} RENAME TO {NAME}"),
    ] {
        door.execute(AssertSqlSafe(sql)).await?;
    }
    Ok(())
}
