//! `Idempotency-Key`: a request that is sent again gets the first answer, and is not done again.
//!
//! Around every POST of the API. The work goes on when the caller hangs up or his time is over, so that whoever asks again finds an
//! answer; until then its claim is renewed, and it keeps its place among the requests that are worked on.
//!
//! A crash in the middle, or a commit of which nobody knows whether it happened, leaves the request to be done again once its claim
//! has run out or was given up. Events, journal entries, operations and tokens are made once even so: where the body names no id, the
//! key does ([`Names`]), and what is there under it is the first success.

mod asked;
mod kept;

pub(crate) use asked::Names;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{FromRequest as _, MatchedPath, Request, State};
use axum::http::{HeaderName, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use futures_util::FutureExt as _;
use postrider::Clock;
use postrider::dedup::{CacheHealth, Claim, Deduplicator, Standing};
use postrider::envelope::PayloadHash;
use postrider::store::{Claims, Inbox, StoreError};
use tracing::Instrument as _;

use self::asked::Asked;
use self::kept::Kept;
use super::events::read_failed;
use super::problem::{Code, Problem};
use super::{Api, guard, table};

pub(super) const KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// A claim is renewed when this part of its lease is over.
const THIRD: u32 = 3;

/// Who remembers what was done.
#[async_trait]
pub(crate) trait Once: Send + Sync {
    async fn claim(&self, key: &str, hash: PayloadHash) -> Result<Standing, StoreError>;
    async fn renew(&self, claim: &Claim) -> Result<bool, StoreError>;
    async fn complete(&self, claim: Claim, answer: Bytes) -> Result<bool, StoreError>;
    async fn release(&self, claim: Claim) -> Result<bool, StoreError>;
    /// How long a claim lasts if it is not renewed.
    fn lease(&self) -> Duration;
    /// How the cache in front of it is; nothing where there is none.
    async fn cache_health(&self) -> Option<CacheHealth>;
}

#[async_trait]
impl<S: Claims + Inbox> Once for Deduplicator<S> {
    async fn claim(&self, key: &str, hash: PayloadHash) -> Result<Standing, StoreError> {
        Self::claim(self, key, hash).await
    }
    async fn renew(&self, claim: &Claim) -> Result<bool, StoreError> {
        Self::renew(self, claim).await
    }
    async fn complete(&self, claim: Claim, answer: Bytes) -> Result<bool, StoreError> {
        Self::complete(self, claim, answer).await
    }
    async fn release(&self, claim: Claim) -> Result<bool, StoreError> {
        Self::release(self, claim).await
    }
    fn lease(&self) -> Duration {
        self.lasts()
    }
    async fn cache_health(&self) -> Option<CacheHealth> {
        Self::cache_health(self).await
    }
}

/// Does a request once for each key. Without a key it is done as ever.
pub(super) async fn once(State(api): State<Api>, request: Request, next: Next) -> Result<Response, Problem> {
    if request.method() != Method::POST || !request.headers().contains_key(KEY) {
        return Ok(next.run(request).await);
    }
    let (mut parts, body) = request.into_parts();
    let key = asked::key(&parts)?;
    let whole = Bytes::from_request(Request::from_parts(parts.clone(), body), &()).await;
    let body = whole.map_err(|rejection| read_failed(&rejection, api.http().max_body_bytes))?;
    let asked = Asked::new(key, &parts, &body);
    let claimed_at = api.clock.monotonic();
    match api.once.claim(&asked.key, asked.fingerprint).await? {
        Standing::Yours(claim) => {
            let path = parts.extensions.get::<MatchedPath>().map_or("", MatchedPath::as_str);
            let secret = table::find("POST", path).and_then(|route| route.secret);
            let slot = parts.extensions.get::<guard::Slot>().cloned();
            parts.extensions.insert(asked.names());
            let request = Request::from_parts(parts, Body::from(body));
            let held = Held { once: api.once.clone(), clock: api.clock.clone(), claim, claimed_at };
            let doing = async move {
                let _slot = slot;
                held.answer(request, next, secret).await
            };
            let stopping = |_| Problem::new(Code::Internal, "the process is stopping; send it again");
            tokio::spawn(doing.in_current_span()).await.map_err(stopping)
        }
        Standing::Done(answer) => kept::repeated(&answer),
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

/// A claim while its request is worked on.
struct Held {
    once: Arc<dyn Once>,
    clock: Clock,
    claim: Claim,
    /// Before it was asked for.
    claimed_at: Duration,
}

impl Held {
    /// Does the work and keeps its answer. One that says that nothing was done for certain is not kept: it may be tried again. Work
    /// whose claim is lost is ended, because somebody else may do it from then on.
    async fn answer(self, request: Request, next: Next, secret: Option<&'static str>) -> Response {
        let work = AssertUnwindSafe(next.run(request)).catch_unwind();
        let response = tokio::select! {
            done = work => done.unwrap_or_else(guard::panicked),
            () = self.lost() => {
                // Its last renewal may have come through all the same.
                self.settle(None).await;
                return lost().into_response();
            }
        };
        let (head, body) = response.into_parts();
        // It is in memory already, however long it is.
        let Ok(body) = to_bytes(Body::new(body), usize::MAX).await else {
            self.settle(None).await;
            return Problem::new(Code::Internal, "the answer broke off; it may have been done")
                .into_response();
        };
        let kept = (!may_pass(head.status)).then(|| Kept::of(&head, &body, secret));
        self.settle(kept).await;
        Response::from_parts(head, Body::from(body))
    }

    /// Renews the claim for as long as it can. Ends when it is lost, or ran out before it could be renewed.
    async fn lost(&self) {
        let lease = self.once.lease();
        let mut ends_at = self.claimed_at + lease;
        loop {
            self.clock.sleep(lease / THIRD).await;
            let asked_at = self.clock.monotonic();
            let left = ends_at.saturating_sub(asked_at);
            // Who slept through the whole lease may share the key with somebody else by now.
            if left.is_zero() {
                return;
            }
            match tokio::time::timeout(left, self.once.renew(&self.claim)).await {
                Ok(Ok(true)) => ends_at = asked_at + lease,
                Ok(Err(error)) if self.clock.monotonic() < ends_at => {
                    tracing::warn!(%error, "the claim of an Idempotency-Key was not renewed; it is tried again");
                }
                Ok(Ok(false) | Err(_)) | Err(_) => return,
            }
        }
    }

    /// Completes the claim with this answer, or gives it up.
    async fn settle(self, kept: Option<Kept>) {
        let settled = match kept.and_then(|kept| kept.written()) {
            Some(answer) => self.once.complete(self.claim, answer).await,
            None => self.once.release(self.claim).await,
        };
        if let Err(error) = settled {
            tracing::warn!(%error, "an answer was not kept for its Idempotency-Key; a repeat is done again once the claim runs out");
        }
    }
}

/// Whether a repeat may end otherwise.
fn may_pass(status: StatusCode) -> bool {
    status.is_server_error()
        || [StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_EARLY, StatusCode::TOO_MANY_REQUESTS]
            .contains(&status)
}

fn lost() -> Problem {
    tracing::warn!("a request was ended: the claim of its Idempotency-Key could not be renewed");
    let detail = "the claim of this Idempotency-Key could not be renewed, and the work was ended; it may have been done: send it \
                  again with the same key";
    Problem::new(Code::StoreUnavailable, detail)
}
