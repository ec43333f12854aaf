//! Where a connection is asked for things by name: declare, bind, look, delete. One answer at a time, each in time.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::timeout;

use super::amqp::{Channel, DeclareQueue, Error};
use super::line::Line;
use super::{fault, lanes};
use crate::broker::{BrokerError, BrokerErrorKind, HeaderValue, Headers};
use crate::topology::{Argument, Binding, Exchange, ExchangeKind, Queue};

/// A channel for questions, replaced when an answer closed it.
pub(super) struct Desk<'a> {
    line: &'a Line,
    limit: Duration,
    channel: Option<Channel>,
}

/// What a look at a queue tells.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen {
    /// Messages that wait, delivered but unsettled ones left out.
    pub(super) ready: u64,
    /// Who receives from it.
    pub(super) consumers: u64,
}

impl<'a> Desk<'a> {
    pub(super) fn new(line: &'a Line, limit: Duration) -> Self {
        Self { line, limit, channel: None }
    }

    pub(super) async fn exchange(&mut self, exchange: &Exchange) -> Result<(), BrokerError> {
        let arguments = table(exchange.declared_arguments());
        let kind = match exchange.kind {
            ExchangeKind::Topic => "topic",
            ExchangeKind::Fanout => "fanout",
            ExchangeKind::Direct => "direct",
        };
        let name = exchange.name.as_str();
        self.ask("declare", &format!("exchange {name}"), async |channel| {
            channel.declare_exchange(name, kind, &arguments).await
        })
        .await
    }

    pub(super) async fn queue(&mut self, queue: &Queue) -> Result<(), BrokerError> {
        self.raw_queue(queue.name.as_str(), table(queue.declared_arguments())).await
    }

    pub(super) async fn raw_queue(&mut self, name: &str, arguments: Headers) -> Result<(), BrokerError> {
        self.ask("declare", &format!("queue {name}"), async |channel| {
            channel.declare_queue(name, DeclareQueue::Durable, &arguments).await.map(|_| ())
        })
        .await
    }

    pub(super) async fn bind(&mut self, binding: &Binding) -> Result<(), BrokerError> {
        self.raw_bind(binding.queue.as_str(), binding.exchange.as_str(), binding.key.as_str()).await
    }

    pub(super) async fn raw_bind(
        &mut self,
        queue: &str,
        exchange: &str,
        key: &str,
    ) -> Result<(), BrokerError> {
        let what = format!("queue {queue} to exchange {exchange} for {key:?}");
        self.ask("bind", &what, async |channel| channel.bind_queue(queue, exchange, key).await).await
    }

    pub(super) async fn unbind(&mut self, binding: &Binding) -> Result<(), BrokerError> {
        let (queue, exchange, key) =
            (binding.queue.as_str(), binding.exchange.as_str(), binding.key.as_str());
        let what = format!("queue {queue} from exchange {exchange} for {key:?}");
        self.ask("unbind", &what, async |channel| channel.unbind_queue(queue, exchange, key).await).await
    }

    /// Counts what waits in a queue, exactly and now.
    pub(super) async fn look(&mut self, queue: &str) -> Result<Seen, BrokerError> {
        let (ready, consumers) = self
            .ask("look at", &format!("queue {queue}"), async |channel| {
                channel.declare_queue(queue, DeclareQueue::Passive, &Headers::new()).await
            })
            .await?;
        Ok(Seen { ready: u64::from(ready), consumers: u64::from(consumers) })
    }

    /// Takes a name that only this connection has, until it ends. Two processes never hold it at the same time.
    pub(super) async fn lock(&mut self, name: &str) -> Result<(), BrokerError> {
        self.ask("lock", &format!("queue {name}"), async |channel| {
            channel.declare_queue(name, DeclareQueue::Exclusive, &Headers::new()).await.map(|_| ())
        })
        .await
    }

    /// Deletes a queue and says how many messages went with it.
    pub(super) async fn delete_queue(&mut self, name: &str) -> Result<u64, BrokerError> {
        self.ask("delete", &format!("queue {name}"), async |channel| {
            channel.delete_queue(name, false).await.map(u64::from)
        })
        .await
    }

    /// Deletes a queue and declares it anew in one breath, so that it is away for no longer than RabbitMQ needs. With
    /// `if_empty` (which quorum queues do not know) a message that has arrived stops it before anything is deleted.
    pub(super) async fn swap(&mut self, queue: &Queue, if_empty: bool) -> Result<u64, BrokerError> {
        let name = queue.name.as_str();
        let arguments = table(queue.declared_arguments());
        self.ask("replace", &format!("queue {name}"), async |channel| {
            let gone = channel.delete_queue(name, if_empty);
            let back = channel.declare_queue(name, DeclareQueue::Durable, &arguments);
            let (gone, _declared) = futures_util::future::try_join(gone, back).await?;
            Ok(u64::from(gone))
        })
        .await
    }

    /// With `if_unused` an exchange that something is bound to stays, which is [`BrokerErrorKind::InUse`].
    pub(super) async fn delete_exchange(&mut self, name: &str, if_unused: bool) -> Result<(), BrokerError> {
        let what = format!("exchange {name}");
        let deleted =
            self.ask("delete", &what, async |channel| channel.delete_exchange(name, if_unused).await).await;
        deleted.map_err(|error| match error.kind {
            // To RabbitMQ this is a failed precondition, as other settings are.
            BrokerErrorKind::Mismatch if if_unused => BrokerError::still_feeds(name, None).because(error),
            _ => error,
        })
    }

    /// Closes the channel in good order.
    pub(super) async fn close(self) {
        if let Some(channel) = &self.channel {
            lanes::close(channel).await;
        }
    }

    async fn ask<T>(
        &mut self,
        doing: &str,
        what: &str,
        question: impl AsyncFnOnce(&Channel) -> Result<T, Error>,
    ) -> Result<T, BrokerError> {
        let channel = match self.channel.take() {
            Some(channel) if channel.is_open() => channel,
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

/// Arguments as AMQP carries them.
pub(super) fn table(arguments: BTreeMap<String, Argument>) -> Headers {
    let value = |value| match value {
        Argument::Bool(value) => HeaderValue::Bool(value),
        Argument::Int(value) => HeaderValue::Int(value),
        Argument::Text(value) => HeaderValue::Text(value),
    };
    arguments.into_iter().map(|(name, argument)| (name, value(argument))).collect()
}
