//! What every broker must do: the suite of the port [`Broker`].
//!
//! One file per promise of the port. Cases speak to a broker of their own and know nothing of what is behind it.

mod carrying;
mod crashing;
mod dead_lettering;
mod declaring;
mod delivering;
mod listener;
mod policies;
mod publishing;
mod routing;

pub use carrying::*;
pub(super) use carrying::{every_header, every_property};
pub use crashing::*;
pub use dead_lettering::*;
pub use declaring::*;
pub use delivering::*;
pub use listener::Listener;
pub use policies::*;
pub use publishing::*;
pub use routing::*;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use postrider::broker::{Broker, Delivery, Message, Outgoing, Properties, Published};
use postrider::topology::{
    BindingKey, DeadLetterTarget, ExchangeName, Queue, QueueName, RoutingKey, Topology,
};

/// A broker with an empty world of its own behind it.
pub trait BrokerFixture: Send + Sync {
    /// A broker on this world. A case that asks again has closed the one before, or crashed it.
    fn broker(&self) -> impl Future<Output = Arc<dyn Broker>> + Send;
}

/// One on which policies can be set.
pub trait PolicedFixture: BrokerFixture {
    /// Declares a topology and puts its policies in force, as whoever operates the broker would.
    fn apply(&self, broker: &dyn Broker, topology: &Topology) -> impl Future<Output = ()> + Send;
}

pub(super) fn exchange(name: &str) -> ExchangeName {
    ExchangeName::new(name).unwrap()
}

pub(super) fn queue(name: &str) -> QueueName {
    QueueName::new(name).unwrap()
}

pub(super) fn key(text: &str) -> RoutingKey {
    RoutingKey::new(text).unwrap()
}

pub(super) fn pattern(text: &str) -> BindingKey {
    BindingKey::new(text).unwrap()
}

/// Quorum queues of these names and nothing else.
pub(super) fn queues<const N: usize>(names: [&str; N]) -> Topology {
    names.into_iter().fold(Topology::default(), |topology, name| topology.queue(Queue::quorum(queue(name))))
}

/// A queue whose messages expire after `ttl` and then go to `target` through the default exchange.
fn wait_queue(name: &str, ttl: Duration, target: &str) -> Queue {
    Queue { message_ttl: Some(ttl), ..dying_to(name, target) }
}

/// A queue whose rejected messages go to `target` through the default exchange.
fn dying_to(name: &str, target: &str) -> Queue {
    let target =
        DeadLetterTarget { exchange: ExchangeName::default_exchange(), routing_key: Some(key(target)) };
    Queue { dead_letter: Some(target), ..Queue::quorum(queue(name)) }
}

/// A message that says its name in its id and in its body.
fn message(name: &str) -> Message {
    Message {
        properties: Properties { message_id: Some(name.to_owned()), ..Properties::default() },
        body: Bytes::copy_from_slice(name.as_bytes()),
        ..Message::default()
    }
}

fn to_queue(name: &str, message: Message) -> Outgoing {
    Outgoing::to_queue(&queue(name), message)
}

fn to_exchange(name: &str, routing_key: &str, message: Message) -> Outgoing {
    Outgoing { exchange: exchange(name), routing_key: key(routing_key), message }
}

/// `message-0`, `message-1`, …
fn names(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("message-{n}")).collect()
}

/// Publishes to a queue and expects every message to be confirmed at once.
async fn fill(broker: &dyn Broker, queue: &str, names: &[String]) {
    confirm(broker, names.iter().map(|name| to_queue(queue, message(name))).collect()).await;
}

/// Publishes and expects every message to be confirmed at once.
async fn confirm(broker: &dyn Broker, batch: Vec<Outgoing>) {
    let expected = vec![Published::Confirmed; batch.len()];
    assert_eq!(broker.publish(batch).await, expected);
}

/// What the bodies of deliveries say.
fn said(deliveries: &[Delivery]) -> Vec<String> {
    deliveries.iter().map(|delivery| String::from_utf8_lossy(&delivery.message.body).into_owned()).collect()
}

/// Takes everything out of a queue. A last message marks the end, so that nothing has to be waited for in vain.
async fn empty(broker: &dyn Broker, queue: &str) -> Vec<String> {
    confirm(broker, vec![to_queue(queue, message("the end"))]).await;
    let mut listener = Listener::on(broker, queue, 500).await;
    let mut taken = Vec::new();
    while taken.last().is_none_or(|last| last != "the end") {
        let delivery = listener.take_one().await;
        taken.extend(said(std::slice::from_ref(&delivery)));
        listener.ack([delivery]).await;
    }
    listener.stop().await;
    taken.pop();
    taken
}
