//! A channel as its connection sees it: what was asked, what is arriving, and whether it is open.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::{Bytes, BytesMut};
use tokio::sync::{Notify, mpsc, oneshot};

use super::Error;
use super::confirms::{Confirms, Heard, Returned};
use super::connection::Shared;
use super::content::{self, Content};
use super::frame::{self, Frame};
use super::method::{self, Id, Method};
use super::wire::{Malformed, Reader, text};

/// Room that is made for a body before it arrives. Its size is what its sender says.
const BELIEVED: usize = 1 << 20;

/// What the connection knows about a channel.
pub(super) struct State {
    id: u16,
    inner: Mutex<Inner>,
    /// Confirms were heard, or the channel ended.
    heard: Notify,
}

#[derive(Default)]
struct Inner {
    life: Life,
    /// Questions in the order in which they were asked: the answer that each waits for, and who.
    asked: VecDeque<(Id, oneshot::Sender<Result<Bytes, Error>>)>,
    consumer: Option<mpsc::UnboundedSender<Arrived>>,
    /// A message of which not everything has arrived.
    arriving: Option<Arriving>,
    confirms: Confirms,
}

#[derive(Default)]
enum Life {
    #[default]
    Open,
    /// We have said that we close it; what still comes is of no interest.
    Closing,
    Over(Error),
}

/// A message whose method has arrived, and its parts so far.
struct Arriving {
    kind: Kind,
    /// The properties, once they are there.
    header: Option<Bytes>,
    /// Bytes that the body will have.
    size: u64,
    body: Body,
}

enum Body {
    /// In one frame, as most are, or none.
    Whole(Bytes),
    /// In several.
    Parts(BytesMut),
}

enum Kind {
    Delivery { tag: u64, redelivered: bool, exchange: Bytes, routing_key: Bytes },
    Return(Returned),
}

/// A message that was delivered.
pub(in crate::rabbitmq) struct Arrived {
    pub(in crate::rabbitmq) tag: u64,
    pub(in crate::rabbitmq) redelivered: bool,
    pub(in crate::rabbitmq) exchange: Bytes,
    pub(in crate::rabbitmq) routing_key: Bytes,
    /// The properties as they came; see [`Content::read`].
    pub(in crate::rabbitmq) header: Bytes,
    pub(in crate::rabbitmq) body: Bytes,
}

impl State {
    pub(super) fn new(id: u16) -> Self {
        Self { id, inner: Mutex::default(), heard: Notify::new() }
    }

    pub(super) fn id(&self) -> u16 {
        self.id
    }

    pub(super) fn is_open(&self) -> bool {
        matches!(self.lock().life, Life::Open)
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(self.lock().life, Life::Over(_))
    }

    pub(super) fn why_over(&self) -> Error {
        match &self.lock().life {
            Life::Over(why) => why.clone(),
            Life::Open | Life::Closing => Error::Closed,
        }
    }

    /// Sends frames of this channel, if it is open.
    pub(super) fn send(
        &self,
        shared: &Shared,
        bytes: &[u8],
        note: impl FnOnce(&mut Confirms),
    ) -> Result<(), Error> {
        let mut inner = self.lock();
        inner.check_open()?;
        note(&mut inner.confirms);
        shared.send(bytes);
        Ok(())
    }

    /// Asks something; the answer goes to `told`.
    pub(super) fn ask(
        &self,
        shared: &Shared,
        method: &Method,
        answer: Id,
        told: oneshot::Sender<Result<Bytes, Error>>,
    ) -> Result<(), Error> {
        let mut inner = self.lock();
        inner.check_open()?;
        inner.asked.push_back((answer, told));
        shared.send_method(self.id, method);
        Ok(())
    }

    /// Says that we close it, if it is open.
    pub(super) fn close(
        &self,
        shared: &Shared,
        goodbye: &Method,
    ) -> Option<oneshot::Receiver<Result<Bytes, Error>>> {
        let mut inner = self.lock();
        inner.check_open().ok()?;
        inner.life = Life::Closing;
        let (sender, receiver) = oneshot::channel();
        inner.asked.push_back((method::CHANNEL_CLOSE_OK, sender));
        shared.send_method(self.id, goodbye);
        Some(receiver)
    }

    pub(super) fn deliver_to(&self, consumer: mpsc::UnboundedSender<Arrived>) {
        self.lock().consumer = Some(consumer);
    }

    pub(super) fn confirms<T>(&self, look: impl FnOnce(&mut Confirms) -> T) -> T {
        look(&mut self.lock().confirms)
    }

    /// Waits until no more than so many messages are unconfirmed.
    pub(super) async fn until_unheard(&self, most: usize) -> Result<(), Error> {
        loop {
            {
                let mut inner = self.lock();
                if inner.confirms.unheard() <= most {
                    return Ok(());
                }
                inner.check_open()?;
                inner.confirms.wake_at = most;
            }
            self.heard.notified().await;
        }
    }

    /// It is over. Whoever waits is told.
    pub(super) fn end(&self, why: &Error) {
        let (asked, consumer) = {
            let mut inner = self.lock();
            inner.life = Life::Over(why.clone());
            inner.arriving = None;
            (std::mem::take(&mut inner.asked), inner.consumer.take())
        };
        drop(consumer);
        for (_, told) in asked {
            let _nobody_waits = told.send(Err(why.clone()));
        }
        self.wake();
    }

    pub(super) fn wake(&self) {
        self.heard.notify_one();
    }

    /// Takes in what arrived. Says whether somebody waits for it who is to be woken.
    pub(super) fn arrived(&self, shared: &Shared, frame: Frame) -> Result<bool, Error> {
        match frame.kind {
            frame::METHOD => self.method(shared, &frame.payload),
            frame::HEADER => {
                let size = content::body_size(&frame.payload)?;
                let mut inner = self.lock();
                if let Some(arriving) = &mut inner.arriving {
                    (arriving.header, arriving.size) = (Some(frame.payload), size);
                    inner.complete();
                }
                Ok(false)
            }
            _ => {
                let mut inner = self.lock();
                if let Some(arriving) = &mut inner.arriving {
                    arriving.body.add(frame.payload, arriving.size);
                    inner.complete();
                }
                Ok(false)
            }
        }
    }

    fn method(&self, shared: &Shared, payload: &Bytes) -> Result<bool, Error> {
        let mut arguments = Reader(payload);
        let id = (arguments.u16()?, arguments.u16()?);
        match id {
            method::DELIVER => {
                let kind = Kind::delivery(payload, arguments)?;
                self.lock().arriving = Some(Arriving::new(kind));
                Ok(false)
            }
            method::ACK => self.confirm(arguments, Heard::Ack),
            method::NACK => self.confirm(arguments, Heard::Nack),
            method::RETURN => {
                let kind = Kind::Return(Returned::read(arguments)?);
                self.lock().arriving = Some(Arriving::new(kind));
                Ok(false)
            }
            method::CANCEL => {
                // The queue is gone, or its node. Who consumes sees that nothing more comes.
                drop(self.lock().consumer.take());
                Ok(false)
            }
            method::CHANNEL_CLOSE => {
                let (code, said) = (arguments.u16()?, text(arguments.short()?));
                {
                    let mut inner = self.lock();
                    shared.send_method(self.id, &Method::new(method::CHANNEL_CLOSE_OK));
                    // If both sides close at the same moment, the answer to ours is still to come, and must not find
                    // another channel of this number.
                    if matches!(inner.life, Life::Open) {
                        inner.life = Life::Closing;
                        shared.forget_channel(self.id);
                    }
                }
                self.end(&Error::Channel { code, text: said });
                Ok(false)
            }
            method::CHANNEL_CLOSE_OK => {
                shared.forget_channel(self.id);
                self.answer(id, payload)?;
                if !self.is_over() {
                    self.end(&Error::Closed);
                }
                Ok(false)
            }
            method::CHANNEL_FLOW => {
                let active = arguments.u8()? & 1 == 1;
                let ok = Method::new(method::CHANNEL_FLOW_OK).bits([active]);
                let mut bytes = Vec::new();
                frame::put_method(&mut bytes, self.id, &ok);
                let _closing = self.send(shared, &bytes, |_| ());
                Ok(false)
            }
            _ => self.answer(id, payload).map(|()| false),
        }
    }

    fn confirm(&self, mut arguments: Reader<'_>, what: Heard) -> Result<bool, Error> {
        let (tag, bits) = (arguments.u64()?, arguments.u8()?);
        let mut inner = self.lock();
        inner.confirms.hear(tag, bits & 1 == 1, what);
        Ok(inner.confirms.unheard() <= inner.confirms.wake_at)
    }

    /// Gives an answer to who asked.
    fn answer(&self, id: Id, payload: &Bytes) -> Result<(), Error> {
        let mut inner = self.lock();
        match inner.asked.pop_front() {
            Some((wanted, told)) if wanted == id => {
                let _nobody_waits = told.send(Ok(payload.slice(4..)));
                Ok(())
            }
            // Whoever asked has been told that it is over.
            _ if !matches!(inner.life, Life::Open) => Ok(()),
            _ => Err(Error::NotUnderstood(format!("method {}.{} that nobody asked for", id.0, id.1))),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn check_open(&self) -> Result<(), Error> {
        match &self.life {
            Life::Open => Ok(()),
            Life::Closing => Err(Error::Closed),
            Life::Over(why) => Err(why.clone()),
        }
    }

    /// Hands over the message that is arriving, once all of it is there.
    fn complete(&mut self) {
        let whole = self.arriving.take_if(|arriving| arriving.is_whole());
        let Some(Arriving { kind, header: Some(header), body, .. }) = whole else { return };
        match kind {
            Kind::Delivery { tag, redelivered, exchange, routing_key } => {
                let body = body.into_bytes();
                let arrived = Arrived { tag, redelivered, exchange, routing_key, header, body };
                // Nobody receives any more: RabbitMQ has it back when the channel closes.
                if let Some(consumer) = &self.consumer {
                    let _gone = consumer.send(arrived);
                }
            }
            Kind::Return(mut returned) => {
                let content = Content::read(&header).map(|(_, content)| content).unwrap_or_default();
                returned.message_id = content.message_id.map(text);
                self.confirms.send_back(returned);
            }
        }
    }
}

impl Kind {
    fn delivery(payload: &Bytes, mut arguments: Reader<'_>) -> Result<Self, Malformed> {
        let _consumer_tag = arguments.short()?;
        let (tag, redelivered) = (arguments.u64()?, arguments.u8()? & 1 == 1);
        let (exchange, routing_key) = (arguments.short()?, arguments.short()?);
        let shared = |part: &[u8]| payload.slice_ref(part);
        Ok(Self::Delivery { tag, redelivered, exchange: shared(exchange), routing_key: shared(routing_key) })
    }
}

impl Arriving {
    fn new(kind: Kind) -> Self {
        Self { kind, header: None, size: 0, body: Body::Whole(Bytes::new()) }
    }

    fn is_whole(&self) -> bool {
        self.header.is_some() && self.body.len() as u64 >= self.size
    }
}

impl Body {
    fn len(&self) -> usize {
        match self {
            Self::Whole(bytes) => bytes.len(),
            Self::Parts(bytes) => bytes.len(),
        }
    }

    fn add(&mut self, part: Bytes, size: u64) {
        match self {
            Self::Whole(bytes) if bytes.is_empty() => *self = Self::Whole(part),
            Self::Whole(first) => {
                let size = usize::try_from(size).unwrap_or(usize::MAX);
                let mut bytes = BytesMut::with_capacity(size.min(BELIEVED));
                bytes.extend_from_slice(first);
                bytes.extend_from_slice(&part);
                *self = Self::Parts(bytes);
            }
            Self::Parts(bytes) => bytes.extend_from_slice(&part),
        }
    }

    fn into_bytes(self) -> Bytes {
        match self {
            Self::Whole(bytes) => bytes,
            Self::Parts(bytes) => bytes.freeze(),
        }
    }
}
