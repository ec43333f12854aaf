//! A broker that tells what is in flight: a line before and after each publish, at each receipt, after each settling.

use std::io::Write as _;
use std::sync::Arc;

use async_trait::async_trait;
use postrider::broker::{
    Broker, BrokerError, Delivery, Outgoing, Published, Receipt, Removal, Settler, Subscription, Verdict,
};
use postrider::topology::{QueueName, Topology};

/// Wraps a broker and writes lines to standard output.
pub struct Watched(pub Arc<dyn Broker>);

/// One line at once, so that a kill never leaves half of one.
fn say(what: &str, count: usize) {
    let line = format!("{what} {count}\n");
    let _ = std::io::stdout().lock().write_all(line.as_bytes());
    let _ = std::io::stdout().flush();
}

#[async_trait]
impl Broker for Watched {
    async fn declare(&self, topology: &Topology) -> Result<(), BrokerError> {
        self.0.declare(topology).await
    }

    async fn publish(&self, batch: Vec<Outgoing>) -> Vec<Published> {
        let count = batch.len();
        say("publishing", count);
        let answers = self.0.publish(batch).await;
        say("answered", count);
        answers
    }

    async fn subscribe(
        &self,
        queue: &QueueName,
        prefetch: u16,
    ) -> Result<Box<dyn Subscription>, BrokerError> {
        let subscription = self.0.subscribe(queue, prefetch).await?;
        // The collectors' queues hold dead letters, which are not counted.
        Ok(if queue.as_str().rsplit('.').next() == Some("dlq") {
            subscription
        } else {
            Box::new(WatchedSubscription(subscription))
        })
    }

    async fn depth(&self, queue: &QueueName) -> Result<u64, BrokerError> {
        self.0.depth(queue).await
    }

    async fn remove(&self, removal: &Removal) -> Result<(), BrokerError> {
        self.0.remove(removal).await
    }

    async fn ping(&self) -> Result<(), BrokerError> {
        self.0.ping().await
    }

    async fn close(&self) {
        self.0.close().await;
    }
}

struct WatchedSubscription(Box<dyn Subscription>);

#[async_trait]
impl Subscription for WatchedSubscription {
    async fn next(&mut self, max: usize) -> Result<Vec<Delivery>, BrokerError> {
        let deliveries = self.0.next(max).await?;
        say("received", deliveries.len());
        Ok(deliveries)
    }

    async fn allow(&mut self, prefetch: u16) {
        self.0.allow(prefetch).await;
    }

    fn settler(&self) -> Box<dyn Settler> {
        Box::new(WatchedSettler(self.0.settler()))
    }
}

struct WatchedSettler(Box<dyn Settler>);

#[async_trait]
impl Settler for WatchedSettler {
    async fn settle(&self, settled: Vec<(Receipt, Verdict)>) -> Result<(), BrokerError> {
        let count = settled.len();
        self.0.settle(settled).await?;
        say("settled", count);
        Ok(())
    }
}
