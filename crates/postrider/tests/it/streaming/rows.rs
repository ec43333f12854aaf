//! A row by the stream is the same as by a claim, whoever wrote it and whatever is in it.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use postrider::broker::{HeaderValue, Message};
use postrider::envelope::{Ordering, OrderingKey, TenantId};
use postrider::postgres::Postgres;
use postrider::store::{
    Ask, Destination, Opening, OutboxRow, Outboxes as _, RelayId, RowStream, StreamLimit, Verbatim,
};
use postrider::topology::{ExchangeName, QueueName, RoutingKey};
use postrider::{Event, EventId, Outbox as _, Payload, Store as _};

use super::Stage;

const LEASE: Duration = Duration::from_mins(1);

async fn open(store: &Postgres) -> Box<dyn RowStream> {
    match store.open_stream(&reader(), LEASE).await.unwrap() {
        Opening::Open(stream) => stream,
        Opening::Impossible(why) => panic!("{why}"),
        Opening::Elsewhere | Opening::Unknown => panic!("somebody else streams"),
    }
}

fn reader() -> RelayId {
    RelayId::new("reader").unwrap()
}

/// So many rows by the stream, and the same by a claim.
async fn both(store: &Postgres, stream: &mut dyn RowStream, count: usize) -> (Vec<String>, Vec<String>) {
    let mut streamed = Vec::new();
    while streamed.len() < count {
        let next = tokio::time::timeout(LEASE, stream.next(StreamLimit { rows: 1000, bytes: 64 << 20 }));
        let next = next.await.expect("too few rows came").unwrap();
        assert_eq!(next.unreadable, None);
        streamed.extend(next.rows);
    }
    assert!(streamed.iter().all(|row| row.slot.is_none()));
    store.lease(&reader(), LEASE).await.unwrap();
    let mut claimed = store.claim(&reader(), Ask::everything(1000)).await.unwrap();
    for row in &mut claimed {
        row.slot = None;
    }
    streamed.sort_by_key(|row| row.row.position);
    (texts(&streamed), texts(&claimed))
}

fn texts(rows: &[OutboxRow]) -> Vec<String> {
    rows.iter().map(|row| format!("{row:?}")).collect()
}

/// With everything that an event can have.
fn full() -> Event {
    let mut event =
        Event::new("shop.order.placed").unwrap().id("full ✓").unwrap().aggregate_id("4711 ü").unwrap();
    event = event.tenant("group one").unwrap().occurred_at("2026-03-01T12:00:00.123456Z".parse().unwrap());
    event.tenant.subsidiary = Some(TenantId::new("sub").unwrap());
    event.causation_id = Some(EventId::new("cause").unwrap());
    event.correlation_id = Some(EventId::new("talk").unwrap());
    event.trace.traceparent = Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned());
    event.trace.tracestate = Some("a=b".to_owned());
    event.attributes.set("source", "/shop").unwrap();
    event.exchange = Some(ExchangeName::new("other").unwrap());
    event.routing_key = Some(RoutingKey::new("a.b").unwrap());
    event.target_queue = Some(QueueName::new("one").unwrap());
    event.ordering(Ordering::Key(OrderingKey::new("key of its own").unwrap()))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_by_the_stream_is_the_same_as_by_a_claim() {
    let stage = Stage::new().await;
    let mut stream = open(&stage.store).await;
    let bytes: Vec<u8> = (0..=255).cycle().take(1 << 20).collect();
    let verbatim = Verbatim {
        row_id: EventId::new("again").unwrap(),
        event_id: Some(EventId::new("full ✓").unwrap()),
        event_type: None,
        tenant: None,
        ordering_key: Some(OrderingKey::new("k").unwrap()),
        to: Destination::Exchange(ExchangeName::new("other").unwrap(), RoutingKey::new("c.d").unwrap()),
        message: Message {
            headers: BTreeMap::from([("x".to_owned(), HeaderValue::Int(7))]).into_iter().collect(),
            ..Message::default()
        },
        dead_letter: None,
    };
    let mut tx = stage.store.begin().await.unwrap();
    let plain = Event::new("a.b").unwrap().id("plain").unwrap();
    let free =
        Event::new("a.b").unwrap().id("free").unwrap().aggregate_id("x").unwrap().ordering(Ordering::Free);
    let large = Event::new("a.b").unwrap().id("large").unwrap();
    let large = large.payload(Payload::new("application/octet-stream", bytes));
    stage.store.append(&mut tx, vec![full(), plain, free, large]).await.unwrap();
    stage.store.append_verbatim(&mut tx, vec![verbatim]).await.unwrap();
    stage.store.commit(tx).await.unwrap();
    stage.execute("SELECT postrider.publish('shop.order.paid', '{\"b\": 1, \"a\": [null, \"ü\"]}', aggregate_id => '1', group_id => 'g')").await;
    stage
        .execute(
            "INSERT INTO postrider.event_outbox (id, aggregate_type, event_type, payload) \
             VALUES ('by hand', 'shop.order', 'sent', '{\"n\": 1e400, \"t\": \"\\u0001\"}')",
        )
        .await;
    let (streamed, claimed) = both(&stage.store, stream.as_mut(), 7).await;
    assert_eq!(streamed.len(), 7);
    for (streamed, claimed) in streamed.iter().zip(&claimed) {
        assert_eq!(streamed, claimed);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_with_a_time_of_their_own_or_not_to_be_published_are_not_told() {
    let stage = Stage::new().await;
    let mut stream = open(&stage.store).await;
    let event = |id: &str| Event::new("a.b").unwrap().id(id).unwrap();
    let later: Timestamp = stage.clock.now() + Duration::from_hours(1);
    stage.commit(vec![event("later").available_at(later), event("now")]).await;
    stage
        .execute("INSERT INTO postrider.event_outbox (id, aggregate_type, event_type, payload, status) VALUES ('old', 'a', 'b', '{}', 'published')")
        .await;
    stage.commit(vec![event("last")]).await;
    let (streamed, _) = both(&stage.store, stream.as_mut(), 2).await;
    assert!(streamed[0].contains("\"now\"") && streamed[1].contains("\"last\""), "{streamed:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn partitions_and_new_columns_come_through_the_same_stream() {
    let stage = Stage::new().await;
    let mut stream = open(&stage.store).await;
    stage.commit(vec![Event::new("a.b").unwrap()]).await;
    stage
        .execute(
            "CREATE TABLE postrider.event_outbox_future PARTITION OF postrider.event_outbox \
             FOR VALUES FROM ('2200-01-01') TO ('2300-01-01')",
        )
        .await;
    // From before rows that are dated ahead were refused.
    stage.execute("ALTER TABLE postrider.event_outbox DISABLE TRIGGER event_outbox_added").await;
    stage
        .execute(
            "INSERT INTO postrider.event_outbox (id, aggregate_type, event_type, payload, created_at) \
             VALUES ('far', 'a', 'b', '{}', '2222-02-02')",
        )
        .await;
    stage.execute("ALTER TABLE postrider.event_outbox ENABLE TRIGGER event_outbox_added").await;
    stage
        .execute(
            "INSERT INTO postrider.event_outbox (id, aggregate_type, event_type, payload, created_at, available_at) \
             VALUES ('ahead', 'a', 'b', '{}', now() + interval '10 min', now() + interval '10 min')",
        )
        .await;
    stage.execute("ALTER TABLE postrider.event_outbox ADD COLUMN color text DEFAULT 'red'").await;
    stage.commit(vec![Event::new("a.b").unwrap().id("colored").unwrap()]).await;
    let (streamed, claimed) = both(&stage.store, stream.as_mut(), 4).await;
    assert_eq!(streamed, claimed);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_adopted_table_is_streamed_with_its_own_inserts() {
    let stage = Stage::new().await;
    stage
        .execute(
            "CREATE TABLE public.event_outbox (id uuid PRIMARY KEY, group_id uuid NOT NULL, subsidiary_id uuid, \
                 aggregate_type varchar(100) NOT NULL, aggregate_id uuid NOT NULL, event_type text NOT NULL, \
                 payload jsonb NOT NULL, status text NOT NULL DEFAULT 'pending', \
                 available_at timestamptz NOT NULL DEFAULT CURRENT_TIMESTAMP, attempts integer NOT NULL DEFAULT 0, \
                 created_at timestamptz NOT NULL DEFAULT CURRENT_TIMESTAMP)",
        )
        .await;
    stage.store.adopt_outbox("event_outbox").await.unwrap();
    let adopted = stage.store.outbox("event_outbox").unwrap();
    let mut stream = open(&adopted).await;
    for _ in 0..3 {
        stage
            .execute(
                "INSERT INTO public.event_outbox (id, group_id, aggregate_type, aggregate_id, event_type, payload) \
                 VALUES (gen_random_uuid(), gen_random_uuid(), 'order', gen_random_uuid(), 'created', '{\"n\": 1}')",
            )
            .await;
    }
    let (streamed, claimed) = both(&adopted, stream.as_mut(), 3).await;
    assert_eq!(streamed, claimed);
}
