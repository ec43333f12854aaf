//! Fuzz targets: everything that reads what strangers write. Built for tests and for cargo-fuzz only.
//!
//! Each takes any bytes and must not panic. What it can read says the same when it is written and read again, and what it cannot
//! read is refused with a text. The corpus of a target lies in `fuzz/corpus/` under its name; a test runs it, with damaged
//! copies, on every change (see `docs/proof.md`).

#![allow(clippy::missing_panics_doc, reason = "a target fails by panicking")]

use std::collections::BTreeMap;
use std::fmt::{Debug, Display};
use std::str::FromStr;

use bytes::Bytes;
use jiff::Timestamp;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::broker::{Headers, Message, Properties};
use crate::envelope::wire::{self, Identity};
use crate::envelope::{AggregateId, EventId, OrderingKey, TenantId};
use crate::migration::Template;
use crate::store::{Cursor, DeadLetter, LetterId};
use crate::topology::observed::{self, Observed};
use crate::topology::{
    BindingKey, ConsumerName, ExchangeName, KeyTemplate, Layout, PRESETS, QueueName, RoutingKey, VhostName,
    plan, topic_matches,
};
use crate::{Envelope, EventType, InvalidText, WireFormat};

/// A target, and the name of its corpus.
pub type Target = (&'static str, fn(&[u8]));

/// All of them.
pub const TARGETS: [Target; 11] = [
    ("amqp", amqp),
    ("answer", answer),
    ("archive", archive),
    ("envelope", envelope),
    ("frames", frames),
    ("headers", headers),
    ("letter", letter),
    ("names", names),
    ("pgoutput", pgoutput),
    ("template", template),
    ("topology", topology),
];

const FORMATS: [WireFormat; 4] =
    [WireFormat::Envelope, WireFormat::Smap, WireFormat::CloudEvents, WireFormat::Bare];

/// The body of a message; its first byte says which format its header names, if any.
pub fn envelope(data: &[u8]) {
    let Some((first, body)) = data.split_first() else { return };
    let named = ["envelope", "smap", "cloudevents", "bare", "?"].get(usize::from(*first) % 8);
    let headers = named.map(|name| (wire::header::WIRE_FORMAT.to_owned(), (*name).into()));
    passed_on(&message(body, headers.into_iter().collect()));
}

/// The headers of a message, as JSON.
pub fn headers(data: &[u8]) {
    let Some(headers) = again::<Headers>(data) else { return };
    let sent = message(br#"{"total":"12.50"}"#, headers);
    passed_on(&sent);
    #[cfg(feature = "rabbitmq")]
    if let Ok(received) = crate::rabbitmq::there_and_back(&sent) {
        // Compared as text: not even a number that is none equals itself.
        assert_eq!(format!("{:?}", received.headers), format!("{:?}", sent.headers));
    }
    let mut revived = sent;
    crate::dead_letter::revive(&mut revived);
}

/// A table of headers as it travels.
pub fn amqp(data: &[u8]) {
    #[cfg(feature = "rabbitmq")]
    if let Some(headers) = crate::rabbitmq::headers_of(data) {
        passed_on(&message(b"{}", headers));
    }
}

/// Frames as RabbitMQ sends them, with the properties of messages in some.
pub fn frames(data: &[u8]) {
    #[cfg(feature = "rabbitmq")]
    crate::rabbitmq::messages_of(data).iter().for_each(passed_on);
}

/// A line of an archive.
pub fn archive(data: &[u8]) {
    match crate::archive::read_document(&String::from_utf8_lossy(data)) {
        Ok(row) => says_the_same(&row.envelope),
        Err(error) => has_a_text(&error),
    }
}

/// Messages of PostgreSQL's log, each after its length.
pub fn pgoutput(data: &[u8]) {
    #[cfg(feature = "postgres")]
    crate::postgres::told_by_the_log(data, says_the_same);
}

/// A dead letter as it is exported.
pub fn letter(data: &[u8]) {
    if let Some(letter) = again::<DeadLetter>(data) {
        let _dead_before = (letter.replay_of(), letter.replays());
        passed_on(&Message { properties: letter.properties, headers: letter.headers, body: letter.body });
    }
}

/// The template of a body for an old bus.
pub fn template(data: &[u8]) {
    let template = serde_json::from_slice::<Template>(data).map_err(|error| has_a_text(&error));
    if let (Ok(template), Some(envelope)) = (template, sample()) {
        let filled = template.fill(&envelope);
        assert!(filled.is_some_and(|body| serde_json::from_slice::<serde_json::Value>(&body).is_ok()));
    }
}

/// What a broker says it has.
#[derive(serde::Deserialize)]
struct Found {
    exchanges: Vec<observed::Exchange>,
    queues: Vec<observed::Queue>,
    bindings: Vec<observed::Binding>,
    policies: Vec<observed::Policy>,
}

/// What a broker says it has, and layouts that somebody wrote: compared and planned.
pub fn topology(data: &[u8]) {
    if let Some(layout) = again::<Layout>(data) {
        let plan = plan::diff(&layout.topology, &Observed::default(), true);
        assert!(!plan.steps.is_empty(), "there is not even a virtual host");
    }
    let Ok(found) = serde_json::from_slice::<Found>(data) else { return };
    let Found { exchanges, queues, bindings, policies } = found;
    let observed = Observed {
        vhost_exists: true,
        may_set_policies: true,
        exchanges,
        queues,
        bindings,
        policies,
        ..Observed::default()
    };
    for layout in PRESETS.iter().filter_map(|preset| preset.layout(&[]).ok()) {
        let plan = plan::diff(&layout.topology, &observed, true);
        let written = serde_json::to_string(&plan).unwrap_or_default();
        assert!(serde_json::from_str::<plan::Plan>(&written).is_ok(), "{written}");
    }
}

/// The answer of an endpoint: a status, then its body.
pub fn answer(data: &[u8]) {
    #[cfg(feature = "push")]
    {
        use crate::push::{Answer, Said, StatusTable, judge};
        let _table_or_why = serde_json::from_slice::<StatusTable>(data).map_err(|error| has_a_text(&error));
        let Some((status, body)) = data.split_at_checked(2) else { return };
        let status = u16::from_be_bytes([status[0], status[1]]);
        let retry_after = crate::handler::retry_after(&String::from_utf8_lossy(body), Timestamp::UNIX_EPOCH);
        let answer = Answer { status, retry_after, body: Bytes::copy_from_slice(body), whole: true };
        let said = judge(&answer, &StatusTable::default(), Timestamp::UNIX_EPOCH);
        assert!((200..300).contains(&status) || !matches!(said, Said::Done), "{status} is no success");
    }
}

/// Names, ids, keys, patterns and other short texts.
pub fn names(data: &[u8]) {
    let text = &*String::from_utf8_lossy(data);
    named(text, EventId::new(text));
    named(text, EventType::new(text));
    named(text, TenantId::new(text));
    named(text, AggregateId::new(text));
    named(text, OrderingKey::new(text));
    named(text, RoutingKey::new(text));
    named(text, BindingKey::new(text));
    named(text, ExchangeName::new(text));
    named(text, QueueName::new(text));
    named(text, ConsumerName::new(text));
    named(text, VhostName::new(text));
    parsed::<Cursor>(text);
    parsed::<LetterId>(text);
    let (pattern, key) = text.split_once(' ').unwrap_or((text, text));
    assert!(
        topic_matches("#", key)
            && (topic_matches(pattern, key) || pattern != key || text.contains(['*', '#']))
    );
    match (KeyTemplate::new(text), sample()) {
        (Ok(template), Some(envelope)) => drop(template.fill(&envelope)),
        (Ok(_), None) => {}
        (Err(error), _) => has_a_text(&error),
    }
    let key = crate::pull::LeaseKey::fresh(&crate::clock::Clock::system());
    let _lease = crate::pull::LeaseToken::read(text, &key);
    #[cfg(feature = "push")]
    {
        let _network = text.parse::<crate::push::Network>().map_err(|error| has_a_text(&error));
        let _secret = crate::push::SigningSecret::parse(text).map_err(|error| has_a_text(&error));
    }
}

/// A name is taken as it stands, or refused with a text.
fn named<T: Display>(text: &str, name: Result<T, InvalidText>) {
    match name {
        Ok(name) => assert_eq!(name.to_string(), text),
        Err(error) => has_a_text(&error),
    }
}

/// Something that may be written in several ways: written by us, it is read as the same.
fn parsed<T: FromStr + Display + PartialEq + Debug>(text: &str) {
    if let Ok(value) = text.parse::<T>() {
        assert_eq!(value.to_string().parse::<T>().ok(), Some(value));
    }
}

/// Reads JSON, and what is written of it again. Compared as text, because NaN differs from itself.
fn again<T: Serialize + DeserializeOwned + Debug>(data: &[u8]) -> Option<T> {
    let value: T = serde_json::from_slice(data).map_err(|error| has_a_text(&error)).ok()?;
    let written = serde_json::to_string(&value).unwrap_or_else(|error| panic!("{error}: {value:?}"));
    let again: T = serde_json::from_str(&written).unwrap_or_else(|error| panic!("{error}: {written}"));
    assert_eq!(format!("{again:?}"), format!("{value:?}"));
    Some(value)
}

fn has_a_text(error: &dyn Display) {
    assert!(!error.to_string().trim().is_empty(), "an error that says nothing");
}

fn message(body: &[u8], headers: Headers) -> Message {
    let properties = Properties { message_id: Some("m-1".to_owned()), ..Properties::default() };
    Message { properties, headers, body: Bytes::copy_from_slice(body) }
}

fn read(message: &Message) -> Result<Envelope, wire::Malformed> {
    let key = RoutingKey::from(&sample().unwrap_or_else(|| panic!("the sample is an event")).event_type);
    wire::decode(message, &key, &Identity::default(), Timestamp::UNIX_EPOCH)
}

/// A message is an event, or malformed, with a text.
fn passed_on(message: &Message) {
    match read(message) {
        Ok(envelope) => says_the_same(&envelope),
        Err(malformed) => has_a_text(&malformed),
    }
}

/// What was understood once says the same in every format that we pass it on in.
fn says_the_same(envelope: &Envelope) {
    for format in FORMATS {
        let again = read(&wire::encode(envelope, format, 0));
        let again = again.unwrap_or_else(|why| panic!("{why}: as {format:?}, of {envelope:?}"));
        assert_eq!((&again.id, &again.event_type), (&envelope.id, &envelope.event_type), "as {format:?}");
        assert_eq!(again.payload.hash(), envelope.payload.hash(), "as {format:?}, of {envelope:?}");
        assert_eq!(again.ordering_key, envelope.ordering_key, "as {format:?}, of {envelope:?}");
        assert_eq!(again.tenant, envelope.tenant, "as {format:?}, of {envelope:?}");
    }
}

/// Some event.
fn sample() -> Option<Envelope> {
    let body = br#"{"event_id":"evt_1","timestamp":"2026-03-01T10:00:00Z","payload":{"email":"a@b.example","n":[1,2]}}"#;
    let key = RoutingKey::new("shop.order.placed").ok()?;
    let message = message(body, BTreeMap::new());
    wire::decode(&message, &key, &Identity::default(), Timestamp::UNIX_EPOCH).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_corpus_and_what_becomes_of_it_is_read_or_refused() {
        for (name, target) in TARGETS {
            postrider_testkit::hostile::feed(name, 400, target);
        }
    }
}
