//! `/v1/progress`: how far jobs have come. A token for one tenant sees that tenant's jobs alone.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{Extension, Path, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use jiff::Timestamp;
use postrider::envelope::TenantId;
use postrider::progress::{
    Change, ItemId, Job, JobFilter, JobId, Mark, NewJob, Progress, ProgressError, ProgressErrorKind,
    ProgressStore as _, Status, Total, view,
};
use postrider::store::Jobs;
use serde::{Deserialize, Serialize};

use super::Api;
use super::access::Caller;
use super::front::{self, Query};
use super::problem::{Code, Problem};
use super::subscriptions::read;
use crate::wiring::JobView;

/// The most rows of a list.
const MOST: u32 = 200;

/// What the routes work with.
struct Desk<S> {
    store: S,
    progress: Progress<S>,
    /// The event that tells that a job is done, where the job names no other.
    completed: String,
    /// Where others see jobs, if they do.
    view: Option<JobView>,
}

type OnDesk<S> = State<Arc<Desk<S>>>;

/// The routes. Every POST may be repeated: what was done before changes nothing.
pub(crate) fn routes<S: Jobs>(store: S, completed: String, view: Option<JobView>) -> Router<Api> {
    let desk = Arc::new(Desk { progress: Progress::new(store.clone()), store, completed, view });
    Router::new()
        .route("/progress", get(list::<S>).post(init::<S>))
        .route("/progress/{job}", get(show::<S>))
        .route("/progress/{job}/steps", post(step::<S>))
        .route("/progress/{job}/items", post(mark::<S>))
        .with_state(desk)
}

/// A job to be made.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct New {
    id: JobId,
    tenant: Option<TenantId>,
    /// The type of the event that tells that it is done.
    announces: Option<String>,
}

async fn init<S: Jobs>(
    State(desk): OnDesk<S>,
    Extension(caller): Extension<Caller>,
    body: Bytes,
) -> Result<(StatusCode, Json<Job>), Problem> {
    let New { id, tenant, announces } = read(&body)?;
    let event = announces.as_ref().unwrap_or(&desk.completed);
    let mut job = NewJob::new(&id).and_then(|job| job.announces(event)).map_err(|error| invalid(&error))?;
    job.tenant = front::tenant(&caller, tenant)?;
    let made = desk.progress.init(&job).await?;
    if own(&caller, &made).is_err() {
        let told =
            format!("the job {id} is not this tenant's; nothing was changed. Give this one an id of its own");
        return Err(Problem::new(Code::Conflict, told));
    }
    Ok((StatusCode::CREATED, Json(made)))
}

/// One step of a job.
#[derive(Deserialize)]
#[serde(tag = "step", rename_all = "snake_case", deny_unknown_fields)]
enum Step {
    /// There are so many items.
    Total { total: i64 },
    /// A page of discovery found so many more.
    Page { page: ItemId, found: i64 },
    /// Discovery begins.
    Begin,
    /// Discovery has ended.
    End,
}

async fn step<S: Jobs>(
    State(desk): OnDesk<S>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<JobId>,
    body: Bytes,
) -> Result<Json<Job>, Problem> {
    let change = match read(&body)? {
        Step::Total { total } => Change::SetTotal(Total::new(total)?),
        Step::Page { page, found } => Change::AddTotal { page, found: Total::new(found)? },
        Step::Begin => Change::BeginDiscovery,
        Step::End => Change::EndDiscovery,
    };
    desk.find(&caller, &id).await?;
    Ok(Json(desk.progress.change(&id, change).await?))
}

/// Items that are done, and those that failed for good.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Items {
    done: Vec<ItemId>,
    failed: Vec<ItemId>,
}

#[derive(Serialize)]
struct Counted {
    /// Items that were new.
    counted: u64,
    /// Items that were marked before.
    repeated: u64,
}

async fn mark<S: Jobs>(
    State(desk): OnDesk<S>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<JobId>,
    body: Bytes,
) -> Result<Json<Counted>, Problem> {
    let Items { done, failed } = read(&body)?;
    desk.find(&caller, &id).await?;
    let done = done.into_iter().map(|item| Mark { item, failed: false });
    let marks: Vec<_> = done.chain(failed.into_iter().map(|item| Mark { item, failed: true })).collect();
    let marked = desk.progress.mark(&id, &marks).await?;
    Ok(Json(Counted { counted: marked.counted, repeated: marked.repeated }))
}

impl<S: Jobs> Desk<S> {
    /// Somebody else's job is none.
    async fn find(&self, caller: &Caller, id: &JobId) -> Result<Job, Problem> {
        let job = self.store.job(id).await?;
        let job = job.ok_or_else(|| Problem::new(Code::NotFound, format!("there is no job {id}")))?;
        own(caller, &job)?;
        Ok(job)
    }
}

fn own(caller: &Caller, job: &Job) -> Result<(), Problem> {
    if caller.tenant.is_none() || caller.tenant == job.tenant {
        return Ok(());
    }
    Err(Problem::new(Code::NotFound, format!("there is no job {}", job.id)))
}

fn invalid(error: &postrider::InvalidText) -> Problem {
    Problem::new(Code::InvalidRequest, error.to_string())
}

impl From<ProgressError> for Problem {
    fn from(error: ProgressError) -> Self {
        let code = match error.kind {
            ProgressErrorKind::UnknownJob => Code::NotFound,
            ProgressErrorKind::Invalid => Code::InvalidRequest,
            ProgressErrorKind::IllegalMove
            | ProgressErrorKind::TooMany
            | ProgressErrorKind::AfterDone
            | ProgressErrorKind::WrongType => Code::Conflict,
            ProgressErrorKind::Unavailable => Code::StoreUnavailable,
            ProgressErrorKind::Other => Code::Internal,
        };
        Self::new(code, error.message)
    }
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
    State(desk): OnDesk<S>,
    Extension(caller): Extension<Caller>,
    Query(which): Query<Which>,
) -> Result<Json<Listed>, Problem> {
    let status = which.status.as_deref().map(status).transpose()?;
    let limit = which.limit.unwrap_or(MOST).clamp(1, MOST);
    let tenant = front::tenant(&caller, which.tenant)?;
    let after = which.cursor.as_deref().map(place).transpose()?;
    let jobs = desk.store.jobs(&JobFilter { status, tenant, after, limit }).await?;
    let full = jobs.len() == usize::try_from(limit).unwrap_or(usize::MAX);
    let next = jobs.last().filter(|_| full).map(|job| format!("{}/{}", job.created_at, job.id));
    Ok(Json(Listed { jobs, next }))
}

async fn show<S: Jobs>(
    State(desk): OnDesk<S>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<JobId>,
) -> Result<Json<Job>, Problem> {
    let job = desk.find(&caller, &id).await?;
    if let Some(view) = desk.view.clone() {
        // Nobody waits for Redis.
        let job = job.clone();
        tokio::spawn(async move { view::mend(&view, &job).await });
    }
    Ok(Json(job))
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
