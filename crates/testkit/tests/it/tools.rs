//! The servers' own clients, and waiting without a clock.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use postrider_testkit::servers::processes_in;
use tokio::process::Command;
use tokio::time::{interval, timeout};

/// Long enough for a healthy server to have answered.
pub(crate) const PATIENCE: Duration = Duration::from_millis(700);

/// Runs a client and returns what it prints, without the last line end.
pub(crate) async fn client(program: &str, args: &[&str]) -> Result<String> {
    let output = Command::new(program).args(args).kill_on_drop(true).output().await?;
    ensure!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?.trim_end().to_owned())
}

pub(crate) async fn psql(url: &str, sql: &str) -> Result<String> {
    client("psql", &["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-c", sql, url]).await
}

/// Checks the server's certificate and name against the authority; whatever it speaks inside.
pub(crate) async fn trusted(url: &str, authority: &Path) -> Result<()> {
    let address = url::Url::parse(url)?;
    let connect = format!("127.0.0.1:{}", address.port().unwrap_or_default());
    let authority = authority.to_string_lossy();
    let args =
        ["s_client", "-connect", &connect, "-CAfile", &authority, "-verify_return_error", "-verify_ip"];
    client("openssl", &[&args[..], &["127.0.0.1"]].concat()).await.map(drop)
}

/// Fails if a process still works in the folder, or names it, after a few seconds; so does a folder that is left.
pub(crate) async fn nothing_left(folder: &Path) {
    no_process_left(folder).await;
    assert!(!folder.exists(), "{} is left behind", folder.display());
}

pub(crate) async fn no_process_left(folder: &Path) {
    let mut tick = interval(Duration::from_millis(20));
    let empty = async {
        while !processes_in(folder).is_empty() {
            tick.tick().await;
        }
    };
    let emptied = timeout(Duration::from_secs(5), empty).await;
    assert!(emptied.is_ok(), "still running in {}: {:?}", folder.display(), processes_in(folder));
}
