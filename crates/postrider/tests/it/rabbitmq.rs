//! What the RabbitMQ adapter does beyond the broker's contract, on every version: returns, refusals, alarms, crashes, TLS.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_methods,
    reason = "tests panic, and wait in real time for real servers"
)]

mod connecting;
mod consuming;
mod cutting;
mod declaring;
mod losing;
mod nesting;
mod presets;
mod publishing;
mod routing;
mod slow;

use std::collections::HashSet;
use std::time::Duration;

use bytes::Bytes;
use postrider::Clock;
use postrider::broker::{Broker, BrokerLimits, Message, Outgoing, Published, Settler, Subscription, Verdict};
use postrider::rabbitmq::{RabbitMq, RabbitMqConfig};
use postrider::topology::{
    Binding, BindingKey, Exchange, ExchangeKind, ExchangeName, Queue, QueueName, RoutingKey, Topology,
};
use postrider_testkit::servers::{RabbitMq as Server, RabbitVersion, TestVhost, shared};

/// A broker on a vhost of the test's own.
async fn broker(version: RabbitVersion) -> (TestVhost, RabbitMq) {
    let vhost = shared().unwrap().vhost_on(version).await.unwrap();
    let broker = connect(&vhost.amqp_url).await;
    (vhost, broker)
}

async fn connect(url: &str) -> RabbitMq {
    RabbitMq::connect(RabbitMqConfig::new(url), Clock::system()).await.unwrap()
}

fn quick(url: &str, seconds: u64) -> RabbitMqConfig {
    let limit = Duration::from_secs(seconds);
    let limits = BrokerLimits { connect: limit, confirm: limit, call: limit };
    RabbitMqConfig { limits, ..RabbitMqConfig::new(url) }
}

/// Changes the configuration of a single node, and starts it again.
async fn configure(server: &Server, change: impl FnOnce(&str) -> String) {
    let file = server.folder().join("n1/rabbitmq.conf");
    let before = std::fs::read_to_string(&file).unwrap();
    let after = change(&before);
    assert_ne!(before, after);
    std::fs::write(&file, after).unwrap();
    server.restart().await.unwrap();
}

fn queue_name(name: &str) -> QueueName {
    QueueName::new(name).unwrap()
}

fn exchange_name(name: &str) -> ExchangeName {
    ExchangeName::new(name).unwrap()
}

/// Exchange `events` (topic) and quorum queue `orders`, bound for `order.*`.
fn orders() -> Topology {
    let exchange = Exchange::new(exchange_name("events"), ExchangeKind::Topic);
    let binding = Binding {
        exchange: exchange_name("events"),
        queue: queue_name("orders"),
        key: BindingKey::new("order.*").unwrap(),
    };
    Topology {
        exchanges: vec![exchange],
        queues: vec![Queue::quorum(queue_name("orders"))],
        bindings: vec![binding],
    }
}

fn event(id: &str, exchange: &str, key: &str) -> Outgoing {
    let mut message = Message { body: Bytes::from(format!("{{\"id\":\"{id}\"}}")), ..Message::default() };
    message.properties.message_id = Some(id.to_owned());
    Outgoing { exchange: exchange_name(exchange), routing_key: RoutingKey::new(key).unwrap(), message }
}

fn id_of(message: &Message) -> String {
    message.properties.message_id.clone().unwrap()
}

/// Takes and acks everything in a queue until it has been quiet for a moment; the ids, each once.
async fn drain(broker: &RabbitMq, queue: &str) -> HashSet<String> {
    let mut subscription = broker.subscribe(&queue_name(queue), 500).await.unwrap();
    let settler = subscription.settler();
    let mut ids = HashSet::new();
    while let Ok(deliveries) = tokio::time::timeout(Duration::from_secs(2), subscription.next(500)).await {
        let deliveries = deliveries.unwrap();
        ids.extend(deliveries.iter().map(|delivery| id_of(&delivery.message)));
        ack(&*settler, deliveries).await;
    }
    ids
}

async fn ack(settler: &dyn Settler, deliveries: Vec<postrider::broker::Delivery>) {
    settler.settle(deliveries.into_iter().map(|d| (d.receipt, Verdict::Ack)).collect()).await.unwrap();
}

/// The next deliveries, which must come soon.
async fn soon(subscription: &mut dyn Subscription, max: usize) -> Vec<postrider::broker::Delivery> {
    tokio::time::timeout(Duration::from_secs(30), subscription.next(max)).await.expect("a delivery").unwrap()
}

fn confirmed(answers: &[Published]) -> usize {
    answers.iter().filter(|answer| **answer == Published::Confirmed).count()
}

/// A bare connection of the driver, to do to the server what the adapter never does.
async fn bare(url: &str) -> (lapin::Connection, lapin::Channel) {
    let connection = lapin::Connection::connect(url, lapin::ConnectionProperties::default()).await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    (connection, channel)
}
