//! Holds back wait queues while the queue they lead to is away.
//!
//! A message that expires in a wait queue goes to a queue by its name. Were that queue missing just then, the message would
//! be lost. A message that is delivered and unsettled does not expire: so all of them are consumed, and none is settled,
//! until the queue is back. A crash gives them back at once.

use std::time::Duration;

use serde_json::Value;
use tokio::time::timeout;

use crate::broker::{BrokerError, BrokerErrorKind, Headers};
use crate::rabbitmq::amqp::{Channel, Consumer};
use crate::rabbitmq::line::Line;
use crate::rabbitmq::{fault, lanes};
use crate::topology::observed::Queue;

/// More than this is not held in memory.
const MOST: u64 = 50_000;

/// The wait queues that are held back. Their messages are given back when this is released, or dropped with the connection.
#[derive(Default)]
pub(super) struct Held(Vec<(Channel, Consumer)>);

impl Held {
    /// Takes hold of every queue whose expired or rejected messages go to `target` by its name.
    pub(super) async fn take(
        line: &Line,
        queues: &[Queue],
        target: &str,
        limit: Duration,
    ) -> Result<Self, BrokerError> {
        let mut held = Self::default();
        for queue in queues.iter().filter(|queue| leads_to(queue, target)) {
            let messages = queue.messages.unwrap_or(0);
            if messages > MOST {
                if keeps_its_dead(queue) {
                    continue;
                }
                return Err(BrokerError::new(
                    BrokerErrorKind::Mismatch,
                    format!(
                        "{} holds {messages} messages that go to {target} when their time is up, too many to hold back while \
                         {target} is replaced; nothing is lost: run this again when it holds fewer than {MOST}",
                        queue.name
                    ),
                ));
            }
            held.0.push(hold(line, &queue.name, limit).await?);
        }
        Ok(held)
    }

    /// Gives all of them back; what is past its time goes on at once.
    pub(super) async fn release(self) {
        for (channel, consumer) in self.0 {
            lanes::close(&channel).await;
            drop(consumer);
        }
    }
}

async fn hold(line: &Line, queue: &str, limit: Duration) -> Result<(Channel, Consumer), BrokerError> {
    let channel = line.channel(limit).await?;
    let what = format!("queue {queue}");
    match timeout(limit, channel.consume(queue, u16::MAX, &Headers::new())).await {
        Ok(Ok(consumer)) => Ok((channel, consumer)),
        Ok(Err(error)) => Err(fault::asking("hold back", &what, error)),
        Err(_) => Err(BrokerError::new(
            BrokerErrorKind::Unavailable,
            format!("RabbitMQ did not let us hold back {what} in time; nothing is lost, try again"),
        )),
    }
}

/// Whether what dies in this queue goes to another by its name: through the default exchange, by argument or by policy.
fn leads_to(queue: &Queue, target: &str) -> bool {
    let setting = |name: &str| {
        let argument = queue.arguments.get(&format!("x-{name}"));
        argument.or_else(|| queue.effective_policy_definition.get(name)).and_then(Value::as_str)
    };
    queue.name != target
        && setting("dead-letter-exchange") == Some("")
        && setting("dead-letter-routing-key") == Some(target)
}

/// Whether its dead letters stay until their target has confirmed them.
fn keeps_its_dead(queue: &Queue) -> bool {
    let argument = queue.arguments.get("x-dead-letter-strategy");
    let strategy = argument.or_else(|| queue.effective_policy_definition.get("dead-letter-strategy"));
    strategy.and_then(Value::as_str) == Some("at-least-once")
}
