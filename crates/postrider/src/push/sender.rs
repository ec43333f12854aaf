//! The client of one endpoint: its own connections, which nobody else waits for.
//!
//! Never follows a redirect, never asks the environment for a proxy, and reads no more of an answer than it needs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, redirect};
use url::Url;

use super::answer::{Answer, MOST_READ};
use super::form::Form;
use super::safety::{Allowed, Guard, Names, Unsafe};
use super::signing::SigningSecret;
use crate::clock::Clock;
use crate::handler::{Failure, Incoming, error_chain, retry_after};

/// A connection that nobody used for so long is closed.
const IDLE: Duration = Duration::from_mins(1);

/// By HTTP/2 all calls share a connection, and a call that comes too late does not end it. One that died without a word would be used for as
/// long as TCP has patience, so that one on which nothing came for this long during calls is asked for a sign of life …
const SILENT: Duration = Duration::from_secs(5);
/// … and given up if there is none within this.
const SIGN_OF_LIFE: Duration = Duration::from_secs(5);

/// Calls one endpoint.
pub struct Sender {
    client: Client,
    url: Url,
    form: Form,
    headers: HeaderMap,
    secrets: Vec<SigningSecret>,
    allowed: Allowed,
    limit: Duration,
    clock: Clock,
}

/// Why there was no answer.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// It may not go there.
    #[error("the request was not sent: {0}")]
    Unsafe(#[from] Unsafe),
    /// It took too long.
    #[error("there was no whole answer within the time limit of {limit:?}")]
    Late {
        /// The limit.
        limit: Duration,
    },
    /// No connection.
    #[error("the endpoint cannot be reached: {0}")]
    Unreachable(String),
    /// What came back is no HTTP, or ended in the middle.
    #[error("the answer cannot be read: {0}")]
    Garbage(String),
}

impl SendError {
    /// A stable word for it, by which failures are grouped and policies tell them apart.
    pub fn class(&self) -> &'static str {
        match self {
            Self::Unsafe(_) => "unsafe_address",
            Self::Late { .. } => "timeout",
            Self::Unreachable(_) => "unreachable",
            Self::Garbage(_) => "garbage",
        }
    }

    /// It says nothing against the event: it may succeed later.
    pub fn failure(&self) -> Failure {
        Failure::transient(self).class(self.class())
    }
}

/// What a sender is made of, beside its url.
pub struct SenderParts<'a> {
    /// What the body is.
    pub form: Form,
    /// Headers of the operator's own.
    pub headers: &'a BTreeMap<String, String>,
    /// All that sign.
    pub secrets: Vec<SigningSecret>,
    /// How long a call may take, from the connection to the end of the answer.
    pub limit: Duration,
    /// Where it may go beside public https.
    pub allowed: Allowed,
    /// Who knows addresses.
    pub names: Arc<dyn Names>,
}

impl Sender {
    /// A sender for this url. An error says what is wrong with the parts; nothing is connected yet.
    pub fn new(url: Url, parts: SenderParts<'_>, clock: Clock) -> Result<Self, String> {
        // The process needs one provider of cryptography. Whoever came first stays.
        let _installed_before = rustls::crypto::ring::default_provider().install_default();
        let guard = Guard { names: parts.names, allowed: parts.allowed.clone() };
        let client = Client::builder()
            .no_proxy()
            .redirect(redirect::Policy::none())
            .dns_resolver(Arc::new(guard))
            .referer(false)
            .timeout(parts.limit)
            .pool_idle_timeout(IDLE)
            .http2_keep_alive_interval(SILENT)
            .http2_keep_alive_timeout(SIGN_OF_LIFE)
            .tcp_nodelay(true)
            .user_agent(concat!("postrider/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| format!("no HTTP client could be made: {}", error_chain(&error)))?;
        let headers = own_headers(parts.headers)?;
        let (form, secrets, allowed, limit) = (parts.form, parts.secrets, parts.allowed, parts.limit);
        Ok(Self { client, url, form, headers, secrets, allowed, limit, clock })
    }

    /// Sends one event and reads the answer.
    pub async fn send(&self, event: &Incoming) -> Result<Answer, SendError> {
        // The client resolves names through the guard; what is an address already it would take as it is.
        self.allowed.check_url(&self.url)?;
        let prepared = self.form.prepare(event, &self.secrets, self.clock.now().as_second());
        let mut headers = HeaderMap::with_capacity(prepared.headers.len() + self.headers.len());
        for (name, value) in prepared.headers {
            if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
                headers.insert(name, value);
            }
        }
        // The operator's count, whatever a message has.
        for (name, value) in &self.headers {
            headers.insert(name.clone(), value.clone());
        }
        let request = self.client.post(self.url.clone()).headers(headers).body(prepared.body);
        let mut response = request.send().await.map_err(|error| told(&error, self.limit))?;
        let now = self.clock.now();
        let asked = response.headers().get("retry-after").and_then(|value| value.to_str().ok());
        let asked = asked.and_then(|text| retry_after(text, now));
        let status = response.status().as_u16();
        let (body, whole) = beginning(&mut response, self.limit).await?;
        Ok(Answer { status, retry_after: asked, body, whole })
    }
}

/// The body, or as much of it as is read, and whether that is all of it.
async fn beginning(response: &mut reqwest::Response, limit: Duration) -> Result<(Bytes, bool), SendError> {
    let mut body = BytesMut::new();
    while let Some(chunk) = response.chunk().await.map_err(|error| told(&error, limit))? {
        let room = MOST_READ - body.len();
        body.extend_from_slice(&chunk[..chunk.len().min(room)]);
        if chunk.len() > room {
            return Ok((body.freeze(), false));
        }
    }
    Ok((body.freeze(), true))
}

/// What the client's error means. The url is left out: it may have a key in its query.
fn told(error: &reqwest::Error, limit: Duration) -> SendError {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(refused) = error.downcast_ref::<Unsafe>() {
            return SendError::Unsafe(refused.clone());
        }
        cause = error.source();
    }
    let why = std::error::Error::source(error).map_or_else(|| "no reason was given".to_owned(), error_chain);
    if error.is_timeout() {
        return SendError::Late { limit };
    }
    if error.is_connect() { SendError::Unreachable(why) } else { SendError::Garbage(why) }
}

/// Headers that are ours to write.
const RESERVED: [&str; 14] = [
    "host",
    "content-length",
    "content-type",
    "transfer-encoding",
    "connection",
    "webhook-id",
    "webhook-timestamp",
    "webhook-signature",
    "x-event-id",
    "x-attempt",
    "x-retry-count",
    "x-consumer",
    "traceparent",
    "tracestate",
];

/// Checks the operator's own headers. Says nothing of their values, which may be secrets.
pub(super) fn own_headers(given: &BTreeMap<String, String>) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    for (name, value) in given {
        let lower = name.to_ascii_lowercase();
        if RESERVED.contains(&lower.as_str()) || lower.starts_with("ce-") {
            return Err(format!("the header {name} is written for every request; leave it out"));
        }
        let read =
            HeaderName::try_from(lower).map_err(|_| format!("{name:?} cannot be the name of a header"))?;
        let mut value = HeaderValue::try_from(value).map_err(|_| {
            format!("the value of the header {name} has characters that a header cannot carry")
        })?;
        value.set_sensitive(true);
        headers.insert(read, value);
    }
    Ok(headers)
}
