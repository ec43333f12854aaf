//! An envelope leaves the outbox as it went in.

use bytes::Bytes;
use jiff::Timestamp;
use postrider::envelope::{
    AggregateId, Attributes, MAX_PAYLOAD_BYTES, Ordering, OrderingKey, Tenant, TenantId, TraceContext,
};
use postrider::store::{OutboxRow, StoreErrorKind};
use postrider::topology::{ExchangeName, QueueName, RoutingKey};
use postrider::{Event, Outbox as _, Payload, Store as _};

use super::super::store::{Desk, StoreFixture, free, id, keyed};

/// Commits one event and claims it.
async fn carry<F: StoreFixture>(fixture: &F, event: Event) -> OutboxRow {
    let desk = Desk::open(fixture).await;
    let ids = desk.commit([event]).await;
    let row = desk.expect_due(&ids).await.remove(0);
    assert_eq!(row.attempts, 0);
    row
}

/// None at its default, time to the microsecond.
pub async fn every_field_comes_back<F: StoreFixture>(fixture: &F) {
    let mut attributes = Attributes::default();
    attributes.set("source", "/shop/é").unwrap();
    attributes.set("comexampleother", "x").unwrap();
    let event = Event {
        attributes,
        tenant: Tenant {
            group: Some(TenantId::new("acme").unwrap()),
            subsidiary: Some(TenantId::new("acme north").unwrap()),
        },
        causation_id: Some(id("cause")),
        correlation_id: Some(id("conversation")),
        trace: TraceContext {
            traceparent: Some("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".into()),
            tracestate: Some("congo=t61rcWkgMzE,rojo=00f067aa0ba902b7".into()),
        },
        ..keyed("one", "order-42")
            .ordering(Ordering::Key(OrderingKey::new("a key of its own").unwrap()))
            .occurred_at(Timestamp::from_microsecond(1_763_200_000_123_456).unwrap())
            .json(&serde_json::json!({ "total": "125000.00", "currency": "NGN" }))
            .unwrap()
    };
    let clock = postrider::Clock::system();
    let expected = event.clone().into_envelope(&clock);
    let row = carry(fixture, event).await;
    assert_eq!(row.envelope, expected);
    let age = clock.now().duration_since(row.row.created_at);
    assert!(age.as_secs().abs() < 60, "written {age:?} ago");
}

/// A batch whose rows have much in common, and one whose rows have nothing in common: each row has its own, and no more.
pub async fn rows_of_a_batch_have_each_what_is_theirs<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    let when = Timestamp::from_microsecond(1_763_200_000_123_456).unwrap();
    let full = |name: &str, tenant: &str| {
        let event = keyed(name, "order-42").occurred_at(when).tenant(tenant).unwrap();
        Event {
            causation_id: Some(id("cause")),
            trace: TraceContext { traceparent: Some("00-trace-01".into()), tracestate: None },
            exchange: Some(ExchangeName::new("shop").unwrap()),
            ..event
        }
    };
    let bare = |name: &str| free(name).occurred_at(when);
    let batches = [
        vec![full("a", "acme"), full("b", "acme"), full("c", "acme")],
        vec![full("d", "acme"), bare("e"), full("f", "other")],
        vec![bare("g"), full("h", "acme"), bare("i")],
    ];
    for batch in batches {
        let clock = postrider::Clock::system();
        let expected: Vec<_> =
            batch.iter().map(|event| (event.exchange.clone(), event.clone().into_envelope(&clock))).collect();
        let ids = desk.commit(batch).await;
        let rows = desk.expect_due(&ids).await;
        let carried: Vec<_> = rows.iter().map(|row| (row.exchange.clone(), row.envelope.clone())).collect();
        assert_eq!(carried, expected);
        desk.publish(&rows).await;
    }
}

/// No space, order, number or escape is changed.
pub async fn json_keeps_its_bytes<F: StoreFixture>(fixture: &F) {
    let text = r#" {"b":1.50,  "a":[1e3,-0.0,9007199254740993,"\u0041\u0000\/"], "b":null,"ü":"💶" } "#;
    let row = carry(fixture, free("one").payload(Payload::new("application/json", text))).await;
    assert_eq!(row.envelope.payload.bytes(), text);
    assert_eq!(row.envelope.payload.content_type(), "application/json");
}

/// Whatever the content type says, and whether they are what it says.
pub async fn any_bytes_come_back<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    let every: Bytes = (0..=u8::MAX).collect();
    let payloads = [
        Payload::new("application/octet-stream", every.clone()),
        Payload::new("application/json", every),
        Payload::new("application/json", "not JSON"),
        Payload::new("text/plain; charset=utf-8", Bytes::new()),
        Payload::new("", vec![0_u8; MAX_PAYLOAD_BYTES]),
    ];
    let event = |(n, payload): (usize, &Payload)| free(&format!("event-{n}")).payload(payload.clone());
    let ids = desk.commit(payloads.iter().enumerate().map(event)).await;
    for (row, payload) in desk.expect_due(&ids).await.iter().zip(payloads) {
        assert!(row.envelope.payload == payload, "{} was changed", row.envelope.id);
    }
}

/// One byte more than the limit is refused where it is appended, with what to do instead.
pub async fn a_payload_too_large_is_refused<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    let mut tx = desk.store.begin().await.unwrap();
    let large = free("large").payload(Payload::new("", vec![0_u8; MAX_PAYLOAD_BYTES + 1]));
    let error = desk.store.append(&mut tx, vec![large]).await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Invalid, "{error}");
    assert!(error.message.contains("send a reference"), "{error}");
    drop(tx);
    assert!(desk.claim().await.is_empty());
}

/// In every text.
pub async fn unicode_comes_back<F: StoreFixture>(fixture: &F) {
    let text = |n: usize| "💶".repeat(n);
    let event = Event {
        tenant: Tenant {
            group: Some(TenantId::new("Größe & Söhne").unwrap()),
            subsidiary: Some(TenantId::new("子公司").unwrap()),
        },
        causation_id: Some(id("причина")),
        correlation_id: Some(id(&text(32))),
        routing_key: Some(RoutingKey::new("заказ.создан").unwrap()),
        ..Event::new("магазин.заказ.создан").unwrap().id("évt '\"\\ {x} %_ \u{1}").unwrap()
    }
    .aggregate_id(text(32))
    .unwrap();
    let expected = event.clone().into_envelope(&postrider::Clock::system());
    let row = carry(fixture, Event { occurred_at: Some(expected.occurred_at), ..event }).await;
    assert_eq!(row.envelope, expected);
    assert_eq!(row.routing_key.unwrap().as_str(), "заказ.создан");
}

/// The key is the tenant's, the aggregate's type and its id; and free is free.
pub async fn aggregates_order_their_events<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    desk.commit([
        keyed("one", "42"),
        keyed("two", "42").tenant("acme").unwrap(),
        keyed("three", "42").ordering(Ordering::Free),
        free("four"),
    ])
    .await;
    let rows = desk.expect_due(["one", "two", "three", "four"]).await;
    let key = |n: usize| rows[n].envelope.ordering_key.as_ref().map(OrderingKey::as_str);
    assert_eq!(
        [key(0), key(1), key(2), key(3)],
        [Some("shop.order/42"), Some("acme/shop.order/42"), None, None]
    );
    assert_eq!(rows[2].envelope.aggregate_id, Some(AggregateId::new("42").unwrap()));
}

/// Each by itself, and the default exchange is one.
pub async fn destinations_come_back<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    let (shop, key) = (ExchangeName::new("shop").unwrap(), RoutingKey::new("order.placed.v2").unwrap());
    let (orders, nowhere) = (QueueName::new("orders").unwrap(), ExchangeName::default_exchange());
    desk.commit([
        Event { exchange: Some(shop.clone()), ..free("exchange") },
        Event { routing_key: Some(key.clone()), ..free("key") },
        Event { target_queue: Some(orders.clone()), ..free("queue") },
        Event {
            exchange: Some(nowhere.clone()),
            routing_key: Some(RoutingKey::new("").unwrap()),
            ..free("empty")
        },
    ])
    .await;
    let rows = desk.expect_due(["exchange", "key", "queue", "empty"]).await;
    let destination =
        |n: usize| (rows[n].exchange.clone(), rows[n].routing_key.clone(), rows[n].target_queue.clone());
    assert_eq!(destination(0), (Some(shop), None, None));
    assert_eq!(destination(1), (None, Some(key), None));
    assert_eq!(destination(2), (None, None, Some(orders)));
    assert_eq!(destination(3), (Some(nowhere), Some(RoutingKey::new("").unwrap()), None));
}

/// Only the id and the time are filled in.
pub async fn absent_fields_stay_absent<F: StoreFixture>(fixture: &F) {
    let before = postrider::Clock::system().now();
    let row = carry(fixture, free("one")).await;
    let expected =
        free("one").occurred_at(row.envelope.occurred_at).into_envelope(&postrider::Clock::system());
    assert_eq!(row.envelope, expected);
    assert_eq!((row.exchange, row.routing_key, row.target_queue), (None, None, None));
    let age = row.envelope.occurred_at.duration_since(before);
    assert!(age.as_secs().abs() < 60, "it occurred {age:?} after it was appended");
}
