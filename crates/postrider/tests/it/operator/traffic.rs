//! Publishers and consumers that go on whatever happens, and remember every id.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use postrider::broker::{Broker, Message, Outgoing, Published, Verdict};
use postrider::rabbitmq::RabbitMq;
use postrider::topology::RoutingKey;
use tokio::task::JoinHandle;

use super::{exchange, queue};

/// Ids that publishers had confirmed, or that consumers had settled.
pub(super) type Ids = Arc<Mutex<HashSet<String>>>;

pub(super) fn outgoing(id: &str) -> Outgoing {
    let mut message = Message { body: Bytes::from(format!("{{\"id\":\"{id}\"}}")), ..Message::default() };
    message.properties.message_id = Some(id.to_owned());
    Outgoing { exchange: exchange("events"), routing_key: RoutingKey::new("order.created").unwrap(), message }
}

/// Publishes these until each is confirmed.
pub(super) async fn publish(broker: &RabbitMq, ids: impl IntoIterator<Item = String>) {
    let mut left: Vec<Outgoing> = ids.into_iter().map(|id| outgoing(&id)).collect();
    while !left.is_empty() {
        let answers = broker.publish(left.clone()).await;
        let missing = left.into_iter().zip(answers).filter(|(_, answer)| *answer != Published::Confirmed);
        left = missing
            .map(|(outgoing, answer)| {
                // A classic queue whose node is away is no queue; who is told so tries again.
                assert!(!matches!(answer, Published::Refused(_)), "a publisher was told {answer:?}");
                outgoing
            })
            .collect();
        if !left.is_empty() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

/// A publisher that goes on until it is told to stop.
pub(super) struct Publishing {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Publishing {
    /// Small batches with a pause, `PREFIX-0`, `PREFIX-1`, …
    pub(super) fn start(broker: Arc<RabbitMq>, prefix: &'static str) -> Self {
        let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&sent));
        let task = tokio::spawn(async move {
            while !stopped.load(Ordering::SeqCst) {
                let from = counted.load(Ordering::SeqCst);
                publish(&broker, (from..from + 20).map(|i| format!("{prefix}-{i}"))).await;
                counted.store(from + 20, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
        Self { stop, sent, task }
    }

    pub(super) fn sent(&self) -> usize {
        self.sent.load(Ordering::SeqCst)
    }

    /// Stops after the batch in progress, and says how many were confirmed.
    pub(super) async fn stop(self) -> usize {
        self.stop.store(true, Ordering::SeqCst);
        self.task.await.unwrap();
        self.sent.load(Ordering::SeqCst)
    }
}

/// A consumer of `orders` that notes and acks, until it is dropped.
pub(super) struct Consuming {
    pub(super) seen: Ids,
    task: JoinHandle<()>,
}

impl Consuming {
    pub(super) fn start(broker: Arc<RabbitMq>) -> Self {
        let seen = Ids::default();
        let noted = Arc::clone(&seen);
        let task = tokio::spawn(async move {
            let mut subscription = broker.subscribe(&queue("orders"), 50).await.unwrap();
            let settler = subscription.settler();
            loop {
                let deliveries = subscription.next(50).await.expect("a subscription outlives a replacement");
                noted.lock().unwrap().extend(
                    deliveries.iter().map(|delivery| delivery.message.properties.message_id.clone().unwrap()),
                );
                let acks = deliveries.into_iter().map(|delivery| (delivery.receipt, Verdict::Ack)).collect();
                settler.settle(acks).await.unwrap();
            }
        });
        Self { seen, task }
    }

    pub(super) fn count(&self) -> usize {
        self.seen.lock().unwrap().len()
    }
}

impl Drop for Consuming {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Waits until all of these have been seen by one of the consumers; fails when nothing new came for a minute.
pub(super) async fn all_seen(wanted: &HashSet<String>, consumers: &[&Ids]) {
    let missing = || {
        let mut left = wanted.clone();
        for ids in consumers {
            for id in ids.lock().unwrap().iter() {
                left.remove(id);
            }
        }
        left
    };
    let (mut before, mut quiet) = (usize::MAX, 0);
    loop {
        let left = missing();
        if left.is_empty() {
            return;
        }
        quiet = if left.len() == before { quiet + 1 } else { 0 };
        before = left.len();
        let some: Vec<_> = left.iter().take(10).collect();
        assert!(quiet < 600, "{} of {} were lost, such as {some:?}", left.len(), wanted.len());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// `PREFIX-0` … up to a count.
pub(super) fn ids(prefix: &str, count: usize) -> HashSet<String> {
    (0..count).map(|i| format!("{prefix}-{i}")).collect()
}

/// A message as it came.
pub(super) struct Taken {
    pub(super) message: Message,
    pub(super) exchange: String,
    pub(super) routing_key: String,
}

impl Taken {
    pub(super) fn id(&self) -> String {
        self.message.properties.message_id.clone().unwrap()
    }
}

/// Takes and acks everything in a queue until it is empty and has been quiet for a moment; what came, in order. A busy broker may be quiet for
/// longer than that in the middle.
pub(super) async fn drain(broker: &RabbitMq, name: &str) -> Vec<Taken> {
    let mut subscription = broker.subscribe(&queue(name), 500).await.unwrap();
    let settler = subscription.settler();
    let mut all = Vec::new();
    loop {
        let Ok(deliveries) = tokio::time::timeout(Duration::from_secs(2), subscription.next(500)).await
        else {
            match broker.depth(&queue(name)).await.unwrap() {
                0 => return all,
                _ => continue,
            }
        };
        let mut acks = Vec::new();
        for delivery in deliveries.unwrap() {
            acks.push((delivery.receipt, Verdict::Ack));
            let (exchange, routing_key) = (delivery.exchange.to_string(), delivery.routing_key.to_string());
            all.push(Taken { message: delivery.message, exchange, routing_key });
        }
        settler.settle(acks).await.unwrap();
    }
}

/// The ids of what is in a queue.
pub(super) async fn drained(broker: &RabbitMq, name: &str) -> HashSet<String> {
    drain(broker, name).await.iter().map(Taken::id).collect()
}
