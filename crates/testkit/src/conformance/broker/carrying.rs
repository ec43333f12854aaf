//! A message arrives as it was sent: properties, headers and bytes.

use bytes::Bytes;
use postrider::broker::{Delivery, HeaderValue, Headers, Message, Properties};
use postrider::topology::ExchangeKind;

use super::{
    BrokerFixture, Listener, confirm, exchange, message, pattern, queue, queues, to_exchange, to_queue,
};

/// Sends one message through a queue.
async fn carry(fixture: &impl BrokerFixture, message: Message) -> Delivery {
    let broker = fixture.broker().await;
    broker.declare(&queues(["orders"])).await.unwrap();
    confirm(&*broker, vec![to_queue("orders", message)]).await;
    Listener::on(&*broker, "orders", 10).await.take_one().await
}

/// The headers that were sent; a broker may add its own.
pub(super) fn assert_headers(delivered: &Headers, sent: &Headers) {
    for (name, value) in sent {
        assert_eq!(delivered.get(name), Some(value), "header {name}");
    }
}

/// Headers of every type, nested ones included.
pub(in super::super) fn every_header() -> Headers {
    let table =
        Headers::from([("inner".to_owned(), HeaderValue::Int(7)), ("größe".to_owned(), HeaderValue::Null)]);
    let list = vec![
        HeaderValue::Text("a".into()),
        HeaderValue::Int(-1),
        HeaderValue::List(vec![HeaderValue::Bool(true)]),
        HeaderValue::Table(table.clone()),
    ];
    [
        ("null", HeaderValue::Null),
        ("true", HeaderValue::Bool(true)),
        ("false", HeaderValue::Bool(false)),
        ("zero", HeaderValue::Int(0)),
        ("least", HeaderValue::Int(i64::MIN)),
        ("most", HeaderValue::Int(i64::MAX)),
        ("float", HeaderValue::Float(0.1)),
        ("tiny", HeaderValue::Float(-f64::MIN_POSITIVE)),
        ("decimal", HeaderValue::Decimal { scale: 2, value: 12_345 }),
        ("text", HeaderValue::Text("Grüße, 世界 🎉".into())),
        ("no text", HeaderValue::Text(String::new())),
        ("digits", HeaderValue::Text("42".into())),
        ("nul", HeaderValue::Text("a\0b".into())),
        ("long", HeaderValue::Text("x".repeat(10_000))),
        ("bytes", HeaderValue::Bytes(vec![0xff, 0x00, 0xfe, 0x80])),
        ("time", HeaderValue::Timestamp(1_763_200_000)),
        ("list", HeaderValue::List(list)),
        ("no list", HeaderValue::List(Vec::new())),
        ("table", HeaderValue::Table(table)),
        ("no table", HeaderValue::Table(Headers::new())),
        ("übersicht", HeaderValue::Bool(true)),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

/// Every property that is carried, none at its default.
pub(in super::super) fn every_property() -> Properties {
    Properties {
        message_id: Some("evt_987654321".into()),
        content_type: Some("application/cloudevents+json; charset=utf-8".into()),
        content_encoding: Some("gzip".into()),
        correlation_id: Some("conversation ü".into()),
        timestamp: Some(1_763_200_000),
        kind: Some("shop.order.placed".into()),
        app_id: Some("shop".into()),
        reply_to: Some("answers".into()),
        priority: Some(5),
    }
}

/// No type turns into another.
pub async fn every_header_type_comes_back(fixture: &impl BrokerFixture) {
    let sent = Message { headers: every_header(), ..message("headers") };
    assert_headers(&carry(fixture, sent.clone()).await.message.headers, &sent.headers);
}

/// All nine.
pub async fn every_property_comes_back(fixture: &impl BrokerFixture) {
    let sent = Message { properties: every_property(), ..message("properties") };
    assert_eq!(carry(fixture, sent.clone()).await.message.properties, sent.properties);
}

/// Nothing is made up for a message that has none.
pub async fn absent_properties_stay_absent(fixture: &impl BrokerFixture) {
    let delivery = carry(fixture, Message { body: "bare".into(), ..Message::default() }).await;
    assert_eq!(delivery.message.properties, Properties::default());
    assert!(!delivery.redelivered);
}

/// Whatever they mean.
pub async fn every_byte_comes_back(fixture: &impl BrokerFixture) {
    let body: Bytes = (0..=u8::MAX).chain((0..=u8::MAX).rev()).collect();
    let sent = Message { body: body.clone(), ..message("bytes") };
    assert_eq!(carry(fixture, sent).await.message.body, body);
}

/// An empty body is one.
pub async fn an_empty_body_comes_back(fixture: &impl BrokerFixture) {
    let sent = Message { body: Bytes::new(), ..message("empty") };
    let delivery = carry(fixture, sent).await;
    assert_eq!(delivery.message.body, Bytes::new());
    assert_eq!(delivery.message.properties.message_id.as_deref(), Some("empty"));
}

/// Longer than any frame.
pub async fn a_mebibyte_comes_back(fixture: &impl BrokerFixture) {
    let body: Bytes = (0..1024 * 1024_u32).map(|n| n.wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect();
    let sent = Message { body: body.clone(), ..message("large") };
    assert!(carry(fixture, sent).await.message.body == body, "a mebibyte was changed on its way");
}

/// The delivery says how it was published.
pub async fn the_key_and_exchange_come_along(fixture: &impl BrokerFixture) {
    let broker = fixture.broker().await;
    let topology = queues(["orders"]).exchange(exchange("shop"), ExchangeKind::Topic).bind(
        exchange("shop"),
        queue("orders"),
        pattern("#"),
    );
    broker.declare(&topology).await.unwrap();
    confirm(
        &*broker,
        vec![to_exchange("shop", "order.placed", message("one")), to_queue("orders", message("two"))],
    )
    .await;
    let taken = Listener::on(&*broker, "orders", 10).await.take(2).await;
    assert_eq!((taken[0].exchange.as_str(), taken[0].routing_key.as_str()), ("shop", "order.placed"));
    assert_eq!((taken[1].exchange.as_str(), taken[1].routing_key.as_str()), ("", "orders"));
}
