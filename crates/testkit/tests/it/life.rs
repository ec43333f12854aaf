//! Private servers end with the process that owns them, however it ends.

use std::io::Read;
use std::path::PathBuf;
use std::process::Stdio;

use anyhow::Result;
use postrider_testkit::servers::{Postgres, RabbitCluster, RabbitMq, RabbitVersion, Redis, Shared};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

use super::tools::{no_process_left, nothing_left};

/// A test may start and restart servers from a task of its own.
#[test]
fn servers_can_be_driven_from_any_task() {
    fn check<T: Send>(_: T) {}
    check(Postgres::start());
    check(Redis::start_tls());
    check(RabbitMq::start_tls(RabbitVersion::Newer));
    check(RabbitCluster::start());
    let _ = |cluster: &'static RabbitCluster| check(cluster.restart(0));
    let _ = |shared: &'static Shared| (check(shared.database()), check(shared.vhost()));
}

/// Not a test: the process that the test below kills. It holds servers until its input ends.
#[tokio::test]
#[ignore = "started and killed by the test below"]
async fn hold_servers() -> Result<()> {
    let (postgres, redis, rabbitmq, paused) =
        tokio::try_join!(Postgres::start(), Redis::start(), RabbitMq::start(), Postgres::start())?;
    paused.pause()?;
    for folder in [postgres.folder(), redis.folder(), rabbitmq.folder(), paused.folder()] {
        println!("\nfolder {}", folder.display());
    }
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

#[tokio::test]
async fn a_killed_test_leaves_nothing_behind() -> Result<()> {
    let mut holder = Command::new(std::env::current_exe()?)
        .args(["--exact", "it::life::hold_servers", "--ignored", "--nocapture"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut lines = BufReader::new(holder.stdout.take().expect("piped above")).lines();
    let mut folders: Vec<PathBuf> = Vec::new();
    while folders.len() < 4 {
        let line = lines.next_line().await?.expect("the holder ended early");
        folders.extend(line.strip_prefix("folder ").map(PathBuf::from));
    }
    holder.kill().await?;

    for folder in &folders[..3] {
        no_process_left(folder).await;
    }
    // A stopped backend cannot notice that its postmaster died, and nobody was left to remove the folders: the next one
    // to start a server does both.
    let next = Redis::start().await?;
    for folder in &folders {
        nothing_left(folder).await;
    }
    drop(next);
    Ok(())
}
