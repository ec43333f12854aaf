//! A consumer's queue with what belongs to it: a ladder of wait queues and a dead-letter queue.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{
    Binding, BindingKey, ConsumerName, DeadLetterTarget, DeliveryLimit, ExchangeName, Queue, QueueKind,
    QueueName, REDELIVERIES, RoutingKey,
};
use crate::envelope::wire::Identity;
use crate::settlement::RetryPolicy;
use crate::text::InvalidText;

/// One consumer's queue, its retry ladder and its dead letters.
///
/// Retried messages are published to a wait queue, one per delay, whose TTL brings them back to this queue alone.
/// Per-message expirations are never used: they would wait behind a longer one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceQueue {
    /// The queue that is consumed.
    pub queue: Queue,
    /// The keys it wants.
    pub bindings: Vec<Binding>,
    /// When to retry and when to give up.
    pub retry: RetryPolicy,
    /// The wait queues, shortest delay first.
    pub wait_queues: Vec<WaitQueue>,
    /// Where dead letters are published to.
    pub dead_letter: DeadLetterTarget,
    /// The queue in which they arrive.
    pub dead_letter_queue: QueueName,
    /// Where foreign producers put identity in the messages of this queue.
    pub identity: Identity,
    /// Whether dead letters are collected into the table; if not, they stay in their queue for other tools.
    #[serde(default = "collected")]
    pub collect: bool,
    /// Whether events of one key are handled in order, across retries and processes, and what a dead one does to its key.
    #[serde(default)]
    pub order: Option<OnDead>,
}

/// What happens to the events of a key behind one that became a dead letter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnDead {
    /// They go on without it.
    #[default]
    Continue,
    /// They wait until it is replayed or discarded, or the key is released by hand.
    Park,
}

fn collected() -> bool {
    true
}

/// A queue whose TTL is one step of a ladder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitQueue {
    /// Its name.
    pub name: QueueName,
    /// How long messages stay.
    pub delay: Duration,
}

impl ServiceQueue {
    /// A quorum queue with wait queues `NAME.wait.DELAY` and dead-letter queue `NAME.dlq`.
    pub fn new(name: impl AsRef<str>, retry: RetryPolicy) -> Result<Self, InvalidText> {
        let name = QueueName::new(name)?;
        let wait_queues = ladder(&name, &retry.tiers())?;
        let dead_letter_queue = QueueName::new(format!("{name}.dlq"))?;
        // Others may declare this queue too: what keeps it safe is policy, which nobody has to agree with.
        let mut queue = Queue { safe_dead_lettering: false, ..Queue::quorum(name) };
        queue.policy.safe_dead_lettering = true;
        queue.policy.delivery_limit = Some(DeliveryLimit::Times(REDELIVERIES));
        queue.dead_letter = Some(DeadLetterTarget {
            exchange: ExchangeName::default_exchange(),
            routing_key: Some(RoutingKey::to_queue(&dead_letter_queue)),
        });
        let dead_letter = DeadLetterTarget {
            exchange: ExchangeName::default_exchange(),
            routing_key: Some(RoutingKey::to_queue(&dead_letter_queue)),
        };
        let identity = Identity::default();
        Ok(Self {
            queue,
            bindings: Vec::new(),
            retry,
            wait_queues,
            dead_letter,
            dead_letter_queue,
            identity,
            collect: true,
            order: None,
        })
    }

    /// Wants these keys of this exchange.
    pub fn bind(mut self, exchange: &ExchangeName, key: impl AsRef<str>) -> Result<Self, InvalidText> {
        let key = BindingKey::new(key)?;
        self.bindings.push(Binding { exchange: exchange.clone(), queue: self.queue.name.clone(), key });
        Ok(self)
    }

    /// Events of one key in order, one process at a time.
    #[must_use]
    pub fn ordered(mut self, on_dead: OnDead) -> Self {
        self.queue.single_active_consumer = true;
        self.order = Some(on_dead);
        self
    }

    /// The name of the queue.
    pub fn name(&self) -> &QueueName {
        &self.queue.name
    }

    /// A consumer named like its queue, unless it is given another name.
    pub fn consumer_name(&self) -> Result<ConsumerName, InvalidText> {
        ConsumerName::new(self.queue.name.as_str())
    }

    /// The wait queue nearest to a delay: the longest that is not longer, else the shortest.
    pub fn wait_queue(&self, delay: Duration) -> Option<&WaitQueue> {
        self.wait_queues.iter().rev().find(|wait| wait.delay <= delay).or(self.wait_queues.first())
    }

    /// Every queue it consists of.
    pub fn queues(&self) -> Vec<Queue> {
        let kind = self.queue.kind;
        let mut dead = Queue { kind, ..Queue::quorum(self.dead_letter_queue.clone()) };
        // A dead letter has nowhere else to go: it may be looked at as often as anybody wants.
        dead.policy.delivery_limit = Some(DeliveryLimit::Unlimited);
        let waits = self.wait_declarations();
        std::iter::once(self.queue.clone()).chain(waits).chain(std::iter::once(dead)).collect()
    }

    /// The wait queues, as they are declared. Nobody else declares them, so what keeps a waiting message safe through a
    /// crash is in their arguments and holds without anybody setting a policy.
    pub fn wait_declarations(&self) -> Vec<Queue> {
        let kind = match self.queue.kind {
            QueueKind::Classic => QueueKind::Classic,
            QueueKind::Quorum | QueueKind::Unsaid => QueueKind::Quorum,
        };
        let wait = |wait: &WaitQueue| Queue {
            kind,
            message_ttl: Some(wait.delay),
            dead_letter: Some(DeadLetterTarget {
                exchange: ExchangeName::default_exchange(),
                routing_key: Some(RoutingKey::to_queue(&self.queue.name)),
            }),
            ..Queue::quorum(wait.name.clone())
        };
        self.wait_queues.iter().map(wait).collect()
    }

    /// A queue that holds dead letters only, to be collected: nobody handles what is in it.
    pub fn of_dead_letters(name: &QueueName) -> Self {
        let arrives = DeadLetterTarget {
            exchange: ExchangeName::default_exchange(),
            routing_key: Some(RoutingKey::to_queue(name)),
        };
        Self {
            queue: Queue::quorum(name.clone()),
            bindings: Vec::new(),
            retry: RetryPolicy::ladder(0, []),
            order: None,
            wait_queues: Vec::new(),
            dead_letter: arrives,
            dead_letter_queue: name.clone(),
            identity: Identity::default(),
            collect: true,
        }
    }

    /// The same with another kind of queues.
    #[must_use]
    pub fn kind(mut self, kind: QueueKind) -> Self {
        self.queue.kind = kind;
        self
    }
}

/// One wait queue for each delay.
fn ladder(name: &QueueName, delays: &[Duration]) -> Result<Vec<WaitQueue>, InvalidText> {
    let mut delays = delays.to_vec();
    delays.sort_unstable();
    delays.dedup();
    let wait = |delay| Ok(WaitQueue { name: QueueName::new(format!("{name}.wait.{}", step(delay)))?, delay });
    delays.into_iter().map(wait).collect()
}

fn step(delay: Duration) -> String {
    let millis = delay.as_millis();
    match millis {
        0 => "0ms".to_owned(),
        _ if millis.is_multiple_of(3_600_000) => format!("{}h", millis / 3_600_000),
        _ if millis.is_multiple_of(60_000) => format!("{}m", millis / 60_000),
        _ if millis.is_multiple_of(1_000) => format!("{}s", millis / 1_000),
        _ => format!("{millis}ms"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ladder_gets_one_wait_queue_per_delay() {
        let policy = RetryPolicy::ladder(10, [5, 60, 5, 900].map(Duration::from_secs));
        let service = ServiceQueue::new("mail", policy).unwrap();
        let names: Vec<_> = service.queues().iter().map(|queue| queue.name.to_string()).collect();
        assert_eq!(names, ["mail", "mail.wait.5s", "mail.wait.1m", "mail.wait.15m", "mail.dlq"]);
        assert_eq!(service.wait_queue(Duration::from_secs(100)).unwrap().name.as_str(), "mail.wait.1m");
        assert_eq!(service.wait_queue(Duration::from_secs(1)).unwrap().name.as_str(), "mail.wait.5s");
    }
}
