//! Delivery to effect: transaction, inbox, handler, commit; then, and only then, the delivery is settled.
//!
//! A crash before the commit leaves nothing, and the broker delivers again. A crash after it leaves the effects and the
//! inbox's mark, and the next delivery is known as a duplicate. So effects happen once, whatever dies when.

mod attempt;
mod due;
mod settle;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::broker::{Broker, BrokerError, Delivery, Receipt, Settler, Subscription, Verdict};
use crate::clock::Clock;
use crate::registry::Registry;
use crate::store::Inbox;
use crate::topology::{ConsumerName, ServiceQueue};

/// How a consumer works.
#[derive(Debug, Clone)]
pub struct ConsumerConfig {
    /// Unsettled deliveries the broker may hand out.
    pub prefetch: u16,
    /// Deliveries handled at the same time.
    pub concurrency: usize,
    /// How long one attempt may take.
    pub handler_limit: Duration,
}

impl Default for ConsumerConfig {
    fn default() -> Self {
        Self { prefetch: 250, concurrency: 10, handler_limit: Duration::from_secs(30) }
    }
}

/// One consumer of one queue.
pub struct Consumer<S: Inbox> {
    pub(crate) name: ConsumerName,
    pub(crate) service: ServiceQueue,
    pub(crate) registry: Registry<S>,
    pub(crate) store: S,
    pub(crate) broker: Arc<dyn Broker>,
    pub(crate) clock: Clock,
    pub(crate) config: ConsumerConfig,
    pub(crate) status: Arc<ConsumerStatus>,
}

/// What a consumer is doing, for health and dashboards.
#[derive(Debug, Default)]
pub struct ConsumerStatus {
    pub(crate) in_flight: AtomicUsize,
    pub(crate) applied: AtomicU64,
    pub(crate) duplicates: AtomicU64,
    pub(crate) retried: AtomicU64,
    pub(crate) dead: AtomicU64,
}

impl ConsumerStatus {
    /// Deliveries being handled now.
    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Events applied since the start.
    pub fn applied(&self) -> u64 {
        self.applied.load(Ordering::Relaxed)
    }

    /// Deliveries of events that were applied before.
    pub fn duplicates(&self) -> u64 {
        self.duplicates.load(Ordering::Relaxed)
    }

    /// Deliveries sent to a wait queue since the start.
    pub fn retried(&self) -> u64 {
        self.retried.load(Ordering::Relaxed)
    }

    /// Deliveries dead-lettered since the start.
    pub fn dead(&self) -> u64 {
        self.dead.load(Ordering::Relaxed)
    }
}

impl<S: Inbox> Consumer<S> {
    /// A consumer named like its queue.
    pub fn new(
        store: S,
        broker: Arc<dyn Broker>,
        clock: Clock,
        name: ConsumerName,
        service: ServiceQueue,
        registry: Registry<S>,
    ) -> Self {
        let config = ConsumerConfig::default();
        Self { name, service, registry, store, broker, clock, config, status: Arc::default() }
    }

    /// With these settings instead of the defaults.
    #[must_use]
    pub fn config(mut self, config: ConsumerConfig) -> Self {
        self.config = config;
        self
    }

    /// A view of what it is doing.
    pub fn status(&self) -> Arc<ConsumerStatus> {
        self.status.clone()
    }

    /// Works until told to stop, then lets the attempts in progress finish and settles them. What it did not begin goes
    /// back to the queue.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) -> Result<(), BrokerError> {
        let mut subscription = self.subscribe(&stop).await?;
        let (settled, to_settle) = mpsc::channel(usize::from(self.config.prefetch.max(1)));
        let settling = tokio::spawn(settle_in_batches(subscription.settler(), to_settle));
        let attempts = TaskTracker::new();
        let result = self.receive(subscription.as_mut(), &attempts, &settled, &stop).await;
        attempts.close();
        attempts.wait().await;
        drop(settled);
        let _panicked = settling.await;
        result
    }

    async fn subscribe(&self, stop: &CancellationToken) -> Result<Box<dyn Subscription>, BrokerError> {
        loop {
            match self.broker.subscribe(self.service.name(), self.config.prefetch).await {
                Err(error) if error.is_transient() && !stop.is_cancelled() => {
                    tracing::warn!(consumer = %self.name, %error, "cannot subscribe yet; trying again");
                    tokio::select! {
                        () = stop.cancelled() => return Err(error),
                        () = self.clock.sleep(Duration::from_secs(1)) => {}
                    }
                }
                answer => return answer,
            }
        }
    }

    async fn receive(
        self: &Arc<Self>,
        subscription: &mut dyn Subscription,
        attempts: &TaskTracker,
        settled: &mpsc::Sender<(Receipt, Verdict)>,
        stop: &CancellationToken,
    ) -> Result<(), BrokerError> {
        let slots = Arc::new(Semaphore::new(self.config.concurrency.max(1)));
        loop {
            let deliveries = tokio::select! {
                () = stop.cancelled() => return Ok(()),
                deliveries = subscription.next(self.config.concurrency.max(1)) => deliveries?,
            };
            for delivery in deliveries {
                let slot = tokio::select! {
                    // What is not begun is left unsettled: the broker takes it back when the subscription ends.
                    () = stop.cancelled() => return Ok(()),
                    slot = slots.clone().acquire_owned() => slot,
                };
                let (this, settled, stop) = (self.clone(), settled.clone(), stop.clone());
                attempts.spawn(async move {
                    let _slot = slot;
                    this.status.in_flight.fetch_add(1, Ordering::Relaxed);
                    let (receipt, verdict) = this.deliver(delivery, &stop).await;
                    let _closing = settled.send((receipt, verdict)).await;
                    this.status.in_flight.fetch_sub(1, Ordering::Relaxed);
                });
            }
        }
    }

    /// One delivery, from its first byte to the broker's verdict on it.
    async fn deliver(&self, delivery: Delivery, stop: &CancellationToken) -> (Receipt, Verdict) {
        let Some(attempted) = self.attempt(&delivery, stop).await else {
            // Stopped while the store was away: nothing is done, somebody else will.
            return (delivery.receipt, Verdict::Requeue);
        };
        let verdict = self.carry_out(&delivery, &attempted, stop).await;
        (delivery.receipt, verdict)
    }
}

/// Settles whatever is ready in one go. A lost connection needs nothing: the broker delivers again.
async fn settle_in_batches(settler: Box<dyn Settler>, mut ready: mpsc::Receiver<(Receipt, Verdict)>) {
    const MOST: usize = 512;
    let mut batch = Vec::new();
    while ready.recv_many(&mut batch, MOST).await > 0 {
        if let Err(error) = settler.settle(std::mem::take(&mut batch)).await {
            tracing::warn!(%error, "deliveries could not be settled; the broker delivers them again");
        }
    }
}
