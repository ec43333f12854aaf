//! `/v1/migrations`: from an old bus to a new one, phase by phase. What needs the broker is an operation, answered with its id.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{Extension, Path, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use postrider::Clock;
use postrider::migration::{
    self, Comparing, Definition, Errand, MigrationError, MigrationName, Phase, Standing, Taken,
};
use postrider::store::{DualPublishing, Operations, StoreErrorKind};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::Api;
use super::access::Caller;
use super::problem::{Code, Problem};
use super::subscriptions::read_or_default;

/// What the routes work with.
pub(crate) struct MigrationDesk<S> {
    pub(crate) store: S,
    pub(crate) clock: Clock,
    /// The migration of the configuration, which can be started.
    pub(crate) configured: Option<Definition>,
}

type Desk<S> = State<Arc<MigrationDesk<S>>>;
type Named = Path<MigrationName>;

/// The routes. A token for one tenant has no part in them: a bus has everybody's events.
pub(crate) fn routes<S: DualPublishing + Operations>(desk: MigrationDesk<S>) -> Router<Api> {
    Router::new()
        .route("/migrations", get(list::<S>).post(start::<S>))
        .route("/migrations/{name}", get(show::<S>))
        .route("/migrations/{name}/compare", post(compare::<S>))
        .route("/migrations/{name}/cutover", post(cut_over::<S>))
        .route("/migrations/{name}/rollback", post(roll_back::<S>))
        .route("/migrations/{name}/finish", post(finish::<S>))
        .with_state(Arc::new(desk))
}

#[derive(Serialize)]
struct Listed {
    migrations: Vec<Standing>,
}

async fn list<S: DualPublishing>(State(desk): Desk<S>) -> Result<Json<Listed>, Problem> {
    Ok(Json(Listed { migrations: desk.store.migrations_of_buses().await? }))
}

async fn show<S: DualPublishing>(State(desk): Desk<S>, Path(name): Named) -> Result<Json<Standing>, Problem> {
    desk.find(&name).await.map(Json)
}

/// Who takes a step says why, and may insist.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Why {
    reason: String,
    force: bool,
}

impl Why {
    fn read(body: &[u8], caller: &Caller) -> Result<Taken, Problem> {
        let Self { reason, force } = read_or_default(body)?;
        if force && reason.is_empty() {
            return Err(Problem::new(Code::InvalidRequest, "who forces a step gives a reason"));
        }
        Ok(Taken { by: caller.name(), reason, forced: force })
    }
}

async fn start<S: DualPublishing>(
    State(desk): Desk<S>,
    Extension(caller): Extension<Caller>,
    body: Bytes,
) -> Result<(StatusCode, Json<Standing>), Problem> {
    let Some(definition) = &desk.configured else {
        let told = "the configuration names no old exchange; set migration.legacy_exchange";
        return Err(Problem::new(Code::InvalidRequest, told));
    };
    migration::start(&desk.store, definition, &Why::read(&body, &caller)?).await?;
    Ok((StatusCode::CREATED, Json(desk.find(&definition.name).await?)))
}

async fn cut_over<S: DualPublishing>(
    State(desk): Desk<S>,
    Extension(caller): Extension<Caller>,
    Path(name): Named,
    body: Bytes,
) -> Result<Json<Standing>, Problem> {
    desk.runs(&name).await?;
    migration::cut_over(&desk.store, &desk.clock, &Why::read(&body, &caller)?).await?;
    desk.find(&name).await.map(Json)
}

async fn roll_back<S: DualPublishing>(
    State(desk): Desk<S>,
    Extension(caller): Extension<Caller>,
    Path(name): Named,
    body: Bytes,
) -> Result<Json<Standing>, Problem> {
    desk.runs(&name).await?;
    migration::roll_back(&desk.store, &Why::read(&body, &caller)?).await?;
    desk.find(&name).await.map(Json)
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
}

async fn compare<S: DualPublishing + Operations>(
    State(desk): Desk<S>,
    Extension(caller): Extension<Caller>,
    Path(name): Named,
    body: Bytes,
) -> Result<(StatusCode, Json<Asked>), Problem> {
    desk.runs(&name).await?;
    let How { listen_ms, events } = read_or_default(&body)?;
    let usual = Comparing::default();
    let how = Comparing {
        listen: listen_ms.map_or(usual.listen, Duration::from_millis),
        most_events: events.unwrap_or(usual.most_events),
        ..usual
    };
    desk.ask(Errand::compare(&how), &Taken { by: caller.name(), ..Taken::default() }).await
}

async fn finish<S: DualPublishing + Operations>(
    State(desk): Desk<S>,
    Extension(caller): Extension<Caller>,
    Path(name): Named,
    body: Bytes,
) -> Result<(StatusCode, Json<Asked>), Problem> {
    desk.runs(&name).await?;
    let step = Why::read(&body, &caller)?;
    desk.ask(Errand::Finish { forced: step.forced }, &step).await
}

impl<S: DualPublishing> MigrationDesk<S> {
    async fn find(&self, name: &MigrationName) -> Result<Standing, Problem> {
        let found = self.store.migrations_of_buses().await?;
        let found = found.into_iter().find(|standing| standing.definition.name == *name);
        found.ok_or_else(|| Problem::new(Code::NotFound, format!("no migration {name} was ever started")))
    }

    /// Steps are taken by the one that is not finished.
    async fn runs(&self, name: &MigrationName) -> Result<(), Problem> {
        if self.find(name).await?.phase == Phase::Finished {
            return Err(Problem::new(Code::Conflict, format!("the migration {name} is finished")));
        }
        Ok(())
    }

    async fn ask(&self, errand: Errand, step: &Taken) -> Result<(StatusCode, Json<Asked>), Problem>
    where
        S: Operations,
    {
        let reason = Some(step.reason.as_str()).filter(|reason| !reason.is_empty());
        let operation = migration::ask(&self.store, &self.clock, errand, &step.by, reason).await?;
        Ok((StatusCode::ACCEPTED, Json(Asked { operation })))
    }
}

impl From<MigrationError> for Problem {
    fn from(error: MigrationError) -> Self {
        match error {
            MigrationError::Store(error) if error.kind == StoreErrorKind::Duplicate => {
                Self::new(Code::Conflict, error.message)
            }
            MigrationError::Store(error) => error.into(),
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
