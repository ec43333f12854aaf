//! `Idempotency-Key`: a request that is sent again gets the first answer, and is not done again.
//!
//! Around every POST of the API. The work goes on when the caller hangs up or his time is over, so that whoever asks again finds an
//! answer. A crash in the middle leaves the claim to run out; then the request is done again, so a key alone makes it happen at
//! least once: an event's own id makes it once for certain.

use std::sync::Arc;

use async_trait::async_trait;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, header, request::Parts};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use postrider::Payload;
use postrider::dedup::{Claim, Deduplicator, Standing};
use postrider::envelope::PayloadHash;
use postrider::store::{Claims, Inbox, StoreError, TokenHash};
use serde::{Deserialize, Serialize};
use tracing::Instrument as _;

use super::Api;
use super::problem::{Code, Problem};

const KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// Says that an answer is a repeated one.
const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");
/// The longest key.
const LONGEST: usize = 255;
/// A longer answer is not kept, and the request can be done again.
const MAX_ANSWER: usize = 1 << 20;

/// Who remembers what was done.
#[async_trait]
pub(crate) trait Once: Send + Sync {
    async fn claim(&self, key: &str, hash: PayloadHash) -> Result<Standing, StoreError>;
    async fn complete(&self, claim: Claim, answer: Bytes) -> Result<bool, StoreError>;
    async fn release(&self, claim: Claim) -> Result<bool, StoreError>;
    /// Whether the cache in front of it is left alone for now; nothing where there is none.
    fn is_degraded(&self) -> Option<bool>;
}

#[async_trait]
impl<S: Claims + Inbox> Once for Deduplicator<S> {
    async fn claim(&self, key: &str, hash: PayloadHash) -> Result<Standing, StoreError> {
        Self::claim(self, key, hash).await
    }
    async fn complete(&self, claim: Claim, answer: Bytes) -> Result<bool, StoreError> {
        Self::complete(self, claim, answer).await
    }
    async fn release(&self, claim: Claim) -> Result<bool, StoreError> {
        Self::release(self, claim).await
    }
    fn is_degraded(&self) -> Option<bool> {
        Self::is_degraded(self)
    }
}

/// An answer as it is kept.
#[derive(Debug, Serialize, Deserialize)]
struct Kept {
    status: u16,
    content_type: Option<String>,
    body: String,
}

/// Does a request once for each key. Without a key it is done as ever.
pub(super) async fn once(State(api): State<Api>, request: Request, next: Next) -> Result<Response, Problem> {
    if request.method() != Method::POST || !request.headers().contains_key(KEY) {
        return Ok(next.run(request).await);
    }
    let (parts, body) = request.into_parts();
    let key = key(&parts)?;
    let max = api.http().max_body_bytes;
    let body = to_bytes(body, max).await.map_err(|_| Problem::too_large(max))?;
    let hash = fingerprint(&parts, &body);
    match api.once.claim(&key, hash).await? {
        Standing::Yours(claim) => {
            let request = Request::from_parts(parts, Body::from(body));
            let doing = tokio::spawn(do_it(api.once.clone(), claim, request, next).in_current_span());
            match doing.await {
                Ok(response) => Ok(response),
                Err(error) => match error.try_into_panic() {
                    Ok(panic) => std::panic::resume_unwind(panic),
                    Err(_) => Err(Problem::new(Code::Internal, "the process is stopping; send it again")),
                },
            }
        }
        Standing::Done(answer) => repeated(&answer),
        Standing::Conflict => Err(Problem::new(
            Code::IdempotencyMismatch,
            "this Idempotency-Key was used for another request; nothing was done now: use a new key, or send the same request",
        )),
        Standing::InFlight(_) => Err(Problem::new(
            Code::IdempotencyInFlight,
            "a request with this Idempotency-Key is being worked on; nothing was done now: send it again soon",
        )),
    }
}

/// The caller's own key: nobody gets the answer of another.
fn key(parts: &Parts) -> Result<String, Problem> {
    let given = parts.headers.get(KEY).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let given = given.trim().trim_matches('"');
    if !(1..=LONGEST).contains(&given.len()) || !given.bytes().all(|byte| byte.is_ascii_graphic()) {
        let detail = format!(
            "Idempotency-Key has 1 to {LONGEST} visible ASCII characters, such as a UUID; nothing was done"
        );
        return Err(Problem::new(Code::InvalidIdempotencyKey, detail));
    }
    let secret = parts.headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes).unwrap_or_default();
    let who = TokenHash::of(&String::from_utf8_lossy(secret));
    let who = who.as_bytes().iter().take(8).fold(0_u64, |who, byte| who << 8 | u64::from(*byte));
    Ok(format!("{who:016x}/{given}"))
}

/// What makes two requests the same: where they go, what they are, and every byte of them.
fn fingerprint(parts: &Parts, body: &[u8]) -> PayloadHash {
    let kind = parts.headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    let mut text = format!("{} {}\0", parts.method, parts.uri).into_bytes();
    for part in [kind, b"\0", body] {
        text.extend_from_slice(part);
    }
    Payload::new("application/octet-stream", text).hash()
}

/// Does it and keeps the answer. One that says that nothing was done for certain is not kept: it may be tried again.
async fn do_it(once: Arc<dyn Once>, claim: Claim, request: Request, next: Next) -> Response {
    let response = next.run(request).await;
    let status = response.status();
    let may_pass = status.is_server_error()
        || [StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_EARLY, StatusCode::TOO_MANY_REQUESTS]
            .contains(&status);
    let (head, body) = response.into_parts();
    let Ok(body) = to_bytes(body, MAX_ANSWER).await else {
        tracing::error!(
            "an answer could not be kept for its Idempotency-Key: longer than {MAX_ANSWER} bytes"
        );
        return Problem::new(Code::Internal, "the answer was too long; it may have been done")
            .into_response();
    };
    let kept = Kept {
        status: status.as_u16(),
        content_type: head
            .headers
            .get(header::CONTENT_TYPE)
            .and_then(|kind| Some(kind.to_str().ok()?.to_owned())),
        body: String::from_utf8_lossy(&body).into_owned(),
    };
    let settled = match serde_json::to_vec(&kept) {
        Ok(kept) if !may_pass => once.complete(claim, kept.into()).await,
        _ => once.release(claim).await,
    };
    if let Err(error) = settled {
        tracing::warn!(%error, "an answer was not kept for its Idempotency-Key; a repeat is done again once the claim runs out");
    }
    Response::from_parts(head, Body::from(body))
}

fn repeated(answer: &[u8]) -> Result<Response, Problem> {
    let unreadable = |_| Problem::new(Code::Internal, "the first answer cannot be read; it was done before");
    let kept: Kept = serde_json::from_slice(answer).map_err(unreadable)?;
    let status = StatusCode::from_u16(kept.status).unwrap_or(StatusCode::OK);
    let mut response = (status, kept.body).into_response();
    let headers = response.headers_mut();
    headers.remove(header::CONTENT_TYPE);
    if let Some(kind) = kept.content_type.and_then(|kind| HeaderValue::from_str(&kind).ok()) {
        headers.insert(header::CONTENT_TYPE, kind);
    }
    headers.insert(REPLAYED, HeaderValue::from_static("true"));
    Ok(response)
}
