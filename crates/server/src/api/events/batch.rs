//! Many events in one request: one transaction for all that can be taken, and an answer for each.

use std::collections::{HashMap, HashSet};

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
/// A crash before the answer leaves all or nothing committed, but where others commit some of the same events at the same moment. Either
/// way the same batch can be sent again: what was committed under its id is a duplicate then, and what was committed under the id that
/// the request's key gave it is accepted as it was.
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

/// So often what was committed before is told from what was not. The third time is for who commits the same events at this very moment.
const ROUNDS: usize = 3;

/// All in one transaction, but for what was committed before: whoever did not get his answer sends everything again, and shall not wait for
/// each of them.
async fn commit(api: &Api, events: Vec<Event>, by_key: &HashSet<EventId>) -> Result<Vec<Told>, Problem> {
    let mut told = vec![None; events.len()];
    let mut left: Vec<Placed> = events.into_iter().enumerate().collect();
    for round in 0..ROUNDS {
        if round > 0 {
            left = tell_known(api, left, by_key, &mut told).await?;
        }
        if left.is_empty() {
            break;
        }
        let (firsts, repeats) = firsts(left);
        match api.backend.append_all(firsts.iter().map(|(_, event)| event.clone()).collect()).await {
            Ok(ids) => {
                for ((place, _), id) in firsts.iter().zip(ids) {
                    told[*place] = Some(Told::Accepted { id: id.to_string() });
                }
                left = repeats;
            }
            Err(error) if error.kind == StoreErrorKind::Duplicate => {
                left = firsts.into_iter().chain(repeats).collect();
                left.sort_by_key(|(place, _)| *place);
            }
            Err(error) => return Err(error.into()),
        }
    }
    // Others are in the way, or the outbox knows an id and not what it said.
    for (place, event) in left {
        told[place] = Some(alone(api, event, by_key).await?);
    }
    Ok(told.into_iter().flatten().collect())
}

/// An event, and its place in the batch.
type Placed = (usize, Event);

/// Tells of those that were committed before, and returns the others.
async fn tell_known(
    api: &Api,
    events: Vec<Placed>,
    by_key: &HashSet<EventId>,
    told: &mut [Option<Told>],
) -> Result<Vec<Placed>, Problem> {
    let ids: Vec<_> = events.iter().filter_map(|(_, event)| event.id.clone()).collect();
    let known = if ids.is_empty() { HashMap::new() } else { api.backend.committed(&ids).await? };
    let mut others = Vec::new();
    for (place, event) in events {
        match event.id.as_ref().and_then(|id| known.get(id)) {
            Some(said) => {
                told[place] = Some(repeated(repeat::told(Some(said), &event), &event, by_key)?);
            }
            None => others.push((place, event)),
        }
    }
    Ok(others)
}

/// The first of each id, and those that come after one of the same id: once that is committed they are repeats of it, or conflicts.
fn firsts(events: Vec<Placed>) -> (Vec<Placed>, Vec<Placed>) {
    let mut ids = HashSet::new();
    events.into_iter().partition(|(_, event)| event.id.clone().is_none_or(|id| ids.insert(id)))
}

/// One in a transaction of its own.
async fn alone(api: &Api, event: Event, by_key: &HashSet<EventId>) -> Result<Told, Problem> {
    match api.backend.append(event.clone()).await {
        Ok(id) => Ok(Told::Accepted { id: id.to_string() }),
        Err(error) if error.kind == StoreErrorKind::Duplicate => {
            repeated(repeat::problem(api, &event).await, &event, by_key)
        }
        Err(error) => Err(error.into()),
    }
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
