//! `/v1/plans` and `/v1/operations`: see what would be done, then have it done, and how far it is.

use axum::body::Bytes;
use axum::extract::{Extension, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use postrider::envelope::Payload;
use postrider::store::Operation;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::front::{Front, Path, Query, Why, limit, place};
use super::subscriptions::{read, read_or_default};
use super::{Caller, Code, Names, Problem};
use crate::desk::Desk;
use crate::desk::operations::{Asked, Planned, no_operation};

/// Pages of operations that are looked through for one of a tenant's own, and the least that each of them has, however short the page that
/// was asked for.
const PASSED_OVER: usize = 20;
const AT_ONCE: usize = 200;

pub(super) fn routes() -> Router<Front> {
    Router::new()
        .route("/plans", post(plan))
        .route("/operations", get(list).post(start))
        .route("/operations/{id}", get(show))
        .route("/operations/{id}/cancel", post(cancel))
}

async fn plan(
    State(front): State<Front>,
    Extension(caller): Extension<Caller>,
    body: Bytes,
) -> Result<Json<Planned>, Problem> {
    let mut asked: Asked = read(&body)?;
    asked.keep_to(caller.tenant.as_ref())?;
    is_kept_exactly(&asked, &body)?;
    Ok(Json(front.desk.plan(&asked).await?))
}

/// Refuses a correction with a number that was read as another one: it would be sent on as that.
fn is_kept_exactly(asked: &Asked, body: &[u8]) -> Result<(), Problem> {
    let hash = |bytes: Vec<u8>| Payload::new("application/json", bytes).hash();
    let read =
        || serde_json::from_slice::<serde_json::Value>(body).map(|value| value.to_string().into_bytes());
    if asked.edit.is_none() || read().is_ok_and(|read| hash(read) == hash(body.to_vec())) {
        return Ok(());
    }
    let told =
        "a number in the correction has more digits than are kept exactly; write it as text, or with fewer";
    Err(Problem::new(Code::InvalidRequest, told))
}

/// What a plan answered with, and why it is wanted.
#[derive(Deserialize)]
struct Wanted {
    reason: String,
    #[serde(flatten)]
    asked: serde_json::Map<String, serde_json::Value>,
}

async fn start(
    State(front): State<Front>,
    Extension(caller): Extension<Caller>,
    names: Names,
    body: Bytes,
) -> Result<(StatusCode, Json<Operation>), Problem> {
    let Wanted { reason, asked } = read(&body)?;
    let mut asked: Asked = read(serde_json::Value::from(asked).to_string().as_bytes())?;
    asked.keep_to(caller.tenant.as_ref())?;
    is_kept_exactly(&asked, &body)?;
    let operation = front.desk.start(&asked, names.id(0), &caller.name(), &reason).await?;
    Ok((StatusCode::ACCEPTED, Json(operation)))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Page {
    cursor: Option<String>,
    limit: Option<usize>,
}

#[derive(Serialize)]
struct Listed {
    operations: Vec<Operation>,
    next: Option<String>,
}

async fn list(
    State(front): State<Front>,
    Extension(caller): Extension<Caller>,
    Query(page): Query<Page>,
) -> Result<Json<Listed>, Problem> {
    let before = place(page.cursor.as_deref())?;
    let (operations, next) = page_of(front.desk.as_ref(), &caller, before, limit(page.limit)).await?;
    Ok(Json(Listed { operations, next: next.map(|next| next.to_string()) }))
}

/// A page of the operations that a caller may see, and where to go on. Those of others lie between a tenant's own: they are passed over, for
/// so many pages, so that nobody is told that there are none because others have been busy.
pub(crate) async fn page_of(
    desk: &dyn Desk,
    caller: &Caller,
    mut before: Option<Uuid>,
    limit: usize,
) -> Result<(Vec<Operation>, Option<Uuid>), Problem> {
    let mut own = Vec::new();
    let at_once = if caller.tenant.is_some() { limit.max(AT_ONCE) } else { limit };
    for _ in 0..PASSED_OVER {
        let found = desk.operations(before, at_once).await?;
        before = found.last().filter(|_| found.len() == at_once).map(|last| last.id);
        own.extend(found.into_iter().filter(|operation| is_of(caller, operation)));
        if before.is_none() || own.len() >= limit {
            break;
        }
    }
    if own.len() > limit {
        own.truncate(limit);
        before = own.last().map(|last| last.id);
    }
    Ok((own, before))
}

async fn show(
    State(front): State<Front>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<Uuid>,
) -> Result<Json<Operation>, Problem> {
    let found = front.desk.operation(id).await?;
    found.filter(|operation| is_of(&caller, operation)).map(Json).ok_or_else(|| no_operation(id))
}

async fn cancel(
    State(front): State<Front>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<Uuid>,
    body: Bytes,
) -> Result<Json<Operation>, Problem> {
    let Why { reason } = read_or_default(&body)?;
    let found = front.desk.operation(id).await?;
    found.filter(|operation| is_of(&caller, operation)).ok_or_else(|| no_operation(id))?;
    Ok(Json(front.desk.cancel(id, &caller.name(), &reason).await?))
}

/// Whether an operation is about the tenant whom the caller is bound to: its plan says so.
pub(crate) fn is_of(caller: &Caller, operation: &Operation) -> bool {
    let planned = operation.plan.pointer("/filter/tenant").and_then(serde_json::Value::as_str);
    caller.tenant.as_ref().is_none_or(|own| planned == Some(own.as_str()))
}
