//! `/v1/subscriptions`: push endpoints, without their secrets; made, tested, rotated and removed.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{Extension, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use postrider::envelope::EventId;
use postrider::push::Attempt;
use postrider::topology::ConsumerName;
use serde::{Deserialize, Serialize};

use super::Api;
use super::access::Caller;
use super::front::{Changed, Path, Query, Why};
use super::problem::{Code, Problem};
use crate::config::{OLD_SECRET_STAYS, PushForm};
use crate::event_input::Members;
use crate::push_desk::{DeskError, PushDesk, Row, Shown, Signing, Tested};
use crate::wiring::WholeStore;

/// The most rows of a list.
const MOST: u32 = 200;

type Desk<S> = State<Arc<PushDesk<S>>>;
type Named = Path<ConsumerName>;

/// The routes. A token for one tenant has no part in them: a queue has everybody's events.
pub(crate) fn routes<S: WholeStore>(desk: PushDesk<S>) -> Router<Api> {
    Router::new()
        .route("/subscriptions", get(list::<S>).post(add::<S>))
        .route("/subscriptions/{name}", get(show::<S>).delete(remove::<S>))
        .route("/subscriptions/{name}/attempts", get(attempts::<S>))
        .route("/subscriptions/{name}/test", post(test::<S>))
        .route("/subscriptions/{name}/pause", post(pause::<S>))
        .route("/subscriptions/{name}/resume", post(resume::<S>))
        .route("/subscriptions/{name}/rotate-secret", post(rotate::<S>))
        .with_state(Arc::new(desk))
}

#[derive(Serialize)]
struct Listed {
    subscriptions: Vec<Row>,
}

async fn list<S: WholeStore>(State(desk): Desk<S>) -> Result<Json<Listed>, Problem> {
    Ok(Json(Listed { subscriptions: desk.rows().await? }))
}

async fn show<S: WholeStore>(State(desk): Desk<S>, Path(name): Named) -> Result<Json<Row>, Problem> {
    let found = desk.rows().await?.into_iter().find(|row| row.name == name.as_str());
    found.map(Json).ok_or_else(|| DeskError::Unknown(name).into())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Which {
    event_id: Option<EventId>,
    limit: Option<u32>,
}

#[derive(Serialize)]
struct Tried {
    attempts: Vec<Attempt>,
}

async fn attempts<S: WholeStore>(
    State(desk): Desk<S>,
    Path(name): Named,
    Query(which): Query<Which>,
) -> Result<Json<Tried>, Problem> {
    let limit = which.limit.unwrap_or(MOST).min(MOST);
    let attempts = desk.attempts(&name, which.event_id.as_ref(), limit).await?;
    Ok(Json(Tried { attempts }))
}

/// A subscription, and what signs it.
#[derive(Deserialize)]
struct New {
    #[serde(default)]
    signing: Signing,
    /// Why, for the audit log.
    #[serde(default)]
    reason: String,
    #[serde(flatten)]
    form: Members,
}

async fn add<S: WholeStore>(
    State(desk): Desk<S>,
    Extension(caller): Extension<Caller>,
    body: Bytes,
) -> Result<(StatusCode, Json<Shown>), Problem> {
    let New { signing, reason, form } = read(&body)?;
    let form: PushForm = serde_json::from_value(form.0.into()).map_err(|error| unreadable(&error))?;
    let mut shown = desk.add(&form, signing, &caller.name(), &reason).await?;
    // Well within the time of a request: the secret is in this answer and in no other.
    let longest = desk.config.now().settings.http.request_timeout() / 3;
    shown.bound = desk.bound(&form, longest).await;
    Ok((StatusCode::CREATED, Json(shown)))
}

async fn remove<S: WholeStore>(
    State(desk): Desk<S>,
    Extension(caller): Extension<Caller>,
    Path(name): Named,
    Query(Why { reason }): Query<Why>,
) -> Result<StatusCode, Problem> {
    desk.remove(&name, &caller.name(), &reason).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Rotate {
    /// Absent: as the newest secret does.
    signing: Option<Signing>,
    /// How long the old secret signs still.
    old_stays_ms: Option<u64>,
    reason: String,
}

async fn rotate<S: WholeStore>(
    State(desk): Desk<S>,
    Extension(caller): Extension<Caller>,
    Path(name): Named,
    body: Bytes,
) -> Result<Json<Shown>, Problem> {
    let asked: Rotate = read_or_default(&body)?;
    let stays = asked.old_stays_ms.map_or(OLD_SECRET_STAYS, Duration::from_millis);
    Ok(Json(desk.rotate(&name, asked.signing, stays, &caller.name(), &asked.reason).await?))
}

async fn test<S: WholeStore>(
    State(desk): Desk<S>,
    Extension(caller): Extension<Caller>,
    Path(name): Named,
) -> Result<Json<Tested>, Problem> {
    Ok(Json(desk.test(&name, &caller.name()).await?))
}

async fn pause<S: WholeStore>(
    State(desk): Desk<S>,
    Extension(caller): Extension<Caller>,
    Path(name): Named,
    body: Bytes,
) -> Result<Json<Changed>, Problem> {
    let why: Why = read_or_default(&body)?;
    desk.find(&name).await?;
    let changed = desk.store.pause(&name, &caller.name(), &why.reason).await?;
    Ok(Json(Changed { changed }))
}

async fn resume<S: WholeStore>(
    State(desk): Desk<S>,
    Extension(caller): Extension<Caller>,
    Path(name): Named,
    body: Bytes,
) -> Result<Json<Changed>, Problem> {
    let why: Why = read_or_default(&body)?;
    desk.find(&name).await?;
    let changed = desk.store.resume(&name, &caller.name(), &why.reason).await?;
    Ok(Json(Changed { changed }))
}

/// Reads a small body that is an object; an array of its members in their order would do for serde, and is none. What it says of secrets is
/// not repeated in the error.
pub(super) fn read<T: serde::de::DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    if body.trim_ascii_start().starts_with(b"[") {
        return Err(Problem::new(
            Code::InvalidJson,
            "the body cannot be read: it is an array, and an object is wanted",
        ));
    }
    serde_json::from_slice(body).map_err(|error| unreadable(&error))
}

pub(super) fn read_or_default<T: serde::de::DeserializeOwned + Default>(body: &[u8]) -> Result<T, Problem> {
    if body.is_empty() { Ok(T::default()) } else { read(body) }
}

fn unreadable(error: &serde_json::Error) -> Problem {
    Problem::new(Code::InvalidJson, format!("the body cannot be read: {error}"))
}

impl From<DeskError> for Problem {
    fn from(error: DeskError) -> Self {
        let told = error.to_string();
        match error {
            DeskError::Store(error) => error.into(),
            DeskError::Unknown(_) => Self::new(Code::NotFound, told),
            DeskError::Taken(_) | DeskError::Configured(_) => Self::new(Code::Conflict, told),
            DeskError::Invalid(_) => Self::new(Code::InvalidRequest, told),
        }
    }
}
