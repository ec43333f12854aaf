//! Rules tried on events over HTTP, and the chain signed: what else only the command line could do.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Extension, State};
use axum::http::StatusCode;
use postrider_ledger::books::Books;
use postrider_ledger::checkpoint::Checkpoint;
use postrider_ledger::rules::{BadRules, Rules};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use super::{Desk, MOST, Means, Whose, no_books};
use crate::api::front::Path;
use crate::api::problem::{Code, Problem};
use crate::api::subscriptions::read;
use crate::event_input::EventInput;
use crate::{rules_trial, signing_key};

/// Rules and events to try them on.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Trial {
    /// TOML; the rules that count now when absent.
    document: Option<String>,
    /// Each as it was written: a number that became a float on the way would be another one.
    #[serde(default)]
    events: Vec<Box<RawValue>>,
}

#[derive(Serialize)]
pub(super) struct Tried {
    /// How many rules there are.
    rules: usize,
    /// How many of the events would be posted.
    would_post: usize,
    /// What each would become, or why it would be refused; `line` is its place among the events, from 1.
    events: Vec<Value>,
}

/// Whether rules can be used, and what they make of events. Nothing is written.
pub(super) async fn check_rules<B: Books>(
    State(ledger): Desk<B>,
    Extension(means): Extension<Arc<Means>>,
    Path(tenant): Whose,
    body: Bytes,
) -> Result<Json<Tried>, Problem> {
    let Trial { document, events } = read(&body)?;
    if events.len() > MOST {
        let told =
            format!("{MOST} events at most are tried at once; `postrider ledger rules check` takes a file");
        return Err(Problem::new(Code::InvalidRequest, told));
    }
    let mut chart = ledger.books().read_chart(&tenant).await?.ok_or_else(|| no_books(&tenant))?;
    if let Some(document) = document {
        let wrong = |error: BadRules| Problem::new(Code::InvalidRequest, error.to_string());
        chart.rules = Rules::parse_new(0, &document).map_err(wrong)?;
    }
    let (mut tried, mut would_post) = (Vec::new(), 0);
    for (event, line) in events.into_iter().zip(1..) {
        let envelope = serde_json::from_str::<EventInput>(event.get()).map_err(|error| error.to_string());
        let envelope =
            envelope.and_then(|input| input.into_event(means.limits).map_err(|error| error.to_string()));
        let row = match envelope.map(|event| event.into_envelope(&means.clock)) {
            Ok(envelope) => rules_trial::tried(&tenant, &chart, envelope, line, means.clock.now()),
            Err(why) => Some(rules_trial::refused(line, "malformed", &why)),
        };
        would_post += usize::from(row.as_ref().is_some_and(|row| row.get("refused").is_none()));
        tried.extend(row);
    }
    Ok(Json(Tried { rules: chart.rules.len(), would_post, events: tried }))
}

/// Signs the entries since the last checkpoint: 201. Without new ones the last checkpoint stands for all: 200.
pub(super) async fn checkpoint<B: Books>(
    State(ledger): Desk<B>,
    Extension(means): Extension<Arc<Means>>,
    Path(tenant): Whose,
) -> Result<(StatusCode, Json<Checkpoint>), Problem> {
    let (key, _) = signing_key::load_or_make(&means.signing_key_file, &means.clock).map_err(|error| {
        tracing::error!(error = format!("{error:#}"), "the key that signs checkpoints cannot be used");
        Problem::new(Code::Internal, "the key that signs checkpoints cannot be used; the log says why")
    })?;
    if let Some(made) = ledger.checkpoint(&tenant, &key).await? {
        return Ok((StatusCode::CREATED, Json(made)));
    }
    let last = ledger.books().checkpoints(&tenant).await?.pop();
    let last = last.ok_or_else(|| {
        Problem::new(Code::Conflict, format!("{tenant} has no entries that could be signed"))
            .named("no_entries")
    })?;
    Ok((StatusCode::OK, Json(last)))
}
