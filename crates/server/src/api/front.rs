//! The routes for people and their tools, over the desk; and what they have in common: pages, times, whose events.

use std::sync::Arc;

use axum::Router;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use jiff::{Span, Timestamp, tz::TimeZone};
use postrider::Clock;
use postrider::envelope::TenantId;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{
    Api, Caller, Code, Problem, audit_log, consumers, letters, migrations, operations, outbox, stream,
    tokens, topology,
};
use crate::desk::Desk;
use crate::desk::pulse::Pulse;

/// The most rows of a page.
const MOST: usize = 200;
/// As many as a page has if nobody says.
const USUAL: usize = 50;

/// What the routes for people reach. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Front {
    pub(crate) desk: Arc<dyn Desk>,
    pub(crate) pulse: Arc<Pulse>,
    pub(crate) clock: Clock,
}

/// All routes over the desk.
pub(crate) fn routes(front: Front) -> Router<Api> {
    Router::new()
        .merge(letters::routes())
        .merge(outbox::routes())
        .merge(operations::routes())
        .merge(topology::routes())
        .merge(consumers::routes())
        .merge(migrations::routes())
        .merge(audit_log::routes())
        .merge(tokens::routes())
        .merge(stream::routes())
        .with_state(front)
}

/// What the query asks, or a problem that says what is wrong with it.
pub(super) struct Query<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Query<T> {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        refuse_no_rows(parts)?;
        let read = axum::extract::Query::from_request_parts(parts, state).await;
        read.map(|axum::extract::Query(asked)| Self(asked)).map_err(|wrong| unreadable(&wrong.body_text()))
    }
}

/// What lists have in common.
#[derive(Deserialize)]
struct Page {
    limit: Option<u64>,
}

/// A page without rows would say that there is nothing.
fn refuse_no_rows(parts: &Parts) -> Result<(), Problem> {
    match axum::extract::Query::<Page>::try_from_uri(&parts.uri) {
        Ok(axum::extract::Query(Page { limit: Some(0) })) => {
            let told = format!("limit is from 1 to {MOST}; leave it out for as many as are usual");
            Err(Problem::new(Code::InvalidRequest, told))
        }
        // What else is wrong with the query, the route's own reading of it tells.
        _ => Ok(()),
    }
}

/// What the path names, the same way.
pub(super) struct Path<T>(pub(super) T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Path<T> {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let read = axum::extract::Path::from_request_parts(parts, state).await;
        read.map(|axum::extract::Path(named)| Self(named)).map_err(|wrong| unreadable(&wrong.body_text()))
    }
}

fn unreadable(told: &str) -> Problem {
    Problem::new(Code::InvalidRequest, told)
}

/// How many rows a page has. Who asks for more than there may be gets as many as there may be.
pub(super) fn limit(asked: Option<usize>) -> usize {
    asked.unwrap_or(USUAL).clamp(1, MOST)
}

/// A place in a list, as the page before named it.
pub(super) fn place<T: std::str::FromStr>(cursor: Option<&str>) -> Result<Option<T>, Problem> {
    let read = |text: &str| {
        text.parse().map_err(|_| {
            let told = format!("{text:?} is no place in a list; give one that a page before named, or none");
            Problem::new(Code::InvalidRequest, told)
        })
    };
    cursor.map(read).transpose()
}

/// A time, or so long ago.
pub(crate) fn time_asked(text: &str, now: Timestamp) -> Result<Timestamp, Problem> {
    let ago = |text: &str| {
        let span: Span = text.parse().ok()?;
        Some(now.to_zoned(TimeZone::UTC).checked_sub(span).ok()?.timestamp())
    };
    text.parse().ok().or_else(|| ago(text)).ok_or_else(|| {
        let told =
            format!("{text:?} is neither a time such as 2026-11-15T12:00:00Z nor a duration such as 2d");
        Problem::new(Code::InvalidRequest, told)
    })
}

/// The tenant to show: the caller's own if he is bound to one, and then no other.
pub(super) fn tenant(caller: &Caller, asked: Option<TenantId>) -> Result<Option<TenantId>, Problem> {
    match (&caller.tenant, asked) {
        (Some(own), Some(other)) if *own != other => {
            Err(Problem::new(Code::Forbidden, format!("the token is for the tenant {own} alone")))
        }
        (Some(own), _) => Ok(Some(own.clone())),
        (None, asked) => Ok(asked),
    }
}

/// Whether a thing of this tenant may be shown. One that may not is as if it were not there.
pub(super) fn may_see(caller: &Caller, tenant: Option<&str>) -> bool {
    caller.tenant.as_ref().is_none_or(|own| tenant == Some(own.as_str()))
}

/// Why something is changed, for the audit log.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Why {
    pub(super) reason: String,
}

/// Whether something was changed.
#[derive(Serialize)]
pub(super) struct Changed {
    pub(super) changed: bool,
}
