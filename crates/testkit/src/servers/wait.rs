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
    until_all(pids, |pid| !tree::is_alive(pid));
}

/// Waits for processes that were sent SIGSTOP to have stopped, with all their threads. At most five seconds.
pub(crate) fn until_stopped(pids: &[Pid]) {
    until_all(pids, tree::is_stopped);
}

fn until_all(pids: &[Pid], done: impl Fn(Pid) -> bool) {
    for _ in 0..5_000 {
        if pids.iter().all(|pid| done(*pid)) {
            return;
        }
        thread::sleep(Duration::from_millis(1));
    }
}
