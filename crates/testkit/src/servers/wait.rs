//! Waiting for another process to become ready: the only place of the test servers that sleeps.
#![allow(clippy::disallowed_methods)] // a real process is waited for in real time; no test may move that clock

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use rustix::process::Pid;

use super::tree;

const BETWEEN_LOOKS: Duration = Duration::from_millis(20);

/// How long something is waited for. Looks are taken in a loop: `while !ready() { patience.pause().await? }`.
#[derive(Debug)]
pub(crate) struct Patience {
    what: String,
    since: Instant,
    limit: Duration,
}

impl Patience {
    pub(crate) fn new(what: impl Into<String>, limit: Duration) -> Self {
        Self { what: what.into(), since: Instant::now(), limit }
    }

    /// Waits a moment for the next look; fails once the limit has passed.
    pub(crate) async fn pause(&self) -> Result<()> {
        if self.since.elapsed() > self.limit {
            bail!("{} did not come within {} s", self.what, self.limit.as_secs());
        }
        tokio::time::sleep(BETWEEN_LOOKS).await;
        Ok(())
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
