//! A connection: what both of its tasks and all of its channels share.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Notify, watch};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::channel::Channel;
use super::handshake::{Agreed, Login, shake_hands};
use super::method::{self, Method};
use super::state::State;
use super::{Error, frame, pump};

/// While so many bytes wait to be written, who writes more waits too.
const PLENTY: u64 = 1 << 20;

/// A connection. It ends when this is dropped.
pub(in crate::rabbitmq) struct Connection {
    shared: Arc<Shared>,
    _stop_with_me: DropGuard,
}

/// What both tasks and all channels share.
pub(super) struct Shared {
    pub(super) agreed: Agreed,
    out: Mutex<Out>,
    /// Something is to be written.
    pub(super) wake_writer: Notify,
    /// Something was written.
    written: Notify,
    channels: Mutex<Channels>,
    /// Why RabbitMQ takes no messages on this connection for now.
    pub(super) blocked: watch::Sender<Option<String>>,
    ended: OnceLock<Error>,
    pub(super) stop: CancellationToken,
}

/// What waits to be written.
#[derive(Default)]
struct Out {
    bytes: Vec<u8>,
    /// All that were ever put here, and all that were ever written.
    put: u64,
    written: u64,
}

#[derive(Default)]
struct Channels {
    open: HashMap<u16, Arc<State>>,
    last: u16,
}

impl Connection {
    /// Begins a connection on a stream.
    pub(in crate::rabbitmq) async fn open<S>(mut stream: S, login: &Login<'_>) -> Result<Self, Error>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let mut arrived = BytesMut::new();
        let agreed = shake_hands(&mut stream, &mut arrived, login).await?;
        let stop = CancellationToken::new();
        let shared = Arc::new(Shared {
            agreed,
            out: Mutex::default(),
            wake_writer: Notify::new(),
            written: Notify::new(),
            channels: Mutex::default(),
            blocked: watch::Sender::new(None),
            ended: OnceLock::new(),
            stop: stop.clone(),
        });
        let (reading, writing) = tokio::io::split(stream);
        tokio::spawn(pump::read(Arc::clone(&shared), reading, arrived));
        tokio::spawn(pump::write(Arc::clone(&shared), writing));
        Ok(Self { shared, _stop_with_me: stop.drop_guard() })
    }

    /// A channel of its own.
    pub(in crate::rabbitmq) async fn channel(&self) -> Result<Channel, Error> {
        Channel::open(&self.shared).await
    }

    pub(in crate::rabbitmq) fn is_up(&self) -> bool {
        self.shared.ended.get().is_none()
    }

    /// Waits for the end, and says why it came.
    pub(in crate::rabbitmq) async fn until_ended(&self) -> Error {
        self.shared.stop.cancelled().await;
        self.shared.ended()
    }

    /// Why RabbitMQ takes no messages now, if so, and when that changes.
    pub(in crate::rabbitmq) fn blocked(&self) -> watch::Receiver<Option<String>> {
        self.shared.blocked.subscribe()
    }

    /// Closes in good order; wait no longer than you like.
    pub(in crate::rabbitmq) async fn close(&self) {
        const DONE: u16 = 200;
        if let Ok(goodbye) = Method::new(method::CLOSE).u16(DONE).short("a reason", "bye") {
            self.shared.send_method(0, &goodbye.u16(0).u16(0));
            self.until_ended().await;
        }
    }

    /// Ends it now.
    pub(in crate::rabbitmq) fn hang_up(&self) {
        self.shared.end(&Error::Closed);
    }
}

impl Shared {
    /// Why it ended.
    pub(super) fn ended(&self) -> Error {
        self.ended.get().cloned().unwrap_or(Error::Closed)
    }

    /// Ends everything. The first reason stays.
    pub(super) fn end(&self, why: &Error) {
        if self.ended.set(why.clone()).is_ok() {
            let open = std::mem::take(&mut self.channels().open);
            for state in open.into_values() {
                state.end(why);
            }
            self.stop.cancel();
            self.written.notify_waiters();
        }
    }

    /// Puts bytes behind all that wait to be written.
    pub(super) fn send(&self, bytes: &[u8]) {
        self.send_with(|out| out.extend_from_slice(bytes));
    }

    pub(super) fn send_method(&self, channel: u16, method: &Method) {
        self.send_with(|out| frame::put_method(out, channel, method));
    }

    fn send_with(&self, put: impl FnOnce(&mut Vec<u8>)) {
        {
            let mut out = self.out();
            let before = out.bytes.len();
            put(&mut out.bytes);
            out.put += (out.bytes.len() - before) as u64;
        }
        self.wake_writer.notify_one();
    }

    /// Exchanges what waits to be written for an empty buffer.
    pub(super) fn take_out(&self, empty: &mut Vec<u8>) {
        std::mem::swap(&mut self.out().bytes, empty);
    }

    pub(super) fn note_written(&self, bytes: usize) {
        self.out().written += bytes as u64;
        self.written.notify_waiters();
    }

    /// Waits until all that was put before is written, or never will be.
    pub(super) async fn until_written(&self) {
        let put = self.out().put;
        self.until(|out| out.written >= put).await;
    }

    /// Waits while very much waits to be written.
    pub(super) async fn until_room(&self) {
        self.until(|out| out.put - out.written < PLENTY).await;
    }

    async fn until(&self, enough: impl Fn(&Out) -> bool) {
        loop {
            let mut written = std::pin::pin!(self.written.notified());
            written.as_mut().enable();
            if enough(&self.out()) || self.ended.get().is_some() {
                return;
            }
            written.await;
        }
    }

    /// Gives a number to a new channel.
    pub(super) fn add_channel(&self, make: impl FnOnce(u16) -> Arc<State>) -> Result<Arc<State>, Error> {
        let mut channels = self.channels();
        if let Some(why) = self.ended.get() {
            return Err(why.clone());
        }
        let most = self.agreed.channel_max;
        let after = channels.last;
        let next = |step: u16| (after.wrapping_add(step) % most).wrapping_add(1);
        let free = (0..most).map(next).find(|id| !channels.open.contains_key(id));
        let Some(id) = free else {
            return Err(Error::Unfit(format!("all {most} channels of the connection are in use")));
        };
        channels.last = id;
        let state = make(id);
        channels.open.insert(id, Arc::clone(&state));
        Ok(state)
    }

    pub(super) fn find_channel(&self, id: u16) -> Option<Arc<State>> {
        self.channels().open.get(&id).cloned()
    }

    /// The number may be used again.
    pub(super) fn forget_channel(&self, id: u16) {
        self.channels().open.remove(&id);
    }

    /// How long the other side may be silent, if that was agreed on.
    pub(super) fn patience(&self) -> Option<Duration> {
        let heartbeat = self.agreed.heartbeat;
        (heartbeat > 0).then(|| Duration::from_secs(u64::from(heartbeat) * 2))
    }

    fn out(&self) -> MutexGuard<'_, Out> {
        self.out.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn channels(&self) -> MutexGuard<'_, Channels> {
        self.channels.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
