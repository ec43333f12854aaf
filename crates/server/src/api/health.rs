//! Health: whether the process lives, whether it can work, and what is missing.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Serialize;

use super::Api;

/// A load balancer asks often and waits little.
const CHECK_LIMIT: Duration = Duration::from_secs(3);

/// What works. Words only: who has no token learns no address and no version.
#[derive(Debug, Serialize)]
pub(super) struct Health {
    status: &'static str,
    store: &'static str,
    broker: &'static str,
    /// Only where there is one. Everything works without it, slower.
    #[serde(skip_serializing_if = "Option::is_none")]
    redis: Option<&'static str>,
    /// How the outbox is read: `cdc` while a relay streams it, else `poll`.
    relay: &'static str,
}

/// `GET /v1/health/live`: the process answers. No dependency is checked, so an outage elsewhere restarts nothing.
pub(super) async fn live() -> Json<serde_json::Value> {
    Json(serde_json::json!({ "status": "ok" }))
}

/// `GET /v1/health/ready`: 200 while events can be committed. The outbox needs the store alone: without the broker they
/// wait there, so an outage of the broker does not take the API away.
pub(super) async fn ready(State(api): State<Api>) -> (StatusCode, Json<serde_json::Value>) {
    if store_works(&api).await {
        (StatusCode::OK, Json(serde_json::json!({ "status": "ok" })))
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, Json(serde_json::json!({ "status": "unavailable" })))
    }
}

/// `GET /v1/health`: 200 while everything works, 503 with what does not.
pub(super) async fn health(State(api): State<Api>) -> (StatusCode, Json<Health>) {
    let (store, broker) = tokio::join!(store_works(&api), broker_works(&api));
    let word = |works| if works { "ok" } else { "unavailable" };
    let redis = api.once.is_degraded().map(|degraded| if degraded { "degraded" } else { "ok" });
    let streamed = tokio::time::timeout(CHECK_LIMIT, api.backend.is_streamed()).await;
    let relay = if matches!(streamed, Ok(Ok(true))) { "cdc" } else { "poll" };
    let (store, broker, works) = (word(store), word(broker), store && broker);
    let health = Health { status: word(works), store, broker, redis, relay };
    let status = if works { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(health))
}

async fn store_works(api: &Api) -> bool {
    matches!(tokio::time::timeout(CHECK_LIMIT, api.backend.check_store()).await, Ok(Ok(())))
}

async fn broker_works(api: &Api) -> bool {
    matches!(tokio::time::timeout(CHECK_LIMIT, api.backend.check_broker()).await, Ok(Ok(())))
}
