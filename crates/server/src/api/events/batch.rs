//! Many events in one request: one transaction for all that can be taken, and an answer for each.

use std::collections::HashSet;

use axum::Json;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use postrider::spans::{Operation, Span};
use postrider::store::StoreErrorKind;
use postrider::{Event, EventId};
use serde::Serialize;
use serde_json::value::RawValue;

use super::content::Content;
use super::{begin_span, name, plain, ready, repeat, text};
use crate::api::access::Caller;
use crate::api::problem::{Code, Problem};
use crate::api::{Api, Names};
use crate::event_input::cloud_event;

/// What became of a batch. The events are in the order of the request.
#[derive(Debug, Serialize)]
struct Answer {
    accepted: usize,
    duplicates: usize,
    refused: usize,
    events: Vec<Told>,
}

/// What became of one event.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "status", rename_all = "snake_case")]
enum Told {
    /// It is committed.
    Accepted { id: String },
    /// One with this id was committed before; nothing was written for it now.
    Duplicate { id: String },
    /// It cannot be taken as it is, or its id is another event's.
    Refused { code: &'static str, detail: String },
}

impl Told {
    fn of(why: &Problem) -> Self {
        Self::Refused { code: why.code(), detail: why.detail().to_owned() }
    }
}

/// Commits what can be. 202 if nothing was refused, 207 if something was: `events` says what.
///
/// A crash before the answer leaves all or nothing committed, but for a batch with duplicates, whose events are committed
/// one by one. Either way the same batch can be sent again: what was committed under its id is a duplicate then, and what
/// was committed under the id that the request's key gave it is accepted as it was.
pub(super) async fn publish(
    api: &Api,
    caller: &Caller,
    names: &Names,
    content: Content,
    headers: &HeaderMap,
    body: &[u8],
) -> Result<Response, Problem> {
    let events: Vec<&RawValue> = serde_json::from_str(text(body)?)
        .map_err(|error| Problem::new(Code::InvalidJson, format!("not an array of events: {error}")))?;
    let most = api.limits.max_batch_events;
    if events.len() > most {
        let detail = format!(
            "the batch has {} events, more than the {most} allowed (limits.max_batch_events)",
            events.len()
        );
        return Err(Problem::new(Code::TooManyEvents, detail));
    }
    let read = |event: &&RawValue| {
        let event = match content {
            Content::CloudEvents => cloud_event::structured(event.get(), api.limits),
            _ => plain(event.get(), api),
        };
        ready(event, caller, headers)
    };
    let (mut good, mut refused) = (Vec::with_capacity(events.len()), Vec::new());
    let mut by_key = HashSet::new();
    for (place, event) in events.iter().enumerate() {
        match read(event) {
            Ok(mut event) => {
                by_key.extend(name(&mut event, names, place));
                good.push(event);
            }
            Err(why) => refused.push((place, Told::of(&why))),
        }
    }
    let mut told = commit_traced(api, good, &by_key).await?;
    for (place, refused) in refused {
        told.insert(place, refused);
    }
    Ok(answer(told))
}

/// Where spans are exported, the commit of each event is one of its own, as if it had come alone.
async fn commit_traced(
    api: &Api,
    mut events: Vec<Event>,
    by_key: &HashSet<EventId>,
) -> Result<Vec<Told>, Problem> {
    let begun = |event: &mut Event| Some((begin_span(event, api)?, event.event_type.to_string()));
    let spans: Vec<Option<(Span, String)>> = events.iter_mut().map(begun).collect();
    let committed = commit(api, events, by_key).await;
    for (place, span) in spans.into_iter().enumerate() {
        let Some((span, event_type)) = span else { continue };
        let (id, error) = match committed.as_ref().ok().and_then(|told| told.get(place)) {
            Some(Told::Accepted { id }) => (id.as_str(), None),
            Some(Told::Duplicate { .. }) => ("", Some("duplicate")),
            Some(Told::Refused { code, .. }) => ("", Some(*code)),
            None => ("", Some("store")),
        };
        span.end(Operation::Create, &event_type, id, error, &api.clock);
    }
    committed
}

fn answer(events: Vec<Told>) -> Response {
    let count = |so: fn(&Told) -> bool| events.iter().filter(|told| so(told)).count();
    let refused = count(|told| matches!(told, Told::Refused { .. }));
    let accepted = count(|told| matches!(told, Told::Accepted { .. }));
    let duplicates = count(|told| matches!(told, Told::Duplicate { .. }));
    let status = if refused == 0 { StatusCode::ACCEPTED } else { StatusCode::MULTI_STATUS };
    (status, Json(Answer { accepted, duplicates, refused, events })).into_response()
}

/// All in one transaction. Only if one of them was committed before, each in its own.
async fn commit(api: &Api, events: Vec<Event>, by_key: &HashSet<EventId>) -> Result<Vec<Told>, Problem> {
    if events.is_empty() {
        return Ok(Vec::new());
    }
    match api.backend.append_all(events.clone()).await {
        Ok(ids) => return Ok(ids.into_iter().map(|id| Told::Accepted { id: id.to_string() }).collect()),
        Err(error) if error.kind == StoreErrorKind::Duplicate => {}
        Err(error) => return Err(error.into()),
    }
    let mut told = Vec::with_capacity(events.len());
    for event in events {
        told.push(match api.backend.append(event.clone()).await {
            Ok(id) => Told::Accepted { id: id.to_string() },
            Err(error) if error.kind == StoreErrorKind::Duplicate => {
                repeated(repeat::problem(api, &event).await, &event, by_key)?
            }
            Err(error) => return Err(error.into()),
        });
    }
    Ok(told)
}

/// A repeat is no mistake; another event under a known id is.
fn repeated(problem: Problem, event: &Event, by_key: &HashSet<EventId>) -> Result<Told, Problem> {
    match (problem.is(Code::DuplicateEvent), &event.id) {
        (true, Some(id)) if by_key.contains(id) => Ok(Told::Accepted { id: id.to_string() }),
        (true, Some(id)) => Ok(Told::Duplicate { id: id.to_string() }),
        _ if problem.is(Code::EventConflict) => Ok(Told::of(&problem)),
        _ => Err(problem),
    }
}
