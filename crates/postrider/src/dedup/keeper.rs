//! Lets the inbox and the claims forget what is older than anybody can ask for, in small steps.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::store::{Claims, InboxMemory, RelayId, StoreError, StoreErrorKind};

/// How often it looks.
const ROUNDS: Duration = Duration::from_mins(10);
/// Marks forgotten at a time, and the rest between two steps, so that nobody feels it.
const STEP: u32 = 5_000;
const REST: Duration = Duration::from_millis(100);

/// Looks after the inbox. Of several beside each other, one does the work.
pub(crate) struct InboxKeeper<S> {
    store: S,
    clock: Clock,
    keep: Duration,
    worker: RelayId,
}

impl<S: InboxMemory + Claims> InboxKeeper<S> {
    pub(crate) fn new(store: S, clock: Clock, keep: Duration) -> Self {
        let worker = RelayId::of_process(&clock);
        Self { store, clock, keep, worker }
    }

    /// Works until told to stop. An error is told and waited out: the next round does what this one did not.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let rounds = async {
            loop {
                match self.round().await {
                    Ok(0) => {}
                    Ok(forgotten) => {
                        metrics::counter!("postrider_inbox_forgotten_total").increment(forgotten);
                        tracing::info!(forgotten, "the inbox forgot what is older than inbox.retention_days");
                    }
                    // A role with no more rights than a relay needs leaves it to the consumers.
                    Err(error) if error.kind == StoreErrorKind::Denied => {
                        tracing::info!(%error, "the inbox is left to be looked after by consumers");
                    }
                    Err(error) => {
                        tracing::warn!(%error, "the inbox was not looked after; nothing is lost, it is tried again");
                    }
                }
                self.clock.sleep(ROUNDS).await;
            }
        };
        stop.run_until_cancelled(rounds).await;
    }

    /// Forgets whatever is old enough, and says how much.
    async fn round(&self) -> Result<u64, StoreError> {
        let mut forgotten = 0;
        while let Some(step) = self.store.forget(self.worker.as_str(), self.keep, STEP).await? {
            forgotten += step.marks;
            if !step.more {
                while self.store.forget_claims(self.keep, STEP).await? >= u64::from(STEP) {
                    self.clock.sleep(REST).await;
                }
                break;
            }
            self.clock.sleep(REST).await;
        }
        Ok(forgotten)
    }
}
