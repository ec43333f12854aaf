//! A broker that remembers when each message was confirmed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use postrider::broker::{BrokerError, Outgoing, Published, Subscription};
use postrider::topology::{QueueName, Topology};
use postrider::{Broker, Clock};

/// Another broker, and a moment for each message id.
pub(super) struct Watched {
    inner: Arc<dyn Broker>,
    clock: Clock,
    confirmed: Mutex<HashMap<String, Duration>>,
}

impl Watched {
    pub(super) fn new(inner: Arc<dyn Broker>, clock: Clock) -> Self {
        Self { inner, clock, confirmed: Mutex::default() }
    }

    /// What was confirmed so far, and when by the clock's [`Clock::monotonic`].
    pub(super) fn take(&self) -> HashMap<String, Duration> {
        std::mem::take(&mut self.confirmed.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[async_trait]
impl Broker for Watched {
    async fn declare(&self, topology: &Topology) -> Result<(), BrokerError> {
        self.inner.declare(topology).await
    }

    async fn publish(&self, batch: Vec<Outgoing>) -> Vec<Published> {
        let ids: Vec<_> =
            batch.iter().map(|outgoing| outgoing.message.properties.message_id.clone()).collect();
        let answers = self.inner.publish(batch).await;
        let now = self.clock.monotonic();
        let mut confirmed = self.confirmed.lock().unwrap_or_else(PoisonError::into_inner);
        for (id, answer) in ids.into_iter().zip(&answers) {
            if let (Some(id), Published::Confirmed) = (id, answer) {
                confirmed.entry(id).or_insert(now);
            }
        }
        answers
    }

    async fn subscribe(
        &self,
        queue: &QueueName,
        prefetch: u16,
    ) -> Result<Box<dyn Subscription>, BrokerError> {
        self.inner.subscribe(queue, prefetch).await
    }

    async fn depth(&self, queue: &QueueName) -> Result<u64, BrokerError> {
        self.inner.depth(queue).await
    }

    async fn ping(&self) -> Result<(), BrokerError> {
        self.inner.ping().await
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}
