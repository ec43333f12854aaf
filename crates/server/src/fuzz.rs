//! Fuzz targets of the binary: configuration, HTTP bodies and queries, filters, schemas. Built for tests and for cargo-fuzz only.
//!
//! Each takes any bytes and must not panic; see `postrider`'s module of the same name.

#![allow(clippy::missing_panics_doc, reason = "a target fails by panicking")]

use std::fmt::Display;

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use bytes::Bytes;
use jiff::Timestamp;
use postrider::Event;
use postrider::envelope::wire::{self, Identity};
use postrider::topology::RoutingKey;
use postrider::{Clock, WireFormat};
use serde_json::Value;

use crate::config::{Config, Limits};
use crate::event_input::{EventInput, cloud_event};

/// A target, and the name of its corpus.
pub type Target = (&'static str, fn(&[u8]));

/// All of them.
pub const TARGETS: [Target; 5] = [
    ("cloud_event", cloud_event),
    ("config", config),
    ("event", event),
    ("query", query),
    ("schema", schema),
];

const LIMITS: Limits = Limits { max_payload_bytes: 4_096, max_depth: 32, max_batch_events: 100 };

/// A configuration file.
pub fn config(data: &[u8]) {
    if let Err(error) = Config::of_text(&String::from_utf8_lossy(data)) {
        has_a_text(&error);
        assert!(!error.problem.trim().is_empty(), "{error}");
    }
}

/// The body of a request that publishes: one event, or several.
pub fn event(data: &[u8]) {
    match serde_json::from_slice::<EventInput>(data) {
        Ok(input) => taken(input.into_event(LIMITS)),
        Err(error) => has_a_text(&error),
    }
    let _batch_or_why = serde_json::from_slice::<Vec<EventInput>>(data).map_err(|error| has_a_text(&error));
}

/// A CloudEvent as JSON; or headers, one a line, before an empty line and the body.
pub fn cloud_event(data: &[u8]) {
    let text = &*String::from_utf8_lossy(data);
    taken(cloud_event::structured(text, LIMITS));
    let (head, body) = text.split_once("\n\n").unwrap_or((text, ""));
    let header = |line: &str| {
        let (name, value) = line.split_once(':')?;
        let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
        Some((name, HeaderValue::from_bytes(value.trim().as_bytes()).ok()?))
    };
    let headers: HeaderMap = head.lines().filter_map(header).collect();
    if cloud_event::is_binary(&headers) {
        taken(cloud_event::binary(&headers, Bytes::copy_from_slice(body.as_bytes()), LIMITS));
    }
}

/// Which dead letters are asked for, in a query; and since when.
pub fn query(data: &[u8]) {
    let text = &*String::from_utf8_lossy(data);
    let now = Timestamp::UNIX_EPOCH;
    let _time_or_why = crate::commands::dlq::since(text, now).map_err(|error| has_a_text(&error));
    crate::api::asked(text, now);
    let _place = crate::desk::letters::read_place(text);
}

/// A schema of the catalogue and, in another line, a payload or a later schema.
pub fn schema(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (schema, other) = text.split_once('\n').unwrap_or((&text, "{}"));
    let json = |text: &str| serde_json::from_str::<Value>(text).ok();
    if let (Some(schema), Some(other)) = (json(schema), json(other)) {
        let said = [
            crate::catalog::payload::problems(&schema, &other),
            crate::catalog::additive::breaks(&schema, &other),
            crate::catalog::privacy::undeclared(&schema),
        ];
        for text in said.iter().flatten() {
            has_a_text(text);
        }
        assert!(crate::catalog::additive::breaks(&schema, &schema).is_empty(), "{schema} breaks itself");
    }
}

/// What was taken is an event for whoever reads it.
fn taken(event: Result<Event, crate::event_input::Refused>) {
    let event = match event {
        Ok(event) => event,
        Err(refused) => return has_a_text(&refused),
    };
    let envelope = event.into_envelope(&Clock::manual(Timestamp::UNIX_EPOCH).0);
    let key = RoutingKey::from(&envelope.event_type);
    for format in [WireFormat::Envelope, WireFormat::CloudEvents] {
        let message = wire::encode(&envelope, format, 0);
        let read = wire::decode(&message, &key, &Identity::default(), Timestamp::UNIX_EPOCH);
        let read = read.unwrap_or_else(|why| panic!("{why}: {envelope:?}"));
        assert_eq!((&read.id, read.payload.hash()), (&envelope.id, envelope.payload.hash()), "{envelope:?}");
    }
}

fn has_a_text(error: &dyn Display) {
    assert!(!error.to_string().trim().is_empty(), "an error that says nothing");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_corpus_and_what_becomes_of_it_is_read_or_refused() {
        for (name, target) in TARGETS {
            postrider_testkit::hostile::feed(name, 300, target);
        }
    }
}
