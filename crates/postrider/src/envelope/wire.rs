//! How an envelope looks on the wire, and how any reader finds it again.
//!
//! The format is chosen per exchange; the reader needs no choice: it accepts every format that can be told apart, and
//! where foreign producers put identity is said per queue by an [`Identity`].

mod bodies;
mod cloudevents;
mod draft;
mod headers;
mod identity;

pub(crate) use headers::beside as headers_beside;
pub(crate) use headers::is_own as is_own_header;
pub use headers::names as header;
pub use identity::{Identity, Place};

use std::borrow::Cow;

use bytes::Bytes;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use self::draft::Draft;
use super::{Envelope, EventId, EventType, Payload};
use crate::broker::Message;
use crate::topology::RoutingKey;

/// How events of an exchange are written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WireFormat {
    /// JSON with `event_id`, `occurred_at`, `aggregate_type`, …, `payload`. The default.
    #[default]
    Envelope,
    /// JSON with `event_id` (`evt_…`), `timestamp` and `payload`.
    Smap,
    /// CloudEvents 1.0.2: the payload is the body, the attributes are headers.
    CloudEvents,
    /// The payload alone; identity is in the properties and headers.
    Bare,
}

impl WireFormat {
    /// The word for it, in config and in the `x-wire-format` header.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Envelope => "envelope",
            Self::Smap => "smap",
            Self::CloudEvents => "cloudevents",
            Self::Bare => "bare",
        }
    }
}

impl std::str::FromStr for WireFormat {
    type Err = Malformed;

    fn from_str(name: &str) -> Result<Self, Malformed> {
        [Self::Envelope, Self::Smap, Self::CloudEvents, Self::Bare]
            .into_iter()
            .find(|format| format.as_str() == name)
            .ok_or_else(|| {
                Malformed(format!(
                    "unknown wire format {name:?}; known are envelope, smap, cloudevents, bare"
                ))
            })
    }
}

/// Why a message is not an event. It becomes a dead letter with this as its error.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(pub String);

/// Writes an envelope. `attempts` is how often publishing it failed before.
pub fn encode(envelope: &Envelope, format: WireFormat, attempts: u32) -> Message {
    let (content_type, body) = match format {
        WireFormat::Envelope => (super::payload::JSON.to_owned(), bodies::write_envelope(envelope)),
        WireFormat::Smap => (super::payload::JSON.to_owned(), bodies::write_smap(envelope)),
        WireFormat::CloudEvents | WireFormat::Bare => {
            (envelope.payload.content_type().to_owned(), envelope.payload.bytes().clone())
        }
    };
    let mut message = Message { body, ..Message::default() };
    headers::write(envelope, format, attempts, &mut message);
    message.properties.content_type = Some(content_type);
    message
}

/// Reads a message. `routing_key` is the one it was delivered with, `received_at` stands in for a missing time.
pub fn decode(
    message: &Message,
    routing_key: &RoutingKey,
    identity: &Identity,
    received_at: Timestamp,
) -> Result<Envelope, Malformed> {
    let (mut draft, payload) = match message.header(header::WIRE_FORMAT) {
        Some(name) => read_as(name.parse()?, message)?,
        None => detect(message, identity)?,
    };
    headers::read(message, &mut draft);
    cloudevents::read_headers(message, &mut draft);
    headers::read_properties(message, &mut draft);
    if draft.event_type.is_none() {
        let key = message.header(header::ORIGINAL_ROUTING_KEY).unwrap_or(routing_key.as_str());
        // The key says the type, if it is one.
        let said = EventType::new(key).is_ok().then_some(key);
        let usual = || identity.usual_type.as_ref().map(EventType::as_str);
        draft.event_type = said.or_else(usual).map(Cow::Borrowed);
    }
    draft.finish(payload, received_at)
}

/// What is left of the identity of a message that is no event: its id and its type, each as far as it is one. They are looked for where
/// [`decode`] looks, and a body that cannot be read hides nothing that stands beside it.
pub(crate) fn remains(message: &Message, identity: &Identity) -> (Option<EventId>, Option<EventType>) {
    let read = match message.header(header::WIRE_FORMAT) {
        Some(name) => name.parse::<WireFormat>().and_then(|format| read_as(format, message)),
        None => detect(message, identity),
    };
    let mut draft = read.map_or_else(|_| identity.read(message), |(draft, _)| draft);
    headers::read(message, &mut draft);
    cloudevents::read_headers(message, &mut draft);
    headers::read_properties(message, &mut draft);
    let id = draft.id.and_then(|id| EventId::new(id).ok());
    (id, draft.event_type.and_then(|of| EventType::new(of).ok()))
}

fn read_as(format: WireFormat, message: &Message) -> Result<(Draft<'_>, Payload), Malformed> {
    match format {
        WireFormat::Envelope => bodies::read_envelope(&message.body),
        WireFormat::Smap => bodies::read_smap(&message.body),
        WireFormat::CloudEvents => {
            let mut draft = Draft::default();
            cloudevents::read_headers(message, &mut draft);
            Ok((draft, whole_body(message)))
        }
        WireFormat::Bare => Ok((Draft::default(), whole_body(message))),
    }
}

/// A foreign producer said nothing of the format: look.
fn detect<'a>(message: &'a Message, identity: &Identity) -> Result<(Draft<'a>, Payload), Malformed> {
    if cloudevents::is_structured(message) {
        return cloudevents::read_structured(&message.body);
    }
    let named = identity.read(message);
    if named.id.is_some() {
        return Ok((named, whole_body(message)));
    }
    if bodies::looks_like_envelope(&message.body) {
        return bodies::read_envelope(&message.body);
    }
    if bodies::looks_like_smap(&message.body) {
        return bodies::read_smap(&message.body);
    }
    Ok((named, whole_body(message)))
}

/// The body as it is. Without a content type, JSON is recognised by being JSON.
fn whole_body(message: &Message) -> Payload {
    let body = Bytes::clone(&message.body);
    match &message.properties.content_type {
        Some(declared) => Payload::new(declared, body),
        None if serde_json::from_slice::<serde::de::IgnoredAny>(&body).is_ok() => Payload::json_bytes(body),
        None => Payload::new("application/octet-stream", body),
    }
}

#[cfg(test)]
mod tests;
