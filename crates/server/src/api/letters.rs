//! `/v1/dlq/…`: dead letters by group and one by one, and corrected.

use axum::body::Bytes;
use axum::extract::{Extension, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use jiff::Timestamp;
use postrider::dead_letter::{FailedAttempt, failed_attempts};
use postrider::envelope::{AggregateId, EventId, TenantId};
use postrider::store::{
    Cursor, DeadLetter, GroupQuery, LetterFilter, LetterGroup, LetterId, LetterQuery, LetterStatus,
    LetterSummary, LogEntry, Turn,
};
use postrider::topology::{ConsumerName, QueueName};
use serde::{Deserialize, Serialize};

use super::front::{Front, Path, Query, limit, may_see, place, tenant};
use super::subscriptions::read;
use super::{Caller, Code, Problem, time_asked};
use crate::desk::letters::{no_letter, read_place, write_place};

pub(super) fn routes() -> Router<Front> {
    Router::new()
        .route("/dlq/groups", get(groups))
        .route("/dlq/messages", get(messages))
        .route("/dlq/messages/{id}", get(message))
        .route("/dlq/messages/{id}/edit", post(edit))
}

/// Which letters, in a query.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Which {
    consumer: Option<ConsumerName>,
    queue: Option<QueueName>,
    #[serde(rename = "type")]
    event_type: Option<String>,
    event_id: Option<EventId>,
    reason: Option<String>,
    error_class: Option<String>,
    fingerprint: Option<String>,
    tenant: Option<TenantId>,
    aggregate_id: Option<AggregateId>,
    text: Option<String>,
    since: Option<String>,
    until: Option<String>,
    min_attempts: Option<u32>,
    max_attempts: Option<u32>,
    /// `open`, `replayed`, `discarded` or `all`; open if nobody says.
    status: Option<String>,
    cursor: Option<String>,
    limit: Option<usize>,
}

impl Which {
    fn filter(&self, caller: &Caller, now: Timestamp) -> Result<LetterFilter, Problem> {
        let which = self.clone();
        let time = |text: Option<String>| text.map(|text| time_asked(&text, now)).transpose();
        let status = match which.status.as_deref() {
            None => Some(LetterStatus::Open),
            Some("all") => None,
            Some(name) => Some(LetterStatus::from_name(name).ok_or_else(|| {
                Problem::new(Code::InvalidRequest, "status is open, replayed, discarded or all")
            })?),
        };
        Ok(LetterFilter {
            consumer: which.consumer,
            queue: which.queue,
            event_type: which.event_type,
            event_id: which.event_id,
            reason: which.reason,
            error_class: which.error_class,
            fingerprint: which.fingerprint,
            tenant: tenant(caller, which.tenant)?,
            aggregate_id: which.aggregate_id,
            text: which.text.filter(|text| !text.is_empty()),
            since: time(which.since)?,
            until: time(which.until)?,
            min_attempts: which.min_attempts,
            max_attempts: which.max_attempts,
            status,
            ..LetterFilter::default()
        })
    }
}

/// Reads a query, and what the words in it mean.
#[cfg(any(test, fuzzing))]
pub(crate) fn asked(query: &str, now: Timestamp) {
    let Ok(uri) = format!("/?{query}").parse() else { return };
    let Ok(axum::extract::Query(which)) = axum::extract::Query::<Which>::try_from_uri(&uri) else { return };
    let caller = Caller { role: postrider::store::TokenRole::Viewer, tenant: None, token: None };
    let filter = which.filter(&caller, now).err();
    let place = place::<Cursor>(which.cursor.as_deref()).err();
    assert!(filter.iter().chain(&place).all(|problem| !problem.detail().is_empty()));
    assert!(limit(which.limit) > 0);
}

#[derive(Serialize)]
struct GroupList {
    groups: Vec<LetterGroup>,
    next: Option<String>,
    stopped_at: Option<Timestamp>,
}

async fn groups(
    State(front): State<Front>,
    Extension(caller): Extension<Caller>,
    Query(which): Query<Which>,
) -> Result<Json<GroupList>, Problem> {
    let now = front.clock.now();
    let filter = which.filter(&caller, now)?;
    if filter.status.is_some_and(|status| status != LetterStatus::Open) {
        let told = "groups count what is open and what there ever was: status is open or all";
        return Err(Problem::new(Code::InvalidRequest, told));
    }
    let no_place = || Problem::new(Code::InvalidRequest, "the cursor is no place in this list");
    let after = which.cursor.as_deref().map(|text| read_place(text).ok_or_else(no_place)).transpose()?;
    let query = GroupQuery { filter, after, limit: limit(which.limit), hours: 24, now };
    let page = front.desk.groups(&query).await?;
    let next = page.next.as_ref().map(write_place);
    Ok(Json(GroupList { groups: page.groups, next, stopped_at: page.stopped_at }))
}

#[derive(Serialize)]
struct LetterList {
    messages: Vec<LetterSummary>,
    next: Option<String>,
    /// The search looked at enough and stopped here; `next` goes on.
    stopped_at: Option<Timestamp>,
}

async fn messages(
    State(front): State<Front>,
    Extension(caller): Extension<Caller>,
    Query(which): Query<Which>,
) -> Result<Json<LetterList>, Problem> {
    let filter = which.filter(&caller, front.clock.now())?;
    let turn = place::<Cursor>(which.cursor.as_deref())?.map_or(Turn::Newest, Turn::Before);
    let page = front.desk.letters(&LetterQuery { filter, turn, limit: limit(which.limit) }).await?;
    let next = page.next.map(|cursor| cursor.to_string());
    Ok(Json(LetterList { messages: page.letters, next, stopped_at: page.stopped_at }))
}

/// A dead letter, whole: `letter` is what `postrider dlq import` reads.
#[derive(Serialize)]
struct Whole {
    #[serde(flatten)]
    summary: LetterSummary,
    /// The body as text, where it is text.
    body: Option<String>,
    letter: DeadLetter,
    /// The attempts before the last one: the newest ten.
    failed_attempts: Vec<FailedAttempt>,
    log: Vec<LogEntry>,
}

async fn message(
    State(front): State<Front>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<LetterId>,
) -> Result<Json<Whole>, Problem> {
    let found = front.desk.letter(id).await?.ok_or_else(|| no_letter(id))?;
    if !may_see(&caller, found.stored.summary.tenant.as_deref()) {
        return Err(no_letter(id));
    }
    let body = std::str::from_utf8(&found.stored.letter.body).ok().map(str::to_owned);
    let failed_attempts = failed_attempts(&found.stored.letter.headers);
    let (summary, letter) = (found.stored.summary, found.stored.letter);
    Ok(Json(Whole { summary, body, letter, failed_attempts, log: found.log }))
}

/// A correction.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Edit {
    /// The new payload, as text.
    payload: String,
    reason: String,
}

#[derive(Serialize)]
struct Sent {
    id: String,
}

async fn edit(
    State(front): State<Front>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<LetterId>,
    body: Bytes,
) -> Result<(StatusCode, Json<Sent>), Problem> {
    let Edit { payload, reason } = read(&body)?;
    let found = front.desk.letter(id).await?.ok_or_else(|| no_letter(id))?;
    if !may_see(&caller, found.stored.summary.tenant.as_deref()) {
        return Err(no_letter(id));
    }
    let new = front.desk.edit(id, payload.into(), &caller.name(), Some(&reason)).await?;
    Ok((StatusCode::ACCEPTED, Json(Sent { id: new.to_string() })))
}
