//! The port to a message broker: declare, publish with confirms, subscribe, settle.
//!
//! Two implementations keep this contract and pass one suite: `rabbitmq` and `embedded`.

mod message;
mod subscribed;

pub use message::{HeaderValue, Headers, Message, Properties};
pub use subscribed::Subscribed;

use std::time::Duration;

use async_trait::async_trait;

use crate::topology::{Binding, ExchangeName, QueueName, RoutingKey, Topology};

/// The header in which a quorum queue says how often a message came back to it, settled by nobody. At the queue's limit it is given up.
pub const DELIVERY_COUNT: &str = "x-delivery-count";

/// All that a quorum queue counts of a message; since RabbitMQ 4.3 also how often it was handed out. It is something else at every delivery.
pub(crate) const COUNTED: [&str; 2] = [DELIVERY_COUNT, "x-acquired-count"];

/// A broker. Lost connections are its own business: a call waits for the connection to come back, within the broker's
/// time limit, and says [`BrokerErrorKind::Unavailable`] when it did not.
#[async_trait]
pub trait Broker: Send + Sync + 'static {
    /// Makes the broker have at least this topology. Idempotent; what is there already with other settings is an error
    /// that names it, and nothing of it is touched.
    async fn declare(&self, topology: &Topology) -> Result<(), BrokerError>;

    /// Publishes a batch, persistent and mandatory, and waits for every confirm: one answer a message, in their order.
    ///
    /// Only [`Published::Confirmed`] means that a queue has the message. A message that was answered otherwise may still
    /// have arrived; publish it again with the same id.
    async fn publish(&self, batch: Vec<Outgoing>) -> Vec<Published>;

    /// Starts to receive from a queue, at most `prefetch` unsettled deliveries at a time.
    async fn subscribe(&self, queue: &QueueName, prefetch: u16)
    -> Result<Box<dyn Subscription>, BrokerError>;

    /// How many messages wait in a queue, delivered but unsettled ones left out.
    async fn depth(&self, queue: &QueueName) -> Result<u64, BrokerError>;

    /// How many messages of a queue are with consumers: delivered, and not settled yet. None for one that cannot tell.
    async fn unsettled(&self, _queue: &QueueName) -> Result<u64, BrokerError> {
        Ok(0)
    }

    /// Whether anybody receives from a queue now, in whatever process. Nothing where it cannot be told.
    async fn is_attended(&self, _queue: &QueueName) -> Result<Option<bool>, BrokerError> {
        Ok(None)
    }

    /// Removes queues, then exchanges; what is not there is fine. With `only_unused` a queue that has messages or consumers is
    /// [`BrokerErrorKind::InUse`], and nothing is removed; so is an exchange that leads to others, but where a broker can only tell when
    /// the exchange is to go, the queues are gone by then. Messages of other queues are not touched.
    async fn remove(&self, _removal: &Removal) -> Result<(), BrokerError> {
        Err(BrokerError::new(BrokerErrorKind::Denied, "this broker removes nothing"))
    }

    /// Takes bindings away: from then on their keys lead nowhere by them. What is not there is fine, and what is in the queues stays.
    async fn unbind(&self, _bindings: &[Binding]) -> Result<(), BrokerError> {
        Err(BrokerError::new(BrokerErrorKind::Denied, "this broker unbinds nothing"))
    }

    /// Whether the broker can be reached now.
    async fn ping(&self) -> Result<(), BrokerError>;

    /// Closes the connections. Unsettled deliveries go back to their queues.
    async fn close(&self);
}

/// A stream of deliveries from one queue. Dropping it returns what is unsettled to the queue.
#[async_trait]
pub trait Subscription: Send {
    /// Waits for the next deliveries: at least one, at most `max`, in the queue's order.
    ///
    /// After a lost connection the subscription starts again by itself, and unsettled deliveries come again. Ends with an
    /// error only when it cannot go on: the queue is gone, access was refused.
    async fn next(&mut self, max: usize) -> Result<Vec<Delivery>, BrokerError>;

    /// Lets the broker hand out so many unsettled deliveries from now on. Those that it has handed out stay, and come before the others.
    async fn allow(&mut self, _prefetch: u16) {}

    /// The other end: settles deliveries while somebody waits in [`Self::next`].
    fn settler(&self) -> Box<dyn Settler>;

    /// Whether the broker hands deliveries out to it, now and later. A broker that cannot be lost always does.
    fn subscribed(&self) -> Subscribed {
        Subscribed::new()
    }
}

/// Settles the deliveries of one subscription.
#[async_trait]
pub trait Settler: Send + Sync {
    /// Settles deliveries. A receipt from before a lost connection is void: the broker will deliver that message again, so
    /// it is skipped here without an error.
    async fn settle(&self, settled: Vec<(Receipt, Verdict)>) -> Result<(), BrokerError>;
}

/// What the broker is told about a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Done with; forget it.
    Ack,
    /// Deliver it again, to anybody.
    Requeue,
    /// Dead-letter it by the queue's own target; gone if it has none.
    Reject,
}

/// The right to settle one delivery, once.
#[derive(Debug)]
pub struct Receipt {
    /// Which connection it came by; receipts of an earlier one are void.
    pub(crate) epoch: u64,
    /// Which delivery of that connection it is.
    pub(crate) tag: u64,
}

impl Receipt {
    /// The right to settle this delivery of this connection; for whoever implements a broker.
    pub fn new(epoch: u64, tag: u64) -> Self {
        Self { epoch, tag }
    }

    /// Which connection the delivery came by.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Which delivery of that connection it is.
    pub fn tag(&self) -> u64 {
        self.tag
    }

    /// For what did not come from a broker just now: settling it does nothing.
    pub(crate) fn void() -> Self {
        Self { epoch: 0, tag: 0 }
    }
}

/// A message as it was delivered.
#[derive(Debug)]
pub struct Delivery {
    /// The message.
    pub message: Message,
    /// The exchange it was published to last.
    pub exchange: ExchangeName,
    /// The key it was published with last.
    pub routing_key: RoutingKey,
    /// Whether it may have been delivered before: false is certain. RabbitMQ 4 says true of a dead letter as well, which was
    /// delivered in another queue only.
    pub redelivered: bool,
    /// The right to settle it.
    pub receipt: Receipt,
}

/// A message to be published.
#[derive(Debug, Clone, PartialEq)]
pub struct Outgoing {
    /// Where to.
    pub exchange: ExchangeName,
    /// Routed by this key.
    pub routing_key: RoutingKey,
    /// The message.
    pub message: Message,
}

impl Outgoing {
    /// To one queue and no other, through the default exchange: carbon copies that the message asked for are not sent again.
    pub fn to_queue(queue: &QueueName, mut message: Message) -> Self {
        message.ask_for_no_copies();
        Self { exchange: ExchangeName::default_exchange(), routing_key: RoutingKey::to_queue(queue), message }
    }
}

/// What is to be removed from a broker.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Removal {
    /// These queues, with what is in them.
    pub queues: Vec<QueueName>,
    /// These exchanges, with their bindings.
    pub exchanges: Vec<ExchangeName>,
    /// Not while a queue has messages or consumers, or an exchange leads to other queues than these.
    pub only_unused: bool,
}

/// What the broker said to a published message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Published {
    /// Every queue it was routed to has it, and there was at least one.
    Confirmed,
    /// No queue wanted it. A failure of this message.
    Returned(String),
    /// The broker refused this message for what it is (too large, no such exchange, not allowed). A failure of it.
    Refused(String),
    /// No broker of this kind can carry it as it is, however often somebody tries: it has more headers than fit. A failure of it.
    Unfit(String),
    /// The broker is there and did not take it: one of the queues that it goes to is full, or has no leader for a moment. Other queues may
    /// have it. No fault of the message, nor of others that go elsewhere.
    Declined(String),
    /// The broker cannot be asked, or the connection was lost: the outcome is unknown and no fault of the message.
    Unknown(String),
}

/// An error of a broker.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct BrokerError {
    /// What kind it is.
    pub kind: BrokerErrorKind,
    /// What happened and what to do, for people. No credentials.
    pub message: String,
    /// What the driver said.
    #[source]
    pub source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// The kinds of errors that are handled differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BrokerErrorKind {
    /// Not reachable, or it did not answer in time. Try again.
    Unavailable,
    /// Wrong credentials, or a right is missing.
    Denied,
    /// The queue or exchange does not exist.
    NotFound,
    /// It exists with other settings than declared.
    Mismatch,
    /// It has messages or consumers, and was to be removed only without.
    InUse,
    /// The broker was closed by us.
    Closed,
    /// A bug, here or there.
    Protocol,
}

impl BrokerError {
    /// An error without a driver's error behind it.
    pub fn new(kind: BrokerErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None }
    }

    /// Keeps what the driver said.
    #[must_use]
    pub fn because(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// That an exchange stays, because others are fed by it; whoever it is, if that is known.
    pub(crate) fn still_feeds(exchange: &str, other: Option<&str>) -> Self {
        let other = other.map_or_else(|| "another queue or exchange".to_owned(), |name| format!("{name:?}"));
        let text = format!(
            "exchange {exchange:?} still leads to {other}, which would get nothing any more; the exchange stays: have that unbound first"
        );
        Self::new(BrokerErrorKind::InUse, text)
    }

    /// Whether trying again can help.
    pub fn is_transient(&self) -> bool {
        self.kind == BrokerErrorKind::Unavailable
    }
}

/// The time limits every implementation keeps.
#[derive(Debug, Clone)]
pub struct BrokerLimits {
    /// Wait this long for a connection before a call gives up.
    pub connect: Duration,
    /// Wait this long for a confirm before the outcome counts as unknown.
    pub confirm: Duration,
    /// Wait this long for any other answer.
    pub call: Duration,
}

impl Default for BrokerLimits {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            confirm: Duration::from_secs(30),
            call: Duration::from_secs(10),
        }
    }
}

/// Why a message to one queue by its name did not arrive.
pub(crate) fn no_such_queue(name: &str) -> String {
    format!("there is no queue {name:?}; declare it, or name another")
}
