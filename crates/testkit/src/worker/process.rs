//! The test's end of a worker: starts it, follows what it has in its hands, kills it.

use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, Result};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// What a worker has said so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Hands {
    /// Messages handed to the broker.
    pub publishing: usize,
    /// Messages the broker has answered for.
    pub answered: usize,
    /// Deliveries received.
    pub received: usize,
    /// Deliveries settled.
    pub settled: usize,
    /// How often it was where a kill hurts; see [`flawed`](super::flawed).
    pub between: usize,
}

impl Hands {
    /// Messages on their way to the broker, unconfirmed.
    pub fn unconfirmed(&self) -> usize {
        self.publishing.saturating_sub(self.answered)
    }

    /// Deliveries received and not settled.
    pub fn unsettled(&self) -> usize {
        self.received.saturating_sub(self.settled)
    }

    fn note(&mut self, line: &str) {
        let Some((what, count)) = line.split_once(' ') else { return };
        let count = count.parse().unwrap_or(0);
        match what {
            "publishing" => self.publishing += count,
            "answered" => self.answered += count,
            "received" => self.received += count,
            "settled" => self.settled += count,
            "between" => self.between += count,
            _ => {}
        }
    }
}

/// A worker that runs.
pub struct WorkerProcess {
    child: Child,
    hands: watch::Receiver<Hands>,
    reading: JoinHandle<()>,
    last_words: Arc<Mutex<String>>,
}

impl WorkerProcess {
    /// Starts the worker's binary with these words.
    pub fn start(binary: impl AsRef<Path>, words: &[&str]) -> Result<Self> {
        let mut child = Command::new(binary.as_ref())
            .args(words)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .kill_on_drop(true)
            .spawn()
            .context("the worker did not start")?;
        let lines = child.stdout.take().context("the worker has no output")?;
        let (tell, hands) = watch::channel(Hands::default());
        let last_words = Arc::new(Mutex::new(String::new()));
        let last = last_words.clone();
        let reading = tokio::spawn(async move {
            let mut lines = BufReader::new(lines).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                tell.send_modify(|hands| hands.note(&line));
                last.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&line);
            }
        });
        Ok(Self { child, hands, reading, last_words })
    }

    /// What it has in its hands now, as far as it has told.
    pub fn hands(&self) -> Hands {
        *self.hands.borrow()
    }

    /// Waits until this is so; fails if the worker ends before.
    pub async fn until(&mut self, so: impl FnMut(&Hands) -> bool) -> Result<Hands> {
        let hands = self.hands.wait_for(so).await.map(|hands| *hands);
        hands.with_context(|| format!("the worker ended; its last line was {:?}", self.last_line()))
    }

    /// Whether it has ended by itself.
    pub fn has_ended(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }

    /// kill -9, then reads what it still said: what it had in its hands when it died.
    pub async fn kill(mut self) -> Result<Hands> {
        self.child.kill().await?;
        let _ = (&mut self.reading).await;
        Ok(*self.hands.borrow())
    }

    /// Waits until it ends by itself.
    pub async fn ended(&mut self) -> Result<std::process::ExitStatus> {
        Ok(self.child.wait().await?)
    }

    /// Stops it in the middle of whatever it does; it does not notice until it is resumed.
    pub fn pause(&self) -> Result<()> {
        self.signal(Signal::STOP)
    }

    /// Lets it go on.
    pub fn resume(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let id = self.child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        Ok(kill_process(id.context("the worker has ended")?, signal)?)
    }

    fn last_line(&self) -> String {
        self.last_words.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
