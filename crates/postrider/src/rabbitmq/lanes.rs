//! Channels for publishing, in confirm mode, each lent to one batch at a time.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::amqp::Channel;
use super::fault;
use super::line::Line;
use super::link::Link;
use super::sending::Sending;
use crate::broker::{BrokerError, BrokerErrorKind};

/// Enough for the lanes of a relay and the retries of a consumer; RabbitMQ allows some 2,000.
const MOST: usize = 16;

/// The pool.
pub(super) struct Lanes {
    link: Arc<Link>,
    idle: Mutex<Vec<(Arc<Line>, Channel)>>,
    free: Arc<Semaphore>,
}

/// A channel in confirm mode that no one else publishes on.
pub(super) struct Lane {
    pub(super) line: Arc<Line>,
    pub(super) channel: Channel,
    _turn: OwnedSemaphorePermit,
}

impl Lanes {
    pub(super) fn new(link: Arc<Link>) -> Self {
        Self { link, idle: Mutex::default(), free: Arc::new(Semaphore::new(MOST)) }
    }

    /// A lane on the present connection. Waits for its turn, for the connection, and while RabbitMQ takes no messages.
    pub(super) async fn take(&self) -> Result<Lane, BrokerError> {
        let turn = Arc::clone(&self.free).acquire_owned().await;
        let turn = turn.map_err(|closed| BrokerError::new(BrokerErrorKind::Closed, closed.to_string()))?;
        loop {
            let line = self.link.line().await?;
            // While it is blocked RabbitMQ reads nothing from this connection: what we sent would only pile up.
            line.unblocked().await;
            if line.is_up() {
                let channel = match self.idle_on(&line) {
                    Some(channel) => channel,
                    None => self.open_on(&line).await?,
                };
                return Ok(Lane { line, channel, _turn: turn });
            }
        }
    }

    /// Gives a lane back after a batch that was heard to its end.
    pub(super) fn give_back(&self, lane: Lane) {
        if lane.is_open() {
            self.lock().push((lane.line, lane.channel));
        }
    }

    /// Ends a lane on which something was not heard to its end.
    pub(super) fn retire(&self, lane: Lane) {
        let limit = self.link.settings().limits().confirm;
        let Lane { line, channel, _turn } = lane;
        if !channel.is_open() {
            return;
        }
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                line.unblocked().await;
                let _late = timeout(limit, channel.until_unheard(0)).await;
                close(&channel).await;
            });
        }
    }

    fn idle_on(&self, line: &Arc<Line>) -> Option<Channel> {
        let mut idle = self.lock();
        idle.retain(|(on, channel)| Arc::ptr_eq(on, line) && channel.is_open());
        idle.pop().map(|(_, channel)| channel)
    }

    async fn open_on(&self, line: &Line) -> Result<Channel, BrokerError> {
        let limit = self.link.settings().limits().call;
        let channel = line.channel(limit).await?;
        match timeout(limit, channel.select_confirms()).await {
            Ok(Ok(())) => Ok(channel),
            Ok(Err(error)) => Err(fault::asking("use", "confirms", error)),
            Err(_) => Err(BrokerError::new(
                BrokerErrorKind::Unavailable,
                format!(
                    "RabbitMQ at {} did not answer within {} s; try again",
                    line.place,
                    limit.as_secs_f32()
                ),
            )),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<(Arc<Line>, Channel)>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lane {
    /// Whether it can still be used.
    pub(super) fn is_open(&self) -> bool {
        self.channel.is_open()
    }

    /// Begins to publish a batch, persistent and mandatory.
    pub(super) fn begin(&self) -> Sending<'_> {
        Sending::begin(&self.channel)
    }
}

/// Closes a channel in good order, and waits until it is.
pub(super) async fn close(channel: &Channel) {
    const LIMIT: Duration = Duration::from_secs(5);
    let _late = close_within(channel, LIMIT).await;
}

/// The same, and says whether it is closed now. Whatever else RabbitMQ answers, the channel is no more.
pub(super) async fn close_within(channel: &Channel, limit: Duration) -> bool {
    timeout(limit, channel.close()).await.is_ok()
}
