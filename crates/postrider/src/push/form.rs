//! How an event looks as a request: body and headers.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::signing::SigningSecret;
use crate::envelope::wire::{self, header};
use crate::envelope::{Envelope, Payload, WireFormat};
use crate::handler::Incoming;
use crate::passed_on::{encoded, passed_on};

/// What the body is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Form {
    /// JSON with the event's id, type, time and tenant, and its payload inside.
    #[default]
    Envelope,
    /// The payload, with the attributes of a CloudEvent as `ce-` headers. Where the payload is `null` there is no body.
    CloudEvents,
    /// The payload alone.
    Bare,
}

/// A request, but for its url.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prepared {
    /// Names and values, both plain ASCII.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Bytes,
}

/// What the headers of a message have that is nobody's business over HTTP, or has another name there.
const LEFT_OUT: [&str; 3] = [header::ATTEMPTS, header::WIRE_FORMAT, header::RETRY_COUNT];
/// These have a grammar of their own, in which a space or a percent sign is one.
const TRACE: [&str; 2] = [header::TRACEPARENT, header::TRACESTATE];

impl Form {
    /// Writes a request: the body, who the event is, which attempt it is, its trace and its signatures, and after them what the message
    /// has of its own.
    ///
    /// Text that a header cannot carry is percent-encoded, as CloudEvents has it.
    pub fn prepare(self, event: &Incoming, secrets: &[SigningSecret], timestamp: i64) -> Prepared {
        let format = match self {
            Self::Envelope => WireFormat::Envelope,
            Self::CloudEvents => WireFormat::CloudEvents,
            Self::Bare => WireFormat::Bare,
        };
        let mut message = wire::encode(&event.envelope, format, 0);
        if self == Self::CloudEvents && has_no_data(&event.envelope.payload) {
            message.body = Bytes::new();
            message.properties.content_type = None;
        }
        let mut headers = Vec::new();
        if let Some(content_type) = &message.properties.content_type {
            headers.push(("content-type".to_owned(), carried(content_type)));
        }
        for (name, value) in &message.headers {
            let Some(text) = value.as_str() else { continue };
            match name.strip_prefix("cloudEvents_") {
                Some(attribute) if self == Self::CloudEvents => {
                    headers.push((format!("ce-{attribute}"), encoded(text)));
                }
                Some(_) => {}
                None if LEFT_OUT.contains(&name.as_str()) => {}
                None if TRACE.contains(&name.as_str()) => headers.push((name.clone(), carried(text))),
                None => headers.push((name.clone(), encoded(text))),
            }
        }
        headers.push(("x-attempt".to_owned(), event.attempt.to_string()));
        headers.push((header::RETRY_COUNT.to_owned(), (event.attempt - 1).to_string()));
        headers.push(("x-consumer".to_owned(), encoded(event.consumer.as_str())));
        sign(&event.envelope, &message.body, secrets, timestamp, &mut headers);
        for passed in passed_on(&event.headers) {
            if !headers.iter().any(|(written, _)| *written == passed.name) {
                headers.push((passed.name, passed.text));
            }
        }
        Prepared { headers, body: message.body }
    }
}

/// An event without data is kept as one whose data is `null`, so a CloudEvent of either has no data.
fn has_no_data(payload: &Payload) -> bool {
    payload.is_json() && payload.bytes().trim_ascii() == b"null"
}

/// The id is the event's on every attempt; the time is that of the attempt.
fn sign(
    envelope: &Envelope,
    body: &Bytes,
    secrets: &[SigningSecret],
    timestamp: i64,
    headers: &mut Vec<(String, String)>,
) {
    let id = encoded(envelope.id.as_str());
    if !secrets.is_empty() {
        let signatures: Vec<_> = secrets.iter().map(|secret| secret.sign(&id, timestamp, body)).collect();
        headers.push(("webhook-signature".to_owned(), signatures.join(" ")));
    }
    headers.push(("webhook-timestamp".to_owned(), timestamp.to_string()));
    headers.push(("webhook-id".to_owned(), id));
}

/// As it is, with its quotes: `text/plain; charset="utf-8"`. What no header can carry is left out.
fn carried(text: &str) -> String {
    text.chars().filter(|character| matches!(character, ' '..='~')).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::envelope::Event;
    use crate::topology::ConsumerName;

    fn incoming() -> Incoming {
        let event =
            Event::new("shop.order.placed").unwrap().id("évt\r\n1").unwrap().aggregate_id("42").unwrap();
        let mut event = event.json(&serde_json::json!({"n": 1})).unwrap();
        event.trace.traceparent = Some("00-abc-def-01".to_owned());
        let (clock, _) = Clock::manual("2026-01-01T00:00:00Z".parse().unwrap());
        let consumer = ConsumerName::new("mail").unwrap();
        Incoming::new(consumer, event.into_envelope(&clock), 3)
    }

    fn header<'a>(prepared: &'a Prepared, name: &str) -> Option<&'a str> {
        let mut found = prepared.headers.iter().filter(|(other, _)| other == name);
        let value = found.next().map(|(_, value)| value.as_str());
        assert!(found.next().is_none(), "{name} is there twice");
        value
    }

    #[test]
    fn each_form_says_who_the_event_is_and_which_attempt() {
        for form in [Form::Envelope, Form::CloudEvents, Form::Bare] {
            let prepared = form.prepare(&incoming(), &[], 7);
            assert_eq!(header(&prepared, "webhook-id"), Some("%C3%A9vt%0D%0A1"));
            assert_eq!(header(&prepared, "x-event-id"), Some("%C3%A9vt%0D%0A1"));
            assert_eq!(header(&prepared, "x-attempt"), Some("3"));
            assert_eq!(header(&prepared, "x-retry-count"), Some("2"));
            assert_eq!(header(&prepared, "traceparent"), Some("00-abc-def-01"));
            assert_eq!(header(&prepared, "webhook-timestamp"), Some("7"));
            assert_eq!(header(&prepared, "webhook-signature"), None);
            assert_eq!(header(&prepared, "ce-type").is_some(), form == Form::CloudEvents);
            assert_eq!(prepared.body.as_ref() == br#"{"n":1}"#, form != Form::Envelope);
            assert!(
                prepared.headers.iter().all(|(_, value)| value.is_ascii() && !value.contains(['\r', '\n']))
            );
        }
    }

    #[test]
    fn a_cloud_event_without_data_has_no_body_and_other_forms_say_null() {
        let mut event = incoming();
        event.envelope.payload = Payload::new("application/json", " null\n");
        let cloud_event = Form::CloudEvents.prepare(&event, &[SigningSecret::shared([1; 32])], 7);
        assert!(cloud_event.body.is_empty());
        assert_eq!(header(&cloud_event, "content-type"), None);
        let signature = SigningSecret::shared([1; 32]).sign("%C3%A9vt%0D%0A1", 7, b"");
        assert_eq!(header(&cloud_event, "webhook-signature"), Some(signature.as_str()));
        let bare = Form::Bare.prepare(&event, &[], 7);
        assert_eq!(bare.body.trim_ascii(), b"null");
        assert_eq!(header(&bare, "content-type"), Some("application/json"));
        let envelope = Form::Envelope.prepare(&event, &[], 7);
        let read: serde_json::Value = serde_json::from_slice(&envelope.body).unwrap();
        assert!(read["payload"].is_null() && read.get("payload").is_some(), "{read}");
        // A text is no JSON, whatever it says.
        event.envelope.payload = Payload::new("text/plain", "null");
        assert_eq!(Form::CloudEvents.prepare(&event, &[], 7).body.as_ref(), b"null");
    }

    #[test]
    fn a_content_type_keeps_its_quotes_and_nothing_that_breaks_a_header() {
        assert_eq!(carried("text/plain; charset=\"utf-8\""), "text/plain; charset=\"utf-8\"");
        assert_eq!(carried("text/pl\r\nain é"), "text/plain ");
    }

    #[test]
    fn an_id_is_the_same_after_the_way_through_a_header_and_a_trace_is_left_as_it_is() {
        assert_eq!(encoded(" a%b "), "%20a%25b%20");
        let mut event = incoming();
        event.envelope.trace.tracestate = Some("vendor=a%20b, other=1".to_owned());
        let prepared = Form::Bare.prepare(&event, &[], 7);
        assert_eq!(header(&prepared, "tracestate"), Some("vendor=a%20b, other=1"));
    }

    #[test]
    fn two_valid_secrets_make_two_signatures_over_the_id_that_is_sent() {
        let secrets = [SigningSecret::shared([1; 32]), SigningSecret::shared([2; 32])];
        let prepared = Form::Bare.prepare(&incoming(), &secrets, 7);
        let wanted = secrets.map(|secret| secret.sign("%C3%A9vt%0D%0A1", 7, br#"{"n":1}"#));
        assert_eq!(header(&prepared, "webhook-signature"), Some(wanted.join(" ").as_str()));
    }
}
