//! One connection, from its handshake to its end: channels, and whether RabbitMQ takes messages on it.

use std::time::Duration;

use futures_util::StreamExt as _;
use lapin::{Channel, Connection, Event};
use tokio::sync::watch;
use tokio::time::timeout;

use super::dial::Socket;
use crate::broker::{BrokerError, BrokerErrorKind};
use crate::clock::Clock;

/// The driver does not announce every end: look at its state this often.
const LOOK: Duration = Duration::from_secs(1);

/// One connection, from its handshake to its end.
pub(super) struct Line {
    connection: Connection,
    socket: Socket,
    /// Host and port, for people.
    pub(super) place: String,
    /// Why RabbitMQ takes no messages on this connection for now.
    blocked: watch::Sender<Option<String>>,
}

impl Line {
    pub(super) fn new(connection: Connection, socket: Socket, place: String) -> Self {
        Self { connection, socket, place, blocked: watch::Sender::new(None) }
    }

    pub(super) fn is_up(&self) -> bool {
        self.connection.status().connected()
    }

    /// The largest frame both sides agreed on.
    pub(super) fn frame_max(&self) -> usize {
        self.connection.configuration().frame_max() as usize
    }

    /// A channel of its own.
    pub(super) async fn channel(&self, limit: Duration) -> Result<Channel, BrokerError> {
        let opening = async {
            let mut again = 50;
            loop {
                match self.connection.create_channel().await {
                    // The driver may still be busy with the end of an earlier channel, and says why that one ended.
                    Err(_) if self.is_up() && again > 0 => again -= 1,
                    answer => return answer,
                }
                Clock::system().sleep(Duration::from_millis(10)).await;
            }
        };
        match timeout(limit, opening).await {
            Ok(Ok(channel)) => Ok(channel),
            Ok(Err(error)) => Err(BrokerError::new(
                BrokerErrorKind::Unavailable,
                format!("RabbitMQ at {} opened no channel ({error}); try again", self.place),
            )
            .because(error)),
            Err(_) => Err(BrokerError::new(
                BrokerErrorKind::Unavailable,
                format!(
                    "RabbitMQ at {} did not answer within {} s; try again",
                    self.place,
                    limit.as_secs_f32()
                ),
            )),
        }
    }

    /// Why RabbitMQ takes no messages now, if so.
    pub(super) fn blocked(&self) -> Option<String> {
        self.blocked.borrow().clone()
    }

    /// Waits until RabbitMQ takes messages again on this connection, or the connection is lost.
    pub(super) async fn unblocked(&self) {
        let mut blocked = self.blocked.subscribe();
        let _gone = blocked.wait_for(Option::is_none).await;
    }

    /// Closes in good order, or hangs up after the time limit.
    pub(super) async fn say_goodbye(&self, limit: Duration) {
        let _late = timeout(limit, self.connection.close(200, "bye".into())).await;
        self.hang_up();
    }

    /// Ends the connection now, and wakes those who wait for it to take messages.
    pub(super) fn hang_up(&self) {
        self.socket.hang_up();
        self.blocked.send_replace(None);
    }

    /// Watches the connection until it is lost, and says why it was.
    pub(super) async fn until_lost(&self, purpose: &'static str) -> String {
        let mut events = Box::pin(self.connection.events_listener());
        let mut why = None;
        loop {
            match timeout(LOOK, events.next()).await {
                Ok(Some(Event::ConnectionBlocked(reason))) => self.note_blocked(purpose, Some(reason)),
                Ok(Some(Event::ConnectionUnblocked)) => self.note_blocked(purpose, None),
                Ok(Some(Event::Error(error))) => why = Some(error.to_string()),
                Ok(Some(_)) | Err(_) => {
                    // What was announced before we listened.
                    let blocked = self.connection.status().blocked();
                    if blocked != self.blocked().is_some() {
                        self.note_blocked(purpose, blocked.then(|| "short of memory or disk".to_owned()));
                    }
                }
                Ok(None) => break,
            }
            if !self.is_up() {
                break;
            }
        }
        metrics::gauge!("postrider_broker_blocked", "connection" => purpose).set(0.0);
        why.unwrap_or_else(|| "the connection ended".to_owned())
    }

    fn note_blocked(&self, purpose: &'static str, reason: Option<String>) {
        let host = self.place.as_str();
        if let Some(reason) = &reason {
            tracing::warn!(
                connection = purpose,
                host,
                reason,
                "RabbitMQ takes no messages for now; they wait, nothing is lost"
            );
        } else {
            tracing::info!(connection = purpose, host, "RabbitMQ takes messages again");
        }
        let blocked = if reason.is_some() { 1.0 } else { 0.0 };
        metrics::gauge!("postrider_broker_blocked", "connection" => purpose).set(blocked);
        self.blocked.send_replace(reason);
    }
}
