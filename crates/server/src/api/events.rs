//! `POST /v1/events`: plain JSON in, committed to the outbox, 202 with the id.

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{Extension, State};
use axum::http::{HeaderMap, StatusCode, header};
use postrider::Event;
use serde::Serialize;

use super::Api;
use super::access::Caller;
use super::problem::{Code, Problem};
use crate::event_input::{EventInput, Refused};

/// What became of the event: it is committed, and will be published.
#[derive(Debug, Serialize)]
pub(super) struct Accepted {
    id: String,
}

/// Commits one event. A repeat with the same id is 409 and changes nothing.
pub(super) async fn publish(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<(StatusCode, Json<Accepted>), Problem> {
    require_json(&headers)?;
    let body = body.map_err(|rejection| read_failed(&rejection, api.http.max_body_bytes))?;
    let input: EventInput = serde_json::from_slice(&body)
        .map_err(|error| Problem::new(Code::InvalidJson, format!("not an event: {error}")))?;
    let mut event = input.into_event(api.limits).map_err(|why| refused(&why))?;
    keep_to_tenant(&mut event, &caller)?;
    let id = api.backend.append(event).await?;
    Ok((StatusCode::ACCEPTED, Json(Accepted { id: id.to_string() })))
}

/// A form in a browser can post anything but this type without asking first.
fn require_json(headers: &HeaderMap) -> Result<(), Problem> {
    let given = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
    let essence = given.split(';').next().unwrap_or("").trim();
    if essence.eq_ignore_ascii_case("application/json") {
        return Ok(());
    }
    Err(Problem::new(Code::UnsupportedMediaType, "send Content-Type: application/json"))
}

fn read_failed(rejection: &BytesRejection, max: usize) -> Problem {
    if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE {
        return Problem::too_large(max);
    }
    Problem::new(Code::InvalidJson, "the body ended early")
}

fn refused(why: &Refused) -> Problem {
    let code = match why {
        Refused::TooLarge { .. } => Code::PayloadTooLarge,
        Refused::Text(_) | Refused::TooDeep { .. } => Code::InvalidEvent,
    };
    Problem::new(code, why.to_string())
}

/// A token for one tenant publishes for that tenant only.
fn keep_to_tenant(event: &mut Event, caller: &Caller) -> Result<(), Problem> {
    let Some(own) = &caller.tenant else { return Ok(()) };
    match &event.tenant.group {
        Some(other) if other != own => {
            Err(Problem::new(Code::Forbidden, format!("the token is for the tenant {own} alone")))
        }
        _ => {
            event.tenant.group = Some(own.clone());
            Ok(())
        }
    }
}
