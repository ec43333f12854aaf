//! PostgreSQL for tests: real queries, crash, pause, TLS.

use anyhow::Result;
use postrider_testkit::servers::{Postgres, processes_in};
use tokio::time::timeout;

use super::tools::{PATIENCE, nothing_left, psql};

#[tokio::test]
async fn postgres_survives_a_crash_with_what_was_committed() -> Result<()> {
    let server = Postgres::start().await?;
    let url = server.url();
    psql(&url, "CREATE TABLE kept (n int); INSERT INTO kept VALUES (7)").await?;
    assert_eq!(psql(&url, "SHOW fsync").await?, "on");
    assert_eq!(psql(&url, "SHOW wal_level").await?, "logical");

    // A backend in the middle of a statement dies with the rest, at once.
    let sleeper = tokio::spawn({
        let url = url.clone();
        async move { psql(&url, "SELECT pg_sleep(60)").await }
    });
    while psql(&url, "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%'").await?
        == "0"
    {}
    server.kill()?;
    assert_eq!(processes_in(server.folder()), Vec::<i32>::new());
    assert!(timeout(PATIENCE, sleeper).await??.is_err());
    assert!(psql(&url, "SELECT 1").await.is_err());

    server.restart().await?;
    assert_eq!(psql(&url, "SELECT n FROM kept").await?, "7");

    server.stop().await?;
    assert_eq!(processes_in(server.folder()), Vec::<i32>::new());
    server.restart().await?;
    assert_eq!(psql(&url, "SELECT n FROM kept").await?, "7");

    let folder = server.folder().to_owned();
    drop(server);
    nothing_left(&folder).await;
    Ok(())
}

#[tokio::test]
async fn a_paused_postgres_keeps_silent_until_it_is_resumed() -> Result<()> {
    let server = Postgres::start().await?;
    server.pause()?;
    assert!(timeout(PATIENCE, psql(&server.url(), "SELECT 1")).await.is_err());
    server.resume()?;
    assert_eq!(psql(&server.url(), "SELECT 1").await?, "1");

    // Nor does a paused one outlive its owner.
    server.pause()?;
    let folder = server.folder().to_owned();
    drop(server);
    nothing_left(&folder).await;
    Ok(())
}

#[tokio::test]
async fn postgres_with_tls_proves_who_it_is_and_refuses_plain_text() -> Result<()> {
    let server = Postgres::start_tls().await?;
    let sql = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
    assert_eq!(psql(&server.url(), sql).await?, "t");
    let plain = server.url().split('?').next().unwrap_or_default().to_owned();
    assert!(psql(&format!("{plain}?sslmode=disable"), sql).await.is_err());
    assert!(
        psql(&format!("{plain}?sslmode=verify-full"), sql).await.is_err(),
        "trusted without the authority"
    );
    Ok(())
}
