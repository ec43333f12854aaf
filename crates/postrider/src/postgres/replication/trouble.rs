//! What can go wrong with a stream's connection, told apart by what to do about it. No text has a password in it.

use std::io;
use std::time::Duration;

use postgres_protocol::message::backend::ErrorResponseBody;

use super::super::error::{TLS_ADVICE, kind_of};
use crate::store::StoreErrorKind;

/// Why a stream did not begin, or ended.
#[derive(Debug, thiserror::Error)]
pub(in crate::postgres) enum Trouble {
    /// The server answered with an error.
    #[error("{message} ({code}){}", advice(code))]
    Refused { code: String, message: String },
    /// We and the server do not agree on who we are.
    #[error("{0}")]
    Login(String),
    #[error("{0}; {TLS_ADVICE}")]
    Tls(String),
    /// The connection broke.
    #[error("the connection was lost ({0})")]
    Lost(#[from] io::Error),
    #[error("no answer within {} ms", .0.as_millis())]
    Silent(Duration),
    #[error("the server ended it")]
    Ended,
    /// Something that PostgreSQL does not send.
    #[error("an answer cannot be read: {0}; check that host and port are PostgreSQL's own")]
    Unreadable(String),
}

impl Trouble {
    /// Trying again will not help before somebody has changed something.
    pub(in crate::postgres) fn is_lasting(&self) -> bool {
        match self {
            Self::Refused { code, .. } => kind_of(code) != StoreErrorKind::Unavailable,
            Self::Login(_) | Self::Tls(_) => true,
            Self::Lost(_) | Self::Silent(_) | Self::Ended | Self::Unreadable(_) => false,
        }
    }

    pub(super) fn unexpected(when: &str) -> Self {
        Self::Unreadable(format!("something else was expected {when}"))
    }

    /// The server's error, without its details: they may repeat rows.
    pub(super) fn refused(body: &ErrorResponseBody) -> Self {
        let (mut code, mut message) = (String::new(), String::new());
        let mut fields = body.fields();
        // What cannot be read of it is left out.
        while let Ok(Some(field)) = fallible_iterator::FallibleIterator::next(&mut fields) {
            let text = || String::from_utf8_lossy(field.value_bytes()).into_owned();
            match field.type_() {
                b'C' => code = text(),
                b'M' => message = text(),
                _ => {}
            }
        }
        Self::Refused { code, message }
    }

    /// An answer that was cut short or has a wrong length.
    pub(super) fn unreadable(error: &io::Error) -> Self {
        Self::Unreadable(error.to_string())
    }
}

/// What to do about an error of the server.
fn advice(code: &str) -> &'static str {
    match code {
        "28P01" => "; check user and password",
        "28000" => "; check user and pg_hba.conf: a line for this database and user must allow it",
        "42501" => "; the role needs the attribute REPLICATION",
        "53300" => "; raise max_wal_senders or max_connections of the server",
        "53400" => "; raise max_replication_slots of the server",
        _ => "",
    }
}
