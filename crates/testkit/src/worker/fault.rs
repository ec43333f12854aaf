//! A process that kills itself, -9, at one step of its work: between any two of them, exactly and every time.

use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context as _, bail};
use async_trait::async_trait;
use postrider::broker::{
    Broker, BrokerError, Delivery, Outgoing, Published, Receipt, Settler, Subscription, Verdict,
};
use postrider::topology::{QueueName, Topology};
use rustix::process::{Signal, getpid, kill_process};

/// The steps of a delivery, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Deliveries were received, and nothing was done with them.
    Received,
    /// The handler has written its effect, and nothing is committed.
    Handling,
    /// A message is about to be published to a wait queue or to the dead letters.
    Publishing,
    /// The broker has confirmed it, and nobody was told.
    Published,
    /// Everything is done, and the deliveries are about to be acked.
    Settling,
    /// They are acked.
    Settled,
}

impl Step {
    /// All of them, in their order.
    pub const ALL: [Self; 6] =
        [Self::Received, Self::Handling, Self::Publishing, Self::Published, Self::Settling, Self::Settled];

    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Received => "received",
            Self::Handling => "handling",
            Self::Publishing => "publishing",
            Self::Published => "published",
            Self::Settling => "settling",
            Self::Settled => "settled",
        }
    }
}

/// Where to die: `published:3` is when a message was confirmed for the third time.
#[derive(Debug, Clone)]
pub struct Fault {
    step: Step,
    left: Arc<AtomicUsize>,
}

impl FromStr for Fault {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let (step, nth) = text.split_once(':').context("a fault is STEP:N")?;
        let Some(step) = Step::ALL.into_iter().find(|known| known.as_str() == step) else {
            bail!("there is no step {step:?}");
        };
        Ok(Self { step, left: Arc::new(AtomicUsize::new(nth.parse()?)) })
    }
}

impl Fault {
    /// Dies if this is the step, for the nth time.
    pub fn at(&self, step: Step) {
        if step == self.step && self.left.fetch_sub(1, Ordering::SeqCst) == 1 {
            let _ = kill_process(getpid(), Signal::KILL);
            // The signal may take a moment; nothing of ours must happen in it.
            loop {
                std::thread::park();
            }
        }
    }
}

/// A broker that dies at its steps. Only what goes straight to a queue counts as a consumer's publish.
pub struct Faulty(pub Arc<dyn Broker>, pub Fault);

#[async_trait]
impl Broker for Faulty {
    async fn declare(&self, topology: &Topology) -> Result<(), BrokerError> {
        self.0.declare(topology).await
    }

    async fn publish(&self, batch: Vec<Outgoing>) -> Vec<Published> {
        let direct = batch.iter().any(|outgoing| outgoing.exchange.is_default());
        if direct {
            self.1.at(Step::Publishing);
        }
        let answers = self.0.publish(batch).await;
        if direct {
            self.1.at(Step::Published);
        }
        answers
    }

    async fn subscribe(
        &self,
        queue: &QueueName,
        prefetch: u16,
    ) -> Result<Box<dyn Subscription>, BrokerError> {
        let subscription = self.0.subscribe(queue, prefetch).await?;
        // The collectors' queues are not looked at.
        let collector = queue.as_str().rsplit('.').next() == Some("dlq");
        Ok(if collector { subscription } else { Box::new(FaultySubscription(subscription, self.1.clone())) })
    }

    async fn depth(&self, queue: &QueueName) -> Result<u64, BrokerError> {
        self.0.depth(queue).await
    }

    async fn ping(&self) -> Result<(), BrokerError> {
        self.0.ping().await
    }

    async fn close(&self) {
        self.0.close().await;
    }
}

struct FaultySubscription(Box<dyn Subscription>, Fault);

#[async_trait]
impl Subscription for FaultySubscription {
    async fn next(&mut self, max: usize) -> Result<Vec<Delivery>, BrokerError> {
        let deliveries = self.0.next(max).await?;
        self.1.at(Step::Received);
        Ok(deliveries)
    }

    async fn allow(&mut self, prefetch: u16) {
        self.0.allow(prefetch).await;
    }

    fn settler(&self) -> Box<dyn Settler> {
        Box::new(FaultySettler(self.0.settler(), self.1.clone()))
    }
}

struct FaultySettler(Box<dyn Settler>, Fault);

#[async_trait]
impl Settler for FaultySettler {
    async fn settle(&self, settled: Vec<(Receipt, Verdict)>) -> Result<(), BrokerError> {
        self.1.at(Step::Settling);
        self.0.settle(settled).await?;
        self.1.at(Step::Settled);
        Ok(())
    }
}
