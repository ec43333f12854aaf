//! Every format both ways, foreign producers, and what is refused.

use super::*;
use crate::broker::HeaderValue;
use crate::clock::Clock;
use crate::envelope::{Event, EventId, TenantId};

const FORMATS: [WireFormat; 4] =
    [WireFormat::Envelope, WireFormat::Smap, WireFormat::CloudEvents, WireFormat::Bare];

fn order(payload: Payload) -> Envelope {
    let (clock, _) = Clock::manual("2025-12-21T22:30:00.123456Z".parse().unwrap());
    let event = Event::new("ecommerce.order.completed").unwrap();
    let mut event = event.aggregate_id("ord {1}").unwrap().tenant("grüppe").unwrap().payload(payload);
    event.tenant.subsidiary = Some(TenantId::new("lagos").unwrap());
    event.causation_id = Some(EventId::new("evt_987654321").unwrap());
    event.correlation_id = Some(EventId::new("conversation").unwrap());
    event.trace.traceparent = Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".into());
    event.attributes.set("comexampleother", "x").unwrap();
    event.into_envelope(&clock)
}

fn read(message: &Message) -> Result<Envelope, Malformed> {
    decode(message, &RoutingKey::new("some.queue").unwrap(), &Identity::default(), Timestamp::UNIX_EPOCH)
}

fn foreign(body: &str) -> Message {
    Message { body: Bytes::copy_from_slice(body.as_bytes()), ..Message::default() }
}

#[test]
fn every_format_gives_the_same_event_back() {
    let json = Payload::new("application/json", r#"{ "total_amount": "125000.00",  "n": 1.50 }"#.as_bytes());
    let binary = Payload::new("application/x-protobuf", (0..=255).collect::<Vec<u8>>());
    for payload in [json, binary] {
        let sent = order(payload);
        for format in FORMATS {
            let got = read(&encode(&sent, format, 2)).unwrap();
            assert_eq!(got, sent, "{format:?}");
            assert_eq!(got.payload.hash(), sent.payload.hash());
        }
    }
}

#[test]
fn headers_are_as_holdco_lists_them() {
    let message = encode(&order(Payload::empty_object()), WireFormat::Envelope, 3);
    for (name, value) in [
        ("x-aggregate-type", "ecommerce.order"),
        ("x-aggregate-id", "ord {1}"),
        ("x-group-id", "grüppe"),
        ("x-subsidiary-id", "lagos"),
        ("x-event-type", "completed"),
        ("cloudEvents_specversion", "1.0"),
    ] {
        assert_eq!(message.header(name), Some(value), "{name}");
    }
    assert_eq!(message.headers["x-attempts"], HeaderValue::Int(3));
    assert_eq!(message.properties.message_id.as_deref(), message.header("x-event-id"));
}

#[test]
fn holdcos_own_envelope_is_read_without_a_header() {
    let got = read(&foreign(
        r#"{"event_id":"e1","occurred_at":"2025-12-21T22:30:00Z","aggregate_type":"order","aggregate_id":"o1",
            "event_type":"created","group_id":"g","subsidiary_id":null,"payload":{"order_no":"ORD-0001"}}"#,
    ))
    .unwrap();
    assert_eq!(got.event_type.as_str(), "order.created");
    assert_eq!(got.payload.bytes().as_ref(), br#"{"order_no":"ORD-0001"}"#);
}

#[test]
fn smaps_prefix_is_added_and_stripped() {
    let body = r#"{"event_id":"evt_42","timestamp":"2025-12-21T22:30:00Z","payload":{"a":1}}"#;
    let mut message = foreign(body);
    message.headers.insert(header::ORIGINAL_ROUTING_KEY.into(), "email.verification.requested".into());
    let got = read(&message).unwrap();
    assert_eq!((got.id.as_str(), got.event_type.as_str()), ("42", "email.verification.requested"));
    let written = encode(&got, WireFormat::Smap, 0);
    assert!(std::str::from_utf8(&written.body).unwrap().starts_with(r#"{"event_id":"evt_42","#));
}

#[test]
fn fis_finds_identity_where_its_producers_put_it() {
    let message = foreign(r#"{"eventId":"pay_run_2026_03","tenantId":"t1","amount":"10.00"}"#);
    let key = RoutingKey::new("payroll.salary.disbursed").unwrap();
    let got = decode(&message, &key, &Identity::fis(), Timestamp::UNIX_EPOCH).unwrap();
    assert_eq!(got.id.as_str(), "pay_run_2026_03");
    assert_eq!(got.tenant.group.unwrap().as_str(), "t1");
    assert_eq!(got.payload.bytes(), &message.body);
}

#[test]
fn cloudevents_of_others_are_read_in_every_spelling() {
    for prefix in ["cloudEvents_", "cloudEvents:", "ce-"] {
        let mut message = foreign("<xml/>");
        message.properties.content_type = Some("text/xml".into());
        for (name, value) in [
            ("specversion", "1.0"),
            ("id", "a-1"),
            ("type", "com.example.thing"),
            ("source", "/x"),
            ("subject", "s"),
        ] {
            message.headers.insert(format!("{prefix}{name}"), value.into());
        }
        let got = read(&message).unwrap();
        assert_eq!((got.id.as_str(), got.event_type.as_str()), ("a-1", "com.example.thing"));
        assert_eq!(got.payload.content_type(), "text/xml");
        assert_eq!(got.attributes.get("source"), Some("/x"));
    }
    let mut structured = foreign(
        r#"{"specversion":"1.0","id":"a-2","source":"/x","type":"com.example.thing","data":{"n":1},
            "dataschema":"urn:thing","level":3,"odd":[1]}"#,
    );
    structured.properties.content_type = Some("application/cloudevents+json; charset=utf-8".into());
    let got = read(&structured).unwrap();
    assert_eq!(got.payload.bytes().as_ref(), br#"{"n":1}"#);
    let carried: Vec<_> = got.attributes.iter().collect();
    assert_eq!(carried, [("dataschema", "urn:thing"), ("level", "3"), ("source", "/x")]);
    let sent = encode(&got, WireFormat::CloudEvents, 0);
    assert_eq!(
        (sent.header("cloudEvents_source"), sent.header("cloudEvents_level")),
        (Some("/x"), Some("3"))
    );
}

#[test]
fn what_is_no_event_is_malformed_with_a_reason() {
    let mut unknown = foreign("{}");
    unknown.headers.insert(header::WIRE_FORMAT.into(), "morse".into());
    let mut long = foreign("{}");
    long.properties.message_id = Some("x".repeat(200));
    for (message, reason) in [
        (foreign("{}"), "no event id"),
        (foreign("{\"trunc"), "no event id"),
        (unknown, "unknown wire format \"morse\""),
        (long, "an event id has 200 bytes"),
    ] {
        let error = read(&message).unwrap_err().0;
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn a_reference_that_is_no_id_does_not_spoil_the_event() {
    let mut message = encode(&order(Payload::empty_object()), WireFormat::Bare, 0);
    message.headers.remove("x-correlation-id");
    message.headers.insert("x-causation-id".to_owned(), "c".repeat(200).into());
    message.properties.correlation_id = Some("c".repeat(200));
    let read = read(&message).unwrap();
    assert_eq!((read.causation_id, read.correlation_id), (None, None));
}
