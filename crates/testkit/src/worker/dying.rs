//! A broker that ends the process, as kill -9 does, at one named step of collecting or replaying.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::bail;
use async_trait::async_trait;
use postrider::broker::{
    Broker, BrokerError, Delivery, Outgoing, Published, Receipt, Settler, Subscription, Verdict,
};
use postrider::dead_letter::header;
use postrider::topology::{QueueName, Topology};

/// Between which two steps the process dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DieAt {
    /// The collector has dead letters in its hand and has stored nothing.
    Received,
    /// They are committed, and not acked.
    Stored,
    /// They are acked.
    Acked,
    /// The relay has replays, or what was sent in the place of letters, in its hand and has published nothing.
    Publishing,
    /// They are confirmed, and not marked.
    Published,
}

impl DieAt {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Received, Self::Stored, Self::Acked, Self::Publishing, Self::Published];

    /// The word for it on the worker's command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Received => "received",
            Self::Stored => "stored",
            Self::Acked => "acked",
            Self::Publishing => "publishing",
            Self::Published => "published",
        }
    }
}

impl std::str::FromStr for DieAt {
    type Err = anyhow::Error;
    fn from_str(text: &str) -> anyhow::Result<Self> {
        match Self::ALL.into_iter().find(|at| at.as_str() == text) {
            Some(at) => Ok(at),
            None => bail!("there is no step {text:?}"),
        }
    }
}

/// Wraps a broker. The step is passed once before it kills, so that some work is done and some is not.
pub struct Dying {
    inner: Arc<dyn Broker>,
    step: Arc<Step>,
}

struct Step {
    at: DieAt,
    passed: AtomicUsize,
}

impl Step {
    fn pass(&self, at: DieAt) {
        if self.at == at && self.passed.fetch_add(1, Ordering::SeqCst) == 1 {
            // No destructor runs and nothing is flushed.
            std::process::abort();
        }
    }
}

impl Dying {
    /// Dies at this step.
    pub fn new(inner: Arc<dyn Broker>, at: DieAt) -> Self {
        Self { inner, step: Arc::new(Step { at, passed: AtomicUsize::new(0) }) }
    }
}

#[async_trait]
impl Broker for Dying {
    async fn declare(&self, topology: &Topology) -> Result<(), BrokerError> {
        self.inner.declare(topology).await
    }

    async fn publish(&self, batch: Vec<Outgoing>) -> Vec<Published> {
        let again = [header::REPLAY_ID, header::REPLACES];
        let replays =
            batch.iter().any(|outgoing| again.iter().any(|name| outgoing.message.header(name).is_some()));
        if replays {
            self.step.pass(DieAt::Publishing);
        }
        let answers = self.inner.publish(batch).await;
        if replays {
            self.step.pass(DieAt::Published);
        }
        answers
    }

    async fn subscribe(
        &self,
        queue: &QueueName,
        prefetch: u16,
    ) -> Result<Box<dyn Subscription>, BrokerError> {
        let subscription = self.inner.subscribe(queue, prefetch).await?;
        Ok(if queue.as_str().rsplit('.').next() == Some("dlq") {
            Box::new(DyingSubscription(subscription, self.step.clone()))
        } else {
            subscription
        })
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

struct DyingSubscription(Box<dyn Subscription>, Arc<Step>);

#[async_trait]
impl Subscription for DyingSubscription {
    async fn next(&mut self, max: usize) -> Result<Vec<Delivery>, BrokerError> {
        // A few at a time, so that there is a second time.
        let deliveries = self.0.next(max.min(20)).await?;
        self.1.pass(DieAt::Received);
        Ok(deliveries)
    }

    async fn allow(&mut self, prefetch: u16) {
        self.0.allow(prefetch).await;
    }

    fn settler(&self) -> Box<dyn Settler> {
        Box::new(DyingSettler(self.0.settler(), self.1.clone()))
    }
}

struct DyingSettler(Box<dyn Settler>, Arc<Step>);

#[async_trait]
impl Settler for DyingSettler {
    async fn settle(&self, settled: Vec<(Receipt, Verdict)>) -> Result<(), BrokerError> {
        self.1.pass(DieAt::Stored);
        self.0.settle(settled).await?;
        self.1.pass(DieAt::Acked);
        Ok(())
    }
}
