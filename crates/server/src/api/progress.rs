//! `/v1/progress`: how far jobs have come. A token for one tenant sees that tenant's jobs alone.

use std::sync::Arc;

use axum::extract::{Extension, Path, Query, State};
use axum::routing::get;
use axum::{Json, Router};
use jiff::Timestamp;
use postrider::envelope::TenantId;
use postrider::progress::{Job, JobFilter, JobId, Status};
use postrider::store::{Jobs, TokenRole};
use serde::{Deserialize, Serialize};

use super::Api;
use super::access::Caller;
use super::problem::{Code, Problem};

/// The most rows of a list.
const MOST: u32 = 200;

/// The routes, by the role they need.
pub(crate) fn routes<S: Jobs>(store: S) -> Vec<(TokenRole, Router<Api>)> {
    let viewer = Router::new().route("/progress", get(list::<S>)).route("/progress/{job}", get(show::<S>));
    vec![(TokenRole::Viewer, viewer.with_state::<Api>(Arc::new(store)))]
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Which {
    status: Option<String>,
    tenant: Option<TenantId>,
    /// What the page before named as `next`.
    cursor: Option<String>,
    limit: Option<u32>,
}

#[derive(Serialize)]
struct Listed {
    jobs: Vec<Job>,
    /// Asks for the next page, as `cursor`.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

async fn list<S: Jobs>(
    State(store): State<Arc<S>>,
    Extension(caller): Extension<Caller>,
    Query(which): Query<Which>,
) -> Result<Json<Listed>, Problem> {
    let status = which.status.as_deref().map(status).transpose()?;
    let limit = which.limit.unwrap_or(MOST).clamp(1, MOST);
    let tenant = caller.tenant.or(which.tenant);
    let after = which.cursor.as_deref().map(place).transpose()?;
    let jobs = store.jobs(&JobFilter { status, tenant, after, limit }).await?;
    let full = jobs.len() == usize::try_from(limit).unwrap_or(usize::MAX);
    let next = jobs.last().filter(|_| full).map(|job| format!("{}/{}", job.created_at, job.id));
    Ok(Json(Listed { jobs, next }))
}

async fn show<S: Jobs>(
    State(store): State<Arc<S>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<JobId>,
) -> Result<Json<Job>, Problem> {
    let job = store.job(&id).await?;
    // Somebody else's job is none.
    let job = job.filter(|job| caller.tenant.is_none() || caller.tenant == job.tenant);
    job.map(Json).ok_or_else(|| Problem::new(Code::NotFound, format!("there is no job {id}")))
}

/// A place in the list: when its job was made, and its id.
fn place(cursor: &str) -> Result<(Timestamp, JobId), Problem> {
    let parts = cursor.split_once('/').and_then(|(at, id)| Some((at.parse().ok()?, JobId::new(id).ok()?)));
    parts.ok_or_else(|| {
        Problem::new(Code::InvalidRequest, "the cursor is none of ours; leave it out to begin anew")
    })
}

fn status(name: &str) -> Result<Status, Problem> {
    Status::from_name(name).ok_or_else(|| {
        let known = Status::ALL.map(|status| status.as_str().to_lowercase()).join(", ");
        Problem::new(Code::InvalidRequest, format!("no job has the status {name:?}; known are {known}"))
    })
}
