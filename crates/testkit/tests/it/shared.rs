//! The servers of a test run: a corner of its own for every test.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use postrider_testkit::servers::{Fleet, Shared, down, up};

use super::tools::{client, nothing_left, psql};

/// Ends the shared servers of a test that failed, too.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = down(&self.0);
    }
}

fn read(env: &Path) -> Result<Shared> {
    let text = fs::read_to_string(env)?;
    let look = |name: &str| {
        let start = format!("export {name}=");
        text.lines().find_map(|line| line.strip_prefix(&start)).map(str::to_owned)
    };
    let find = |name: &str| look(name).with_context(|| name.to_owned());
    Ok(Shared {
        database_url: find("DATABASE_URL")?,
        rabbitmq_url: find("RABBITMQ_URL")?,
        rabbitmq_management_url: find("RABBITMQ_MANAGEMENT_URL")?,
        redis_url: find("REDIS_URL")?,
        rabbitmq4_url: look("RABBITMQ4_URL"),
        rabbitmq4_management_url: look("RABBITMQ4_MANAGEMENT_URL"),
    })
}

#[tokio::test]
async fn shared_servers_give_each_test_a_corner_of_its_own() -> Result<()> {
    let temp = tempfile::tempdir()?;
    let folder = Folder(temp.path().join("servers"));
    down(&folder.0)?; // with nothing there
    assert_eq!(up(&folder.0, false).await?, Fleet::Started);
    assert_eq!(up(&folder.0, false).await?, Fleet::AlreadyUp);
    assert!(up(&folder.0, true).await.is_err(), "one node was taken for three");
    let shared = read(&folder.0.join("env"))?;

    let (first, second) = tokio::try_join!(shared.database(), shared.database())?;
    psql(&first.url, "CREATE TABLE mine (n int)").await?;
    assert_eq!(psql(&second.url, "SELECT to_regclass('mine') IS NULL").await?, "t");
    first.close().await?;
    drop(second);
    let left = "SELECT count(*) FROM pg_database WHERE datname LIKE 'test_%'";
    assert_eq!(psql(&shared.database_url, left).await?, "0");

    let vhost = shared.vhost().await?;
    lapin::Connection::connect(&vhost.amqp_url, lapin::ConnectionProperties::default()).await?;
    let amqp_url = vhost.amqp_url.clone();
    drop(vhost);
    assert!(lapin::Connection::connect(&amqp_url, lapin::ConnectionProperties::default()).await.is_err());

    assert_ne!(shared.redis_prefix(), shared.redis_prefix());
    assert_eq!(client("redis-cli", &["-u", &shared.redis_url, "PING"]).await?, "PONG");

    let data = fs::canonicalize(folder.0.join("data"))?;
    down(&folder.0)?;
    nothing_left(&data).await;
    assert!(!folder.0.exists());
    Ok(())
}
