//! What RabbitMQ and the network said, as errors that say what to do.

use std::error::Error as _;

use super::amqp::Error;
use crate::broker::{BrokerError, BrokerErrorKind};

/// The reply codes of AMQP that are told apart.
pub(super) mod code {
    pub(crate) const CONTENT_TOO_LARGE: u16 = 311;
    pub(crate) const ACCESS_REFUSED: u16 = 403;
    pub(crate) const NOT_FOUND: u16 = 404;
    pub(crate) const RESOURCE_LOCKED: u16 = 405;
    pub(crate) const PRECONDITION_FAILED: u16 = 406;
    pub(crate) const NOT_ALLOWED: u16 = 530;
}

/// The code and the text the server closed a channel or connection with.
pub(super) fn reply(error: &Error) -> Option<(u16, &str)> {
    match error {
        Error::Channel { code, text } | Error::Connection { code, text } => Some((*code, text)),
        _ => None,
    }
}

/// Whether this ends the channel alone; otherwise the connection is in doubt.
pub(super) fn is_of_channel(error: &Error) -> bool {
    matches!(error, Error::Channel { .. })
}

/// The reason a published message was refused for what it is, if the server gave one.
pub(super) fn refusal(error: &Error) -> Option<(u16, String)> {
    let (code, text) = reply(error)?;
    let advice = match code {
        code::NOT_FOUND => "declare the exchange (postrider topology apply)",
        code::ACCESS_REFUSED => "give the user the right to write to this exchange",
        code::PRECONDITION_FAILED | code::CONTENT_TOO_LARGE => "make the message smaller or valid",
        _ => return None,
    };
    Some((code, format!("RabbitMQ refused the message: {text}; {advice}")))
}

/// An error while asking for something by name: `what` is "queue orders", `doing` is "declare".
pub(super) fn asking(doing: &str, what: &str, error: Error) -> BrokerError {
    let said = reply(&error).map(|(code, text)| (code, text.to_owned()));
    let (kind, message) = match said {
        Some((code::NOT_FOUND, text)) if is_gone(&text) => (
            BrokerErrorKind::NotFound,
            format!("cannot {doing} {what}: {text}; declare it first (postrider topology apply)"),
        ),
        Some((code::ACCESS_REFUSED | code::RESOURCE_LOCKED, text)) => (
            BrokerErrorKind::Denied,
            format!("not allowed to {doing} {what}: {text}; grant the right to this user, or use another"),
        ),
        Some((code::PRECONDITION_FAILED, text)) if !text.contains("inequivalent") => {
            (BrokerErrorKind::Mismatch, format!("RabbitMQ will not {doing} {what}: {text}"))
        }
        Some((code::PRECONDITION_FAILED, text)) => (
            BrokerErrorKind::Mismatch,
            format!(
                "{what} exists with other settings: {text}; it stays as it was declared: `postrider topology plan` shows what \
                 differs, and `apply` replaces a queue without losing a message"
            ),
        ),
        Some((_, text)) => (
            BrokerErrorKind::Unavailable,
            format!("RabbitMQ could not {doing} {what} now: {text}; try again"),
        ),
        None if matches!(error, Error::Unfit(_)) => {
            (BrokerErrorKind::Mismatch, format!("cannot {doing} {what}: {error}"))
        }
        None => (
            BrokerErrorKind::Unavailable,
            format!("the connection to RabbitMQ was lost while trying to {doing} {what}; try again"),
        ),
    };
    BrokerError::new(kind, message).because(error)
}

/// "No such queue", told from "its node is down" and "its leader is being elected", which have the same code.
fn is_gone(text: &str) -> bool {
    text.contains("no queue") || text.contains("no exchange") || text.contains("no binding")
}

/// An error while connecting to `place` (host and port) as `user` to `vhost`. Never holds the password.
pub(super) fn connecting(place: &str, user: &str, vhost: &str, tls: bool, error: Error) -> BrokerError {
    let said = reply(&error).map(|(code, text)| (code, text.to_owned()));
    let (kind, message) = match (said, &error) {
        (Some((code::ACCESS_REFUSED, _)), _) => (
            BrokerErrorKind::Denied,
            format!(
                "RabbitMQ at {place} refused the user name or the password of {user:?}; check the credentials in the URL"
            ),
        ),
        (Some((code::NOT_ALLOWED, text)), _) if text.contains("not found") => (
            BrokerErrorKind::NotFound,
            format!(
                "RabbitMQ at {place} has no vhost {vhost:?}; create it (rabbitmqctl add_vhost) or correct the URL"
            ),
        ),
        // Users, virtual hosts and nodes may each have so many connections, and others end.
        (Some((code::NOT_ALLOWED, text)), _) if text.contains("is reached") => (
            BrokerErrorKind::Unavailable,
            format!(
                "RabbitMQ at {place} takes no more connections: {text}; raise the limit (rabbitmqctl set_vhost_limits, \
                 set_user_limits) or end others; trying again"
            ),
        ),
        (Some((code::NOT_ALLOWED, text)), _) if text.contains("refused") => (
            BrokerErrorKind::Denied,
            format!(
                "RabbitMQ at {place} does not let {user:?} into the vhost {vhost:?}; grant it (rabbitmqctl set_permissions)"
            ),
        ),
        (Some((_, text)), _) => (
            BrokerErrorKind::Unavailable,
            format!("RabbitMQ at {place} closed the connection: {text}; trying again"),
        ),
        (None, Error::Io(io)) => io_trouble(place, tls, io),
        (None, Error::NotUnderstood(_)) => (
            BrokerErrorKind::Unavailable,
            format!(
                "what answers at {place} does not speak AMQP 0-9-1; check the port, and use amqps:// for TLS"
            ),
        ),
        (None, _) => (
            BrokerErrorKind::Unavailable,
            format!("RabbitMQ at {place} ended the handshake: {error}; trying again"),
        ),
    };
    BrokerError::new(kind, message).because(error)
}

fn io_trouble(place: &str, tls: bool, io: &std::io::Error) -> (BrokerErrorKind, String) {
    if let Some(tls) = io.get_ref().and_then(|inner| inner.downcast_ref::<TlsTrouble>()) {
        return (BrokerErrorKind::Denied, format!("no TLS with RabbitMQ at {place}: {tls}"));
    }
    // With TLS 1.3 a server says what it thinks of our certificate only after the handshake.
    if io.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()).is_some() {
        let tls = TlsTrouble::in_handshake(io);
        return (BrokerErrorKind::Denied, format!("no TLS with RabbitMQ at {place}: {tls}"));
    }
    let why = match io.kind() {
        std::io::ErrorKind::ConnectionRefused => {
            "nobody listens there; start RabbitMQ or correct host and port".to_owned()
        }
        std::io::ErrorKind::TimedOut => {
            "no answer in time; check the host, the port and the firewall".to_owned()
        }
        std::io::ErrorKind::ConnectionAborted | std::io::ErrorKind::ConnectionReset if !tls => {
            "it closed the connection during the handshake; if this is a TLS port, use amqps://".to_owned()
        }
        std::io::ErrorKind::UnexpectedEof
        | std::io::ErrorKind::ConnectionAborted
        | std::io::ErrorKind::ConnectionReset => {
            "it closed the connection during the handshake; it may be starting, or stand behind a proxy that reaches no RabbitMQ"
                .to_owned()
        }
        _ => format!("{io}; check the host name and the network"),
    };
    (BrokerErrorKind::Unavailable, format!("cannot reach RabbitMQ at {place}: {why}"))
}

/// Why no TLS connection came to be.
#[derive(Debug)]
pub(super) struct TlsTrouble(pub(super) String);

impl std::fmt::Display for TlsTrouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for TlsTrouble {}

impl TlsTrouble {
    /// What the handshake failed on, if that is TLS. A connection that broke meanwhile is no trouble of TLS: it is made again.
    pub(super) fn if_it_is(io: std::io::Error) -> std::io::Error {
        let of_tls = io.get_ref().is_some_and(<dyn std::error::Error + Send + Sync>::is::<rustls::Error>);
        if of_tls { std::io::Error::other(Self::in_handshake(&io)) } else { io }
    }

    /// What the handshake failed on, with advice.
    fn in_handshake(io: &std::io::Error) -> Self {
        let inner = io.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
        Self(match inner {
            Some(rustls::Error::InvalidCertificate(why)) => {
                format!(
                    "its certificate is not accepted ({why}); give the authority that signed it as the CA file"
                )
            }
            Some(rustls::Error::InvalidMessage(_)) => {
                "it does not speak TLS on this port; use amqp:// or its TLS port".to_owned()
            }
            Some(rustls::Error::AlertReceived(alert)) => {
                format!("it refused the handshake ({alert:?}); it may want a client certificate")
            }
            _ => format!("{io}{}; check that this is its TLS port", caused_by(io)),
        })
    }
}

fn caused_by(error: &std::io::Error) -> String {
    error.source().map(|source| format!(" ({source})")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    fn kind(error: impl Into<Error>) -> BrokerErrorKind {
        connecting("mq:5671", "u", "v", true, error.into()).kind
    }

    #[test]
    fn what_passes_by_itself_is_told_from_what_does_not() {
        let closed = |text: &str| kind(Error::Connection { code: code::NOT_ALLOWED, text: text.to_owned() });
        assert_eq!(closed("NOT_ALLOWED - vhost v not found"), BrokerErrorKind::NotFound);
        let refused = "NOT_ALLOWED - access to vhost 'v' refused for user 'u'";
        assert_eq!(closed(refused), BrokerErrorKind::Denied);
        let full = format!("{refused}: connection limit (5) is reached");
        assert_eq!(closed(&full), BrokerErrorKind::Unavailable);
    }

    #[test]
    fn a_connection_that_breaks_is_no_trouble_of_tls() {
        for broken in [io::ErrorKind::UnexpectedEof, io::ErrorKind::ConnectionReset] {
            assert_eq!(kind(TlsTrouble::if_it_is(broken.into())), BrokerErrorKind::Unavailable);
        }
        let of_tls = io::Error::new(io::ErrorKind::InvalidData, rustls::Error::DecryptError);
        assert_eq!(kind(TlsTrouble::if_it_is(of_tls)), BrokerErrorKind::Denied);
    }
}
