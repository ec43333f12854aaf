//! What was started, and how it ends.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::audit::{self, Account, AuditError};
use crate::broker::Broker;
use crate::clock::Clock;
use crate::consumer::ConsumerStatus;
use crate::relay::RelayStatus;
use crate::store::{Backend, Registration};

/// What runs. Dropped, it ends without waiting: keep it, and [`stop`](Self::stop) it.
#[must_use = "what runs ends when this is dropped"]
pub struct Running<S> {
    pub(super) store: S,
    pub(super) broker: Arc<dyn Broker>,
    pub(super) clock: Clock,
    pub(super) relay: Option<Arc<RelayStatus>>,
    pub(super) consumers: Vec<RunningConsumer>,
    pub(super) stop: CancellationToken,
    pub(super) tasks: TaskTracker,
}

/// A consumer that runs.
#[derive(Debug, Clone)]
pub struct RunningConsumer {
    /// Its name, its queue, and how events reach it.
    pub registration: Registration,
    /// What it is doing.
    pub status: Arc<ConsumerStatus>,
}

impl<S: Backend> Running<S> {
    /// What the relay is doing, if one runs here.
    pub fn relay(&self) -> Option<&Arc<RelayStatus>> {
        self.relay.as_ref()
    }

    /// The consumers that run here.
    pub fn consumers(&self) -> &[RunningConsumer] {
        &self.consumers
    }

    /// Every consumer's account.
    pub async fn accounts(&self) -> Result<Vec<Account>, AuditError> {
        let mut accounts = Vec::new();
        for consumer in &self.consumers {
            accounts.push(audit::account(&self.store, &self.broker, &consumer.registration).await?);
        }
        Ok(accounts)
    }

    /// Stops: attempts in progress finish and are settled, for at most this long. What was not finished by then is
    /// delivered again elsewhere. Says whether everything finished.
    pub async fn stop(self, limit: Duration) -> bool {
        let drained = self.finish(limit).await;
        self.broker.close().await;
        drained
    }

    /// The same, but leaves the broker open for others.
    pub async fn finish(&self, limit: Duration) -> bool {
        self.stop.cancel();
        tokio::select! {
            () = self.tasks.wait() => true,
            () = self.clock.sleep(limit) => {
                tracing::warn!("not everything finished within {limit:?}; the rest is delivered again");
                false
            }
        }
    }
}

/// What was started ends with its handle, without waiting.
impl<S> Drop for Running<S> {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}
