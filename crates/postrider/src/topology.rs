//! Exchanges, queues and bindings as plain typed data, in the AMQP model.
//!
//! The RabbitMQ adapter turns this data into declarations; the embedded broker interprets the same data. Nothing here
//! does I/O.

mod arguments;
mod diagram;
mod explain;
pub mod export;
mod key_template;
mod layout;
mod matching;
mod names;
pub mod observed;
pub mod plan;
mod policy;
mod presets;
mod service;

pub use explain::{DeathStep, ExchangeStep, Explanation, ReachedQueue, TriedBinding};
pub(crate) use key_template::routing_key;
pub use key_template::{InvalidTemplate, KeyTemplate};
pub use layout::{Consuming, Layout};
pub use matching::topic_matches;
pub use names::{BindingKey, ConsumerName, ExchangeName, QueueName, RoutingKey, VhostName};
pub use policy::{AppliesTo, BrokerPolicy, DeliveryLimit, ExchangePolicy, QueuePolicy, REDELIVERIES};
pub use presets::{PRESETS, Parameter, Preset, PresetError, STRICT};
pub use service::{OnDead, ServiceQueue, WaitQueue};

use std::collections::BTreeMap;
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

/// Where messages are published to. Always durable.
///
/// All but the policy is fixed when it is declared, and everybody who declares it must agree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exchange {
    /// Its name.
    pub name: ExchangeName,
    /// How it routes.
    pub kind: ExchangeKind,
    /// Where it sends what no binding wants, as an argument.
    #[serde(default)]
    pub alternate: Option<ExchangeName>,
    /// What may change later.
    #[serde(default)]
    pub policy: ExchangePolicy,
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
///
/// All but the policy are arguments: fixed when it is declared, and everybody who declares it must agree.
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
    /// Every other argument (`x-…`). The embedded broker keeps to `x-max-length`, `x-max-length-bytes` and `x-overflow`; all others it
    /// keeps and compares, and does nothing else with them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub arguments: BTreeMap<String, Argument>,
    /// What may change later.
    #[serde(default)]
    pub policy: QueuePolicy,
}

/// What a queue does that has as many messages as it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overflow {
    /// It takes the new one and gives up its oldest, which becomes a dead letter where the queue has a target.
    DropHead,
    /// It refuses the new one: whoever publishes it is told, and tries again.
    RejectPublish,
}

/// The value of an argument.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Argument {
    /// Yes or no.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A text.
    Text(String),
}

impl From<&str> for Argument {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl std::fmt::Display for Argument {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Bool(value) => write!(f, "{value}"),
            Self::Int(value) => write!(f, "{value}"),
            Self::Text(value) => write!(f, "{value:?}"),
        }
    }
}

/// How a queue is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QueueKind {
    /// Replicated by Raft; the default.
    Quorum,
    /// On one node.
    Classic,
    /// Not said: what the virtual host has for its default, which is classic unless somebody changed it. For queues that
    /// others declare without a type.
    Unsaid,
}

impl QueueKind {
    /// The name RabbitMQ has for it, as the queue will be where the virtual host's default is untouched.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Quorum => "quorum",
            Self::Classic | Self::Unsaid => "classic",
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
            arguments: BTreeMap::new(),
            policy: QueuePolicy::default(),
        }
    }

    /// Where its dead letters go: by its argument, else by its policy.
    pub fn effective_dead_letter(&self) -> Option<&DeadLetterTarget> {
        self.dead_letter.as_ref().or(self.policy.dead_letter.as_ref())
    }
}

impl Exchange {
    /// An exchange without an alternate.
    pub fn new(name: ExchangeName, kind: ExchangeKind) -> Self {
        Self { name, kind, alternate: None, policy: ExchangePolicy::default() }
    }

    /// Where it sends what no binding wants: by its argument, else by its policy.
    pub fn effective_alternate(&self) -> Option<&ExchangeName> {
        self.alternate.as_ref().or(self.policy.alternate.as_ref())
    }
}

impl Topology {
    /// Adds an exchange.
    #[must_use]
    pub fn exchange(mut self, name: ExchangeName, kind: ExchangeKind) -> Self {
        self.exchanges.push(Exchange::new(name, kind));
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

    /// Adds a consumer's queue with its wait queues, its dead-letter queue and its bindings, unless they are there: a layout
    /// may declare them in its own way.
    #[must_use]
    pub fn service(mut self, service: &ServiceQueue) -> Self {
        for queue in service.queues() {
            if self.find_queue(&queue.name).is_none() {
                self.queues.push(queue);
            }
        }
        for binding in &service.bindings {
            if !self.bindings.contains(binding) {
                self.bindings.push(binding.clone());
            }
        }
        self
    }

    /// The exchange of this name.
    pub fn find_exchange(&self, name: &ExchangeName) -> Option<&Exchange> {
        self.exchanges.iter().find(|exchange| exchange.name == *name)
    }

    /// The queue of this name.
    pub fn find_queue(&self, name: &QueueName) -> Option<&Queue> {
        self.queues.iter().find(|queue| queue.name == *name)
    }

    /// Whether what dies in a queue may come back to it by dying again elsewhere.
    pub fn is_retry_loop(&self, queue: &QueueName) -> bool {
        let mut seen = Vec::new();
        let mut dying = vec![queue];
        while let Some(name) = dying.pop() {
            let Some(target) = self.find_queue(name).and_then(Queue::effective_dead_letter) else { continue };
            // Without a key of its own a dead letter keeps the message's: it may be any that leads here.
            let reached = match &target.routing_key {
                Some(key) => self.route(&target.exchange, key),
                None => self.fed_by(&target.exchange),
            };
            for next in reached {
                if next == queue {
                    return true;
                }
                if !seen.contains(&next) {
                    seen.push(next);
                    dying.push(next);
                }
            }
        }
        false
    }

    /// Every queue that some key of an exchange reaches.
    fn fed_by(&self, exchange: &ExchangeName) -> Vec<&QueueName> {
        let mut exchanges = vec![exchange];
        while let Some(alternate) = exchanges
            .last()
            .and_then(|name| self.find_exchange(name))
            .and_then(Exchange::effective_alternate)
            .filter(|name| !exchanges.contains(name))
        {
            exchanges.push(alternate);
        }
        let bound = self.bindings.iter().filter(|binding| exchanges.contains(&&binding.exchange));
        bound.map(|binding| &binding.queue).collect()
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
            let Some(exchange) = self.find_exchange(at) else { return Vec::new() };
            let reached = self.bound(exchange, key);
            match exchange.effective_alternate() {
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
