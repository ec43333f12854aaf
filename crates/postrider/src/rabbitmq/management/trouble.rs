//! What can go wrong with the management API, told apart: each has another remedy.

use reqwest::StatusCode;
use serde::Deserialize;

use crate::broker::{BrokerError, BrokerErrorKind};

/// An error of the management API.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct ManagementError {
    /// What kind it is.
    pub kind: ManagementErrorKind,
    /// What happened and what to do, for people. No credentials.
    pub message: String,
    /// What the client said.
    #[source]
    pub source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// The kinds that have different remedies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ManagementErrorKind {
    /// The address or a certificate file cannot be used.
    BadUrl,
    /// Nothing listens there, or something else than RabbitMQ: most likely the plugin is not enabled.
    Absent,
    /// It did not answer in time, or is just starting. Try again.
    Unavailable,
    /// The user or the password is wrong.
    WrongPassword,
    /// The user is known, and lacks a tag or a permission.
    MissingRight,
    /// There is no such virtual host, queue, exchange or policy.
    NotFound,
    /// The request itself was refused.
    Refused,
}

impl ManagementError {
    /// An error without another one behind it.
    pub fn new(kind: ManagementErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None }
    }

    /// Keeps what the client said.
    #[must_use]
    pub fn because(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Whether trying again can help. An absent plugin is one of a node that is starting.
    pub fn is_transient(&self) -> bool {
        matches!(self.kind, ManagementErrorKind::Unavailable | ManagementErrorKind::Absent)
    }
}

impl From<ManagementError> for BrokerError {
    fn from(error: ManagementError) -> Self {
        let kind = match error.kind {
            ManagementErrorKind::Unavailable | ManagementErrorKind::Absent => BrokerErrorKind::Unavailable,
            ManagementErrorKind::WrongPassword
            | ManagementErrorKind::MissingRight
            | ManagementErrorKind::BadUrl => BrokerErrorKind::Denied,
            ManagementErrorKind::NotFound => BrokerErrorKind::NotFound,
            ManagementErrorKind::Refused => BrokerErrorKind::Protocol,
        };
        Self::new(kind, error.message.clone()).because(error)
    }
}

/// No answer at all.
pub(super) fn unreachable(place: &str, error: reqwest::Error) -> ManagementError {
    // The client repeats the address; ours holds no password, and is not needed twice.
    let error = error.without_url();
    if error.is_timeout() {
        let told = format!("the management API at {place} did not answer in time; try again");
        return ManagementError::new(ManagementErrorKind::Unavailable, told).because(error);
    }
    let deepest = deepest(&error);
    if let Some(tls) = deepest.strip_prefix("invalid peer certificate: ") {
        let told = format!("no TLS with the management API at {place}: {tls}; set broker.tls.ca_file");
        return ManagementError::new(ManagementErrorKind::BadUrl, told).because(error);
    }
    let told = if error.is_connect() {
        format!(
            "nothing answers at {place} ({deepest}); is the management plugin enabled (rabbitmq-plugins enable \
             rabbitmq_management), and is this its address?"
        )
    } else {
        format!(
            "what answers at {place} does not speak HTTP ({deepest}); the management API is on port 15672 by default"
        )
    };
    ManagementError::new(ManagementErrorKind::Absent, told).because(error)
}

fn deepest(error: &dyn std::error::Error) -> String {
    let mut at = error;
    while let Some(next) = at.source() {
        at = next;
    }
    at.to_string()
}

/// An answer that RabbitMQ would not give.
pub(super) fn not_rabbitmq(place: &str) -> ManagementError {
    let told = format!("what answers at {place} is not RabbitMQ's management API; check the address");
    ManagementError::new(ManagementErrorKind::Absent, told)
}

/// A node that is starting, stopping, or without its database.
pub(super) fn stumbled(place: &str, body: &[u8]) -> ManagementError {
    let why = Said::read(body).map(|said| said.reason).unwrap_or_default();
    let told = format!("the management API at {place} cannot answer now: {why}; try again");
    ManagementError::new(ManagementErrorKind::Unavailable, told)
}

/// An answer other than success.
pub(super) fn answered(
    place: &str,
    user: &str,
    path: &[&str],
    status: StatusCode,
    body: &[u8],
) -> ManagementError {
    let Some(Said { error, reason }) = Said::read(body) else { return not_rabbitmq(place) };
    let asked = path.join(" ");
    match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => unauthorised(place, user, &asked, &reason),
        StatusCode::NOT_FOUND => {
            let told = format!("RabbitMQ at {place} has no {asked}");
            ManagementError::new(ManagementErrorKind::NotFound, told)
        }
        _ => {
            let reason = reason.split_whitespace().collect::<Vec<_>>().join(" ");
            let told = format!("RabbitMQ at {place} refused {asked}: {error}: {reason}");
            ManagementError::new(ManagementErrorKind::Refused, told)
        }
    }
}

/// RabbitMQ answers all of these with 401, and tells them apart by the reason alone.
fn unauthorised(place: &str, user: &str, asked: &str, reason: &str) -> ManagementError {
    let remedy = match reason {
        "Not_Authorized" | "Login failed" => {
            let told = format!(
                "the management API at {place} refused the user name or the password of {user:?}; check broker.management_url"
            );
            return ManagementError::new(ManagementErrorKind::WrongPassword, told);
        }
        "Not management user" => "give it the tag `management` (rabbitmqctl set_user_tags)",
        "Not administrator user" => "this needs the tag `administrator`",
        "User not authorised to access virtual host" => {
            "give it permissions in this virtual host (rabbitmqctl set_permissions)"
        }
        _ if asked.starts_with("policies") => "this needs the tag `policymaker` (rabbitmqctl set_user_tags)",
        _ => "grant the right to this user, or use another",
    };
    let told = format!("{user:?} may not use {asked} at {place}: {reason}; {remedy}");
    ManagementError::new(ManagementErrorKind::MissingRight, told)
}

/// What RabbitMQ says with an error.
#[derive(Deserialize)]
struct Said {
    error: String,
    #[serde(default, deserialize_with = "as_text")]
    reason: String,
}

impl Said {
    fn read(body: &[u8]) -> Option<Self> {
        serde_json::from_slice(body).ok()
    }
}

/// Usually text, for some errors a structure.
fn as_text<'de, D: serde::Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    Ok(match serde_json::Value::deserialize(from)? {
        serde_json::Value::String(text) => text,
        other => other.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(status: u16, body: &str) -> ManagementErrorKind {
        let status = StatusCode::from_u16(status).unwrap();
        answered("rabbit:15672", "shop", &["policies", "/"], status, body.as_bytes()).kind
    }

    #[test]
    fn one_status_has_several_reasons() {
        let said = |reason: &str| format!(r#"{{"error":"not_authorised","reason":"{reason}"}}"#);
        assert_eq!(kind(401, &said("Login failed")), ManagementErrorKind::WrongPassword);
        assert_eq!(kind(401, &said("Not_Authorized")), ManagementErrorKind::WrongPassword);
        assert_eq!(kind(401, &said("Not management user")), ManagementErrorKind::MissingRight);
        assert_eq!(
            kind(401, &said("User not authorised to access object")),
            ManagementErrorKind::MissingRight
        );
        assert_eq!(kind(404, &said("Not Found")), ManagementErrorKind::NotFound);
        assert_eq!(kind(404, "<html>nginx</html>"), ManagementErrorKind::Absent);
        assert_eq!(kind(400, &said("-1 is not a valid limit")), ManagementErrorKind::Refused);
    }
}
