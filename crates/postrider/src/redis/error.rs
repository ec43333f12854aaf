//! The one error of the Redis seam.

use std::time::Duration;

use crate::progress::{ProgressError, ProgressErrorKind};

/// An error of Redis. Whatever it is, everything works without Redis, slower.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct RedisError {
    /// What kind it is.
    pub kind: RedisErrorKind,
    /// What happened and what to do, for people. No credentials.
    pub message: String,
    /// What the driver said.
    #[source]
    pub source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// The kinds of errors that are handled differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RedisErrorKind {
    /// Not reachable, or it did not answer in time. Try again.
    Unavailable,
    /// Wrong credentials, a right is missing, or its certificate is not accepted.
    Denied,
    /// The URL or the certificates cannot be used.
    Config,
    /// A key holds another type than it should.
    WrongType,
    /// A bug, here or there.
    Other,
}

impl RedisError {
    pub(super) fn new(kind: RedisErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None }
    }

    pub(super) fn because(mut self, source: redis::RedisError) -> Self {
        self.source = Some(Box::new(source));
        self
    }

    /// Whether trying again can help.
    pub fn is_transient(&self) -> bool {
        self.kind == RedisErrorKind::Unavailable
    }

    pub(super) fn late(limit: Duration) -> Self {
        Self::new(
            RedisErrorKind::Unavailable,
            format!("Redis did not answer within {} ms; check host, port and firewall", limit.as_millis()),
        )
    }
}

impl From<redis::RedisError> for RedisError {
    fn from(error: redis::RedisError) -> Self {
        let denied = error.kind() == redis::ErrorKind::AuthenticationFailed
            || matches!(error.code(), Some("NOAUTH" | "WRONGPASS" | "NOPERM"));
        let (kind, message) = if denied {
            (
                RedisErrorKind::Denied,
                "Redis refused the user, the password or the command; check the credentials in the URL"
                    .to_owned(),
            )
        } else if error.is_connection_refusal() {
            (
                RedisErrorKind::Unavailable,
                "Redis is not there: nobody listens at its address; start it, or correct host and port"
                    .to_owned(),
            )
        } else if error.to_string().contains("certificate") {
            (
                RedisErrorKind::Denied,
                format!(
                    "no TLS with Redis: {error}; give the authority that signed its certificate as the CA file"
                ),
            )
        } else if error.code() == Some("WRONGTYPE") {
            (
                RedisErrorKind::WrongType,
                format!("a key in Redis holds another type than it should, and was left alone: {error}"),
            )
        } else if matches!(
            error.code(),
            Some(
                "OOM"
                    | "LOADING"
                    | "BUSY"
                    | "READONLY"
                    | "MASTERDOWN"
                    | "CLUSTERDOWN"
                    | "TRYAGAIN"
                    | "MOVED"
                    | "ASK"
            )
        ) || error.kind() == redis::ErrorKind::ClusterConnectionNotFound
        {
            (RedisErrorKind::Unavailable, format!("Redis cannot do this now: {error}; try again"))
        } else if ["DB index is out of range", "SELECT is not allowed"]
            .iter()
            .any(|said| error.to_string().contains(said))
        {
            (
                RedisErrorKind::Config,
                "Redis has no database of this number; a Redis Cluster has only database 0 (REDIS_STATE_DB=0)".to_owned(),
            )
        } else if error.is_io_error() || error.is_timeout() || error.is_connection_dropped() {
            (
                RedisErrorKind::Unavailable,
                format!("Redis does not answer: {error}; check that it runs, and try again"),
            )
        } else {
            (RedisErrorKind::Other, format!("Redis said: {error}"))
        };
        Self::new(kind, message).because(error)
    }
}

impl From<RedisError> for ProgressError {
    fn from(error: RedisError) -> Self {
        let kind = match error.kind {
            RedisErrorKind::Unavailable => ProgressErrorKind::Unavailable,
            RedisErrorKind::WrongType => ProgressErrorKind::WrongType,
            _ => ProgressErrorKind::Other,
        };
        Self::new(kind, error.message.clone()).because(error)
    }
}
