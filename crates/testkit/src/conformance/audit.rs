//! What every audit must do: count each term on its own, so that `committed = applied + dead + unpublished + held + elsewhere`
//! proves something.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use postrider::broker::{Headers, Message, Properties};
use postrider::envelope::OrderingKey;
use postrider::store::{
    Admission, Arrival, Audit, AuditScope, Backend, ConsumerCount, DeadLetter, Held as _, HeldEvent,
    HeldState, OutboxRow, Place, PublishResult,
};
use postrider::topology::{
    ConsumerName, Exchange, ExchangeKind, ExchangeName, QueueName, RoutingKey, Topology,
};
use postrider::{Event, Payload};

use super::broker::{exchange, key, pattern, queue, queues};
use super::store::{Desk, StoreFixture, free, id, keyed};

/// Events that are read at a time.
const PAGE: usize = 5;

/// `orders` wants `shop.order.*` of the exchange `shop`; `mail` wants everything.
fn topology() -> Topology {
    queues(["orders", "mail"])
        .exchange(exchange("shop"), ExchangeKind::Topic)
        .exchange(exchange("bank"), ExchangeKind::Topic)
        .bind(exchange("shop"), queue("orders"), pattern("shop.order.*"))
        .bind(exchange("shop"), queue("mail"), pattern("#"))
        .bind(exchange("bank"), queue("mail"), pattern("#"))
}

pub(super) fn scope() -> AuditScope {
    AuditScope {
        consumer: ConsumerName::new("order-consumer").unwrap(),
        inbox: ConsumerName::new("order-consumer").unwrap(),
        queue: queue("orders"),
        topology: topology(),
        exchange: exchange("shop"),
        routing_key: None,
        since: None,
        until: i64::MAX,
        list: 100,
    }
}

/// How each event is found again where what became of it is kept apart from it: page by page, the first place of both.
async fn apart<S: Audit>(store: &S, scope: &AuditScope) -> BTreeMap<Place, u64> {
    let (mut found, mut after) = (BTreeMap::new(), i64::MIN);
    loop {
        let page = store.committed_to(scope, after, PAGE).await.unwrap();
        let Some(last) = page.last() else { return found };
        assert!(last.position > after && page.len() <= PAGE);
        after = last.position;
        let ids: Vec<_> = page.iter().map(|event| event.id.clone()).collect();
        let places = store.places_of(scope, &ids).await.unwrap();
        for (event, place) in page.iter().zip(places) {
            *found.entry(place.min(event.place)).or_default() += 1;
        }
    }
}

/// Counts at once, whatever else goes on, and expects the account to balance.
async fn balanced<S: Audit>(store: &S, scope: &AuditScope) -> ConsumerCount {
    let count = store.count(scope).await.unwrap();
    let ConsumerCount { committed, applied, dead, unpublished, held, elsewhere, early, elsewhere_ids } =
        &count;
    assert_eq!(*committed, applied + dead + unpublished + held + elsewhere, "{count:?}");
    assert_eq!(elsewhere_ids.len() as u64, (*elsewhere - early).min(scope.list as u64));
    count
}

/// Counts, at once and page by page while nothing changes, and expects both to be the same.
pub(super) async fn count<S: Audit>(store: &S, scope: &AuditScope) -> ConsumerCount {
    let count = balanced(store, scope).await;
    let ConsumerCount { applied, dead, unpublished, held, elsewhere, early, .. } = &count;
    let apart = apart(store, scope).await;
    let at = |place| apart.get(&place).copied().unwrap_or(0);
    assert_eq!(
        (at(Place::Applied), at(Place::Dead), at(Place::Unpublished)),
        (*applied, *dead, *unpublished)
    );
    assert_eq!(
        (at(Place::Held), at(Place::Early), at(Place::Elsewhere)),
        (*held, *early, *elsewhere - early)
    );
    count
}

impl<S: Backend> Desk<S> {
    pub(super) async fn apply(&self, consumer: &str, events: &[&str]) {
        let arrivals: Vec<Arrival> = events
            .iter()
            .map(|event| Arrival {
                event_id: id(event),
                tenant: None,
                payload_hash: Payload::empty_object().hash(),
            })
            .collect();
        let mut tx = self.store.begin().await.unwrap();
        let told = self.store.admit(&mut tx, &ConsumerName::new(consumer).unwrap(), &arrivals).await.unwrap();
        assert!(told.iter().all(|told| *told == Admission::New));
        self.store.commit(tx).await.unwrap();
    }

    pub(super) async fn bury(&self, from: &str, events: &[&str]) {
        let now = self.clock.now();
        let letter = |event: &&str| DeadLetter {
            key: format!("{from} {event}"),
            event_id: Some(id(event)),
            event_type: Some("shop.order.placed".to_owned()),
            tenant: None,
            aggregate_id: None,
            ordering_key: None,
            consumer: Some(ConsumerName::new(format!("{from}-consumer")).unwrap()),
            queue: queue(from),
            exchange: "shop".to_owned(),
            routing_key: "shop.order.placed".to_owned(),
            reason: "rejected".to_owned(),
            error: "no such account".to_owned(),
            error_class: None,
            attempts: 1,
            first_failed_at: now,
            dead_at: now,
            properties: Properties::default(),
            headers: Headers::new(),
            body: Bytes::new(),
        };
        self.store.collect(events.iter().map(letter).collect()).await.unwrap();
    }

    async fn settle_some(&self, rows: &[OutboxRow], events: &[&str], result: &PublishResult) {
        let some: Vec<_> =
            rows.iter().filter(|row| events.contains(&row.envelope.id.as_str())).cloned().collect();
        assert_eq!(some.len(), events.len());
        self.settle(&some, result).await;
    }
}

pub(super) fn dead_in_the_outbox() -> PublishResult {
    PublishResult::Failed { error: "no queue wanted it".to_owned(), retry_after: None }
}

/// Nothing at all.
pub async fn an_empty_outbox_counts_nothing<F: StoreFixture>(fixture: &F) {
    let store = fixture.store().await;
    assert_eq!(count(&store, &scope()).await, ConsumerCount::default());
}

/// Published before the queue was bound, and found nowhere: that is told apart from a loss.
pub async fn what_was_published_before_the_queue_was_bound_is_early<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    desk.commit(["lost", "applied"].map(free)).await;
    let rows = desk.claim().await;
    desk.publish(&rows).await;
    desk.apply("order-consumer", &["applied"]).await;
    let of = |since| AuditScope { since, ..scope() };
    let all = count(&desk.store, &of(None)).await;
    assert_eq!((all.committed, all.elsewhere, all.early), (2, 1, 0), "{all:?}");
    assert_eq!(all.elsewhere_ids, [id("lost")]);
    let now = desk.clock.now();
    let (before, after) = (now - Duration::from_hours(1), now + Duration::from_hours(1));
    let known = count(&desk.store, &of(Some(before))).await;
    assert_eq!((known.elsewhere, known.early, known.elsewhere_ids.len()), (1, 0, 1), "{known:?}");
    let late = count(&desk.store, &of(Some(after))).await;
    assert_eq!((late.committed, late.applied, late.elsewhere, late.early), (2, 1, 1, 1), "{late:?}");
    assert!(late.elsewhere_ids.is_empty(), "{late:?}");
}

/// Each event in one place, each place with a number of its own.
pub async fn each_term_is_counted<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    let names = [
        "applied 1",
        "applied 2",
        "applied 3",
        "applied 4",
        "buried 1",
        "buried 2",
        "dead 1",
        "pending 1",
        "failed 1",
        "published 1",
        "published 2",
        "published 3",
    ];
    desk.commit(names.map(free)).await;
    let rows = desk.expect_due(names).await;
    let published: Vec<&str> =
        names.into_iter().filter(|name| !["dead 1", "pending 1", "failed 1"].contains(name)).collect();
    desk.settle_some(&rows, &published, &PublishResult::Published).await;
    desk.settle_some(&rows, &["dead 1"], &dead_in_the_outbox()).await;
    let retry_after = Some(Duration::from_hours(1));
    desk.settle_some(
        &rows,
        &["failed 1"],
        &PublishResult::Failed { error: "returned".to_owned(), retry_after },
    )
    .await;
    desk.apply("order-consumer", &names[..4]).await;
    desk.bury("orders", &names[4..6]).await;

    let count = count(&desk.store, &scope()).await;
    assert_eq!(count.committed, 12);
    assert_eq!(count.applied, 4);
    assert_eq!(count.dead, 3);
    assert_eq!(count.unpublished, 2);
    assert_eq!(count.elsewhere, 3);
    assert_eq!(count.elsewhere_ids, ["published 1", "published 2", "published 3"].map(id));
}

/// An exchange that is not named is the outbox's own, a key that is not given is the type, and a target queue goes past
/// both.
pub async fn routing_decides_what_is_committed<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    let (shop, bank) = (Some(exchange("shop")), Some(exchange("bank")));
    let other = |id: &str| Event { event_type: "shop.invoice.paid".parse().unwrap(), ..free(id) };
    let to_default = |id: &str, to: &str| Event {
        exchange: Some(ExchangeName::default_exchange()),
        routing_key: Some(key(to)),
        ..other(id)
    };
    let target = |name: &str| Some::<QueueName>(queue(name));
    let via = |name: &str| Some::<RoutingKey>(key(name));
    desk.commit([
        free("by its type"),
        Event { exchange: shop.clone(), ..free("by the exchange's name") },
        Event { routing_key: via("shop.order.x"), ..other("by its key") },
        Event { target_queue: target("orders"), ..other("past the exchange") },
        Event { target_queue: target("orders"), exchange: bank.clone(), ..free("past another exchange") },
        to_default("through the default exchange", "orders"),
        other("another type"),
        Event { exchange: bank, ..free("another exchange") },
        Event { exchange: Some(exchange("gone")), ..free("no such exchange") },
        Event { routing_key: via("shop.order.x.y"), ..free("another key") },
        Event { target_queue: target("mail"), ..free("to another queue") },
        to_default("another queue by default", "mail"),
    ])
    .await;
    let rows = desk.claim().await;
    desk.publish(&rows).await;
    let found = count(&desk.store, &scope()).await;
    let wanted = [
        "by its type",
        "by the exchange's name",
        "by its key",
        "past the exchange",
        "past another exchange",
        "through the default exchange",
    ];
    assert_eq!(found.elsewhere_ids, wanted.map(id));
    assert_eq!(found.committed, 6);

    let mail = AuditScope { queue: queue("mail"), ..scope() };
    // All but the two that go past it to `orders`, those that go to `orders` by default, and the one that goes nowhere.
    assert_eq!(count(&desk.store, &mail).await.committed, 8);
    let nobody = AuditScope { queue: queue("no.such.queue"), ..scope() };
    assert_eq!(count(&desk.store, &nobody).await.committed, 0);
}

/// Each event is counted once, in the first of the places where it is found; and what is found for another consumer or
/// another queue says nothing of this one.
pub async fn applied_goes_before_dead_before_waiting<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    let names = [
        "applied and buried",
        "applied and dead",
        "applied and unpublished",
        "buried and unpublished",
        "buried and dead",
        "applied by another",
        "buried by another",
    ];
    desk.commit(names.map(free)).await;
    let rows = desk.expect_due(names).await;
    desk.settle_some(&rows, &[names[0], names[5], names[6]], &PublishResult::Published).await;
    desk.settle_some(&rows, &[names[1], names[4]], &dead_in_the_outbox()).await;
    desk.apply("order-consumer", &names[..3]).await;
    desk.bury("orders", &[names[0], names[3], names[4]]).await;
    desk.apply("mail-consumer", &[names[5]]).await;
    desk.bury("mail", &[names[6]]).await;
    let count = count(&desk.store, &scope()).await;
    assert_eq!((count.applied, count.dead, count.unpublished, count.elsewhere), (3, 2, 0, 2));
    assert_eq!(count.elsewhere_ids, [names[5], names[6]].map(id));
}

/// As many as are asked for.
pub async fn what_is_elsewhere_is_listed_oldest_first<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    let names: Vec<String> = (0..30).rev().map(|n| format!("event-{n}")).collect();
    desk.commit(names.iter().map(|name| keyed(name, name))).await;
    let rows = desk.expect_due(&names).await;
    desk.publish(&rows).await;
    for list in [0, 1, 10, 100] {
        let found = count(&desk.store, &AuditScope { list, ..scope() }).await;
        assert_eq!(found.elsewhere, 30);
        let listed: Vec<&str> = found.elsewhere_ids.iter().map(AsRef::as_ref).collect();
        assert_eq!(listed, names[..list.min(30)]);
    }
}

/// What nobody wanted reaches the queue behind the alternate exchange.
pub async fn alternate_exchanges_count_as_routes<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    let mut topology = queues(["orders", "rest"])
        .exchange(exchange("unroutable"), ExchangeKind::Fanout)
        .bind(exchange("shop"), queue("orders"), pattern("shop.order.*"))
        .bind(exchange("unroutable"), queue("rest"), pattern(""));
    let alternate = Some(exchange("unroutable"));
    topology.exchanges.push(Exchange { alternate, ..Exchange::new(exchange("shop"), ExchangeKind::Topic) });
    let unwanted = Event { event_type: "shop.invoice.paid".parse().unwrap(), ..free("unwanted") };
    desk.commit([free("wanted"), unwanted]).await;
    let rest = AuditScope { queue: queue("rest"), topology, ..scope() };
    let found = count(&desk.store, &rest).await;
    assert_eq!((found.committed, found.unpublished), (1, 1));
}

/// While events are committed, published and applied all at once.
pub async fn the_account_always_balances<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    let working = async {
        for round in 0..20 {
            let names: Vec<String> = (0..10).map(|n| format!("event-{round}-{n}")).collect();
            desk.commit(names.iter().map(|name| free(name))).await;
            let rows = desk.expect_due(&names).await;
            desk.publish(&rows[..9]).await;
            desk.settle(&rows[9..], &dead_in_the_outbox()).await;
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            desk.apply("order-consumer", &names[..5]).await;
            desk.bury("orders", &names[5..7]).await;
        }
    };
    let watching = async {
        loop {
            balanced(&desk.store, &scope()).await;
        }
    };
    tokio::select! {
        () = working => {}
        () = watching => {}
    }
    let found = count(&desk.store, &scope()).await;
    assert_eq!((found.committed, found.applied, found.dead, found.elsewhere), (200, 100, 60, 40));
}

/// Behind applied and dead, and apart from what is elsewhere.
pub async fn held_events_are_counted<F: StoreFixture>(fixture: &F) {
    let desk = Desk::open(fixture).await;
    let names = ["applied", "buried", "held 1", "held 2", "published"];
    desk.commit(names.map(free)).await;
    let rows = desk.expect_due(names).await;
    desk.settle_some(&rows, &names, &PublishResult::Published).await;
    let consumer = scope().consumer;
    let held = |event: &str| HeldEvent {
        event_id: id(event),
        key: OrderingKey::new("order/1").unwrap(),
        state: HeldState::Waiting,
        attempt: 1,
        delay: Duration::ZERO,
        error: String::new(),
        letter: None,
        exchange: exchange("shop"),
        routing_key: key("shop.order.placed"),
        message: Message::default(),
    };
    desk.store.hold(&consumer, names[..4].iter().map(|name| held(name)).collect()).await.unwrap();
    desk.apply("order-consumer", &["applied"]).await;
    desk.bury("orders", &["buried"]).await;
    let count = count(&desk.store, &scope()).await;
    assert_eq!((count.applied, count.dead, count.held, count.elsewhere), (1, 1, 2, 1));
    assert_eq!(count.elsewhere_ids, [id("published")]);
}
