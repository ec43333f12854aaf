//! committed = applied + dead + unpublished + elsewhere, each counted on its own.

use bytes::Bytes;
use jiff::Timestamp;
use postrider::broker::{Headers, Properties};
use postrider::store::{
    Arrival, Audit as _, AuditScope, ConsumerCount, DeadLetter, DeadLetters as _, PublishResult,
};
use postrider::topology::{
    BindingKey, ConsumerName, ExchangeKind, ExchangeName, Queue, QueueName, RoutingKey, Topology,
};
use postrider::{Event, EventId, Inbox as _, Outbox as _, Payload, Store as _};

use super::{LEASE, append, claim, relay, settle, store};

fn scope(list: usize) -> AuditScope {
    let (shop, other) = (ExchangeName::new("shop").unwrap(), ExchangeName::new("other").unwrap());
    let orders = QueueName::new("orders").unwrap();
    let topology = Topology::default()
        .exchange(shop.clone(), ExchangeKind::Topic)
        .exchange(other.clone(), ExchangeKind::Direct)
        .queue(Queue::quorum(orders.clone()))
        .queue(Queue::quorum(QueueName::new("mail").unwrap()))
        .bind(shop.clone(), orders.clone(), BindingKey::new("order.*").unwrap())
        .bind(other, orders.clone(), BindingKey::new("direct").unwrap());
    AuditScope {
        consumer: ConsumerName::new("orders").unwrap(),
        inbox: ConsumerName::new("orders").unwrap(),
        queue: orders,
        topology,
        exchange: shop,
        routing_key: None,
        since: None,
        until: i64::MAX,
        list,
    }
}

fn event(id: &str, kind: &str) -> Event {
    Event::new(kind).unwrap().id(id).unwrap()
}

fn letter(id: &str, queue: &str) -> DeadLetter {
    DeadLetter {
        key: format!("{id} {queue}"),
        event_id: Some(EventId::new(id).unwrap()),
        event_type: None,
        tenant: None,
        aggregate_id: None,
        ordering_key: None,
        consumer: None,
        queue: QueueName::new(queue).unwrap(),
        exchange: String::new(),
        routing_key: String::new(),
        reason: "rejected".to_owned(),
        error: String::new(),
        error_class: None,
        attempts: 1,
        first_failed_at: Timestamp::UNIX_EPOCH,
        dead_at: Timestamp::UNIX_EPOCH,
        properties: Properties::default(),
        headers: Headers::default(),
        body: Bytes::new(),
    }
}

#[tokio::test]
async fn every_row_is_counted_in_one_place() {
    let (postgres, _database) = store().await;
    assert_eq!(postgres.count(&scope(5)).await.unwrap(), ConsumerCount::default());

    let mut direct = event("direct", "x.y").exchange(ExchangeName::new("other").unwrap());
    direct.routing_key = Some(RoutingKey::new("direct").unwrap());
    let mut renamed = event("renamed", "order.placed");
    renamed.routing_key = Some(RoutingKey::new("invoice.paid").unwrap());
    let mut targeted = event("targeted", "invoice.paid");
    targeted.target_queue = Some(QueueName::new("orders").unwrap());
    let mut elsewhere = event("mail only", "order.placed");
    elsewhere.target_queue = Some(QueueName::new("mail").unwrap());
    let placed = ["applied", "dead", "both", "other queue's dead", "at the broker"]
        .map(|id| event(id, "order.placed"));
    append(&postgres, placed.into_iter().chain([direct, renamed, targeted, elsewhere]).collect()).await;

    let a = relay("a");
    postgres.lease(&a, LEASE).await.unwrap();
    let rows = claim(&postgres, &a).await;
    settle(&postgres, &a, &rows, &PublishResult::Published).await;
    append(&postgres, vec![event("pending", "order.placed"), event("dead row", "order.placed")]).await;
    let rows = claim(&postgres, &a).await;
    let dead = PublishResult::Failed { error: "too large".to_owned(), retry_after: None };
    settle(&postgres, &a, &rows[1..], &dead).await;

    let scope = scope(2);
    let mut tx = postgres.begin().await.unwrap();
    let payload_hash = Payload::empty_object().hash();
    let arrivals = ["applied", "both"].map(|id| Arrival {
        event_id: EventId::new(id).unwrap(),
        tenant: None,
        payload_hash,
    });
    postgres.admit(&mut tx, &scope.consumer, &arrivals).await.unwrap();
    postgres.commit(tx).await.unwrap();
    let letters = [("dead", "orders"), ("both", "orders"), ("other queue's dead", "mail")];
    postgres.collect(letters.map(|(id, queue)| letter(id, queue)).to_vec()).await.unwrap();

    let count = postgres.count(&scope).await.unwrap();
    let ids: Vec<_> = count.elsewhere_ids.iter().map(EventId::as_str).collect();
    assert_eq!(ids, ["other queue's dead", "at the broker"]);
    let numbers = (count.committed, count.applied, count.dead, count.unpublished, count.elsewhere);
    assert_eq!(numbers, (9, 2, 2, 1, 4), "{count:?}");
}
