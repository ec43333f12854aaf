//! What changes through a route that keeps no record of its own, in the audit log: by whom, why, and whether it was refused.
//!
//! It is written down before it is done. So a crash leaves an entry about something that was not done, and never a change that nobody
//! wrote down; what is refused gets a second entry that says so.

use axum::http::{StatusCode, Uri};
use postrider::store::LogEntry;

use super::Api;
use super::access::Caller;
use super::problem::Problem;
use super::table::Route;

/// Writes down what is about to be done, if the table wants it. A store that cannot keep it has it not done.
pub(super) async fn begin(
    api: &Api,
    route: &Route,
    caller: &Caller,
    asked: &Uri,
) -> Result<Option<LogEntry>, Problem> {
    let Some(action) = route.logged() else { return Ok(None) };
    let query = asked.query().unwrap_or_default().as_bytes();
    let reason = url::form_urlencoded::parse(query).find(|(name, _)| name == "reason");
    // The path as it was asked for: the router has taken off what it is nested under.
    let subject = asked.path().trim_start_matches("/v1").trim_start_matches('/').to_owned();
    let entry = LogEntry {
        at: api.clock.now(),
        actor: caller.name(),
        action,
        subject,
        reason: reason.map(|(_, reason)| reason.into_owned()).filter(|reason| !reason.is_empty()),
        detail: None,
    };
    api.backend.record(entry.clone()).await?;
    Ok(Some(entry))
}

/// Writes down that it was refused, if it was.
pub(super) async fn end(api: &Api, entry: Option<LogEntry>, status: StatusCode) {
    let Some(entry) = entry.filter(|_| !status.is_success()) else { return };
    let action = format!("{}.refused", entry.action);
    let detail = Some(serde_json::json!({ "status": status.as_u16() }));
    let refused = LogEntry { at: api.clock.now(), action, detail, ..entry };
    if let Err(error) = api.backend.record(refused).await {
        tracing::warn!(%error, "the audit log has what was asked, but not that it was refused");
    }
}
