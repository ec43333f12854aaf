//! `/v1/consumers`: what waits for each; paused, resumed, and keys let go.

use axum::body::Bytes;
use axum::extract::{Extension, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use postrider::envelope::OrderingKey;
use postrider::store::HeldKey;
use postrider::topology::ConsumerName;
use serde::{Deserialize, Serialize};

use super::front::{Changed, Front, Path, Why};
use super::subscriptions::{read, read_or_default};
use super::{Caller, Problem};
use crate::desk::consumers::ConsumerRow;

pub(super) fn routes() -> Router<Front> {
    Router::new()
        .route("/consumers", get(list))
        .route("/consumers/{name}/pause", post(pause))
        .route("/consumers/{name}/resume", post(resume))
        .route("/consumers/{name}/held", get(held))
        .route("/consumers/{name}/release", post(release))
}

#[derive(Serialize)]
struct Listed {
    consumers: Vec<ConsumerRow>,
}

async fn list(State(front): State<Front>) -> Result<Json<Listed>, Problem> {
    Ok(Json(Listed { consumers: front.desk.consumers_closely().await? }))
}

async fn pause(
    State(front): State<Front>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<ConsumerName>,
    body: Bytes,
) -> Result<Json<Changed>, Problem> {
    let Why { reason } = read_or_default(&body)?;
    Ok(Json(Changed { changed: front.desk.pause(&name, &caller.name(), &reason).await? }))
}

async fn resume(
    State(front): State<Front>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<ConsumerName>,
    body: Bytes,
) -> Result<Json<Changed>, Problem> {
    let Why { reason } = read_or_default(&body)?;
    Ok(Json(Changed { changed: front.desk.resume(&name, &caller.name(), &reason).await? }))
}

#[derive(Serialize)]
struct HeldKeys {
    keys: Vec<HeldKey>,
}

async fn held(State(front): State<Front>, Path(name): Path<ConsumerName>) -> Result<Json<HeldKeys>, Problem> {
    Ok(Json(HeldKeys { keys: front.desk.held(Some(&name)).await? }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Release {
    key: OrderingKey,
    #[serde(default)]
    reason: String,
}

async fn release(
    State(front): State<Front>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<ConsumerName>,
    body: Bytes,
) -> Result<StatusCode, Problem> {
    let Release { key, reason } = read(&body)?;
    front.desk.release(&name, &key, &caller.name(), &reason).await?;
    Ok(StatusCode::NO_CONTENT)
}
