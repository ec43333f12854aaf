//! `/v1/audit-log`: who did what, the newest first.

use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router};
use postrider::store::{LogEntry, LogQuery};
use serde::{Deserialize, Serialize};

use super::Problem;
use super::front::{Front, Query, limit, place};

pub(super) fn routes() -> Router<Front> {
    Router::new().route("/audit-log", get(list))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Which {
    actor: Option<String>,
    action: Option<String>,
    subject: Option<String>,
    cursor: Option<String>,
    limit: Option<usize>,
}

#[derive(Serialize)]
struct Listed {
    entries: Vec<LogEntry>,
    next: Option<String>,
}

async fn list(State(front): State<Front>, Query(which): Query<Which>) -> Result<Json<Listed>, Problem> {
    let query = LogQuery {
        before: place(which.cursor.as_deref())?,
        limit: limit(which.limit),
        actor: which.actor,
        action: which.action,
        subject: which.subject,
    };
    let page = front.desk.log(&query).await?;
    Ok(Json(Listed { entries: page.entries, next: page.next.map(|place| place.to_string()) }))
}
