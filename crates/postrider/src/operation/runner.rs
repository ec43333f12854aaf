//! Runs operations under a lease, one chunk a transaction.

use std::pin::pin;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::pace::{Pace, next_chunk};
use super::{Chunk, Work};
use crate::clock::Clock;
use crate::dead_letter::cut;
use crate::store::{
    Claim, LogEntry, Operation, OperationEnd, OperationKind, Operations, RelayId, StoreError,
};

/// How a runner works.
#[derive(Debug, Clone)]
pub struct RunnerConfig {
    /// How long others wait for a runner that is gone.
    pub lease: Duration,
    /// How often an idle runner looks for work.
    pub poll_interval: Duration,
}

impl Default for RunnerConfig {
    fn default() -> Self {
        Self { lease: Duration::from_secs(10), poll_interval: Duration::from_secs(1) }
    }
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// All items are done.
    Done,
    /// Somebody cancelled it, or another process took it over.
    TakenAway,
    /// It was told to stop; the operation waits for whoever takes it up.
    Detached,
    /// It cannot go on; the operation says why.
    Failed,
}

/// Runs operations on a store. Any number of them may, in any processes.
pub struct Runner<S> {
    store: S,
    clock: Clock,
    config: RunnerConfig,
    id: String,
}

/// So many operations are run at the same time.
const AT_ONCE: usize = 4;

/// What one transaction came to.
enum Step {
    /// So many items were done. What needed nothing any more costs no time.
    Did(u64),
    Over,
    TakenAway,
}

impl<S: Operations> Runner<S> {
    /// A runner with a new name.
    pub fn new(store: S, clock: Clock, config: RunnerConfig) -> Self {
        let id = RelayId::of_process(&clock).to_string();
        Self { store, clock, config, id }
    }

    /// Runs this operation, unless it is over or somebody else does. Waits out an outage of the store.
    pub async fn run(
        &self,
        id: Uuid,
        work: &dyn Work<S>,
        stop: &CancellationToken,
    ) -> Result<Option<Ended>, StoreError> {
        match self.store.claim_operation(&Claim::This(id), &self.id, self.config.lease).await? {
            Some(operation) => self.work_off(&operation, work, stop).await.map(Some),
            None => Ok(None),
        }
    }

    /// Takes up whatever waits, of the kinds it knows, until told to stop. What different people asked for goes side by side, so that a slow
    /// replay holds up nobody else's; what one of them asked for, or a rule, goes one after the other, in the order it was asked for.
    pub async fn serve(&self, kinds: &[(OperationKind, &dyn Work<S>)], stop: &CancellationToken) {
        let (mut under_way, mut working_for) = (FuturesUnordered::new(), Vec::<String>::new());
        while !(stop.is_cancelled() && working_for.is_empty()) {
            if !stop.is_cancelled() && working_for.len() < AT_ONCE {
                let busy = working_for.clone();
                match beside(&mut under_way, &mut working_for, self.find(kinds, &busy)).await {
                    Ok(Some((hand, operation, work))) => {
                        working_for.push(operation.created_by.clone());
                        under_way.push(async move {
                            let ended = hand.work_off(&operation, work, stop).await;
                            (operation.created_by, ended)
                        });
                        continue;
                    }
                    Ok(None) => {}
                    Err(error) => tell(&error),
                }
            }
            tokio::select! {
                biased;
                Some((person, ended)) = under_way.next() => over(&mut working_for, &person, ended),
                () = stop.cancelled(), if !stop.is_cancelled() => {}
                () = self.clock.sleep(self.config.poll_interval), if !stop.is_cancelled() => {}
                // Told to stop while it looked, with nothing under way.
                else => {}
            }
        }
    }

    /// The next operation, for somebody whom nobody works for yet, with who does it. Each has a hand of its own: under one name the second
    /// would be given the first one's operation, because who has one may claim it again.
    async fn find<'w>(
        &self,
        kinds: &[(OperationKind, &'w dyn Work<S>)],
        working_for: &[String],
    ) -> Result<Option<(Self, Operation, &'w dyn Work<S>)>, StoreError> {
        let hand = Self::new(self.store.clone(), self.clock.clone(), self.config.clone());
        let known = kinds.iter().map(|(kind, _)| *kind).collect();
        let claim = Claim::ForOthers(known, working_for.to_vec());
        let found = self.store.claim_operation(&claim, &hand.id, self.config.lease).await?;
        Ok(found.and_then(|operation| {
            let (_, work) = kinds.iter().find(|(kind, _)| *kind == operation.kind)?;
            Some((hand, operation, *work))
        }))
    }

    async fn work_off(
        &self,
        operation: &Operation,
        work: &dyn Work<S>,
        stop: &CancellationToken,
    ) -> Result<Ended, StoreError> {
        let pace = Pace::new(operation.rate);
        let (mut most, mut pause) = (pace.first_chunk(), Duration::from_millis(100));
        loop {
            if stop.is_cancelled() {
                self.store.release_operation(operation.id, &self.id).await?;
                return Ok(Ended::Detached);
            }
            let started = self.clock.monotonic();
            let wait = match self.step(operation, work, most).await {
                Ok(Step::Did(items)) => {
                    pause = Duration::from_millis(100);
                    let took = self.clock.since(started);
                    most = next_chunk(most, took, true).min(pace.chunk());
                    pace.takes(items).saturating_sub(took)
                }
                Ok(Step::Over) => return self.finish(operation, OperationEnd::Done).await,
                Ok(Step::TakenAway) => return Ok(Ended::TakenAway),
                Err(error) if error.is_transient() => {
                    tracing::warn!(operation = %operation.id, %error, "a chunk was not committed; it is done again");
                    most = next_chunk(most, self.clock.since(started), false);
                    pause = (pause * 2).min(Duration::from_secs(5));
                    pause
                }
                // One of its items is at fault: find it.
                Err(error) if most > 1 => {
                    tracing::debug!(operation = %operation.id, %error, "a chunk was refused; taking smaller ones");
                    most = most.div_ceil(4).min(most - 1);
                    Duration::ZERO
                }
                Err(error) => match self.pass_over(operation, &error).await {
                    Ok(()) => Duration::ZERO,
                    Err(second) if second.is_transient() => pause,
                    Err(_) => return self.finish(operation, OperationEnd::Failed(error.to_string())).await,
                },
            };
            if !self.rest(operation, wait, stop).await? {
                return Ok(Ended::TakenAway);
            }
        }
    }

    /// Waits, and lets the lease run on meanwhile, however slow the rate is. False if the operation is somebody else's by then.
    async fn rest(
        &self,
        operation: &Operation,
        wait: Duration,
        stop: &CancellationToken,
    ) -> Result<bool, StoreError> {
        let (until, turn) = (self.clock.monotonic() + wait, self.config.lease / 3);
        loop {
            let left = until.saturating_sub(self.clock.monotonic());
            tokio::select! {
                () = stop.cancelled() => return Ok(true),
                () = self.clock.sleep(left.min(turn)) => {}
            }
            if left <= turn {
                return Ok(true);
            }
            match self.store.claim_operation(&Claim::This(operation.id), &self.id, self.config.lease).await {
                Ok(None) => return Ok(false),
                Err(error) if !error.is_transient() => return Err(error),
                _ => {}
            }
        }
    }

    /// Items off the list, their work, the count: one transaction.
    async fn step(&self, operation: &Operation, work: &dyn Work<S>, most: usize) -> Result<Step, StoreError> {
        let mut tx = self.store.begin().await?;
        let items = self.store.next_items(&mut tx, operation.id, &self.id, most, self.config.lease).await?;
        let Some(items) = items else {
            self.store.rollback(tx).await?;
            return Ok(Step::TakenAway);
        };
        if items.is_empty() {
            self.store.rollback(tx).await?;
            return Ok(Step::Over);
        }
        let Chunk { done, skipped } = work.chunk(&self.store, &mut tx, operation, items).await?;
        self.store.advance(&mut tx, operation.id, done, skipped).await?;
        self.store.commit(tx).await?;
        metrics::counter!("postrider_operation_items_total", "kind" => operation.kind.as_str())
            .increment(done);
        Ok(Step::Did(done))
    }

    /// Leaves one item as it is, and writes down why.
    async fn pass_over(&self, operation: &Operation, error: &StoreError) -> Result<(), StoreError> {
        let mut tx = self.store.begin().await?;
        let items = self.store.next_items(&mut tx, operation.id, &self.id, 1, self.config.lease).await?;
        for item in items.unwrap_or_default() {
            tracing::error!(operation = %operation.id, item, %error, "an item was refused; it is left as it is");
            let entry = LogEntry {
                at: self.clock.now(),
                actor: operation.created_by.clone(),
                action: "operation.item_refused".to_owned(),
                subject: format!("operation/{}", operation.id),
                reason: operation.reason.clone(),
                detail: Some(serde_json::json!({ "item": cut(&item, 200), "error": error.to_string() })),
            };
            self.store.record(&mut tx, vec![entry]).await?;
            self.store.advance(&mut tx, operation.id, 0, 1).await?;
        }
        self.store.commit(tx).await
    }

    async fn finish(&self, operation: &Operation, end: OperationEnd) -> Result<Ended, StoreError> {
        let ended = if end == OperationEnd::Done { Ended::Done } else { Ended::Failed };
        let ours = self.store.finish_operation(operation.id, &self.id, end).await?;
        Ok(if ours { ended } else { Ended::TakenAway })
    }
}

/// Waits for something while the operations under way go on. Left standing, one of them would keep its transaction open meanwhile, and on
/// SQLite the one writer with it, which is what is waited for.
async fn beside<T>(
    under_way: &mut FuturesUnordered<impl Future<Output = (String, Result<Ended, StoreError>)>>,
    working_for: &mut Vec<String>,
    something: impl Future<Output = T>,
) -> T {
    let mut something = pin!(something);
    loop {
        tokio::select! {
            biased;
            came = &mut something => return came,
            Some((person, ended)) = under_way.next() => over(working_for, &person, ended),
        }
    }
}

/// Somebody's operation is over, or was left.
fn over(working_for: &mut Vec<String>, person: &str, ended: Result<Ended, StoreError>) {
    working_for.retain(|other| other != person);
    if let Err(error) = ended {
        tell(&error);
    }
}

fn tell(error: &StoreError) {
    if error.is_transient() {
        tracing::debug!(%error, "operations cannot be looked for; trying again");
    } else {
        tracing::warn!(%error, "operations cannot be run; trying again");
    }
}

#[cfg(test)]
mod tests;
