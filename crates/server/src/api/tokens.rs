//! `/v1/tokens`: who may call, made and taken back.

use axum::body::Bytes;
use axum::extract::{Extension, State};
use axum::http::StatusCode;
use axum::routing::get;
use axum::{Json, Router};
use postrider::envelope::TenantId;
use postrider::store::TokenRole;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::front::{Front, Path, Query, Why};
use super::subscriptions::read;
use super::{Caller, Code, Names, Problem};
use crate::desk::tokens::{NewToken, TokenRow, expiry};

pub(super) fn routes() -> Router<Front> {
    Router::new().route("/tokens", get(list).post(make)).route("/tokens/{id}", axum::routing::delete(revoke))
}

#[derive(Serialize)]
struct Listed {
    tokens: Vec<TokenRow>,
}

async fn list(State(front): State<Front>) -> Result<Json<Listed>, Problem> {
    Ok(Json(Listed { tokens: front.desk.tokens().await? }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct New {
    role: String,
    #[serde(default)]
    name: String,
    tenant: Option<TenantId>,
    /// A time, or a span from now on, such as `90d`.
    expires: Option<String>,
    /// Why, for the audit log.
    #[serde(default)]
    reason: String,
}

async fn make(
    State(front): State<Front>,
    Extension(caller): Extension<Caller>,
    names: Names,
    body: Bytes,
) -> Result<(StatusCode, Json<TokenRow>), Problem> {
    let New { role, name, tenant, expires, reason } = read(&body)?;
    let wrong = |told: String| Problem::new(Code::InvalidRequest, told);
    let role = TokenRole::from_name(&role)
        .ok_or_else(|| wrong("role is metrics, viewer, operator or admin".to_owned()))?;
    let expires_at = expires.map(|text| expiry(&text, front.clock.now())).transpose().map_err(wrong)?;
    let new = NewToken { id: names.id(0), name, role, tenant, expires_at };
    let reason = Some(reason.as_str()).filter(|reason| !reason.is_empty());
    let made = front.desk.make_token(new, &caller.name(), reason).await?;
    Ok((StatusCode::CREATED, Json(made)))
}

async fn revoke(
    State(front): State<Front>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<Uuid>,
    Query(Why { reason }): Query<Why>,
) -> Result<StatusCode, Problem> {
    let reason = Some(reason.as_str()).filter(|reason| !reason.is_empty());
    front.desk.revoke_token(id, &caller.name(), reason).await?;
    Ok(StatusCode::NO_CONTENT)
}
