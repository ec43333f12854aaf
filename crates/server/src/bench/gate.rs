//! A broker that takes nothing until it is told to.

use std::sync::Arc;

use async_trait::async_trait;
use postrider::Broker;
use postrider::broker::{BrokerError, Outgoing, Published, Subscription};
use postrider::topology::{QueueName, Topology};
use tokio::sync::watch;

/// Another broker behind a gate, which is open at first.
pub(super) struct Gate {
    inner: Arc<dyn Broker>,
    is_open: watch::Sender<bool>,
}

impl Gate {
    pub(super) fn new(inner: Arc<dyn Broker>) -> Self {
        Self { inner, is_open: watch::Sender::new(true) }
    }

    /// From now on publishes wait.
    pub(super) fn close(&self) {
        self.is_open.send_replace(false);
    }

    /// They go on.
    pub(super) fn open(&self) {
        self.is_open.send_replace(true);
    }
}

#[async_trait]
impl Broker for Gate {
    async fn declare(&self, topology: &Topology) -> Result<(), BrokerError> {
        self.inner.declare(topology).await
    }

    async fn publish(&self, batch: Vec<Outgoing>) -> Vec<Published> {
        // The sender is ours, so it cannot be gone.
        let _open = self.is_open.subscribe().wait_for(|open| *open).await.is_ok();
        self.inner.publish(batch).await
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
