//! Topology as declarations. What exists with other settings is named, and left as it is. Policies are not set here: AMQP
//! has no word for them.

use std::time::Duration;

use lapin::options::{ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable, LongString};
use lapin::{Channel, ExchangeKind as Kind};
use tokio::time::timeout;

use super::line::Line;
use super::{fault, lanes};
use crate::broker::{BrokerError, BrokerErrorKind};
use crate::topology::{Argument, Exchange, ExchangeKind, Queue, QueueKind, QueueName, Topology};

/// Declares exchanges and queues, then binds. All that cannot be declared is reported together, and then nothing is bound.
pub(super) async fn declare(line: &Line, topology: &Topology, limit: Duration) -> Result<(), BrokerError> {
    let mut desk = Desk { line, limit, channel: None };
    let mut refused = Vec::new();
    for exchange in topology.exchanges.iter().filter(|exchange| !exchange.name.is_default()) {
        if let Err(error) = desk.exchange(exchange).await {
            refused.push(error);
        }
    }
    for queue in &topology.queues {
        if let Err(error) = desk.queue(queue).await {
            refused.push(error);
        }
    }
    if refused.is_empty() {
        // Every queue is bound to the default exchange by its name already.
        for binding in topology.bindings.iter().filter(|binding| !binding.exchange.is_default()) {
            if let Err(error) = desk.bind(binding).await {
                refused.push(error);
            }
        }
    }
    if let Some(channel) = &desk.channel {
        lanes::close(channel).await;
    }
    together(refused)
}

/// How many messages wait in a queue.
pub(super) async fn depth(line: &Line, queue: &QueueName, limit: Duration) -> Result<u64, BrokerError> {
    let mut desk = Desk { line, limit, channel: None };
    let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
    let found = desk
        .ask("look at", &format!("queue {queue}"), async |channel| {
            channel.queue_declare(queue.as_str().into(), options, FieldTable::default()).await
        })
        .await?;
    if let Some(channel) = &desk.channel {
        lanes::close(channel).await;
    }
    Ok(u64::from(found.message_count()))
}

/// Where questions are asked: a channel that is replaced when an answer closed it.
struct Desk<'a> {
    line: &'a Line,
    limit: Duration,
    channel: Option<Channel>,
}

impl Desk<'_> {
    async fn exchange(&mut self, exchange: &Exchange) -> Result<(), BrokerError> {
        let mut arguments = FieldTable::default();
        if let Some(alternate) = &exchange.alternate {
            arguments.insert("alternate-exchange".into(), text(alternate.as_str()));
        }
        let options = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
        let kind = match exchange.kind {
            ExchangeKind::Topic => Kind::Topic,
            ExchangeKind::Fanout => Kind::Fanout,
            ExchangeKind::Direct => Kind::Direct,
        };
        let name = exchange.name.as_str();
        self.ask("declare", &format!("exchange {name}"), async |channel| {
            channel.exchange_declare(name.into(), kind, options, arguments).await
        })
        .await
    }

    async fn queue(&mut self, queue: &Queue) -> Result<(), BrokerError> {
        let name = queue.name.as_str();
        let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        let arguments = queue_arguments(queue);
        self.ask("declare", &format!("queue {name}"), async |channel| {
            channel.queue_declare(name.into(), options, arguments).await.map(|_| ())
        })
        .await
    }

    async fn bind(&mut self, binding: &crate::topology::Binding) -> Result<(), BrokerError> {
        let (queue, exchange, key) =
            (binding.queue.as_str(), binding.exchange.as_str(), binding.key.as_str());
        let what = format!("queue {queue} to exchange {exchange} for {key:?}");
        self.ask("bind", &what, async |channel| {
            channel
                .queue_bind(
                    queue.into(),
                    exchange.into(),
                    key.into(),
                    QueueBindOptions::default(),
                    FieldTable::default(),
                )
                .await
        })
        .await
    }

    async fn ask<T>(
        &mut self,
        doing: &str,
        what: &str,
        question: impl AsyncFnOnce(&Channel) -> lapin::Result<T>,
    ) -> Result<T, BrokerError> {
        let channel = match self.channel.take() {
            Some(channel) if channel.status().connected() => channel,
            _ => self.line.channel(self.limit).await?,
        };
        let answer = timeout(self.limit, question(&channel)).await;
        match answer {
            Ok(Ok(answer)) => {
                self.channel = Some(channel);
                Ok(answer)
            }
            Ok(Err(error)) => Err(fault::asking(doing, what, error)),
            Err(_) => {
                tokio::spawn(async move { lanes::close(&channel).await });
                Err(BrokerError::new(
                    BrokerErrorKind::Unavailable,
                    format!(
                        "RabbitMQ did not {doing} {what} within {} s; try again",
                        self.limit.as_secs_f32()
                    ),
                ))
            }
        }
    }
}

fn queue_arguments(queue: &Queue) -> FieldTable {
    let mut arguments = FieldTable::default();
    if queue.kind != QueueKind::Unsaid {
        arguments.insert("x-queue-type".into(), text(queue.kind.as_str()));
    }
    if let Some(ttl) = queue.message_ttl {
        let ttl = i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX);
        arguments.insert("x-message-ttl".into(), AMQPValue::LongLongInt(ttl));
    }
    if let Some(target) = &queue.dead_letter {
        arguments.insert("x-dead-letter-exchange".into(), text(target.exchange.as_str()));
        if let Some(key) = &target.routing_key {
            arguments.insert("x-dead-letter-routing-key".into(), text(key.as_str()));
        }
        if queue.safe_dead_lettering && queue.kind == QueueKind::Quorum {
            // Without the overflow setting the strategy is taken and not kept to.
            arguments.insert("x-dead-letter-strategy".into(), text("at-least-once"));
            arguments.insert("x-overflow".into(), text("reject-publish"));
        }
    }
    if queue.single_active_consumer {
        arguments.insert("x-single-active-consumer".into(), AMQPValue::Boolean(true));
    }
    for (name, value) in &queue.arguments {
        let value = match value {
            Argument::Bool(value) => AMQPValue::Boolean(*value),
            Argument::Int(value) => AMQPValue::LongLongInt(*value),
            Argument::Text(value) => text(value),
        };
        arguments.insert(name.as_str().into(), value);
    }
    arguments
}

fn text(value: &str) -> AMQPValue {
    AMQPValue::LongString(LongString::from(value))
}

/// One error out of several: the kind of the gravest (one that waiting will not mend), the text of all.
fn together(mut refused: Vec<BrokerError>) -> Result<(), BrokerError> {
    if refused.is_empty() {
        return Ok(());
    }
    let first = refused.iter().position(|error| !error.is_transient()).unwrap_or(0);
    let mut error = refused.swap_remove(first);
    for other in refused {
        error.message.push_str("\nand ");
        error.message.push_str(&other.message);
    }
    Err(error)
}
