//! Waiting for another process to become ready: the only place of the test servers that sleeps.
#![allow(clippy::disallowed_methods)] // a real process is waited for in real time; no test may move that clock

use std::thread;
use std::time::Duration;

use anyhow::{Result, bail};
use rustix::process::Pid;

use super::tree;

const BETWEEN_LOOKS: Duration = Duration::from_millis(20);

/// Asks `ready` again and again until it says yes. An error ends the wait at once; so does the limit.
pub(crate) async fn until(
    what: &str,
    limit: Duration,
    mut ready: impl AsyncFnMut() -> Result<bool>,
) -> Result<()> {
    let looking = async {
        while !ready().await? {
            tokio::time::sleep(BETWEEN_LOOKS).await;
        }
        Ok(())
    };
    match tokio::time::timeout(limit, looking).await {
        Ok(result) => result,
        Err(_) => bail!("{what} is not ready after {} s", limit.as_secs()),
    }
}

/// Waits for processes that were killed to be gone, with their ports and locks: a few milliseconds. At most five seconds.
pub(crate) fn until_gone(pids: &[Pid]) {
    for _ in 0..5_000 {
        if !pids.iter().any(|pid| tree::is_alive(*pid)) {
            return;
        }
        thread::sleep(Duration::from_millis(1));
    }
}
