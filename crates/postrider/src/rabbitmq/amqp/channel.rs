//! A channel: questions and their answers, one consumer at most, and one batch of publishes at a time.
//!
//! Whether a channel is open and what is sent on it is decided under one lock. RabbitMQ ends the whole connection over a frame
//! that comes on a channel which both sides have closed.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};

use super::Error;
use super::confirms::{Confirms, Heard, Returned};
use super::connection::Shared;
use super::content::Content;
use super::frame;
use super::method::{self, Id, Method};
use super::state::{Arrived, State};
use super::wire::{Reader, text};
use crate::broker::Headers;

/// A channel. Closed in good order when the last handle is dropped.
#[derive(Clone)]
pub(in crate::rabbitmq) struct Channel(Arc<Handle>);

struct Handle {
    state: Arc<State>,
    shared: Arc<Shared>,
}

/// What is delivered on a channel.
pub(in crate::rabbitmq) type Consumer = mpsc::UnboundedReceiver<Arrived>;

/// How a queue is declared.
#[derive(Debug, Clone, Copy)]
pub(in crate::rabbitmq) enum DeclareQueue {
    /// To stay.
    Durable,
    /// Only to look whether it is there.
    Passive,
    /// For this connection alone, and gone with it.
    Exclusive,
}

impl DeclareQueue {
    /// Passive, durable, exclusive, deleted when unused, without an answer.
    fn bits(self) -> [bool; 5] {
        match self {
            Self::Durable => [false, true, false, false, false],
            Self::Passive => [true, false, false, false, false],
            Self::Exclusive => [false, false, true, true, false],
        }
    }
}

/// What RabbitMQ is told about deliveries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::rabbitmq) enum Settlement {
    /// This one and all before it are done with.
    AckUpTo(u64),
    /// This one is.
    Ack(u64),
    /// To be delivered again. Not a reject: on RabbitMQ 4.3 a requeueing nack does not count towards the delivery limit, a
    /// reject does.
    Requeue(u64),
    /// To be dead-lettered.
    Reject(u64),
}

impl Settlement {
    fn method(self) -> Method {
        match self {
            Self::AckUpTo(tag) => Method::new(method::ACK).u64(tag).bits([true]),
            Self::Ack(tag) => Method::new(method::ACK).u64(tag).bits([false]),
            Self::Requeue(tag) => Method::new(method::NACK).u64(tag).bits([false, true]),
            Self::Reject(tag) => Method::new(method::REJECT).u64(tag).bits([false]),
        }
    }
}

/// Messages that are to go out together.
#[derive(Default)]
pub(in crate::rabbitmq) struct Pile {
    bytes: Vec<u8>,
    messages: usize,
}

impl Pile {
    /// What they take on the wire.
    pub(in crate::rabbitmq) fn bytes(&self) -> usize {
        self.bytes.len()
    }

    pub(in crate::rabbitmq) fn messages(&self) -> usize {
        self.messages
    }

    pub(in crate::rabbitmq) fn clear(&mut self) {
        self.bytes.clear();
        self.messages = 0;
    }
}

impl Channel {
    pub(super) async fn open(shared: &Arc<Shared>) -> Result<Self, Error> {
        let state = shared.add_channel(|id| Arc::new(State::new(id)))?;
        let channel = Self(Arc::new(Handle { state, shared: Arc::clone(shared) }));
        let open = Method::new(method::CHANNEL_OPEN).short("nothing", "")?;
        channel.ask(open, method::CHANNEL_OPEN_OK).await?;
        Ok(channel)
    }

    pub(in crate::rabbitmq) fn is_open(&self) -> bool {
        self.0.state.is_open()
    }

    /// Why it is not open any more.
    pub(in crate::rabbitmq) fn why_ended(&self) -> Error {
        self.0.state.why_over()
    }

    /// Closes it and waits until RabbitMQ has, too.
    pub(in crate::rabbitmq) async fn close(&self) {
        if let Some(closed) = self.0.close() {
            let _closed_or_over = closed.await;
        }
    }

    pub(in crate::rabbitmq) async fn declare_exchange(
        &self,
        name: &str,
        kind: &str,
        arguments: &Headers,
    ) -> Result<(), Error> {
        // Passive, durable, deleted when unused, internal, without an answer.
        let method = Method::new(method::EXCHANGE_DECLARE)
            .u16(0)
            .short("the exchange name", name)?
            .short("the exchange type", kind)?
            .bits([false, true, false, false, false])
            .table(arguments)?;
        self.ask(method, method::EXCHANGE_DECLARE_OK).await.map(|_| ())
    }

    /// With `if_unused` not while something is bound to it.
    pub(in crate::rabbitmq) async fn delete_exchange(
        &self,
        name: &str,
        if_unused: bool,
    ) -> Result<(), Error> {
        let method = Method::new(method::EXCHANGE_DELETE)
            .u16(0)
            .short("the exchange name", name)?
            .bits([if_unused, false]);
        self.ask(method, method::EXCHANGE_DELETE_OK).await.map(|_| ())
    }

    /// Says how many messages wait in the queue, and how many consumers it has.
    pub(in crate::rabbitmq) async fn declare_queue(
        &self,
        name: &str,
        how: DeclareQueue,
        arguments: &Headers,
    ) -> Result<(u32, u32), Error> {
        let method = Method::new(method::QUEUE_DECLARE)
            .u16(0)
            .short("the queue name", name)?
            .bits(how.bits())
            .table(arguments)?;
        let answer = self.ask(method, method::QUEUE_DECLARE_OK).await?;
        let mut answer = Reader(&answer);
        answer.short()?;
        Ok((answer.u32()?, answer.u32()?))
    }

    pub(in crate::rabbitmq) async fn bind_queue(
        &self,
        queue: &str,
        exchange: &str,
        key: &str,
    ) -> Result<(), Error> {
        let method =
            binding(method::QUEUE_BIND, queue, exchange, key)?.bits([false]).table(&Headers::new())?;
        self.ask(method, method::QUEUE_BIND_OK).await.map(|_| ())
    }

    pub(in crate::rabbitmq) async fn unbind_queue(
        &self,
        queue: &str,
        exchange: &str,
        key: &str,
    ) -> Result<(), Error> {
        let method = binding(method::QUEUE_UNBIND, queue, exchange, key)?.table(&Headers::new())?;
        self.ask(method, method::QUEUE_UNBIND_OK).await.map(|_| ())
    }

    /// Says how many messages went with the queue.
    pub(in crate::rabbitmq) async fn delete_queue(&self, name: &str, if_empty: bool) -> Result<u32, Error> {
        let method = Method::new(method::QUEUE_DELETE)
            .u16(0)
            .short("the queue name", name)?
            .bits([false, if_empty, false]);
        let answer = self.ask(method, method::QUEUE_DELETE_OK).await?;
        Ok(Reader(&answer).u32()?)
    }

    /// Receives from a queue, at most `prefetch` unsettled messages at a time.
    pub(in crate::rabbitmq) async fn consume(
        &self,
        queue: &str,
        prefetch: u16,
        arguments: &Headers,
    ) -> Result<Consumer, Error> {
        Ok(self.consume_named(queue, prefetch, arguments).await?.0)
    }

    /// The same, with the name that RabbitMQ gave the consumer.
    pub(in crate::rabbitmq) async fn consume_named(
        &self,
        queue: &str,
        prefetch: u16,
        arguments: &Headers,
    ) -> Result<(Consumer, String), Error> {
        let (sender, consumer) = mpsc::unbounded_channel();
        // Before it is asked for: the first message may follow right behind the answer.
        self.0.state.deliver_to(sender);
        let name = self.begin_consuming(queue, prefetch, arguments).await?;
        Ok((consumer, name))
    }

    /// Receives so many at a time from now on. A limit is for consumers that begin after it, so another one takes the place of the one of this
    /// name; what that was handed stays to be settled, and comes first.
    pub(in crate::rabbitmq) async fn consume_anew(
        &self,
        name: &str,
        queue: &str,
        prefetch: u16,
    ) -> Result<String, Error> {
        let cancel = Method::new(method::CANCEL).short("the consumer tag", name)?.bits([false]);
        self.ask(cancel, method::CANCEL_OK).await?;
        self.begin_consuming(queue, prefetch, &Headers::new()).await
    }

    async fn begin_consuming(
        &self,
        queue: &str,
        prefetch: u16,
        arguments: &Headers,
    ) -> Result<String, Error> {
        let limit = Method::new(method::QOS).u32(0).u16(prefetch).bits([false]);
        self.ask(limit, method::QOS_OK).await?;
        let consume = Method::new(method::CONSUME)
            .u16(0)
            .short("the queue name", queue)?
            .short("the consumer tag", "")?
            .bits([false; 4])
            .table(arguments)?;
        let answer = self.ask(consume, method::CONSUME_OK).await?;
        Ok(text(Reader(&answer).short()?))
    }

    /// Settles in this order. On a channel that is over there is nothing to settle: RabbitMQ delivers the messages again.
    pub(in crate::rabbitmq) fn settle(&self, settlements: impl Iterator<Item = Settlement>) {
        let mut bytes = Vec::new();
        for settlement in settlements {
            frame::put_method(&mut bytes, self.0.state.id(), &settlement.method());
        }
        let _over = self.0.state.send(&self.0.shared, &bytes, |_| ());
    }

    /// Waits until all that was said so far is written, or never will be.
    pub(in crate::rabbitmq) async fn until_written(&self) {
        self.0.shared.until_written().await;
    }

    /// From now on RabbitMQ confirms every message.
    pub(in crate::rabbitmq) async fn select_confirms(&self) -> Result<(), Error> {
        self.ask(Method::new(method::SELECT).bits([false]), method::SELECT_OK).await.map(|_| ())
    }

    /// Begins a batch of messages. One batch at a time has the channel.
    pub(in crate::rabbitmq) fn begin_batch(&self) {
        self.0.state.confirms(Confirms::begin);
    }

    /// Puts a message on the pile, or says why no RabbitMQ would take it. `to` is the exchange and the routing key.
    pub(in crate::rabbitmq) fn pile(
        &self,
        pile: &mut Pile,
        to: (&[u8], &[u8]),
        content: &Content<'_>,
        body: &[u8],
    ) -> Result<(), String> {
        let frame_max = self.0.shared.agreed.frame_max;
        frame::put_publish(&mut pile.bytes, self.0.state.id(), to, content, body, frame_max)?;
        pile.messages += 1;
        Ok(())
    }

    /// Publishes the pile, as part of the batch. Waits for room, not for the confirms.
    pub(in crate::rabbitmq) async fn publish(&self, pile: &Pile) -> Result<(), Error> {
        let Handle { state, shared } = &*self.0;
        state.send(shared, &pile.bytes, |confirms| confirms.expect(pile.messages))?;
        shared.until_room().await;
        Ok(())
    }

    /// Waits until no more than so many messages of the batch are unconfirmed.
    pub(in crate::rabbitmq) async fn until_unheard(&self, most: usize) -> Result<(), Error> {
        self.0.state.until_unheard(most).await
    }

    /// What was heard about the batch: a word for each message that was published, in order, and what came back.
    pub(in crate::rabbitmq) fn told(&self) -> (Vec<Heard>, Vec<Returned>) {
        self.0.state.confirms(|confirms| confirms.told())
    }

    async fn ask(&self, method: Method, answer: Id) -> Result<Bytes, Error> {
        let Handle { state, shared } = &*self.0;
        let (sender, receiver) = oneshot::channel();
        state.ask(shared, &method, answer, sender)?;
        receiver.await.unwrap_or_else(|_| Err(state.why_over()))
    }
}

/// What binding and unbinding begin with.
fn binding(id: Id, queue: &str, exchange: &str, key: &str) -> Result<Method, Error> {
    let method =
        Method::new(id).u16(0).short("the queue name", queue)?.short("the exchange name", exchange)?;
    Ok(method.short("the binding key", key)?)
}

impl Handle {
    /// Says that we close it, if it is open.
    fn close(&self) -> Option<oneshot::Receiver<Result<Bytes, Error>>> {
        const DONE: u16 = 200;
        let goodbye = Method::new(method::CHANNEL_CLOSE).u16(DONE).short("a reason", "done").ok()?;
        self.state.close(&self.shared, &goodbye.u16(0).u16(0))
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.close();
    }
}
