//! Every parser that strangers can reach, fed with a corpus and what becomes of it when it is damaged: an answer or an error,
//! never a panic, and what was understood says the same when it is written and read again.

use std::collections::BTreeMap;

use bytes::Bytes;
use jiff::Timestamp;
use postrider::broker::{HeaderValue, Headers, Message, Properties};
use postrider::envelope::wire::{self, Identity};
use postrider::envelope::{EventId, OrderingKey, TenantId};
use postrider::store::{Cursor, LetterId};
use postrider::topology::{RoutingKey, topic_matches};
use postrider::{Clock, Envelope, Event, EventType, Payload, WireFormat};
use postrider_ledger::decimal::Decimal;
use postrider_ledger::money::Currency;
use postrider_ledger::rules::{Rules, ready};
use postrider_testkit::hostile::{damaged, damaged_text};
use proptest::prelude::*;

/// Damaged copies of each sample.
const COPIES: u64 = 2_000;

const BODIES: [&str; 7] = [
    r#"{"id":"evt_1","eventType":"shop.order.placed","aggregateType":"order","aggregateId":"o-1","payload":{"a":1}}"#,
    r#"{"event_id":"evt_1","timestamp":"2026-03-01T10:00:00Z","payload":{"total":"12.50"}}"#,
    r#"{"specversion":"1.0","id":"1","source":"/till","type":"shop.order.placed","data":{"a":[1,2,3]}}"#,
    r#"{"eventId":"evt_1","tenantId":"acme","gross":100.50,"currency":"EUR"}"#,
    r#"{"a":{"b":{"c":[[[[1e308,-0.0,12345678901234567890.123456789]]]]}}}"#,
    "not json at all",
    "",
];

fn key() -> RoutingKey {
    RoutingKey::new("shop.order.placed").unwrap()
}

fn read(message: &Message) -> Option<Envelope> {
    let received = Timestamp::from_second(1_767_225_600).unwrap();
    wire::decode(message, &key(), &Identity::default(), received).ok()
}

fn message(body: Vec<u8>, headers: Headers) -> Message {
    let properties = Properties { message_id: Some("m-1".to_owned()), ..Properties::default() };
    Message { properties, headers, body: body.into() }
}

#[test]
fn bodies_in_any_state_are_events_or_malformed() {
    let formats = [None, Some("envelope"), Some("smap"), Some("cloudevents"), Some("bare"), Some("?")];
    let mut understood = 0;
    for (number, body) in BODIES.iter().enumerate() {
        for seed in 0..COPIES {
            let body = damaged(seed << 8 | number as u64, body.as_bytes());
            let format = formats[usize::try_from(seed).unwrap() % formats.len()];
            let named = format.map(|name| (wire::header::WIRE_FORMAT.to_owned(), HeaderValue::from(name)));
            let Some(envelope) = read(&message(body, named.into_iter().collect())) else { continue };
            understood += 1;
            // What was understood once says the same when we pass it on.
            let again = read(&wire::encode(&envelope, WireFormat::Envelope, 0));
            let again = again.unwrap_or_else(|| panic!("{envelope:?} cannot be read back"));
            assert_eq!((&again.id, &again.event_type), (&envelope.id, &envelope.event_type));
            assert_eq!(again.payload.hash(), envelope.payload.hash(), "{envelope:?}");
        }
    }
    assert!(understood > 1_000, "only {understood} of the damaged bodies were still events");
}

fn value() -> impl Strategy<Value = HeaderValue> {
    let leaf = prop_oneof![
        Just(HeaderValue::Null),
        any::<bool>().prop_map(HeaderValue::Bool),
        any::<i64>().prop_map(HeaderValue::Int),
        any::<f64>().prop_map(HeaderValue::Float),
        (any::<u8>(), any::<u32>()).prop_map(|(scale, value)| HeaderValue::Decimal { scale, value }),
        ".{0,40}".prop_map(HeaderValue::Text),
        any::<Vec<u8>>().prop_map(HeaderValue::Bytes),
        any::<u64>().prop_map(HeaderValue::Timestamp),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        let table = proptest::collection::btree_map(".{0,12}", inner.clone(), 0..4);
        prop_oneof![
            proptest::collection::vec(inner, 0..4).prop_map(HeaderValue::List),
            table.prop_map(HeaderValue::Table)
        ]
    })
}

/// The names that mean something, and others.
fn name() -> impl Strategy<Value = String> {
    let known = [
        "x-event-id",
        "x-event-type",
        "x-aggregate-type",
        "x-aggregate-id",
        "x-group-id",
        "x-retry-count",
        "x-death",
        "x-postrider-format",
        "x-deliver-at",
        "cloudEvents_id",
        "cloudEvents:type",
        "ce-source",
        "traceparent",
        "CC",
        "x-first-received-at",
        "x-ordering-key",
        "x-causation-id",
        "x-correlation-id",
        "x-occurred-at",
        "x-tenant-id",
    ];
    prop_oneof![4 => proptest::sample::select(known.to_vec()).prop_map(str::to_owned), 1 => ".{0,20}"]
}

fn word() -> impl Strategy<Value = String> {
    prop_oneof!["[a-c]{1,2}", Just("*".to_owned()), Just("#".to_owned()), Just(String::new())]
}

/// By the book: `*` is one word, `#` any number of them.
fn matches_slowly(pattern: &[&str], key: &[&str]) -> bool {
    match (pattern.split_first(), key.split_first()) {
        (None, None) => true,
        (Some((&"#", rest)), _) => (0..=key.len()).any(|taken| matches_slowly(rest, &key[taken..])),
        (Some((&"*", rest)), Some((_, left))) => matches_slowly(rest, left),
        (Some((word, rest)), Some((first, left))) => word == first && matches_slowly(rest, left),
        _ => false,
    }
}

/// An empty key has no words at all.
fn words(text: &str) -> Vec<&str> {
    if text.is_empty() { Vec::new() } else { text.split('.').collect() }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn headers_of_any_kind_are_events_or_malformed(
        headers in proptest::collection::btree_map(name(), value(), 0..8),
        body in proptest::sample::select(BODIES.to_vec()),
    ) {
        let headers: BTreeMap<String, HeaderValue> = headers;
        let message = message(body.as_bytes().to_vec(), headers);
        let json = serde_json::to_string(&message.headers).unwrap();
        prop_assert!(serde_json::from_str::<Headers>(&json).is_ok(), "{json}");
        if let Some(envelope) = read(&message) {
            prop_assert!(read(&wire::encode(&envelope, WireFormat::Bare, 3)).is_some());
        }
        let mut revived = message;
        postrider::dead_letter::revive(&mut revived);
    }

    #[test]
    fn topic_patterns_match_by_the_book(
        pattern in proptest::collection::vec(word(), 1..6),
        key in proptest::collection::vec("[a-c]{0,2}", 1..6),
    ) {
        let (pattern, key) = (pattern.join("."), key.join("."));
        prop_assert_eq!(
            topic_matches(&pattern, &key),
            matches_slowly(&words(&pattern), &words(&key)),
            "{} on {}",
            pattern,
            key
        );
    }

    #[test]
    fn names_and_numbers_are_taken_or_refused(text in ".{0,200}") {
        let _ = (EventId::new(&text), EventType::new(&text), TenantId::new(&text), OrderingKey::new(&text));
        let _ = (text.parse::<Cursor>(), text.parse::<LetterId>(), Currency::new(&text));
        let _ = postrider::handler::retry_after(&text, Timestamp::UNIX_EPOCH);
        let _ = postrider::push::SigningSecret::parse(&text);
        if let Ok(number) = text.parse::<Decimal>() {
            prop_assert_eq!(number.to_string().parse::<Decimal>().ok(), Some(number));
        }
    }

    #[test]
    fn a_payload_hashes_the_same_however_it_is_laid_out(bytes in any::<Vec<u8>>()) {
        let payload = Payload::new("application/json", Bytes::from(bytes));
        prop_assert_eq!(payload.hash(), payload.hash());
    }
}

#[test]
fn rules_in_any_state_are_rules_or_a_reason() {
    let envelope = Event::new("payroll.salary.disbursed")
        .unwrap()
        .json(&serde_json::json!({"employeeId": "e", "gross": "10.00", "currency": "EUR", "paidOn": "2026-03-01"}))
        .unwrap()
        .into_envelope(&Clock::manual(Timestamp::UNIX_EPOCH).0);
    let base = Currency::new("EUR").unwrap();
    let mut usable = 0;
    for seed in 0..COPIES / 8 {
        let Ok(rules) = Rules::parse(1, &damaged_text(seed, ready::RULES)) else { continue };
        usable += 1;
        let _entry_or_refusal = rules.map(&envelope, envelope.payload.hash(), base);
    }
    assert!(usable > 10, "only {usable} of the damaged rules could be used");
    let rules = Rules::parse(1, ready::RULES).unwrap();
    for seed in 0..COPIES {
        let payload = damaged(seed, envelope.payload.bytes());
        let damaged = Envelope { payload: Payload::new("application/json", payload), ..envelope.clone() };
        let _entry_or_refusal = rules.map(&damaged, damaged.payload.hash(), base);
    }
}
