//! Topology against a running RabbitMQ, on every version: rights, plans, applies, and queues that are replaced under load.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_methods,
    reason = "tests panic, and wait in real time for real servers"
)]

mod cluster;
mod foreign;
mod planning;
mod replacing;
mod rights;
mod traffic;

use std::collections::HashSet;
use std::time::Duration;

use postrider::broker::Broker;
use postrider::rabbitmq::management::ManagementConfig;
use postrider::rabbitmq::{Operator, RabbitMq, RabbitMqConfig, RabbitMqTls};
use postrider::topology::{BindingKey, ExchangeKind, ExchangeName, Queue, QueueKind, QueueName, Topology};
use postrider::{Clock, topology::plan::Plan};
use postrider_testkit::servers::{RabbitVersion, TestVhost, shared};

/// How long consumers may take to settle, in tests.
const PATIENCE: Duration = Duration::from_mins(1);

/// An operator on a vhost of the test's own.
async fn operator(version: RabbitVersion) -> (TestVhost, Operator) {
    let vhost = shared().unwrap().vhost_on(version).await.unwrap();
    let operator = operator_at(&vhost.amqp_url, &vhost.management_url);
    (vhost, operator)
}

fn operator_at(amqp: &str, management: &str) -> Operator {
    Operator::new(RabbitMqConfig::new(amqp), &at(management), Clock::system()).unwrap()
}

fn at(management: &str) -> ManagementConfig {
    ManagementConfig {
        url: management.to_owned().into(),
        tls: RabbitMqTls::default(),
        limit: Duration::from_secs(10),
    }
}

async fn connect(url: &str) -> RabbitMq {
    RabbitMq::connect(RabbitMqConfig::new(url), Clock::system()).await.unwrap()
}

fn exchange(name: &str) -> ExchangeName {
    ExchangeName::new(name).unwrap()
}

fn queue(name: &str) -> QueueName {
    QueueName::new(name).unwrap()
}

/// Exchange `events` (topic) and queue `orders` of a kind, bound for `order.*`.
fn orders(kind: QueueKind) -> Topology {
    let plain = Queue { kind, safe_dead_lettering: false, ..Queue::quorum(queue("orders")) };
    Topology::default().exchange(exchange("events"), ExchangeKind::Topic).queue(plain).bind(
        exchange("events"),
        queue("orders"),
        BindingKey::new("order.*").unwrap(),
    )
}

/// Plans and applies.
async fn apply(operator: &Operator, wanted: &Topology) -> Plan {
    let plan = operator.plan(wanted, false).await.unwrap();
    assert!(plan.blocked.is_empty(), "{plan:?}");
    operator.apply(&plan, PATIENCE, &|text| eprintln!("{text}")).await.unwrap();
    plan
}

/// Nothing is left of a replacement, and the queue is what was wanted.
async fn assert_settled(operator: &Operator, wanted: &Topology) {
    let observed = operator.observe().await.unwrap();
    let plan = postrider::topology::plan::diff(wanted, &observed, false);
    assert!(plan.is_empty() && plan.extra.is_empty(), "{plan:?}");
    let names = observed.queues.iter().map(|q| &q.name).chain(observed.exchanges.iter().map(|e| &e.name));
    let names = names.chain(observed.policies.iter().map(|policy| &policy.name));
    let left: HashSet<_> = names
        .filter(|name| name.contains("replacing") || name.contains("postrider-") || name.contains("closing"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

/// The depth of a queue, by AMQP.
async fn depth(broker: &RabbitMq, name: &str) -> u64 {
    broker.depth(&queue(name)).await.unwrap()
}
