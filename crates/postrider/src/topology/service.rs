//! A consumer's queue with what belongs to it: a ladder of wait queues and a dead-letter queue.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{
    Binding, BindingKey, ConsumerName, DeadLetterTarget, ExchangeName, Queue, QueueKind, QueueName,
    RoutingKey,
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
        let mut delays = retry.delays.clone();
        delays.sort_unstable();
        delays.dedup();
        let wait_queues = delays
            .into_iter()
            .map(|delay| {
                Ok(WaitQueue { name: QueueName::new(format!("{name}.wait.{}", step(delay)))?, delay })
            })
            .collect::<Result<_, InvalidText>>()?;
        let dead_letter_queue = QueueName::new(format!("{name}.dlq"))?;
        let mut queue = Queue::quorum(name);
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
        })
    }

    /// Wants these keys of this exchange.
    pub fn bind(mut self, exchange: &ExchangeName, key: impl AsRef<str>) -> Result<Self, InvalidText> {
        let key = BindingKey::new(key)?;
        self.bindings.push(Binding { exchange: exchange.clone(), queue: self.queue.name.clone(), key });
        Ok(self)
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
        let waits = self.wait_queues.iter().map(|wait| Queue {
            kind,
            message_ttl: Some(wait.delay),
            dead_letter: Some(DeadLetterTarget {
                exchange: ExchangeName::default_exchange(),
                routing_key: Some(RoutingKey::to_queue(&self.queue.name)),
            }),
            ..Queue::quorum(wait.name.clone())
        });
        let dead = Queue { kind, ..Queue::quorum(self.dead_letter_queue.clone()) };
        std::iter::once(self.queue.clone()).chain(waits).chain(std::iter::once(dead)).collect()
    }

    /// The same with another kind of queues.
    #[must_use]
    pub fn kind(mut self, kind: QueueKind) -> Self {
        self.queue.kind = kind;
        self
    }
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
        let policy = RetryPolicy {
            delays: [5, 60, 5, 900].map(Duration::from_secs).to_vec(),
            ..RetryPolicy::default()
        };
        let service = ServiceQueue::new("mail", policy).unwrap();
        let names: Vec<_> = service.queues().iter().map(|queue| queue.name.to_string()).collect();
        assert_eq!(names, ["mail", "mail.wait.5s", "mail.wait.1m", "mail.wait.15m", "mail.dlq"]);
        assert_eq!(service.wait_queue(Duration::from_secs(100)).unwrap().name.as_str(), "mail.wait.1m");
        assert_eq!(service.wait_queue(Duration::from_secs(1)).unwrap().name.as_str(), "mail.wait.5s");
    }
}
