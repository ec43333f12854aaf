//! `/v1/events`, read: found, shown, followed; and `/v1/outbox`, `/v1/outboxes`: what waits there and what stands still.

use axum::body::Bytes;
use axum::extract::{Extension, State};
use axum::routing::{get, post};
use axum::{Json, Router};
use postrider::EventId;
use postrider::envelope::{AggregateId, EventType, OrderingKey, TenantId};
use postrider::store::{OutboxStatus, RowFilter, RowView, Unpark};
use serde::{Deserialize, Serialize};

use super::front::{Front, Path, Query, limit, may_see, place, tenant};
use super::subscriptions::read;
use super::{Caller, Code, Problem};
use crate::desk::events::Timeline;
use crate::desk::outbox::{OutboxReport, Standing};

/// Parked keys that are listed.
const PARKED: usize = 200;

pub(super) fn routes() -> Router<Front> {
    Router::new()
        .route("/events", get(list))
        .route("/events/{id}", get(show))
        .route("/events/{id}/timeline", get(timeline))
        .route("/outbox", get(report))
        .route("/outboxes", get(every))
        .route("/outbox/unpark", post(unpark))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Which {
    #[serde(rename = "type")]
    event_type: Option<EventType>,
    aggregate_type: Option<String>,
    aggregate_id: Option<AggregateId>,
    key: Option<OrderingKey>,
    tenant: Option<TenantId>,
    status: Option<String>,
    outbox: Option<String>,
    cursor: Option<String>,
    limit: Option<usize>,
}

/// Which outbox, by its label or its table; the default one, where none is named.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct OfOutbox {
    outbox: Option<String>,
}

#[derive(Serialize)]
struct Listed {
    events: Vec<RowView>,
    next: Option<String>,
}

async fn list(
    State(front): State<Front>,
    Extension(caller): Extension<Caller>,
    Query(which): Query<Which>,
) -> Result<Json<Listed>, Problem> {
    let status = which.status.as_deref().map(|name| {
        OutboxStatus::from_name(name)
            .ok_or_else(|| Problem::new(Code::InvalidRequest, "status is pending, published, failed or dead"))
    });
    let whole = which.event_type.as_ref().and_then(|whole| whole.as_str().rsplit_once('.'));
    let (of_type, last) = whole.map(|(first, last)| (first.to_owned(), last.to_owned())).unzip();
    let filter = RowFilter {
        status: status.transpose()?,
        key: which.key,
        aggregate_type: which.aggregate_type.or(of_type),
        event_type: last,
        aggregate_id: which.aggregate_id,
        tenant: tenant(&caller, which.tenant)?,
        before: place(which.cursor.as_deref())?,
    };
    let page = front.desk.rows(which.outbox.as_deref(), &filter, limit(which.limit)).await?;
    Ok(Json(Listed { events: page.rows, next: page.next.map(|place| place.to_string()) }))
}

async fn show(
    State(front): State<Front>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<EventId>,
    Query(of): Query<OfOutbox>,
) -> Result<Json<RowView>, Problem> {
    let found = front.desk.row(of.outbox.as_deref(), &id).await?;
    let seen = found.filter(|row| may_see(&caller, row.group_id.as_deref()));
    seen.map(Json).ok_or_else(|| no_event(&id))
}

async fn timeline(
    State(front): State<Front>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<EventId>,
    Query(of): Query<OfOutbox>,
) -> Result<Json<Timeline>, Problem> {
    let found = front.desk.timeline(of.outbox.as_deref(), &id, caller.tenant.as_ref()).await?;
    let seen = found.filter(|story| may_see(&caller, story.tenant.as_deref()));
    seen.map(Json).ok_or_else(|| no_event(&id))
}

/// That it is known nowhere here.
pub(crate) fn no_event(id: &EventId) -> Problem {
    let told = "neither the outbox nor an inbox nor a dead letter nor the books here know this event";
    Problem::new(Code::NotFound, told).about(id)
}

async fn report(
    State(front): State<Front>,
    Query(of): Query<OfOutbox>,
) -> Result<Json<OutboxReport>, Problem> {
    Ok(Json(front.desk.outbox(of.outbox.as_deref(), PARKED).await?))
}

/// One of the outboxes, and how it is.
#[derive(Serialize)]
struct Every {
    status: &'static str,
    #[serde(flatten)]
    standing: Standing,
}

#[derive(Serialize)]
struct All {
    outboxes: Vec<Every>,
}

/// All of them, the default one first. One that is away keeps nobody from seeing the others.
async fn every(State(front): State<Front>) -> Result<Json<All>, Problem> {
    let (standings, now) = (front.desk.outboxes().await?, front.clock.now());
    let every = |standing: Standing| Every { status: standing.status(now), standing };
    Ok(Json(All { outboxes: standings.into_iter().map(every).collect() }))
}

/// What gets new attempts: a key, or one event.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Free {
    key: Option<OrderingKey>,
    id: Option<EventId>,
    outbox: Option<String>,
    reason: String,
}

#[derive(Serialize)]
struct Freed {
    ids: Vec<EventId>,
}

async fn unpark(
    State(front): State<Front>,
    Extension(caller): Extension<Caller>,
    body: Bytes,
) -> Result<Json<Freed>, Problem> {
    let Free { key, id, outbox, reason } = read(&body)?;
    let target = match (key, id) {
        (Some(key), None) => Unpark::Key(key),
        (None, Some(id)) => Unpark::Event(id),
        _ => return Err(Problem::new(Code::InvalidRequest, "name a key, or an event by its id")),
    };
    let ids = front.desk.unpark(outbox.as_deref(), &target, &caller.name(), Some(&reason)).await?;
    Ok(Json(Freed { ids }))
}
