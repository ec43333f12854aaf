//! A process that marks the last item of a job in Redis alone, and dies at the finish line.

use std::str::FromStr;
use std::sync::Arc;

use anyhow::{Result, bail};
use async_trait::async_trait;
use postrider::progress::{Announcer, JobId, Mark, OutboxAnnouncer, ProgressError, ProgressStore as _};
use postrider::redis::{JobKeys, Redis, RedisConfig, RedisProgress};
use postrider::sqlite::{Sqlite, SqliteConfig};
use postrider::{Clock, Event};
use rustix::process::{Signal, getpid, kill_process};

/// Where the process dies: kill -9, by its own hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishLine {
    /// Redis has counted the last item, and nobody was told.
    Counted,
    /// The completion is in the outbox, and Redis does not know.
    Announced,
    /// Nowhere.
    Crossed,
}

impl FinishLine {
    /// The word for it on the worker's command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Counted => "counted",
            Self::Announced => "announced",
            Self::Crossed => "crossed",
        }
    }
}

impl FromStr for FinishLine {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        match [Self::Counted, Self::Announced, Self::Crossed].into_iter().find(|line| line.as_str() == text) {
            Some(line) => Ok(line),
            None => bail!("there is no step {text:?}"),
        }
    }
}

struct Dying {
    outbox: OutboxAnnouncer<Sqlite>,
    at: FinishLine,
}

impl Dying {
    async fn pass(&self, line: FinishLine) {
        if self.at == line {
            let _ = kill_process(getpid(), Signal::KILL);
            // The signal may take a moment; nothing of ours must happen in it.
            std::future::pending::<()>().await;
        }
    }
}

#[async_trait]
impl Announcer for Dying {
    async fn announce(&self, event: Event) -> Result<(), ProgressError> {
        self.pass(FinishLine::Counted).await;
        self.outbox.announce(event).await?;
        self.pass(FinishLine::Announced).await;
        Ok(())
    }
}

/// Marks one item of a job, as a delivery does. Its completion goes to the outbox in this file.
pub async fn mark(
    at: FinishLine,
    redis: &str,
    prefix: &str,
    file: &str,
    job: &str,
    item: &str,
) -> Result<()> {
    let clock = Clock::system();
    let store = Sqlite::open(SqliteConfig::new(file), clock.clone()).await?;
    let redis = Redis::connect(RedisConfig::new(redis)).await?;
    let announcer = Arc::new(Dying { outbox: OutboxAnnouncer(store), at });
    let progress = RedisProgress::new(redis, JobKeys::new(prefix, JobKeys::TTL)?, announcer, clock);
    progress.mark(&JobId::new(job)?, &[Mark::done(item)?]).await?;
    Ok(())
}
