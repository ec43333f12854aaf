//! What a body is, by its headers: told before a byte of it is read.

use axum::http::{HeaderMap, header};

use crate::api::problem::{Code, Problem};
use crate::event_input::cloud_event;

/// The forms in which events come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Content {
    /// Our own plain JSON: one event, or an array of them.
    Json,
    /// A whole CloudEvent as JSON.
    CloudEvent,
    /// An array of whole CloudEvents.
    CloudEvents,
    /// A payload of any type, beside a CloudEvent's attributes in the headers.
    Attributes,
}

impl Content {
    /// A form in a browser can post anything but these without asking first.
    pub(super) fn of(headers: &HeaderMap) -> Result<Self, Problem> {
        let given = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
        let essence = given.split(';').next().unwrap_or("").trim().to_ascii_lowercase();
        match essence.as_str() {
            "application/cloudevents+json" => Ok(Self::CloudEvent),
            "application/cloudevents-batch+json" => Ok(Self::CloudEvents),
            _ if cloud_event::is_binary(headers) => Ok(Self::Attributes),
            "application/json" => Ok(Self::Json),
            _ => Err(Problem::new(
                Code::UnsupportedMediaType,
                "send Content-Type: application/json, application/cloudevents+json or \
                 application/cloudevents-batch+json, or a payload of any type with the ce- headers of a CloudEvent",
            )),
        }
    }
}
