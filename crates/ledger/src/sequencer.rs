//! One sequencer a tenant: whatever is queued while a batch is being posted is the next batch.
//!
//! Under light load a batch is one event and waits for nobody; under heavy load it grows by itself, up to [`MAX_BATCH`]. Tenants
//! are posted side by side, a few at a time. Several processes may do this for the same tenant: the lock on its books puts their
//! batches in a row.
//!
//! Whoever submits is answered after the commit. When the database is away the batch is kept and tried again until it is back or
//! the sequencer is stopped, so a submitter simply waits; dropping the wait leaves the arrival in its batch, and a repeat is a
//! duplicate.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use postrider::envelope::TenantId;
use postrider::store::{StoreError, StoreErrorKind};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::books::Books;
use crate::ledger::Ledger;
use crate::pipeline::{Answer, Arrival, Prepared};

/// The most entries of a batch.
pub const MAX_BATCH: usize = 500;
/// Arrivals of a tenant that may wait; more wait outside.
const QUEUE: usize = 2 * MAX_BATCH;
/// A tenant without arrivals is forgotten after this long.
const IDLE: Duration = Duration::from_mins(1);
/// The pause after a failure, doubled each time up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Posts what many submit, batch by batch. Cheap to clone.
pub struct Sequencer<B> {
    shared: Arc<Shared<B>>,
}

struct Shared<B> {
    ledger: Ledger<B>,
    tenants: Mutex<HashMap<TenantId, mpsc::Sender<Job>>>,
    /// How many tenants are posted at the same time.
    slots: Semaphore,
    tasks: TaskTracker,
    stop: CancellationToken,
}

struct Job {
    arrival: Arrival,
    prepared: Option<Prepared>,
    answer: oneshot::Sender<Result<Answer, Arc<StoreError>>>,
}

/// Why there is no answer. The arrival may still be posted: submit it again to know.
#[derive(Debug, Clone, thiserror::Error)]
pub enum NoAnswer {
    /// The sequencer was stopped before the batch was committed.
    #[error("the ledger is stopping; submit it again, a repeat is safe")]
    Stopped,
    /// The database says that trying again cannot help.
    #[error(transparent)]
    Store(Arc<StoreError>),
}

impl<B: Books> Sequencer<B> {
    /// Posts for at most so many tenants at the same time, until it is told to stop.
    pub fn new(ledger: Ledger<B>, side_by_side: usize, stop: CancellationToken) -> Self {
        let slots = Semaphore::new(side_by_side.max(1));
        let shared = Shared { ledger, tenants: Mutex::default(), slots, tasks: TaskTracker::new(), stop };
        Self { shared: Arc::new(shared) }
    }

    /// Where it posts.
    pub fn books(&self) -> &B {
        self.shared.ledger.books()
    }

    /// Submits an arrival, and returns when its batch is committed.
    pub async fn submit(&self, tenant: &TenantId, arrival: Arrival) -> Result<Answer, NoAnswer> {
        let (answer, answered) = oneshot::channel();
        // Here, because the tenant's own task has the database to wait for, and the next batch behind it.
        let prepared = self.shared.ledger.prepare(tenant, &arrival);
        let mut job = Job { arrival, prepared, answer };
        loop {
            if self.shared.stop.is_cancelled() {
                return Err(NoAnswer::Stopped);
            }
            match self.queue(tenant).send(job).await {
                Ok(()) => break,
                // It went idle at this very moment; the next look makes a new one.
                Err(mpsc::error::SendError(returned)) => job = returned,
            }
        }
        match answered.await {
            Ok(answer) => answer.map_err(NoAnswer::Store),
            Err(_) if self.shared.stop.is_cancelled() => Err(NoAnswer::Stopped),
            // Nobody told it to stop: its task panicked, and the next one may do so again.
            Err(_) => Err(NoAnswer::Store(Arc::new(StoreError::new(
                StoreErrorKind::Other,
                format!("posting a batch of {tenant} panicked; nothing of it is lost, submit it again"),
            )))),
        }
    }

    /// Waits until every batch in hand is posted. Call it after the stop.
    pub async fn finish(&self) {
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
    }

    fn queue(&self, tenant: &TenantId) -> mpsc::Sender<Job> {
        let mut tenants = self.shared.tenants();
        if let Some(queue) = tenants.get(tenant).filter(|queue| !queue.is_closed()) {
            return queue.clone();
        }
        let (sender, receiver) = mpsc::channel(QUEUE);
        tenants.insert(tenant.clone(), sender.clone());
        self.shared.tasks.spawn(self.shared.clone().work(tenant.clone(), receiver));
        sender
    }
}

impl<B> Clone for Sequencer<B> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone() }
    }
}

impl<B: Books> Shared<B> {
    fn tenants(&self) -> std::sync::MutexGuard<'_, HashMap<TenantId, mpsc::Sender<Job>>> {
        self.tenants.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One tenant's batches, one after the other.
    async fn work(self: Arc<Self>, tenant: TenantId, mut queue: mpsc::Receiver<Job>) {
        let mut batch = Vec::with_capacity(MAX_BATCH);
        loop {
            let idle = self.ledger.clock.sleep(IDLE);
            tokio::select! {
                biased;
                taken = queue.recv_many(&mut batch, MAX_BATCH) => {
                    if taken == 0 {
                        return;
                    }
                }
                () = self.stop.cancelled() => queue.close(),
                () = idle => {
                    self.tenants().remove(&tenant);
                    queue.close();
                }
            }
            if !batch.is_empty() {
                self.post(&tenant, std::mem::take(&mut batch)).await;
            }
        }
    }

    async fn post(&self, tenant: &TenantId, batch: Vec<Job>) {
        let (mut arrivals, mut prepared) = (Vec::with_capacity(batch.len()), Vec::with_capacity(batch.len()));
        let answers = batch.into_iter().map(|job| {
            arrivals.push(job.arrival);
            prepared.push(job.prepared);
            job.answer
        });
        let answers: Vec<_> = answers.collect();
        let mut pause = FIRST_PAUSE;
        loop {
            // The semaphore is never closed.
            let slot = self.slots.acquire().await;
            let posted = self.ledger.post_prepared(tenant, &arrivals, &mut prepared).await;
            drop(slot);
            match posted {
                Ok(results) => {
                    for (answer, result) in answers.into_iter().zip(results) {
                        let _gone = answer.send(Ok(result));
                    }
                    return;
                }
                Err(error) if error.is_transient() => {
                    tracing::warn!(%tenant, %error, entries = arrivals.len(), "a batch waits for the database");
                    tokio::select! {
                        // Nobody is answered: whoever waits gives its delivery back.
                        () = self.stop.cancelled() => return,
                        () = self.ledger.clock.sleep(pause) => pause = (pause * 2).min(LONGEST_PAUSE),
                    }
                }
                Err(error) => {
                    let error = Arc::new(error);
                    for answer in answers {
                        let _gone = answer.send(Err(error.clone()));
                    }
                    return;
                }
            }
        }
    }
}
