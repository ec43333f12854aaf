//! What a request with a key asks: whose key it is, what makes two requests the same, and the names of what it makes.

use std::convert::Infallible;

use axum::extract::FromRequestParts;
use axum::http::{HeaderMap, HeaderValue, header, request::Parts};
use postrider::envelope::PayloadHash;
use postrider::{EventId, Payload};
use sha2::{Digest as _, Sha256};
use uuid::{Builder, Uuid};

use super::KEY;
use crate::api::access::Caller;
use crate::api::problem::{Code, Problem};

/// The longest key.
const LONGEST: usize = 255;
/// These follow the request, and a client that traces gives every attempt its own.
const TRACES: [&str; 2] = ["ce-traceparent", "ce-tracestate"];

/// A request with a key.
pub(super) struct Asked {
    /// The caller's own: nobody gets the answer of another.
    pub(super) key: String,
    pub(super) fingerprint: PayloadHash,
}

impl Asked {
    pub(super) fn new(key: String, parts: &Parts, body: &[u8]) -> Self {
        Self { key, fingerprint: fingerprint(parts, body) }
    }

    /// The names of what it makes. Another request has others, also under a key that was forgotten or given up meanwhile.
    pub(super) fn names(&self) -> Names {
        let seed = Sha256::new_with_prefix(b"postrider/idempotency-key\0");
        let seed = seed.chain_update(&self.key).chain_update([0]).chain_update(self.fingerprint.as_bytes());
        Names(Some(seed.finalize().into()))
    }
}

/// The key under the name of who sent it, whatever way they wrote their token.
pub(super) fn key(parts: &Parts) -> Result<String, Problem> {
    let mut values = parts.headers.get_all(KEY).iter();
    let given = values.next().filter(|_| values.next().is_none());
    let given = given.and_then(|value| value.to_str().ok()).unwrap_or_default();
    let given = given.trim().trim_matches('"');
    if !(1..=LONGEST).contains(&given.len()) || !given.bytes().all(|byte| byte.is_ascii_graphic()) {
        let detail = format!(
            "Idempotency-Key has 1 to {LONGEST} visible ASCII characters, such as a UUID, and is sent once; nothing was done"
        );
        return Err(Problem::new(Code::InvalidIdempotencyKey, detail));
    }
    let caller = parts.extensions.get::<Caller>().and_then(|caller| caller.token);
    Ok(caller.map_or_else(|| format!("owner/{given}"), |token| format!("{token}/{given}")))
}

/// What makes two requests the same: where they go with what query, what they are, the attributes of a CloudEvent in the headers,
/// and every byte of the body.
fn fingerprint(parts: &Parts, body: &[u8]) -> PayloadHash {
    let kind = parts.headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    let mut text = format!("{} {}\0", parts.method, parts.uri).into_bytes();
    for (name, value) in attributes(&parts.headers) {
        text.extend([name.as_bytes(), b":", value, b"\0"].concat());
    }
    text.extend([kind, b"\0", body].concat());
    Payload::new("application/octet-stream", text).hash()
}

/// In an order that does not depend on how they were sent.
fn attributes(headers: &HeaderMap) -> Vec<(&str, &[u8])> {
    let all = headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
    let mut attributes: Vec<_> =
        all.filter(|(name, _)| name.starts_with("ce-") && !TRACES.contains(name)).collect();
    attributes.sort_unstable();
    attributes
}

/// Names for what a request makes, where its body names nothing: done again, the same request makes the same names. Without a key
/// there are none.
#[derive(Debug, Clone, Default)]
pub(crate) struct Names(Option<[u8; 32]>);

impl Names {
    /// The id of what stands at this place of the request, from 0.
    pub(crate) fn id(&self, place: usize) -> Option<Uuid> {
        let place = u64::try_from(place).ok()?;
        let hash: [u8; 32] =
            Sha256::new_with_prefix(self.0?).chain_update(place.to_be_bytes()).finalize().into();
        let bytes = hash.first_chunk::<16>()?;
        Some(Builder::from_custom_bytes(*bytes).into_uuid())
    }

    /// The same as an event has it.
    pub(crate) fn event(&self, place: usize) -> Option<EventId> {
        self.id(place).map(EventId::from_uuid)
    }
}

impl<S: Sync> FromRequestParts<S> for Names {
    type Rejection = Infallible;
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(parts.extensions.get::<Self>().cloned().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use axum::http::Request;

    use super::*;

    fn asked(headers: &[(&str, &str)], path: &str, body: &str) -> PayloadHash {
        let mut request = Request::post(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        fingerprint(&request.body(()).unwrap().into_parts().0, body.as_bytes())
    }

    #[test]
    fn a_request_is_the_same_whatever_only_carries_it() {
        let one =
            asked(&[("ce-id", "1"), ("ce-type", "a.b"), ("content-type", "text/plain")], "/v1/events", "x");
        let again = [
            ("content-type", "text/plain"),
            ("x-request-id", "7"),
            ("traceparent", "00-1"),
            ("ce-type", "a.b"),
            ("ce-traceparent", "00-2"),
            ("ce-id", "1"),
        ];
        assert_eq!(asked(&again, "/v1/events", "x"), one);
    }

    #[test]
    fn what_changes_a_request_makes_it_another() {
        let kind = ("content-type", "text/plain");
        let all = [
            asked(&[kind], "/v1/events", "x"),
            asked(&[kind], "/v1/events", "y"),
            asked(&[kind], "/v1/events?outbox=b", "x"),
            asked(&[kind], "/v1/other", "x"),
            asked(&[("content-type", "application/json")], "/v1/events", "x"),
            asked(&[kind, ("ce-id", "1")], "/v1/events", "x"),
            asked(&[kind, ("ce-id", "2")], "/v1/events", "x"),
            asked(&[kind, ("ce-id", "1"), ("ce-subject", "2")], "/v1/events", "x"),
        ];
        let apart: std::collections::HashSet<_> = all.iter().map(PayloadHash::as_bytes).collect();
        assert_eq!(apart.len(), all.len());
    }

    #[test]
    fn names_are_the_same_for_the_same_request_alone() {
        let of = |key: &str, body: &'static str| {
            let fingerprint = Payload::new("text/plain", body).hash();
            Asked { key: key.to_owned(), fingerprint }.names()
        };
        let names = of("owner/k", "x");
        assert_eq!(names.id(0), of("owner/k", "x").id(0));
        assert_eq!(names.id(0).unwrap().get_version_num(), 8);
        let all = [names.id(0), names.id(1), of("owner/l", "x").id(0), of("owner/k", "y").id(0)];
        let apart: std::collections::HashSet<_> = all.iter().collect();
        assert_eq!(apart.len(), all.len());
        assert_eq!(Names::default().id(0), None);
    }
}
