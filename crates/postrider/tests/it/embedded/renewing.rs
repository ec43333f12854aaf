//! An event of a key's order in the hand of a handler that takes its time: nobody else gets it meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use postrider::broker::{Broker as _, Outgoing};
use postrider::consumer::{Consumer, ConsumerConfig};
use postrider::embedded::EmbeddedBroker;
use postrider::envelope::wire;
use postrider::handler::{Failure, Incoming, OutsideHandler};
use postrider::registry::Registry;
use postrider::settlement::RetryPolicy;
use postrider::sqlite::{Sqlite, SqliteConfig};
use postrider::store::{Held as _, Store as _};
use postrider::topology::{ConsumerName, OnDead, ServiceQueue, Topology};
use postrider::{Clock, Event, WireFormat};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// A lease is no longer than this, however long an attempt may take.
const LEASE: Duration = Duration::from_mins(1);

/// Fails at first, so that its event is held, and then waits until it is told to succeed.
#[derive(Default)]
struct Slow {
    begun: AtomicBool,
    finish: Notify,
}

struct Called(Arc<Slow>);

impl OutsideHandler for Called {
    async fn handle(&self, event: &Incoming, _stop: &CancellationToken) -> Option<Result<(), Failure>> {
        if event.attempt == 1 {
            return Some(Err(Failure::transient("not yet")));
        }
        self.0.begun.store(true, Ordering::SeqCst);
        self.0.finish.notified().await;
        Some(Ok(()))
    }
}

/// Until when the event in hand is leased, as the table has it.
async fn leased_until(store: &Sqlite) -> i64 {
    let mut tx = store.begin().await.unwrap();
    let until = sqlx::query_scalar("SELECT COALESCE(MAX(lease_until), 0) FROM held_event");
    let until = until.fetch_one(tx.connection().await.unwrap()).await.unwrap();
    store.rollback(tx).await.unwrap();
    until
}

/// Between two looks, so that they do not keep the machine from what is looked for.
async fn breathe() {
    Clock::system().sleep(Duration::from_millis(20)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_renewed_while_the_handler_works() {
    let folder = tempfile::tempdir().unwrap();
    let (clock, hands) = Clock::manual("2026-01-01T00:00:00Z".parse().unwrap());
    let store = Sqlite::open(SqliteConfig::new(folder.path().join("held.db")), clock.clone()).await.unwrap();
    let broker = Arc::new(EmbeddedBroker::open(store.clone(), clock.clone()).await.unwrap());
    let name = ConsumerName::new("mail").unwrap();
    let retry = RetryPolicy::fixed(3, Duration::from_secs(1));
    let service = ServiceQueue::new("mail", retry).unwrap().ordered(OnDead::Park);
    broker.declare(&Topology::default().service(&service)).await.unwrap();
    let event = Event::new("order.placed").unwrap().aggregate_id("42").unwrap().into_envelope(&clock);
    let message = wire::encode(&event, WireFormat::Envelope, 0);
    broker.publish(vec![Outgoing::to_queue(service.name(), message)]).await;

    let slow = Arc::new(Slow::default());
    let config = ConsumerConfig { handler_limit: LEASE * 60, ..ConsumerConfig::default() };
    let registry = Registry::new().on_outside("#", Called(slow.clone()));
    let consumer = Consumer::new(store.clone(), broker.clone(), clock, name.clone(), service, registry);
    let consumer = consumer.config(config);
    let (status, stop) = (consumer.status(), CancellationToken::new());
    let running = tokio::spawn(Arc::new(consumer).run(stop.clone()));
    let patience = async {
        while !slow.begun.load(Ordering::SeqCst) {
            hands.advance(Duration::from_millis(500));
            breathe().await;
        }
        for _ in 0..20 {
            let before = leased_until(&store).await;
            while leased_until(&store).await == before {
                hands.advance(LEASE / 60);
                breathe().await;
            }
            let theirs = store.claim_held(&name, "another process", LEASE, 1).await.unwrap();
            assert!(theirs.is_empty(), "it is in hand: {theirs:?}");
        }
        slow.finish.notify_one();
        while status.applied() == 0 {
            hands.advance(Duration::from_millis(500));
            breathe().await;
        }
    };
    tokio::time::timeout(Duration::from_mins(2), patience).await.expect("it comes to an end");
    assert!(store.held_keys(Some(&name), 10).await.unwrap().is_empty());
    stop.cancel();
    running.await.unwrap().unwrap();
}
