//! What stands around every route: an id, a log line and a measurement; limits of time, number and size; panics caught.

use std::any::Any;
use std::pin::Pin;
use std::sync::Arc;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use tokio::sync::OwnedSemaphorePermit;
use tracing::Instrument as _;

use super::Api;
use super::problem::{Code, Problem};

const REQUEST_ID: &str = "x-request-id";
/// What the lines of the access log are told under, so that they can be turned off and nothing else is: `postrider::api=warn`.
const ACCESS_LOG: &str = "postrider::api";
/// No refusal has more to say.
const LONGEST_WORDS: usize = 4096;

/// Gives each request an id (the client's own, if it sent one), and logs and measures it. Never the query or the body.
pub(super) async fn observe(State(api): State<Api>, request: Request, next: Next) -> Response {
    let id = request_id(&request).unwrap_or_else(|| fresh_id(&api));
    let method = request.method().clone();
    let route = request.extensions().get::<MatchedPath>().map_or("none", MatchedPath::as_str).to_owned();
    let span = tracing::info_span!("request", id = id.to_str().unwrap_or(""), %method, route);
    let started = api.clock.monotonic();
    let mut response = next.run(request).instrument(span.clone()).await;
    let took = api.clock.monotonic().saturating_sub(started);
    let status = response.status().as_u16();
    span.in_scope(|| {
        // Probes and scrapes come every few seconds for ever, and say nothing while they succeed.
        if status < 400 && (route.starts_with("/v1/health") || route == "/v1/metrics") {
            tracing::debug!(target: ACCESS_LOG, status, took_ms = took.as_millis(), "answered");
        } else {
            tracing::info!(target: ACCESS_LOG, status, took_ms = took.as_millis(), "answered");
        }
    });
    let labels = [("route", route), ("method", method_label(&method)), ("status", status.to_string())];
    metrics::counter!("postrider_http_requests_total", &labels).increment(1);
    metrics::histogram!("postrider_http_request_duration_seconds", &labels[..1]).record(took.as_secs_f64());
    response.headers_mut().insert(REQUEST_ID, id);
    response
}

/// A client can send any word as a method; a label has a few.
fn method_label(method: &axum::http::Method) -> String {
    match method.as_str() {
        known @ ("GET" | "POST" | "PUT" | "PATCH" | "DELETE" | "HEAD" | "OPTIONS") => known.to_owned(),
        _ => "other".to_owned(),
    }
}

fn request_id(request: &Request) -> Option<HeaderValue> {
    let id = request.headers().get(REQUEST_ID)?;
    let plain = id
        .to_str()
        .is_ok_and(|text| (1..=128).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic()));
    plain.then(|| id.clone())
}

fn fresh_id(api: &Api) -> HeaderValue {
    HeaderValue::from_str(&api.clock.new_id().to_string()).unwrap_or(HeaderValue::from_static("none"))
}

/// Ends a request that takes too long. What it was doing may have been committed.
pub(super) async fn time_limit(State(api): State<Api>, request: Request, next: Next) -> Response {
    let limit = api.http().request_timeout();
    if let Ok(response) = tokio::time::timeout(limit, next.run(request)).await {
        return response;
    }
    let limit = limit.as_millis();
    let detail =
        format!("no answer within {limit} ms; it may have been done: ask, or repeat it with the same id");
    Problem::new(Code::TimedOut, detail).into_response()
}

/// A request's place among those that are worked on. Work that outlives its request keeps it.
#[derive(Clone)]
pub(super) struct Slot {
    _place: Arc<OwnedSemaphorePermit>,
}

/// Answers at once that there is too much to do, rather than late.
pub(super) async fn slots(State(api): State<Api>, mut request: Request, next: Next) -> Response {
    let Ok(place) = api.slots.clone().try_acquire_owned() else {
        let detail =
            format!("{} requests are being worked on; try again soon", api.http().max_concurrent_requests);
        return Problem::new(Code::Overloaded, detail).into_response();
    };
    let slot = Slot { _place: Arc::new(place) };
    request.extensions_mut().insert(slot.clone());
    let response = next.run(request).await;
    drop(slot);
    response
}

type Answer = Pin<Box<dyn Future<Output = Response> + Send>>;

/// Refuses a body that says it is too large before a byte of it is read. One that lies is cut off while it is read.
pub(super) fn declared_length(max: usize) -> impl Fn(Request, Next) -> Answer + Clone {
    move |request, next| {
        let length =
            request.headers().get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
        let too_large = length.is_some_and(|length: usize| length > max);
        Box::pin(async move {
            if too_large { Problem::too_large(max).into_response() } else { next.run(request).await }
        })
    }
}

/// Answers with a problem what the framework refuses in plain words.
pub(super) async fn as_problems(request: Request, next: Next) -> Response {
    plain_refusal(next.run(request).await).await.map_or_else(|response| response, Problem::into_response)
}

/// The problem in a refusal without one: of a path, a query or a body that cannot be read. Any other response as it is.
pub(crate) async fn plain_refusal(response: Response) -> Result<Problem, Response> {
    let status = response.status();
    let kind = response.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    if !status.is_client_error() || kind.is_some_and(|kind| !kind.starts_with("text/plain")) {
        return Err(response);
    }
    let code = match status {
        StatusCode::NOT_FOUND => Code::NotFound,
        StatusCode::METHOD_NOT_ALLOWED => Code::MethodNotAllowed,
        StatusCode::PAYLOAD_TOO_LARGE => Code::PayloadTooLarge,
        StatusCode::UNSUPPORTED_MEDIA_TYPE => Code::UnsupportedMediaType,
        _ => Code::InvalidRequest,
    };
    let told = axum::body::to_bytes(response.into_body(), LONGEST_WORDS).await.unwrap_or_default();
    let told = String::from_utf8_lossy(&told);
    Ok(Problem::new(code, if told.is_empty() { "it cannot be read; nothing was changed" } else { &told }))
}

/// A bug: logged here, told without detail.
#[allow(clippy::needless_pass_by_value, reason = "the layer hands it over like this")]
pub(super) fn panicked(panic: Box<dyn Any + Send>) -> Response {
    let text =
        panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    tracing::error!(panic = text.unwrap_or("no text"), "a request panicked; this is a bug");
    Problem::new(Code::Internal, "this is a bug; the log of the process has the reason").into_response()
}
