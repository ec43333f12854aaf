//! What sessions owe to the order of a key. One that is held up for a moment only: what a lane gave up meanwhile comes back with another
//! session, and before what followed it (seed 11087 of the simulation, and seed 7 of chaos). One that is a probe: what it does not take
//! goes back together with what it does (seed 21222, and seed 3353851401 of chaos). And one that is held up for long: what the broker would
//! give up is held, unless something before it is left.
#![cfg(feature = "sqlite")]

use std::sync::atomic::AtomicBool;

use async_trait::async_trait;
use jiff::Timestamp;

use super::*;
use crate::broker::{BrokerError, DELIVERY_COUNT, Delivery, Receipt, Settler, Subscription, Verdict};
use crate::clock::Clock;
use crate::consumer::{BreakerState, Cause};
use crate::embedded::EmbeddedBroker;
use crate::envelope::{Event, WireFormat, wire};
use crate::registry::Registry;
use crate::settlement::RetryPolicy;
use crate::sqlite::{Sqlite, SqliteConfig};
use crate::store::{Held as _, Store as _};
use crate::topology::{ConsumerName, ExchangeName, OnDead, RoutingKey, ServiceQueue};

/// A session that has one more delivery, and notes whether it was asked for it.
struct OneMore {
    delivery: Option<Delivery>,
    asked: Arc<AtomicBool>,
}

#[async_trait]
impl Subscription for OneMore {
    async fn next(&mut self, _max: usize) -> Result<Vec<Delivery>, BrokerError> {
        self.asked.store(true, Ordering::Relaxed);
        match self.delivery.take() {
            Some(delivery) => Ok(vec![delivery]),
            None => std::future::pending().await,
        }
    }

    fn settler(&self) -> Box<dyn Settler> {
        Box::new(Deaf)
    }
}

/// A session whose deliveries are on their way when they are asked for.
struct Late(VecDeque<Delivery>);

#[async_trait]
impl Subscription for Late {
    async fn next(&mut self, _max: usize) -> Result<Vec<Delivery>, BrokerError> {
        tokio::task::yield_now().await;
        match self.0.pop_front() {
            Some(delivery) => Ok(vec![delivery]),
            None => std::future::pending().await,
        }
    }

    fn settler(&self) -> Box<dyn Settler> {
        Box::new(Deaf)
    }
}

struct Deaf;

#[async_trait]
impl Settler for Deaf {
    async fn settle(&self, _settled: Vec<(Receipt, Verdict)>) -> Result<(), BrokerError> {
        Ok(())
    }
}

fn delivery(id: &str) -> Delivery {
    let event = Event::new("shop.order.placed").unwrap().id(id).unwrap().aggregate_id("o-1").unwrap();
    let envelope = event.into_envelope(&Clock::manual(Timestamp::UNIX_EPOCH).0);
    Delivery {
        message: wire::encode(&envelope, WireFormat::Envelope, 0),
        exchange: ExchangeName::new("shop").unwrap(),
        routing_key: RoutingKey::from(&envelope.event_type),
        redelivered: false,
        receipt: Receipt::void(),
    }
}

/// One that came back as often as it should.
fn worn(id: &str) -> Delivery {
    let mut delivery = Delivery { redelivered: true, ..delivery(id) };
    delivery.message.headers.insert(DELIVERY_COUNT.to_owned(), 5_u32.into());
    delivery
}

async fn ordered_consumer(folder: &std::path::Path) -> Arc<Consumer<Sqlite>> {
    let clock = Clock::system();
    let store = Sqlite::open(SqliteConfig::new(folder.join("order.db")), clock.clone()).await.unwrap();
    let broker = Arc::new(EmbeddedBroker::open(store.clone(), clock.clone()).await.unwrap());
    let service = ServiceQueue::new("billing", RetryPolicy::default()).unwrap().ordered(OnDead::Continue);
    let name = ConsumerName::new("billing").unwrap();
    Arc::new(Consumer::new(store, broker, clock, name, service, Registry::new()))
}

#[tokio::test]
async fn a_lane_that_was_given_up_ends_the_session_before_the_next_of_its_key() {
    let folder = tempfile::tempdir().unwrap();
    let consumer = ordered_consumer(folder.path()).await;
    let stop = CancellationToken::new();
    let desk = Desk::open(consumer.clone(), Box::new(Deaf), 10, stop.clone());
    let second = consumer.read(delivery("2"));
    let lane = desk.lane_of(&second).unwrap();
    // The first of the key is in hand, and the second waits behind it.
    lock(&desk.lanes).insert(lane.clone(), VecDeque::new());
    assert!(desk.queue_behind(&lane, second).is_none(), "it waits");

    // The store fails once, and answers again before the session has noticed.
    consumer.status.set_breaker(BreakerState::Open(Cause::Store));
    assert!(desk.next_run(&lane).is_none(), "nothing is begun while the consumer is held up");
    consumer.status.set_breaker(BreakerState::Closed);

    desk.begin_lane(lane.clone(), consumer.read(delivery("3")));
    assert_eq!(consumer.status.in_flight(), 0, "the third would have gone before the second");
    assert!(lock(&desk.lanes).is_empty());

    let asked = Arc::new(AtomicBool::new(false));
    let mut session = OneMore { delivery: Some(delivery("3")), asked: asked.clone() };
    let receiving = consumer.receive(&mut session, &desk, false, &stop);
    tokio::time::timeout(Duration::from_mins(1), receiving).await.expect("the session ends").unwrap();
    assert!(asked.load(Ordering::Relaxed), "what came back too often would be brought to safety");
    let begun = (consumer.status.in_flight(), lock(&desk.lanes).len());
    assert_eq!(begun, (0, 0), "nothing more of this session is begun");
    desk.close().await;
}

#[tokio::test]
async fn a_probe_of_an_ordered_queue_is_handed_as_much_as_any_session() {
    let folder = tempfile::tempdir().unwrap();
    let ordered = ordered_consumer(folder.path()).await;
    assert_eq!((ordered.prefetch(false), ordered.prefetch(true)), (250, 250));
    let free = Consumer {
        service: ServiceQueue { order: None, ..ordered.service.clone() },
        ..Arc::into_inner(ordered).unwrap()
    };
    assert_eq!((free.prefetch(false), free.prefetch(true)), (250, 1));
}

/// A desk with one of the key in hand.
fn busy_desk(consumer: &Arc<Consumer<Sqlite>>) -> (Arc<Desk<Sqlite>>, Lane) {
    let desk = Desk::open(consumer.clone(), Box::new(Deaf), 10, CancellationToken::new());
    let lane = desk.lane_of(&consumer.read(delivery("1"))).unwrap();
    lock(&desk.lanes).insert(lane.clone(), VecDeque::new());
    (desk, lane)
}

/// Those of the key that are held, in their order.
async fn held(consumer: &Consumer<Sqlite>) -> Vec<String> {
    let (store, name, lease) = (&consumer.store, &consumer.name, Duration::from_mins(1));
    let mut ids = Vec::new();
    while let Some(head) = store.claim_held(name, "me", lease, 1).await.unwrap().pop() {
        let mut tx = store.begin().await.unwrap();
        store.let_go(&mut tx, name, &head.event_id).await.unwrap();
        store.commit(tx).await.unwrap();
        ids.push(head.event_id.to_string());
    }
    ids
}

#[tokio::test]
async fn what_is_worn_is_held_in_its_order_although_the_breaker_opens_meanwhile() {
    let folder = tempfile::tempdir().unwrap();
    let consumer = ordered_consumer(folder.path()).await;
    let (desk, lane) = busy_desk(&consumer);
    for id in ["2", "3", "4"] {
        desk.turn_away(consumer.read(worn(id))).await;
    }
    // What comes behind them is left, and so is what follows that.
    desk.turn_away(consumer.read(delivery("5"))).await;
    desk.turn_away(consumer.read(worn("6"))).await;
    consumer.status.set_breaker(BreakerState::Open(Cause::Handler));
    desk.clone().run_lane(lane).await;
    desk.close().await;
    assert_eq!(held(&consumer).await, ["2", "3", "4"]);
}

#[tokio::test]
async fn nothing_is_held_before_one_of_its_key_that_is_left() {
    let folder = tempfile::tempdir().unwrap();
    let consumer = ordered_consumer(folder.path()).await;
    let (desk, lane) = busy_desk(&consumer);
    // Behind the one in hand there are one that is not worn, one that is, and then one that the session meets later.
    for delivery in [delivery("2"), worn("3")] {
        assert!(desk.queue_behind(&lane, consumer.read(delivery)).is_none());
    }
    consumer.status.set_breaker(BreakerState::Open(Cause::Handler));
    desk.clone().run_lane(lane).await;
    desk.turn_away(consumer.read(worn("4"))).await;
    desk.close().await;
    assert!(desk.left.is_cancelled(), "they come back together");
    assert_eq!(held(&consumer).await, Vec::<String>::new());

    // A session that takes nothing more on has met the first of them, and those in hand go on.
    let desk = Desk::open(consumer.clone(), Box::new(Deaf), 10, CancellationToken::new());
    desk.turn_away(consumer.read(delivery("2"))).await;
    desk.turn_away(consumer.read(worn("3"))).await;
    desk.close().await;
    assert!(!desk.left.is_cancelled());
    assert_eq!(held(&consumer).await, Vec::<String>::new());
}

#[tokio::test]
async fn what_is_held_remembers_when_it_first_came() {
    let folder = tempfile::tempdir().unwrap();
    let consumer = ordered_consumer(folder.path()).await;
    let milliseconds = 1_767_268_800_000;
    for no_time in [None, Some(milliseconds)] {
        let mut timeless = delivery("1");
        timeless.message.properties.timestamp = no_time;
        let arrived = consumer.read(timeless);
        let released = consumer.read_held(held_event(&arrived).unwrap());
        assert_eq!((released.received, released.attempt), (arrived.received, 1), "{no_time:?}");
    }
}

#[tokio::test]
async fn what_is_on_its_way_to_a_session_that_leaves_is_looked_at() {
    let folder = tempfile::tempdir().unwrap();
    let consumer = ordered_consumer(folder.path()).await;
    let stop = CancellationToken::new();
    let desk = Desk::open(consumer.clone(), Box::new(Deaf), 10, stop.clone());
    consumer.status.set_breaker(BreakerState::Open(Cause::Handler));
    let mut session = Late([worn("1"), worn("2"), delivery("3"), worn("4")].into());
    consumer.receive(&mut session, &desk, false, &stop).await.unwrap();
    desk.close().await;
    assert_eq!(held(&consumer).await, ["1", "2"], "the third is not worn, and the last one behind it");
}
