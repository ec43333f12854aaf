//! A client for AMQP 0-9-1, made for what is done here: batches of publishes with confirms, deliveries by the hundred, and few
//! questions.
//!
//! A batch is written into one buffer and goes out in one piece; a read takes in whatever has arrived; nothing is done per
//! message but to write or read its bytes. A connection has two tasks ([`pump`]), one for each direction. What belongs to one
//! channel is told to whoever waits for it there, once per read and not per message.
//!
//! The order in which the modules are needed: [`wire`] has the primitives, [`table`] the headers, [`content`] the properties of
//! messages, [`frame`] what they travel in; [`handshake`] begins a [`connection`], on which there are [`channel`]s.

pub(super) mod channel;
pub(super) mod confirms;
pub(super) mod connection;
pub(super) mod content;
mod frame;
mod handshake;
mod method;
mod pump;
mod state;
pub(super) mod table;
#[cfg(any(test, fuzzing))]
pub(super) mod trial;
pub(super) mod wire;

pub(super) use channel::{Channel, Consumer, DeclareQueue, Pile, Settlement};
pub(super) use connection::Connection;
pub(super) use handshake::{Identity, Login};
pub(super) use state::Arrived;

use std::io;
use std::sync::Arc;

/// Why a channel or a connection is of no use any more, or never was.
#[derive(Debug, Clone, thiserror::Error)]
pub(super) enum Error {
    /// RabbitMQ closed the channel. Others of the connection go on.
    #[error("RabbitMQ closed the channel: {code} {text}")]
    Channel {
        /// AMQP's reply code.
        code: u16,
        /// What RabbitMQ said.
        text: String,
    },
    /// RabbitMQ closed the connection.
    #[error("RabbitMQ closed the connection: {code} {text}")]
    Connection {
        /// AMQP's reply code.
        code: u16,
        /// What RabbitMQ said.
        text: String,
    },
    /// The network.
    #[error("{0}")]
    Io(Arc<io::Error>),
    /// What came is not AMQP 0-9-1 as we know it.
    #[error("not understood: {0}")]
    NotUnderstood(String),
    /// What was to be sent cannot be said in AMQP.
    #[error("{0}")]
    Unfit(String),
    /// Nothing was heard for longer than both sides had agreed on.
    #[error("nothing was heard from RabbitMQ for {0} s")]
    Silence(u64),
    /// We closed it ourselves.
    #[error("closed by this process")]
    Closed,
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Self::Io(Arc::new(error))
    }
}

impl From<wire::Malformed> for Error {
    fn from(malformed: wire::Malformed) -> Self {
        Self::NotUnderstood(malformed.to_string())
    }
}

impl From<wire::Unsayable> for Error {
    fn from(unsayable: wire::Unsayable) -> Self {
        Self::Unfit(unsayable.to_string())
    }
}
