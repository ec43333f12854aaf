//! One connection, from its handshake to its end: channels, and whether RabbitMQ takes messages on it.

use std::time::Duration;

use tokio::time::timeout;

use super::amqp::{Channel, Connection, Error};
use crate::broker::{BrokerError, BrokerErrorKind};

/// One connection, from its handshake to its end.
pub(super) struct Line {
    connection: Connection,
    /// Host and port, for people.
    pub(super) place: String,
}

impl Line {
    pub(super) fn new(connection: Connection, place: String) -> Self {
        Self { connection, place }
    }

    pub(super) fn is_up(&self) -> bool {
        self.connection.is_up()
    }

    /// A channel of its own.
    pub(super) async fn channel(&self, limit: Duration) -> Result<Channel, BrokerError> {
        match timeout(limit, self.connection.channel()).await {
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
        self.connection.blocked().borrow().clone()
    }

    /// Waits until RabbitMQ takes messages again on this connection, or the connection is lost.
    pub(super) async fn unblocked(&self) {
        let mut blocked = self.connection.blocked();
        tokio::select! {
            _ = blocked.wait_for(Option::is_none) => {}
            _ = self.connection.until_ended() => {}
        }
    }

    /// Closes in good order, or hangs up after the time limit.
    pub(super) async fn say_goodbye(&self, limit: Duration) {
        let _late = timeout(limit, self.connection.close()).await;
        self.hang_up();
    }

    /// Ends the connection now. The server puts unsettled deliveries back, unconfirmed publishes are in doubt.
    pub(super) fn hang_up(&self) {
        self.connection.hang_up();
    }

    /// Watches the connection until it is lost, and says why it was.
    pub(super) async fn until_lost(&self, purpose: &'static str) -> Error {
        let watching = async {
            let mut blocked = self.connection.blocked();
            // What was announced before we listened.
            if blocked.borrow_and_update().is_some() {
                self.note_blocked(purpose, blocked.borrow().as_deref());
            }
            while blocked.changed().await.is_ok() {
                let reason = blocked.borrow_and_update().clone();
                self.note_blocked(purpose, reason.as_deref());
            }
        };
        let why = tokio::select! {
            why = self.connection.until_ended() => why,
            () = watching => self.connection.until_ended().await,
        };
        metrics::gauge!("postrider_broker_blocked", "connection" => purpose).set(0.0);
        why
    }

    fn note_blocked(&self, purpose: &'static str, reason: Option<&str>) {
        let host = self.place.as_str();
        if let Some(reason) = reason {
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
    }
}
