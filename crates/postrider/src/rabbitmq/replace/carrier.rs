//! Carries messages from one queue to another: consume, publish with confirm, then ack, in order.
//!
//! A crash at any point leaves a message in one of the two queues or in both, never in none. What goes out is what came
//! in: body, properties, headers and routing key. It goes through a fanout exchange of its own and not by the queue's name,
//! so that the routing key stays, and a `CC` header sends no copies elsewhere.

use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use lapin::message::Delivery;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions, ConfirmSelectOptions,
};
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};
use lapin::{BasicProperties, Channel, Confirmation, Consumer};
use tokio::time::timeout;

use crate::broker::{BrokerError, BrokerErrorKind};
use crate::rabbitmq::line::Line;
use crate::rabbitmq::{fault, lanes};

/// Unsettled messages on the way.
const PREFETCH: u16 = 1000;
/// Messages that are published before their confirms are waited for.
const BATCH: usize = 500;
/// The same in bytes.
const BATCH_BYTES: usize = 16 << 20;

/// Where a message was published to first, while it is carried.
pub(in crate::rabbitmq) const EXCHANGE: &str = "x-postrider-exchange";
/// How long a message may live; no clock runs while it is carried.
const EXPIRATION: &str = "x-postrider-expiration";
/// Who published it; RabbitMQ lets nobody say that of another.
const USER: &str = "x-postrider-user-id";

/// Which way messages go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// To where they wait.
    Aside,
    /// To where they belong.
    Back,
}

/// A consumer on one queue and a confirming publisher to another.
pub(super) struct Carrier {
    consuming: Channel,
    publishing: Channel,
    consumer: Consumer,
    exchange: String,
    way: Way,
    limit: Duration,
}

impl Carrier {
    /// Starts to consume `from`, before other consumers where the broker allows it.
    pub(super) async fn open(
        line: &Line,
        from: &str,
        exchange: &str,
        way: Way,
        limit: Duration,
    ) -> Result<Self, BrokerError> {
        let (consuming, publishing) = (line.channel(limit).await?, line.channel(limit).await?);
        let opening = async {
            publishing.confirm_select(ConfirmSelectOptions::default()).await?;
            consuming.basic_qos(PREFETCH, BasicQosOptions::default()).await?;
            let mut first = FieldTable::default();
            first.insert("x-priority".into(), AMQPValue::LongInt(10));
            consuming.basic_consume(from.into(), "".into(), BasicConsumeOptions::default(), first).await
        };
        let consumer = match timeout(limit, opening).await {
            Ok(Ok(consumer)) => consumer,
            Ok(Err(error)) => return Err(fault::asking("consume from", &format!("queue {from}"), error)),
            Err(_) => return Err(late("let us consume")),
        };
        Ok(Self { consuming, publishing, consumer, exchange: exchange.to_owned(), way, limit })
    }

    /// Carries what is there, or what comes within `patience`; at most a batch. None carried means silence.
    pub(super) async fn carry(&mut self, patience: Duration) -> Result<usize, BrokerError> {
        let Ok(first) = timeout(patience, self.consumer.next()).await else { return Ok(0) };
        let (mut batch, mut bytes, mut next) = (Vec::new(), 0, first);
        loop {
            match next {
                Some(Ok(delivery)) => {
                    bytes += delivery.data.len();
                    batch.push(delivery);
                }
                Some(Err(error)) => return Err(fault::asking("move messages of", "the queue", error)),
                None => return Err(lost("the consumer was cancelled while messages were moved")),
            }
            if batch.len() >= BATCH || bytes >= BATCH_BYTES {
                break;
            }
            match futures_util::FutureExt::now_or_never(self.consumer.next()) {
                Some(more) => next = more,
                None => break,
            }
        }
        self.publish(&batch).await?;
        let Some(last) = batch.last() else { return Ok(0) };
        let ack = self.consuming.basic_ack(last.delivery_tag, BasicAckOptions { multiple: true });
        match timeout(self.limit, ack).await {
            Ok(Ok(())) => Ok(batch.len()),
            Ok(Err(error)) => Err(fault::asking("move messages of", "the queue", error)),
            Err(_) => Err(late("take our acks")),
        }
    }

    /// Every one confirmed, or an error: then none is acked, and all of them come again.
    async fn publish(&self, batch: &[Delivery]) -> Result<(), BrokerError> {
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let sending = batch.iter().map(|delivery| async move {
            let properties = labelled(delivery, self.way);
            let exchange = ShortString::from(self.exchange.as_str());
            let key = delivery.routing_key.clone();
            self.publishing.basic_publish(exchange, key, options, &delivery.data, properties).await?.await
        });
        let limit = self.limit.max(Duration::from_secs(30));
        let Ok(answers) = timeout(limit, join_all(sending)).await else {
            return Err(late("confirm what was moved"));
        };
        for answer in answers {
            match answer {
                Ok(Confirmation::Ack(None)) => {}
                Ok(_) => {
                    return Err(lost(
                        "RabbitMQ did not take a message that was moved; it is still where it was",
                    ));
                }
                Err(error) => {
                    return Err(fault::asking("publish to", &format!("exchange {}", self.exchange), error));
                }
            }
        }
        Ok(())
    }

    /// Stops. What was not carried goes back to the queue it came from.
    pub(super) async fn close(self) {
        tokio::join!(lanes::close(&self.consuming), lanes::close(&self.publishing));
        drop(self.consumer);
    }
}

/// The properties of a message on its way: as they are, except for those that RabbitMQ would act upon.
fn labelled(delivery: &Delivery, way: Way) -> BasicProperties {
    let from = &delivery.properties;
    let mut headers = from.headers().as_ref().map(|headers| headers.inner().clone()).unwrap_or_default();
    // The broker's own count of this queue's deliveries.
    headers.remove("x-delivery-count");
    let text = |value: &str| AMQPValue::LongString(LongString::from(value));
    let taken = |value: Option<AMQPValue>| match value {
        Some(AMQPValue::LongString(text)) => Some(ShortString::from(text.to_string())),
        _ => None,
    };
    let mut expiration = from.expiration().clone();
    match way {
        Way::Aside => {
            let first = text(delivery.exchange.as_str());
            headers.entry(EXCHANGE.into()).or_insert(first);
            if let Some(expiration) = expiration.take() {
                headers.insert(EXPIRATION.into(), text(expiration.as_str()));
            }
        }
        Way::Back => {
            if let Some(kept) = taken(headers.remove(EXPIRATION)) {
                expiration = Some(kept);
            }
            // Came here by a binding while the queue was replaced, and was not carried aside.
            headers.entry(EXCHANGE.into()).or_insert_with(|| text(delivery.exchange.as_str()));
        }
    }
    if let Some(user) = from.user_id() {
        headers.insert(USER.into(), text(user.as_str()));
    }
    rebuilt(from, FieldTable::from(headers), expiration)
}

/// All properties but the user's id, which RabbitMQ would check against ours.
fn rebuilt(from: &BasicProperties, headers: FieldTable, expiration: Option<ShortString>) -> BasicProperties {
    let mut to = BasicProperties::default().with_headers(headers);
    macro_rules! copy {
        ($($get:ident $with:ident),*) => { $( if let Some(value) = from.$get() { to = to.$with(value.clone()); } )* };
    }
    copy!(
        content_type with_content_type, content_encoding with_content_encoding, delivery_mode with_delivery_mode,
        priority with_priority, correlation_id with_correlation_id, reply_to with_reply_to, message_id with_message_id,
        timestamp with_timestamp, kind with_type, app_id with_app_id, cluster_id with_cluster_id
    );
    match expiration {
        Some(expiration) => to.with_expiration(expiration),
        None => to,
    }
}

fn late(doing: &str) -> BrokerError {
    lost(&format!("RabbitMQ did not {doing} in time"))
}

fn lost(why: &str) -> BrokerError {
    BrokerError::new(BrokerErrorKind::Unavailable, format!("{why}; nothing is lost, try again"))
}
