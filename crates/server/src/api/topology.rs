//! `/v1/topology`: as it is configured, as a picture, and what the broker has of it.

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use postrider::topology::Layout;
use postrider::topology::plan::Plan;
use serde::Serialize;

use super::Problem;
use super::front::Front;

pub(super) fn routes() -> Router<Front> {
    Router::new()
        .route("/topology", get(show))
        .route("/topology/plan", get(plan))
        .route("/topology/drift", get(drift))
        .route("/topology/diagram.svg", get(diagram))
}

async fn show(State(front): State<Front>) -> Result<Json<Layout>, Problem> {
    Ok(Json(front.desk.layout().await?))
}

#[derive(Serialize)]
struct Drawn {
    /// Nothing with the embedded broker, which has what the configuration says.
    plan: Option<Plan>,
}

async fn plan(State(front): State<Front>) -> Result<Json<Drawn>, Problem> {
    Ok(Json(Drawn { plan: front.desk.drift().await? }))
}

#[derive(Serialize)]
struct Drift {
    drifted: bool,
    plan: Option<Plan>,
}

async fn drift(State(front): State<Front>) -> Result<Json<Drift>, Problem> {
    let plan = front.desk.drift().await?;
    let drifted = plan.as_ref().is_some_and(|plan| plan.drift() > 0);
    Ok(Json(Drift { drifted, plan }))
}

async fn diagram(State(front): State<Front>) -> Result<Response, Problem> {
    Ok(picture(&front.desk.layout().await?))
}

/// The picture brings its own style along, and nothing else is let in.
pub(crate) fn picture(layout: &Layout) -> Response {
    let headers = [
        (header::CONTENT_TYPE, "image/svg+xml"),
        (header::CONTENT_SECURITY_POLICY, "default-src 'none'; style-src 'unsafe-inline'"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (headers, layout.to_svg()).into_response()
}
