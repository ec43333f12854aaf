//! A subscription that is always being read, so that a case can wait for deliveries, and for their absence.

use std::time::Duration;

use postrider::broker::{Broker, BrokerError, Delivery, Settler, Verdict};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::super::soon;
use super::queue;

/// Long enough for a delivery that should not have come.
const QUIET: Duration = Duration::from_millis(400);

/// Reads one subscription to its end in a task of its own: no call of `next` is ever cut short by a case.
pub struct Listener {
    settler: Box<dyn Settler>,
    arrivals: mpsc::UnboundedReceiver<Result<Delivery, BrokerError>>,
    reading: JoinHandle<()>,
}

impl Listener {
    /// Subscribes and starts to read.
    pub async fn on(broker: &dyn Broker, name: &str, prefetch: u16) -> Self {
        Self::in_steps_of(broker, name, prefetch, 64).await
    }

    /// The same, with at most so many deliveries a call.
    pub async fn in_steps_of(broker: &dyn Broker, name: &str, prefetch: u16, max: usize) -> Self {
        let mut subscription = broker.subscribe(&queue(name), prefetch).await.unwrap();
        let settler = subscription.settler();
        let (arrived, arrivals) = mpsc::unbounded_channel();
        let reading = tokio::spawn(async move {
            loop {
                match subscription.next(max).await {
                    Ok(deliveries) => {
                        assert!((1..=max).contains(&deliveries.len()), "{} of {max}", deliveries.len());
                        for delivery in deliveries {
                            let _case_is_over = arrived.send(Ok(delivery));
                        }
                    }
                    Err(error) => {
                        let _case_is_over = arrived.send(Err(error));
                        return;
                    }
                }
            }
        });
        Self { settler, arrivals, reading }
    }

    /// The next delivery, or the error with which the subscription ended.
    pub async fn next(&mut self) -> Result<Delivery, BrokerError> {
        soon("a delivery", self.arrivals.recv()).await.expect("the subscription panicked")
    }

    /// The next delivery.
    pub async fn take_one(&mut self) -> Delivery {
        self.next().await.expect("the subscription ended")
    }

    /// The next so many deliveries.
    pub async fn take(&mut self, count: usize) -> Vec<Delivery> {
        let mut taken = Vec::with_capacity(count);
        while taken.len() < count {
            taken.push(self.take_one().await);
        }
        taken
    }

    /// Fails if anything more is delivered.
    pub async fn expect_quiet(&mut self) {
        if let Ok(Some(arrived)) = tokio::time::timeout(QUIET, self.arrivals.recv()).await {
            panic!("nothing more was to be delivered, but there came {arrived:?}");
        }
    }

    /// Acks.
    pub async fn ack(&self, deliveries: impl IntoIterator<Item = Delivery>) {
        self.settle(deliveries, Verdict::Ack).await;
    }

    /// Gives one verdict to several deliveries.
    pub async fn settle(&self, deliveries: impl IntoIterator<Item = Delivery>, verdict: Verdict) {
        self.settle_each(deliveries.into_iter().map(|delivery| (delivery, verdict))).await;
    }

    /// Gives each delivery its own verdict, in one call.
    pub async fn settle_each(&self, settled: impl IntoIterator<Item = (Delivery, Verdict)>) {
        self.try_settle(settled).await.unwrap();
    }

    /// The same, where it may fail.
    pub async fn try_settle(
        &self,
        settled: impl IntoIterator<Item = (Delivery, Verdict)>,
    ) -> Result<(), BrokerError> {
        let receipts = settled.into_iter().map(|(delivery, verdict)| (delivery.receipt, verdict)).collect();
        soon("the answer to a settlement", self.settler.settle(receipts)).await
    }

    /// Drops the subscription and waits until it is gone.
    pub async fn stop(mut self) {
        self.reading.abort();
        let _aborted = (&mut self.reading).await;
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.reading.abort();
    }
}
