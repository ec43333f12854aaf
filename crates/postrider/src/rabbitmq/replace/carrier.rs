//! Carries messages from one queue to another: consume, publish with confirm, then ack, in order.
//!
//! A crash at any point leaves a message in one of the two queues or in both, never in none. What goes out is what came
//! in: body, properties, headers and routing key. It goes through a fanout exchange of its own and not by the queue's name,
//! so that the routing key stays, and a `CC` header sends no copies elsewhere.

use std::time::Duration;

use tokio::time::timeout;

use crate::broker::{BrokerError, BrokerErrorKind, COUNTED, HeaderValue, Headers};
use crate::rabbitmq::amqp::confirms::Heard;
use crate::rabbitmq::amqp::content::{Content, Table};
use crate::rabbitmq::amqp::wire::Malformed;
use crate::rabbitmq::amqp::{Arrived, Channel, Consumer, Error, Settlement, table};
use crate::rabbitmq::line::Line;
use crate::rabbitmq::sending::Sending;
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
        let first = Headers::from([("x-priority".to_owned(), HeaderValue::Int(10))]);
        let opening = async {
            publishing.select_confirms().await?;
            consuming.consume(from, PREFETCH, &first).await
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
        let mut batch = Vec::new();
        let (mut bytes, mut wait) = (0, patience);
        while batch.len() < BATCH && bytes < BATCH_BYTES {
            match timeout(wait, self.consumer.recv()).await {
                Ok(Some(arrived)) => {
                    bytes += arrived.body.len();
                    batch.push(arrived);
                }
                Ok(None) if self.consuming.is_open() => {
                    return Err(lost("the consumer was cancelled while messages were moved"));
                }
                Ok(None) => {
                    return Err(fault::asking("move messages of", "the queue", self.consuming.why_ended()));
                }
                Err(_) => break,
            }
            wait = Duration::ZERO;
        }
        if batch.is_empty() {
            return Ok(0);
        }
        let taken = self.publish(&batch).await?;
        if let Some(last) = batch[..taken].last() {
            self.consuming.settle(std::iter::once(Settlement::AckUpTo(last.tag)));
            match timeout(self.limit, self.consuming.until_written()).await {
                Ok(()) if self.consuming.is_open() => {}
                Ok(()) => {
                    return Err(fault::asking("move messages of", "the queue", self.consuming.why_ended()));
                }
                Err(_) => return Err(late("take our acks")),
            }
        }
        if taken < batch.len() {
            return Err(lost(
                "RabbitMQ did not take a message that was moved (a full queue takes none); it is still where it was",
            ));
        }
        Ok(taken)
    }

    /// How many were confirmed, from the first on. The others are not acked and come again: all of them after an error.
    async fn publish(&self, batch: &[Arrived]) -> Result<usize, BrokerError> {
        let what = format!("exchange {}", self.exchange);
        let refused = |error| fault::asking("publish to", &what, error);
        let publishing = async {
            let mut sending = Sending::begin(&self.publishing);
            for arrived in batch {
                let (_, content) = Content::read(&arrived.header)?;
                let headers = relabelled(&content, arrived, self.way)?;
                let content = on_its_way(content, &headers, self.way);
                let to = (self.exchange.as_bytes(), &arrived.routing_key[..]);
                sending.add_as_is(to, &content, &arrived.body).await.map_err(Error::Unfit)?;
            }
            Ok(sending.finish().await)
        };
        let limit = self.limit.max(Duration::from_secs(30));
        let Ok(published) = timeout(limit, publishing).await else {
            return Err(late("confirm what was moved"));
        };
        let (confirms, ended) = published.map_err(refused)?;
        if let Some(error) = ended {
            return Err(refused(error));
        }
        if !confirms.returned.is_empty() {
            return Err(lost("RabbitMQ returned a message that was moved; it is still where it was"));
        }
        Ok(confirms.heard.iter().take_while(|heard| **heard == Heard::Ack).count())
    }

    /// Stops. What was not carried goes back to the queue it came from.
    pub(super) async fn close(self) {
        tokio::join!(lanes::close(&self.consuming), lanes::close(&self.publishing));
    }
}

/// The headers of a message on its way.
struct Relabelled {
    table: Vec<u8>,
    /// How long it may live, if that was among them.
    expiration: Option<Vec<u8>>,
}

/// The headers as they stand, except for those that RabbitMQ would act upon, and with those that keep what it would.
fn relabelled(content: &Content<'_>, arrived: &Arrived, way: Way) -> Result<Relabelled, Malformed> {
    let inside = match content.headers {
        Some(Table::Written(inside)) => inside,
        _ => &[],
    };
    let mut labels = Relabelled { table: Vec::with_capacity(inside.len() + 128), expiration: None };
    let mut knows_its_exchange = false;
    for entry in table::entries(inside) {
        let (name, entry) = entry?;
        let is = |label: &str| name == label.as_bytes();
        knows_its_exchange |= is(EXCHANGE);
        // The broker's own count of this queue's deliveries.
        if COUNTED.iter().any(|count| is(count)) || is(USER) && content.user_id.is_some() {
            continue;
        }
        if is(EXPIRATION) && (way == Way::Back || content.expiration.is_some()) {
            // The name with its length, the type, four bytes of length, the text. Of another type it is not ours.
            let text = entry.get(name.len() + 6..).filter(|_| entry[name.len() + 1] == b'S');
            labels.expiration = text.map(<[u8]>::to_vec);
            continue;
        }
        labels.table.extend_from_slice(entry);
    }
    let mut add = |name: &str, value: &[u8]| {
        let value = HeaderValue::Text(String::from_utf8_lossy(value).into_owned());
        // The names are short.
        table::put_entry(&mut labels.table, name, &value).map_err(|_| Malformed)
    };
    // Came back without it: by a binding while the queue was replaced, and was not carried aside.
    if !knows_its_exchange {
        add(EXCHANGE, &arrived.exchange)?;
    }
    if let Some(expiration) = content.expiration.filter(|_| way == Way::Aside) {
        add(EXPIRATION, expiration)?;
    }
    if let Some(user) = content.user_id {
        add(USER, user)?;
    }
    Ok(labels)
}

/// All properties but the user's id, which RabbitMQ would check against ours, and on the way aside the time to live.
fn on_its_way<'a>(content: Content<'a>, labels: &'a Relabelled, way: Way) -> Content<'a> {
    let expiration = match way {
        Way::Aside => None,
        Way::Back => labels.expiration.as_deref().or(content.expiration),
    };
    Content { headers: Some(Table::Written(&labels.table)), expiration, user_id: None, ..content }
}

fn late(doing: &str) -> BrokerError {
    lost(&format!("RabbitMQ did not {doing} in time"))
}

fn lost(why: &str) -> BrokerError {
    BrokerError::new(BrokerErrorKind::Unavailable, format!("{why}; nothing is lost, try again"))
}
