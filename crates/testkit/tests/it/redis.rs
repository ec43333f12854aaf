//! Redis for tests: real commands, crash, pause, TLS.

use anyhow::Result;
use postrider_testkit::servers::Redis;
use tokio::time::timeout;

use super::tools::{PATIENCE, client, nothing_left};

async fn ask(url: &str, words: &[&str]) -> Result<String> {
    client("redis-cli", &[&["-u", url], words].concat()).await
}

#[tokio::test]
async fn redis_survives_a_crash_with_what_it_acknowledged() -> Result<()> {
    let server = Redis::start().await?;
    let url = server.url();
    assert_eq!(ask(&url, &["SET", "kept", "7"]).await?, "OK");
    server.kill()?;
    assert!(ask(&url, &["PING"]).await.is_err());
    server.restart().await?;
    assert_eq!(ask(&url, &["GET", "kept"]).await?, "7");
    server.stop().await?;
    server.restart().await?;
    assert_eq!(ask(&url, &["GET", "kept"]).await?, "7");

    server.pause()?;
    assert!(timeout(PATIENCE, ask(&url, &["PING"])).await.is_err());
    server.resume()?;
    assert_eq!(ask(&url, &["PING"]).await?, "PONG");

    let folder = server.folder().to_owned();
    drop(server);
    nothing_left(&folder).await;
    Ok(())
}

#[tokio::test]
async fn redis_with_tls_proves_who_it_is() -> Result<()> {
    let server = Redis::start_tls().await?;
    let authority = server.ca_file().expect("a server with TLS has an authority").display().to_string();
    assert!(server.url().starts_with("rediss://"));
    assert_eq!(ask(&server.url(), &["--cacert", &authority, "PING"]).await?, "PONG");
    assert!(ask(&server.url(), &["PING"]).await.is_err(), "trusted without the authority");
    Ok(())
}
