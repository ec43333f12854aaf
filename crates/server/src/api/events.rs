//! `POST /v1/events` and `/v1/events:batch`: events in, committed to the outbox, 202 with their ids.
//!
//! An event is plain JSON or a CloudEvent. A batch is committed in one transaction; an event that cannot be taken says so
//! for itself and keeps no other one out.

mod batch;
mod content;
mod repeat;

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{Extension, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use postrider::spans::{Operation, Span};
use postrider::store::{StoreError, StoreErrorKind};
use postrider::{Event, EventId};
use serde::Serialize;

use self::content::Content;
use super::access::Caller;
use super::problem::{Code, Problem};
use super::{Api, Names};
use crate::event_input::{EventInput, Refused, cloud_event};

/// What became of the event: it is committed, and will be published.
#[derive(Debug, Serialize)]
struct Accepted {
    id: String,
}

/// Commits one event. A repeat is 409 `duplicate_event`, another event under its id 409 `event_conflict`; neither changes
/// anything. Under the id that an `Idempotency-Key` gave it, a repeat is the first request done again, and 202. Who has one address
/// for everything may send a batch of CloudEvents here too.
pub(super) async fn publish(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    names: Names,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Problem> {
    let content = Content::of(&headers)?;
    let body = body.map_err(|rejection| read_failed(&rejection, api.http().max_body_bytes))?;
    let event = match content {
        Content::CloudEvents => return batch::publish(&api, &caller, &names, content, &headers, &body).await,
        Content::Attributes => cloud_event::binary(&headers, body, api.limits),
        Content::CloudEvent => cloud_event::structured(text(&body)?, api.limits),
        Content::Json => plain(text(&body)?, &api),
    };
    let mut event = ready(event, &caller, &headers)?;
    let by_key = name(&mut event, &names, 0);
    let span = begin_span(&mut event, &api);
    let appended = api.backend.append(event.clone()).await;
    end_span(span, &event, &appended, &api);
    let id = match appended {
        Err(error) if error.kind == StoreErrorKind::Duplicate => {
            let problem = repeat::problem(&api, &event).await;
            by_key.filter(|_| problem.is(Code::DuplicateEvent)).ok_or(problem)?
        }
        appended => appended?,
    };
    Ok((StatusCode::ACCEPTED, Json(Accepted { id: id.to_string() })).into_response())
}

/// Commits many events: an array of plain events, or of CloudEvents.
pub(super) async fn publish_batch(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    names: Names,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Problem> {
    let content = Content::of(&headers)?;
    if !matches!(content, Content::Json | Content::CloudEvents) {
        let detail = "a batch is an array, as application/json or application/cloudevents-batch+json";
        return Err(Problem::new(Code::UnsupportedMediaType, detail));
    }
    let body = body.map_err(|rejection| read_failed(&rejection, api.http().max_body_bytes))?;
    batch::publish(&api, &caller, &names, content, &headers, &body).await
}

fn plain(json: &str, api: &Api) -> Result<Event, Refused> {
    EventInput::read(json)?.into_event(api.limits)
}

/// The event as the caller may publish it, with the trace of the request if it has none of its own.
fn ready(event: Result<Event, Refused>, caller: &Caller, headers: &HeaderMap) -> Result<Event, Problem> {
    let mut event = event.map_err(|why| refused(&why))?;
    keep_to_tenant(&mut event, caller)?;
    if event.trace.traceparent.is_none() {
        // What is longer is no trace, and would keep the event from being published.
        let header = |name: &str, most: usize| {
            let text = headers.get(name).and_then(|value| value.to_str().ok());
            text.filter(|text| text.len() <= most).map(str::to_owned)
        };
        event.trace.traceparent = header("traceparent", cloud_event::SHORT);
        let has_parent = event.trace.traceparent.is_some();
        event.trace.tracestate = header("tracestate", cloud_event::LONGEST_STATE).filter(|_| has_parent);
    }
    Ok(event)
}

/// Gives an event without an id the one that the request's key has for its place. That id, if it did.
fn name(event: &mut Event, names: &Names, place: usize) -> Option<EventId> {
    if event.id.is_none() {
        event.id = names.event(place);
        return event.id.clone();
    }
    None
}

/// Where spans are exported, the commit is one, and the event's own context is that span: a trace begins here if the caller has
/// none.
fn begin_span(event: &mut Event, api: &Api) -> Option<Span> {
    let span = match event.trace.traceparent.as_deref() {
        None => Span::root(&api.clock),
        given => Span::under(given, &api.clock),
    }?;
    event.trace.traceparent = Some(span.own.clone());
    Some(span)
}

fn end_span(span: Option<Span>, event: &Event, appended: &Result<EventId, StoreError>, api: &Api) {
    let Some(span) = span else { return };
    let (id, error) = match appended {
        Ok(id) => (id.as_str(), None),
        Err(error) if error.kind == StoreErrorKind::Duplicate => ("", Some("duplicate")),
        Err(_) => ("", Some("store")),
    };
    span.end(Operation::Create, event.event_type.as_str(), id, error, &api.clock);
}

fn text(body: &[u8]) -> Result<&str, Problem> {
    std::str::from_utf8(body).map_err(|error| {
        let detail = format!("the byte at {} is not UTF-8; JSON is", error.valid_up_to());
        Problem::new(Code::InvalidUtf8, detail)
    })
}

pub(super) fn read_failed(rejection: &BytesRejection, max: usize) -> Problem {
    if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE {
        return Problem::too_large(max);
    }
    Problem::new(Code::InvalidJson, "the body ended early")
}

fn refused(why: &Refused) -> Problem {
    let code = match why {
        Refused::TooLarge { .. } => Code::PayloadTooLarge,
        Refused::TooDeep { .. } => Code::TooDeep,
        Refused::KeyTwice(_) => Code::DuplicateKey,
        Refused::NotJson(_) | Refused::NotAnEvent(_) => Code::InvalidJson,
        Refused::Text(_) | Refused::Nul => Code::InvalidEvent,
    };
    Problem::new(code, why.to_string())
}

/// A token for one tenant publishes for that tenant only.
fn keep_to_tenant(event: &mut Event, caller: &Caller) -> Result<(), Problem> {
    let Some(own) = &caller.tenant else { return Ok(()) };
    match &event.tenant.group {
        Some(other) if other != own => {
            Err(Problem::new(Code::Forbidden, format!("the token is for the tenant {own} alone")))
        }
        _ => {
            event.tenant.group = Some(own.clone());
            Ok(())
        }
    }
}
