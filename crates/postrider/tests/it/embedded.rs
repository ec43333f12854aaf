//! The embedded broker on a file of its own: what the port promises, across restarts and with time in hand.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "tests say what went wrong by panicking"
)]

mod dead_letter;
mod delivery;
mod load;
mod renewing;
mod restart;
mod routing;
mod ttl;

use std::path::PathBuf;
use std::time::Duration;

use jiff::Timestamp;
use postrider::broker::{Delivery, Message, Outgoing, Properties, Published, Receipt, Subscription, Verdict};
use postrider::clock::ManualClock;
use postrider::embedded::EmbeddedBroker;
use postrider::sqlite::{Sqlite, SqliteConfig};
use postrider::topology::{
    BindingKey, DeadLetterTarget, ExchangeKind, ExchangeName, Queue, QueueName, RoutingKey, Topology,
};
use postrider::{Broker, Clock};

/// A broker on a file in a folder that goes with it.
struct Post {
    broker: EmbeddedBroker,
    clock: Clock,
    hands: ManualClock,
    folder: tempfile::TempDir,
}

impl Post {
    async fn open() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (clock, hands) = Clock::manual(Timestamp::from_second(1_700_000_000).unwrap());
        let broker = open(folder.path().join("post.db"), &clock).await;
        Self { broker, clock, hands, folder }
    }

    async fn with(topology: &Topology) -> Self {
        let post = Self::open().await;
        post.broker.declare(topology).await.unwrap();
        post
    }

    /// As if the process had died: nothing is closed in order.
    async fn reopened(self) -> Self {
        let Self { broker, clock, hands, folder } = self;
        drop(broker);
        let broker = open(folder.path().join("post.db"), &clock).await;
        Self { broker, clock, hands, folder }
    }

    async fn publish(&self, exchange: &str, key: &str, body: &str) -> Published {
        let outgoing = Outgoing {
            exchange: ExchangeName::new(exchange).unwrap(),
            routing_key: RoutingKey::new(key).unwrap(),
            message: message(body),
        };
        self.broker.publish(vec![outgoing]).await.remove(0)
    }

    /// Straight into a queue.
    async fn fill(&self, queue: &str, bodies: impl IntoIterator<Item = impl AsRef<str>>) {
        let batch: Vec<_> =
            bodies.into_iter().map(|body| Outgoing::to_queue(&name(queue), message(body.as_ref()))).collect();
        let sent = batch.len();
        assert_eq!(self.broker.publish(batch).await, vec![Published::Confirmed; sent]);
    }

    async fn subscribe(&self, queue: &str, prefetch: u16) -> Box<dyn Subscription> {
        self.broker.subscribe(&name(queue), prefetch).await.unwrap()
    }

    async fn depth(&self, queue: &str) -> u64 {
        self.broker.depth(&name(queue)).await.unwrap()
    }

    /// Waits until a queue is as deep as this: expiry runs in a task of its own.
    async fn reaches_depth(&self, queue: &str, depth: u64) {
        let reached = async {
            while self.depth(queue).await != depth {
                tokio::task::yield_now().await;
            }
        };
        let Ok(()) = tokio::time::timeout(Duration::from_secs(10), reached).await else {
            panic!("{queue} has {} messages, not {depth}", self.depth(queue).await)
        };
    }

    async fn rows(&self, table: &str) -> i64 {
        let path = self.folder.path().join("post.db");
        let pool = sqlx::SqlitePool::connect_with(sqlx::sqlite::SqliteConnectOptions::new().filename(path));
        let pool = pool.await.unwrap();
        let sql = sqlx::AssertSqlSafe(format!("SELECT count(*) FROM {table}"));
        sqlx::query_scalar(sql).fetch_one(&pool).await.unwrap()
    }
}

async fn open(path: PathBuf, clock: &Clock) -> EmbeddedBroker {
    let store = Sqlite::open(SqliteConfig::new(path), clock.clone()).await.unwrap();
    EmbeddedBroker::open(store, clock.clone()).await.unwrap()
}

fn name(queue: &str) -> QueueName {
    QueueName::new(queue).unwrap()
}

fn queue(queue: &str) -> Queue {
    Queue::quorum(name(queue))
}

/// Dead-lettered to another queue by its name.
fn target(queue: &str) -> DeadLetterTarget {
    let routing_key = Some(RoutingKey::to_queue(&name(queue)));
    DeadLetterTarget { exchange: ExchangeName::default_exchange(), routing_key }
}

fn message(body: &str) -> Message {
    Message {
        properties: Properties { message_id: Some(format!("id-{body}")), ..Properties::default() },
        body: body.to_owned().into(),
        ..Message::default()
    }
}

/// Receives exactly this many.
async fn take(subscription: &mut Box<dyn Subscription>, many: usize) -> Vec<Delivery> {
    let mut taken = Vec::new();
    while taken.len() < many {
        let next = tokio::time::timeout(Duration::from_secs(10), subscription.next(many - taken.len()));
        let Ok(next) = next.await else { panic!("{} of {many} came", taken.len()) };
        taken.extend(next.unwrap());
    }
    taken
}

/// Nothing comes now.
async fn nothing(subscription: &mut Box<dyn Subscription>) {
    let next = tokio::time::timeout(Duration::from_millis(50), subscription.next(1)).await;
    assert!(next.is_err(), "{:?}", next.unwrap());
}

fn bodies(deliveries: &[Delivery]) -> Vec<&str> {
    deliveries.iter().map(|delivery| std::str::from_utf8(&delivery.message.body).unwrap()).collect()
}

fn all(deliveries: Vec<Delivery>, verdict: Verdict) -> Vec<(Receipt, Verdict)> {
    deliveries.into_iter().map(|delivery| (delivery.receipt, verdict)).collect()
}

fn exchange(text: &str) -> ExchangeName {
    ExchangeName::new(text).unwrap()
}

fn binding(text: &str) -> BindingKey {
    BindingKey::new(text).unwrap()
}
