//! Receiving from a queue: a consumer that starts again by itself after a lost connection.
//!
//! Deliveries wait on the channel, which the prefetch bounds. Each start is a new epoch with a channel of its own;
//! receipts of an earlier one are void, because RabbitMQ delivers those messages again.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::time::timeout;

use super::amqp::content::Content;
use super::amqp::{Arrived, Channel, Consumer};
use super::line::Line;
use super::link::{self, Link};
use super::settle::{RabbitSettler, Unsettled};
use super::{fault, lanes, replace};
use crate::broker::{
    BrokerError, BrokerErrorKind, Delivery, HeaderValue, Headers, Message, Receipt, Settler, Subscribed,
    Subscription,
};
use crate::topology::{ExchangeName, QueueName, RoutingKey};

/// A queue that is gone for longer than this does not come back by itself.
const COMES_BACK: Duration = Duration::from_secs(10);
/// Meanwhile it is asked for this often.
const SHORT: Duration = Duration::from_millis(200);
/// A server that takes longer to close a channel has lost it.
const PATIENCE: Duration = Duration::from_secs(20);

/// A subscription to one queue. Dropping it closes its channel, and what is unsettled goes back to the queue. Where RabbitMQ
/// does not say that the channel is closed, the connection is given up: a channel that nobody reads would keep its
/// deliveries for as long as the connection lives.
pub(super) struct RabbitSubscription {
    link: Arc<Link>,
    queue: QueueName,
    prefetch: u16,
    session: Option<Session>,
    unsettled: Arc<Unsettled>,
    subscribed: Subscribed,
}

/// One consumer on one channel.
struct Session {
    epoch: u64,
    line: Arc<Line>,
    channel: Channel,
    consumer: Consumer,
    /// What RabbitMQ calls it.
    name: String,
}

impl RabbitSubscription {
    /// Starts to receive; an error if that is not possible now.
    pub(super) async fn start(link: Arc<Link>, queue: QueueName, prefetch: u16) -> Result<Self, BrokerError> {
        // 0 means "without limit" to AMQP, and would load the whole queue into memory.
        let prefetch = prefetch.max(1);
        let unsettled = Arc::new(Unsettled::new(prefetch));
        let subscribed = Subscribed::new();
        let mut subscription = Self { link, queue, prefetch, session: None, unsettled, subscribed };
        subscription.open().await?;
        Ok(subscription)
    }

    async fn open(&mut self) -> Result<(), BrokerError> {
        let line = self.link.line().await?;
        let limit = self.link.settings().limits().call;
        let channel = line.channel(limit).await?;
        let mut opening = Opening { line: line.clone(), channel: channel.clone(), done: false };
        let what = format!("queue {}", self.queue);
        let none = Headers::new();
        match timeout(limit, channel.consume_named(self.queue.as_str(), self.prefetch, &none)).await {
            Ok(Ok((consumer, name))) => {
                opening.done = true;
                let epoch = self.unsettled.start(channel.clone());
                self.session = Some(Session { epoch, line, channel, consumer, name });
                self.subscribed.set(true);
                Ok(())
            }
            Ok(Err(error)) => Err(fault::asking("consume from", &what, error)),
            Err(_) => Err(BrokerError::new(
                BrokerErrorKind::Unavailable,
                format!("RabbitMQ at {} did not let us consume from {what} in time; try again", line.place),
            )),
        }
    }

    /// Opens until it succeeds, or until it is clear that it cannot.
    ///
    /// A queue that was there and is gone may be on its way back: one that is replaced is away for a moment only.
    async fn reopen(&mut self) -> Result<(), BrokerError> {
        let mut failed = 0;
        let since = self.link.settings().clock.monotonic();
        loop {
            let error = match self.open().await {
                Ok(()) => {
                    tracing::info!(
                        queue = self.queue.as_str(),
                        "consuming again; unsettled deliveries come again"
                    );
                    return Ok(());
                }
                Err(error) => error,
            };
            let clock = &self.link.settings().clock;
            let away = error.kind == BrokerErrorKind::NotFound && clock.since(since) < COMES_BACK;
            if !error.is_transient() && !away {
                return Err(error);
            }
            tracing::debug!(queue = self.queue.as_str(), %error, "cannot consume yet");
            let pause = link::pause(failed, clock.random());
            clock.sleep(if away { pause.min(SHORT) } else { pause }).await;
            failed = failed.saturating_add(1);
        }
    }

    fn end_session(&mut self, why: &str) {
        self.subscribed.set(false);
        if let Some(session) = self.session.take() {
            if !self.link.is_closed() {
                tracing::warn!(
                    queue = self.queue.as_str(),
                    why,
                    "the subscription was interrupted, starting again; nothing is lost"
                );
            }
            self.unsettled.stop();
            session.end();
        }
    }
}

/// A channel that somebody is about to consume on. Given up before that, or halfway, it is closed: RabbitMQ may have a consumer on it
/// already, whose deliveries nobody would ever see.
struct Opening {
    line: Arc<Line>,
    channel: Channel,
    done: bool,
}

impl Drop for Opening {
    fn drop(&mut self) {
        if !self.done
            && self.channel.is_open()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let (line, channel) = (self.line.clone(), self.channel.clone());
            runtime.spawn(async move { close_surely(&line, &channel).await });
        }
    }
}

impl Session {
    /// Closes the channel, surely.
    fn end(self) {
        if self.channel.is_open()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(async move {
                close_surely(&self.line, &self.channel).await;
            });
        }
    }
}

/// Closes a channel with deliveries on it, or else the connection. Who shares the connection begins again on another.
async fn close_surely(line: &Line, channel: &Channel) {
    if !lanes::close_within(channel, PATIENCE).await && line.is_up() {
        tracing::warn!(
            host = line.place,
            "RabbitMQ did not close a channel in time, so the connection is made anew; nothing is lost"
        );
        line.hang_up();
    }
}

impl Drop for RabbitSubscription {
    fn drop(&mut self) {
        self.subscribed.set(false);
        self.unsettled.stop();
        if let Some(session) = self.session.take() {
            session.end();
        }
    }
}

#[async_trait]
impl Subscription for RabbitSubscription {
    async fn next(&mut self, max: usize) -> Result<Vec<Delivery>, BrokerError> {
        loop {
            if self.session.is_none() {
                self.reopen().await?;
            }
            let Some(session) = &mut self.session else { continue };
            let mut arrived = Vec::new();
            session.consumer.recv_many(&mut arrived, max.max(1)).await;
            // What was read before the end comes again; handing it out now would only make duplicates.
            if session.consumer.is_closed() {
                let why = if session.channel.is_open() {
                    "RabbitMQ cancelled the consumer".to_owned()
                } else {
                    session.channel.why_ended().to_string()
                };
                self.end_session(&why);
                continue;
            }
            let epoch = session.epoch;
            let received = |arrived| received(arrived, epoch, &self.queue);
            let deliveries: Vec<_> = arrived.into_iter().map(received).collect();
            self.unsettled.hand_out(session.epoch, &deliveries);
            return Ok(deliveries);
        }
    }

    async fn allow(&mut self, prefetch: u16) {
        self.prefetch = prefetch.max(1);
        self.unsettled.allow(self.prefetch);
        let limit = self.link.settings().limits().call;
        let Some(session) = &mut self.session else { return };
        let anew = session.channel.consume_anew(&session.name, self.queue.as_str(), self.prefetch);
        let answer = timeout(limit, anew).await;
        match answer {
            Ok(Ok(name)) => session.name = name,
            // Nobody knows whether anything more is delivered: another session begins, with the new limit.
            Ok(Err(error)) => self.end_session(&error.to_string()),
            Err(_) => self.end_session("RabbitMQ did not answer in time"),
        }
    }

    fn settler(&self) -> Box<dyn Settler> {
        let settings = self.link.settings();
        let unsettled = Arc::clone(&self.unsettled);
        Box::new(RabbitSettler::new(unsettled, settings.clock.clone(), settings.limits().call))
    }

    fn subscribed(&self) -> Subscribed {
        self.subscribed.clone()
    }
}

/// A body of at least this size stays where it was read to; a smaller one would hold much more memory than it has.
const LARGE: usize = 16 << 10;

fn received(arrived: Arrived, epoch: u64, queue: &QueueName) -> Delivery {
    let Arrived { tag, redelivered, exchange, routing_key, header, body } = arrived;
    // What no client can read (RabbitMQ itself takes tables apart and would not pass it on) is a message without properties:
    // its body is not lost.
    let read = Content::read(&header).and_then(|(_, content)| content.message());
    let mut message = read.unwrap_or_else(|_| Message::default());
    message.body = if body.len() < LARGE { Bytes::copy_from_slice(&body) } else { body };
    let mut exchange = String::from_utf8_lossy(&exchange);
    // A message that was moved while its queue was replaced tells where it was published first.
    if exchange.ends_with(replace::BACK)
        && let Some(HeaderValue::Text(first)) = message.headers.remove(replace::EXCHANGE)
    {
        exchange = first.into();
    }
    Delivery {
        message,
        // Only a NUL byte, which AMQP allows and no store does, can make these fail.
        exchange: ExchangeName::new(exchange).unwrap_or_else(|_| ExchangeName::default_exchange()),
        routing_key: RoutingKey::new(String::from_utf8_lossy(&routing_key))
            .unwrap_or_else(|_| RoutingKey::to_queue(queue)),
        redelivered,
        receipt: Receipt { epoch, tag },
    }
}
