//! Exchanges, queues and bindings as plain typed data, in the AMQP model.
//!
//! The RabbitMQ adapter turns this data into declarations; the embedded broker interprets the same data. Nothing here
//! does I/O.

mod matching;
mod names;
mod service;

pub use matching::topic_matches;
pub use names::{BindingKey, ConsumerName, ExchangeName, QueueName, RoutingKey};
pub use service::{OnDead, ServiceQueue, WaitQueue};

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Everything a broker is told to have.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Topology {
    /// The exchanges, each name once.
    pub exchanges: Vec<Exchange>,
    /// The queues, each name once.
    pub queues: Vec<Queue>,
    /// Which keys of which exchange reach which queue.
    pub bindings: Vec<Binding>,
}

/// Where messages are published to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exchange {
    /// Its name.
    pub name: ExchangeName,
    /// How it routes.
    pub kind: ExchangeKind,
    /// Where it sends what no binding wants.
    pub alternate: Option<ExchangeName>,
}

/// How an exchange routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExchangeKind {
    /// By pattern: `*` is one word, `#` any number of words.
    Topic,
    /// To every bound queue.
    Fanout,
    /// By equal key.
    Direct,
}

impl ExchangeKind {
    /// The name AMQP has for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Topic => "topic",
            Self::Fanout => "fanout",
            Self::Direct => "direct",
        }
    }
}

/// Where messages wait. Always durable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queue {
    /// Its name.
    pub name: QueueName,
    /// How it is kept.
    pub kind: QueueKind,
    /// How long a message may wait before it is dead-lettered.
    pub message_ttl: Option<Duration>,
    /// Where rejected and expired messages go; nowhere when absent.
    pub dead_letter: Option<DeadLetterTarget>,
    /// One consumer at a time, the next one takes over.
    pub single_active_consumer: bool,
    /// Dead letters stay until their target has confirmed them. Without it a target that is away for a moment, as after
    /// a restart, loses them. Quorum queues only; the embedded broker never loses them.
    pub safe_dead_lettering: bool,
}

/// How a queue is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QueueKind {
    /// Replicated by Raft; the default.
    Quorum,
    /// On one node.
    Classic,
}

impl QueueKind {
    /// The name RabbitMQ has for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Quorum => "quorum",
            Self::Classic => "classic",
        }
    }
}

/// The exchange, and the key if another than the message's own, for what leaves a queue without an ack.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadLetterTarget {
    /// The exchange; the default exchange routes by queue name.
    pub exchange: ExchangeName,
    /// The key that replaces the message's own.
    pub routing_key: Option<RoutingKey>,
}

/// A key pattern of an exchange and the queue it reaches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Binding {
    /// From here.
    pub exchange: ExchangeName,
    /// To here.
    pub queue: QueueName,
    /// For these keys. A fanout ignores it.
    pub key: BindingKey,
}

impl Queue {
    /// A quorum queue without TTL or dead-letter target; if it gets one, its dead letters are safe.
    pub fn quorum(name: QueueName) -> Self {
        Self {
            name,
            kind: QueueKind::Quorum,
            message_ttl: None,
            dead_letter: None,
            single_active_consumer: false,
            safe_dead_lettering: true,
        }
    }
}

impl Topology {
    /// Adds an exchange.
    #[must_use]
    pub fn exchange(mut self, name: ExchangeName, kind: ExchangeKind) -> Self {
        self.exchanges.push(Exchange { name, kind, alternate: None });
        self
    }

    /// Adds a queue.
    #[must_use]
    pub fn queue(mut self, queue: Queue) -> Self {
        self.queues.push(queue);
        self
    }

    /// Adds a binding.
    #[must_use]
    pub fn bind(mut self, exchange: ExchangeName, queue: QueueName, key: BindingKey) -> Self {
        self.bindings.push(Binding { exchange, queue, key });
        self
    }

    /// Adds a consumer's queue with its wait queues, its dead-letter queue and its bindings.
    #[must_use]
    pub fn service(mut self, service: &ServiceQueue) -> Self {
        self.queues.extend(service.queues());
        self.bindings.extend(service.bindings.iter().cloned());
        self
    }

    /// The queues a message reaches, each once, in the order they are declared. Follows alternate exchanges.
    pub fn route(&self, exchange: &ExchangeName, key: &RoutingKey) -> Vec<&QueueName> {
        if exchange.is_default() {
            return self
                .queues
                .iter()
                .map(|q| &q.name)
                .filter(|name| name.as_str() == key.as_str())
                .collect();
        }
        let mut at = exchange;
        // An alternate exchange may name another; a ring of them ends when each has been asked once.
        for _ in 0..=self.exchanges.len() {
            let Some(exchange) = self.exchanges.iter().find(|e| e.name == *at) else { return Vec::new() };
            let reached = self.bound(exchange, key);
            match &exchange.alternate {
                Some(alternate) if reached.is_empty() => at = alternate,
                _ => return reached,
            }
        }
        Vec::new()
    }

    fn bound(&self, exchange: &Exchange, key: &RoutingKey) -> Vec<&QueueName> {
        let wanted = |binding: &&Binding| {
            binding.exchange == exchange.name
                && match exchange.kind {
                    ExchangeKind::Fanout => true,
                    ExchangeKind::Direct => binding.key.as_str() == key.as_str(),
                    ExchangeKind::Topic => topic_matches(binding.key.as_str(), key.as_str()),
                }
        };
        let reached: Vec<_> = self.bindings.iter().filter(wanted).map(|binding| &binding.queue).collect();
        self.queues.iter().map(|queue| &queue.name).filter(|name| reached.contains(name)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shop() -> Topology {
        let exchange = ExchangeName::new("shop").unwrap();
        let other = ExchangeName::new("shop.unroutable").unwrap();
        let (orders, rest) = (QueueName::new("orders").unwrap(), QueueName::new("rest").unwrap());
        let mut topology = Topology::default()
            .exchange(exchange.clone(), ExchangeKind::Topic)
            .exchange(other.clone(), ExchangeKind::Fanout)
            .queue(Queue::quorum(orders.clone()))
            .queue(Queue::quorum(rest.clone()))
            .bind(exchange.clone(), orders.clone(), BindingKey::new("order.*").unwrap())
            .bind(exchange, orders, BindingKey::new("#.created").unwrap())
            .bind(other.clone(), rest, BindingKey::new("").unwrap());
        topology.exchanges[0].alternate = Some(other);
        topology
    }

    fn reached(exchange: &str, key: &str) -> Vec<String> {
        let (exchange, key) = (ExchangeName::new(exchange).unwrap(), RoutingKey::new(key).unwrap());
        shop().route(&exchange, &key).into_iter().map(ToString::to_string).collect()
    }

    #[test]
    fn two_matching_bindings_deliver_once() {
        assert_eq!(reached("shop", "order.created"), ["orders"]);
    }

    #[test]
    fn what_nobody_wants_goes_to_the_alternate_exchange() {
        assert_eq!(reached("shop", "invoice.paid"), ["rest"]);
    }

    #[test]
    fn the_default_exchange_routes_by_queue_name() {
        assert_eq!(reached("", "orders"), ["orders"]);
        assert!(reached("", "nowhere").is_empty());
    }
}
