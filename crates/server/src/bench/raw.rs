//! The raw limits: what the broker takes when nothing is in the way.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use lapin::options::{
    BasicAckOptions, BasicCancelOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions,
    ConfirmSelectOptions, QueueDeclareOptions, QueueDeleteOptions, QueuePurgeOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Confirmation};
use postrider::broker::{HeaderValue, Message, Outgoing, Published, Verdict};
use postrider::embedded::EmbeddedBroker;
use postrider::topology::{Queue, QueueName, Topology};
use postrider::{Broker as _, Clock};

/// Messages on their way at the same time.
const WINDOW: usize = 1000;
/// Deliveries on their way at the same time.
const PREFETCH: u16 = 1000;
/// Deliveries that one ack is for: it goes for all before it.
const ACKED_TOGETHER: usize = 100;

/// A broker without anything around it.
#[async_trait]
pub(super) trait Raw: Send {
    /// Publishes with confirms and says how long it took.
    async fn publish(&mut self, messages: Vec<Message>, clock: &Clock) -> anyhow::Result<Duration>;
    /// Publishes one after the other, each when the one before is confirmed, and says how long each took.
    async fn publish_one_by_one(
        &mut self,
        messages: Vec<Message>,
        clock: &Clock,
    ) -> anyhow::Result<Vec<Duration>>;
    /// Consumes so many messages and acks all, and says how long it took.
    async fn consume(&mut self, messages: usize, clock: &Clock) -> anyhow::Result<Duration>;
    /// Empties the queue.
    async fn empty(&mut self) -> anyhow::Result<()>;
}

/// RabbitMQ by the driver itself, persistent, to a quorum queue.
pub(super) struct RabbitRaw {
    channel: lapin::Channel,
    _connection: lapin::Connection,
    queue: QueueName,
}

impl RabbitRaw {
    /// Declares the queue.
    pub(super) async fn open(url: &str, queue: QueueName) -> anyhow::Result<Self> {
        let connection = lapin::Connection::connect(url, lapin::ConnectionProperties::default()).await?;
        let channel = connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        let mut arguments = FieldTable::default();
        arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
        let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        channel.queue_declare(queue.as_str().into(), options, arguments).await?;
        Ok(Self { channel, _connection: connection, queue })
    }

    /// Removes other queues of the benchmark.
    pub(super) async fn remove_also(&self, queues: impl Iterator<Item = &QueueName>) -> anyhow::Result<()> {
        for queue in queues {
            self.channel.queue_delete(queue.as_str().into(), QueueDeleteOptions::default()).await?;
        }
        Ok(())
    }

    /// Removes the queue.
    pub(super) async fn remove(self) -> anyhow::Result<()> {
        self.channel.queue_delete(self.queue.as_str().into(), QueueDeleteOptions::default()).await?;
        Ok(())
    }
}

#[async_trait]
impl Raw for RabbitRaw {
    async fn publish(&mut self, messages: Vec<Message>, clock: &Clock) -> anyhow::Result<Duration> {
        let messages: Vec<_> =
            messages.into_iter().map(|message| (properties(&message), message.body)).collect();
        let start = clock.monotonic();
        let mut under_way = FuturesUnordered::new();
        for (properties, body) in messages {
            if under_way.len() >= WINDOW {
                confirmed(under_way.next().await)?;
            }
            let (channel, queue) = (self.channel.clone(), self.queue.clone());
            under_way.push(async move {
                let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
                channel
                    .basic_publish("".into(), queue.as_str().into(), options, &body, properties)
                    .await?
                    .await
            });
        }
        while let Some(answer) = under_way.next().await {
            confirmed(Some(answer))?;
        }
        Ok(clock.since(start))
    }

    async fn publish_one_by_one(
        &mut self,
        messages: Vec<Message>,
        clock: &Clock,
    ) -> anyhow::Result<Vec<Duration>> {
        let mut took = Vec::with_capacity(messages.len());
        for message in messages {
            took.push(self.publish(vec![message], clock).await?);
        }
        Ok(took)
    }

    async fn consume(&mut self, messages: usize, clock: &Clock) -> anyhow::Result<Duration> {
        const TAG: &str = "postrider-bench";
        self.channel.basic_qos(PREFETCH, BasicQosOptions::default()).await?;
        let start = clock.monotonic();
        let (queue, options) = (self.queue.as_str().into(), BasicConsumeOptions::default());
        let mut deliveries =
            self.channel.basic_consume(queue, TAG.into(), options, FieldTable::default()).await?;
        for seen in 1..=messages {
            let Some(delivery) = deliveries.next().await else {
                anyhow::bail!("the broker ended the consumer")
            };
            let delivery = delivery?;
            if seen % ACKED_TOGETHER == 0 || seen == messages {
                delivery.ack(BasicAckOptions { multiple: true }).await?;
            }
        }
        let took = clock.since(start);
        self.channel.basic_cancel(TAG.into(), BasicCancelOptions::default()).await?;
        Ok(took)
    }

    async fn empty(&mut self) -> anyhow::Result<()> {
        self.channel.queue_purge(self.queue.as_str().into(), QueuePurgeOptions::default()).await?;
        Ok(())
    }
}

fn confirmed(answer: Option<lapin::Result<Confirmation>>) -> anyhow::Result<()> {
    match answer {
        Some(Ok(Confirmation::Ack(None))) | None => Ok(()),
        Some(Ok(other)) => anyhow::bail!("the broker did not confirm: {other:?}"),
        Some(Err(error)) => Err(error.into()),
    }
}

/// The same headers and properties as the relay's messages have: the same bytes go over the wire.
fn properties(message: &Message) -> BasicProperties {
    let mut headers = FieldTable::default();
    for (name, value) in &message.headers {
        let value = match value {
            HeaderValue::Text(text) => AMQPValue::LongString(text.as_str().into()),
            HeaderValue::Int(int) => AMQPValue::LongLongInt(*int),
            _ => continue,
        };
        headers.insert(name.as_str().into(), value);
    }
    let id = message.properties.message_id.as_deref().unwrap_or_default();
    BasicProperties::default().with_delivery_mode(2).with_message_id(id.into()).with_headers(headers)
}

/// The embedded broker alone, in batches as large as the relay's.
pub(super) struct EmbeddedRaw {
    broker: Arc<EmbeddedBroker>,
    queue: QueueName,
}

impl EmbeddedRaw {
    /// Declares the queue.
    pub(super) async fn open(broker: Arc<EmbeddedBroker>, queue: QueueName) -> anyhow::Result<Self> {
        broker.declare(&Topology::default().queue(Queue::quorum(queue.clone()))).await?;
        Ok(Self { broker, queue })
    }
}

#[async_trait]
impl Raw for EmbeddedRaw {
    async fn publish(&mut self, messages: Vec<Message>, clock: &Clock) -> anyhow::Result<Duration> {
        let outgoing: Vec<_> =
            messages.into_iter().map(|message| Outgoing::to_queue(&self.queue, message)).collect();
        let start = clock.monotonic();
        for batch in outgoing.chunks(WINDOW) {
            let answers = self.broker.publish(batch.to_vec()).await;
            anyhow::ensure!(answers.iter().all(|answer| *answer == Published::Confirmed), "not confirmed");
        }
        Ok(clock.since(start))
    }

    async fn publish_one_by_one(
        &mut self,
        messages: Vec<Message>,
        clock: &Clock,
    ) -> anyhow::Result<Vec<Duration>> {
        let mut took = Vec::with_capacity(messages.len());
        for message in messages {
            took.push(self.publish(vec![message], clock).await?);
        }
        Ok(took)
    }

    async fn consume(&mut self, messages: usize, clock: &Clock) -> anyhow::Result<Duration> {
        let start = clock.monotonic();
        let mut subscription = self.broker.subscribe(&self.queue, PREFETCH).await?;
        let settler = subscription.settler();
        let mut seen = 0;
        while seen < messages {
            let deliveries = subscription.next(usize::from(PREFETCH)).await?;
            seen += deliveries.len();
            settler
                .settle(deliveries.into_iter().map(|delivery| (delivery.receipt, Verdict::Ack)).collect())
                .await?;
        }
        Ok(clock.since(start))
    }

    /// The file is thrown away afterwards.
    async fn empty(&mut self) -> anyhow::Result<()> {
        Ok(())
    }
}
