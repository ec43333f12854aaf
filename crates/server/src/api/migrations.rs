//! `/v1/migrations`: from an old bus to a new one, phase by phase. What needs the broker is an operation, answered with its id.

use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{Extension, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use postrider::migration::{Comparing, MigrationError, MigrationName, Standing, Taken};
use postrider::store::StoreErrorKind;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::access::Caller;
use super::front::{Front, Path};
use super::problem::{Code, Problem};
use super::subscriptions::read_or_default;

type Named = Path<MigrationName>;

/// The routes. A token for one tenant has no part in them: a bus has everybody's events.
pub(super) fn routes() -> Router<Front> {
    Router::new()
        .route("/migrations", get(list).post(start))
        .route("/migrations/{name}", get(show))
        .route("/migrations/{name}/compare", post(compare))
        .route("/migrations/{name}/cutover", post(cut_over))
        .route("/migrations/{name}/rollback", post(roll_back))
        .route("/migrations/{name}/finish", post(finish))
}

#[derive(Serialize)]
struct Listed {
    migrations: Vec<Standing>,
}

async fn list(State(front): State<Front>) -> Result<Json<Listed>, Problem> {
    Ok(Json(Listed { migrations: front.desk.migrations().await? }))
}

async fn show(State(front): State<Front>, Path(name): Named) -> Result<Json<Standing>, Problem> {
    front.desk.migration(&name).await.map(Json)
}

/// Who takes a step says why, and may insist.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Step {
    reason: String,
    force: bool,
}

impl Step {
    fn read(body: &[u8], caller: &Caller) -> Result<Taken, Problem> {
        let Self { reason, force } = read_or_default(body)?;
        if force && reason.is_empty() {
            return Err(Problem::new(Code::InvalidRequest, "who forces a step gives a reason"));
        }
        Ok(Taken { by: caller.name(), reason, forced: force })
    }
}

async fn start(
    State(front): State<Front>,
    Extension(caller): Extension<Caller>,
    body: Bytes,
) -> Result<(StatusCode, Json<Standing>), Problem> {
    let standing = front.desk.start_migration(&Step::read(&body, &caller)?).await?;
    Ok((StatusCode::CREATED, Json(standing)))
}

async fn cut_over(
    State(front): State<Front>,
    Extension(caller): Extension<Caller>,
    Path(name): Named,
    body: Bytes,
) -> Result<Json<Standing>, Problem> {
    front.desk.cut_over(&name, &Step::read(&body, &caller)?).await.map(Json)
}

async fn roll_back(
    State(front): State<Front>,
    Extension(caller): Extension<Caller>,
    Path(name): Named,
    body: Bytes,
) -> Result<Json<Standing>, Problem> {
    front.desk.roll_back(&name, &Step::read(&body, &caller)?).await.map(Json)
}

/// The operation that was asked for. When it is over, the migration has its outcome.
#[derive(Serialize)]
struct Asked {
    operation: Uuid,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct How {
    listen_ms: Option<u64>,
    events: Option<usize>,
    reason: String,
}

async fn compare(
    State(front): State<Front>,
    Extension(caller): Extension<Caller>,
    Path(name): Named,
    body: Bytes,
) -> Result<(StatusCode, Json<Asked>), Problem> {
    let How { listen_ms, events, reason } = read_or_default(&body)?;
    let usual = Comparing::default();
    let how = Comparing {
        listen: listen_ms.map_or(usual.listen, Duration::from_millis),
        most_events: events.unwrap_or(usual.most_events),
        ..usual
    };
    let step = Taken { by: caller.name(), reason, forced: false };
    let operation = front.desk.compare_buses(&name, &how, &step).await?;
    Ok((StatusCode::ACCEPTED, Json(Asked { operation })))
}

async fn finish(
    State(front): State<Front>,
    Extension(caller): Extension<Caller>,
    Path(name): Named,
    body: Bytes,
) -> Result<(StatusCode, Json<Asked>), Problem> {
    let operation = front.desk.finish_migration(&name, &Step::read(&body, &caller)?).await?;
    Ok((StatusCode::ACCEPTED, Json(Asked { operation })))
}

impl From<MigrationError> for Problem {
    fn from(error: MigrationError) -> Self {
        match error {
            MigrationError::Store(error) if error.kind == StoreErrorKind::Duplicate => {
                Self::new(Code::Conflict, error.message)
            }
            MigrationError::Store(error) => error.into(),
            MigrationError::Away { .. } => Self::new(Code::StoreUnavailable, error.to_string()),
            MigrationError::Broker(error) => Self::new(Code::BrokerUnavailable, error.message),
            MigrationError::Obstacles(_) => {
                Self::new(Code::Conflict, error.to_string()).named("parity_not_proven")
            }
            MigrationError::NoneRuns => Self::new(Code::NotFound, error.to_string()),
            MigrationError::NotNow { .. } | MigrationError::Moved => {
                Self::new(Code::Conflict, error.to_string())
            }
        }
    }
}
