//! Errors as RFC 9457 has them: `application/problem+json` with a stable `code`.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use postrider::EventId;
use postrider::store::{StoreError, StoreErrorKind};
use serde::Serialize;

/// An error as a client sees it. `code` is for programs and never changes; `detail` is for people.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Problem {
    #[serde(rename = "type")]
    kind: String,
    title: &'static str,
    status: u16,
    code: &'static str,
    detail: String,
    /// The event it is about, where the client named it.
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
}

/// The codes, with their status and what they mean in a few words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Code {
    InvalidJson,
    InvalidUtf8,
    DuplicateKey,
    InvalidEvent,
    TooDeep,
    PayloadTooLarge,
    TooManyEvents,
    DuplicateEvent,
    EventConflict,
    InvalidIdempotencyKey,
    IdempotencyMismatch,
    IdempotencyInFlight,
    AnswerNotKept,
    InvalidRequest,
    Conflict,
    LeaseOver,
    Unauthenticated,
    Forbidden,
    NotFound,
    MethodNotAllowed,
    UnsupportedMediaType,
    RateLimited,
    ReadOnly,
    TimedOut,
    Overloaded,
    StoreUnavailable,
    BrokerUnavailable,
    Internal,
}

impl Code {
    fn parts(self) -> (StatusCode, &'static str, &'static str) {
        match self {
            Self::InvalidJson => (StatusCode::BAD_REQUEST, "invalid_json", "The body cannot be read"),
            Self::InvalidUtf8 => (StatusCode::BAD_REQUEST, "invalid_utf8", "The body is not UTF-8"),
            Self::DuplicateKey => (StatusCode::BAD_REQUEST, "duplicate_key", "A key is there twice"),
            Self::TooDeep => {
                (StatusCode::UNPROCESSABLE_ENTITY, "too_deep", "The payload is nested too deeply")
            }
            Self::TooManyEvents => {
                (StatusCode::PAYLOAD_TOO_LARGE, "too_many_events", "The batch has too many events")
            }
            Self::InvalidEvent => {
                (StatusCode::UNPROCESSABLE_ENTITY, "invalid_event", "The event breaks a rule")
            }
            Self::PayloadTooLarge => {
                (StatusCode::PAYLOAD_TOO_LARGE, "payload_too_large", "The body is too large")
            }
            Self::DuplicateEvent => {
                (StatusCode::CONFLICT, "duplicate_event", "The event was committed before")
            }
            Self::EventConflict => {
                (StatusCode::CONFLICT, "event_conflict", "Another event was committed under this id")
            }
            Self::InvalidIdempotencyKey => {
                (StatusCode::BAD_REQUEST, "invalid_idempotency_key", "The Idempotency-Key cannot be used")
            }
            Self::IdempotencyMismatch => (
                StatusCode::UNPROCESSABLE_ENTITY,
                "idempotency_mismatch",
                "The Idempotency-Key was used for another request",
            ),
            Self::IdempotencyInFlight => {
                (StatusCode::CONFLICT, "idempotency_in_flight", "The request is being worked on")
            }
            Self::AnswerNotKept => {
                (StatusCode::CONFLICT, "answer_not_kept", "It was done, and its answer is not kept")
            }
            Self::InvalidRequest => {
                (StatusCode::UNPROCESSABLE_ENTITY, "invalid_request", "The request breaks a rule")
            }
            Self::Conflict => (StatusCode::CONFLICT, "conflict", "It stands against what is there"),
            Self::LeaseOver => (StatusCode::GONE, "lease_over", "The lease is over"),
            Self::Unauthenticated => (StatusCode::UNAUTHORIZED, "unauthenticated", "A token is needed"),
            Self::Forbidden => (StatusCode::FORBIDDEN, "forbidden", "The token does not allow this"),
            Self::NotFound => (StatusCode::NOT_FOUND, "not_found", "There is nothing here"),
            Self::MethodNotAllowed => {
                (StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", "This method is not for this path")
            }
            Self::UnsupportedMediaType => {
                (StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", "The body has another type")
            }
            Self::RateLimited => (StatusCode::TOO_MANY_REQUESTS, "rate_limited", "Too many requests"),
            Self::ReadOnly => (StatusCode::FORBIDDEN, "read_only", "Nothing can be changed here"),
            Self::TimedOut => (StatusCode::SERVICE_UNAVAILABLE, "timed_out", "It took too long"),
            Self::Overloaded => (StatusCode::SERVICE_UNAVAILABLE, "overloaded", "Too many requests at once"),
            Self::StoreUnavailable => {
                (StatusCode::SERVICE_UNAVAILABLE, "store_unavailable", "No database now")
            }
            Self::BrokerUnavailable => {
                (StatusCode::SERVICE_UNAVAILABLE, "broker_unavailable", "No broker now")
            }
            Self::Internal => (StatusCode::INTERNAL_SERVER_ERROR, "internal", "Something went wrong here"),
        }
    }
}

impl Problem {
    /// A problem with its story.
    pub(crate) fn new(code: Code, detail: impl Into<String>) -> Self {
        let (status, word, title) = code.parts();
        let kind = format!("urn:postrider:problem:{word}");
        Self { kind, title, status: status.as_u16(), code: word, detail: detail.into(), id: None }
    }

    /// The same, about this event.
    pub(crate) fn about(self, event: &EventId) -> Self {
        Self { id: Some(event.to_string()), ..self }
    }

    /// The same with a word of its own, where a part of the product has finer ones.
    #[must_use]
    pub(crate) fn named(self, word: &'static str) -> Self {
        Self { kind: format!("urn:postrider:problem:{word}"), code: word, ..self }
    }

    /// The word for it, for programs.
    pub(crate) fn code(&self) -> &'static str {
        self.code
    }

    /// Whether this is what it says.
    pub(crate) fn is(&self, code: Code) -> bool {
        self.code == code.parts().1
    }

    /// The status, and what it is called.
    pub(crate) fn heading(&self) -> (StatusCode, &'static str) {
        (StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), self.title)
    }

    /// What happened, for people.
    pub(crate) fn detail(&self) -> &str {
        &self.detail
    }

    /// No such path.
    pub(crate) fn not_found() -> Self {
        Self::new(Code::NotFound, "no route has this path; the API is under /v1")
    }

    /// The path is right, the method is not.
    pub(crate) fn method_not_allowed() -> Self {
        Self::new(Code::MethodNotAllowed, "the Allow header names the methods that are")
    }

    /// The database does not answer.
    pub(crate) fn store_away() -> Self {
        let detail = "nothing was committed for certain; try again with the same id";
        Self::new(Code::StoreUnavailable, detail)
    }

    /// The body is larger than allowed.
    pub(crate) fn too_large(max: usize) -> Self {
        let detail = format!(
            "the body may have {max} bytes (http.max_body_bytes); store it elsewhere and send a reference"
        );
        Self::new(Code::PayloadTooLarge, detail)
    }
}

/// What the store could not do. The log has the whole story; the client gets what it can act on.
impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        match error.kind {
            StoreErrorKind::Duplicate => Self::new(
                Code::DuplicateEvent,
                "an event with this id was committed before; nothing was written now",
            ),
            StoreErrorKind::Invalid | StoreErrorKind::OutOfRange => {
                Self::new(Code::InvalidEvent, error.message)
            }
            StoreErrorKind::Unavailable | StoreErrorKind::Contended | StoreErrorKind::Busy => {
                tracing::warn!(error = %error.message, "a request failed: the store is not available");
                Self::store_away()
            }
            StoreErrorKind::Denied | StoreErrorKind::Schema | StoreErrorKind::Other => {
                tracing::error!(error = %error.message, "a request failed in the store");
                Self::new(
                    Code::Internal,
                    "the log of the process has the reason; `postrider doctor` tells what to do",
                )
            }
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = serde_json::to_vec(&self).unwrap_or_default();
        let mut response = (status, body).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        let soon = matches!(status, StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS);
        if soon || self.is(Code::IdempotencyInFlight) {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}
