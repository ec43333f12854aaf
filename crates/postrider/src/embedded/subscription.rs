//! The two ends of a subscription: fetch deliveries, settle them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use tokio::sync::Notify;

use super::catalog::{QueueId, no_queue};
use super::death::Reason;
use super::queue::Entry;
use super::settle::carry_out;
use super::state::Shared;
use crate::broker::{
    BrokerError, BrokerErrorKind, DELIVERY_COUNT, Delivery, Receipt, Settler, Subscription, Verdict,
};
use crate::topology::QueueName;

/// The numbers of subscriptions, counted over all brokers of the process: a receipt is good for one of them only.
static LAST: AtomicU64 = AtomicU64::new(0);

/// A stream of deliveries. Dropping it returns what is unsettled to the queue.
pub(super) struct EmbeddedSubscription {
    to: Arc<Shared>,
    queue: QueueId,
    number: u64,
    wake: Arc<Notify>,
}

impl EmbeddedSubscription {
    pub(super) fn start(to: &Arc<Shared>, name: &QueueName, prefetch: u16) -> Result<Self, BrokerError> {
        let mut state = to.open()?;
        let queue = state.catalog.id(name).ok_or_else(|| no_queue(name))?;
        let (number, wake) = (LAST.fetch_add(1, Ordering::Relaxed) + 1, Arc::new(Notify::new()));
        // 0 means as many as there are, to brokers; here that is a great many.
        let prefetch = usize::from(if prefetch == 0 { u16::MAX } else { prefetch });
        if let Some(queue) = state.queues.get_mut(&queue) {
            queue.join(number, prefetch, wake.clone());
        }
        to.stir(&mut state, queue);
        Ok(Self { to: to.clone(), queue, number, wake })
    }

    fn delivery(&self, entry: &Entry) -> Delivery {
        let mut message = entry.content.message.clone();
        if entry.returned > 0 {
            message.headers.insert(DELIVERY_COUNT.to_owned(), entry.returned.into());
        }
        Delivery {
            message,
            exchange: entry.content.exchange.clone(),
            routing_key: entry.content.routing_key.clone(),
            redelivered: entry.redelivered,
            receipt: Receipt { epoch: self.number, tag: entry.seq.unsigned_abs() },
        }
    }
}

#[async_trait]
impl Subscription for EmbeddedSubscription {
    async fn next(&mut self, max: usize) -> Result<Vec<Delivery>, BrokerError> {
        loop {
            let fetched = {
                let mut state = self.to.open()?;
                let queue = state.queues.get_mut(&self.queue).ok_or_else(gone)?;
                queue.fetch(self.number, max)
            };
            if !fetched.is_empty() {
                return Ok(fetched.iter().map(|entry| self.delivery(entry)).collect());
            }
            self.wake.notified().await;
        }
    }

    async fn allow(&mut self, prefetch: u16) {
        // A broker that is closed says so to whoever waits for deliveries.
        let Ok(mut state) = self.to.open() else { return };
        if let Some(queue) = state.queues.get_mut(&self.queue) {
            queue.allow(self.number, usize::from(prefetch.max(1)));
        }
        self.to.stir(&mut state, self.queue);
    }

    fn settler(&self) -> Box<dyn Settler> {
        Box::new(EmbeddedSettler { to: self.to.clone(), queue: self.queue, number: self.number })
    }
}

fn gone() -> BrokerError {
    BrokerError::new(BrokerErrorKind::NotFound, "the queue was removed while it was consumed")
}

impl Drop for EmbeddedSubscription {
    fn drop(&mut self) {
        let mut state = self.to.lock();
        let Some(queue) = state.queues.get_mut(&self.queue) else { return };
        let poison = queue.leave(self.number);
        if !poison.is_empty() {
            let (to, id) = (self.to.clone(), self.queue);
            self.to.spawn(async move {
                if let Err(error) = carry_out(to, id, poison, Reason::DeliveryLimit).await {
                    tracing::warn!(%error, "messages beyond their delivery limit could not be moved; they stay in their queue");
                }
            });
        }
        self.to.stir(&mut state, self.queue);
    }
}

/// Settles the deliveries of one subscription.
struct EmbeddedSettler {
    to: Arc<Shared>,
    queue: QueueId,
    number: u64,
}

#[async_trait]
impl Settler for EmbeddedSettler {
    /// Returns when the verdicts are on disk.
    async fn settle(&self, settled: Vec<(Receipt, Verdict)>) -> Result<(), BrokerError> {
        let ours = settled.into_iter().filter(|(receipt, _)| receipt.epoch == self.number);
        let verdicts = ours.map(|(receipt, verdict)| (receipt.tag.cast_signed(), verdict));
        let settling = {
            let mut state = self.to.open()?;
            let Some(queue) = state.queues.get_mut(&self.queue) else { return Ok(()) };
            let settling = queue.settle(self.number, verdicts);
            self.to.stir(&mut state, self.queue);
            settling
        };
        if settling.is_empty() {
            return Ok(());
        }
        self.to.run(carry_out(self.to.clone(), self.queue, settling, Reason::Rejected)).await
    }
}
