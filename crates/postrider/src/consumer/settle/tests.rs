//! How long a delivery is kept that can be sent nowhere, by a clock of our own.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;

use super::*;
use crate::broker::{Broker, BrokerError, BrokerErrorKind, Delivery, Receipt, Subscription};
use crate::clock::{Clock, ManualClock};
use crate::envelope::{Event, WireFormat, wire};
use crate::handler::{Failure, Incoming, OutsideHandler};
use crate::registry::Registry;
use crate::settlement::RetryPolicy;
use crate::sqlite::{Sqlite, SqliteConfig};
use crate::store::Crashes as _;
use crate::topology::{ConsumerName, ExchangeName, QueueName, RoutingKey, ServiceQueue, Topology};

/// Takes nothing until it was asked so often, and notes when it was asked.
struct Unwilling {
    clock: Clock,
    refusals: usize,
    asked: Mutex<Vec<Duration>>,
}

fn away<T>() -> Result<T, BrokerError> {
    Err(BrokerError::new(BrokerErrorKind::Unavailable, "nobody asks this"))
}

#[async_trait]
impl Broker for Unwilling {
    async fn declare(&self, _: &Topology) -> Result<(), BrokerError> {
        away()
    }

    async fn publish(&self, _: Vec<Outgoing>) -> Vec<Published> {
        let mut asked = self.asked.lock().unwrap();
        asked.push(self.clock.monotonic());
        vec![match asked.len() {
            1 => Published::Returned("no queue wants it".to_owned()),
            tried if tried <= self.refusals => Published::Unknown("nack".to_owned()),
            _ => Published::Confirmed,
        }]
    }

    async fn subscribe(&self, _: &QueueName, _: u16) -> Result<Box<dyn Subscription>, BrokerError> {
        away()
    }

    async fn depth(&self, _: &QueueName) -> Result<u64, BrokerError> {
        away()
    }

    async fn ping(&self) -> Result<(), BrokerError> {
        away()
    }

    async fn close(&self) {}
}

/// Publishes to a broker that refuses so often, stopped after so long; whether it was sent, and how long each pause was.
async fn publish(refusals: usize, patience: Duration) -> (bool, Vec<u64>) {
    let (clock, hands) = Clock::manual("2026-01-01T12:00:00Z".parse().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let store = Sqlite::open(SqliteConfig::new(folder.path().join("kept.db")), clock.clone()).await.unwrap();
    let broker = Arc::new(Unwilling { clock: clock.clone(), refusals, asked: Mutex::default() });
    let (name, service) = (ConsumerName::new("mail"), ServiceQueue::new("mail", RetryPolicy::default()));
    let (name, service) = (name.unwrap(), service.unwrap());
    let outgoing = Outgoing::to_queue(&service.dead_letter_queue, Message::default());
    let consumer = Consumer::new(store, broker.clone(), clock.clone(), name, service, Registry::new());
    let stop = CancellationToken::new();
    let told = stop.clone();
    let publishing = tokio::spawn(async move { consumer.publish(&outgoing, &told).await.is_some() });
    let start = clock.monotonic();
    while !publishing.is_finished() {
        pass_time(&hands);
        if clock.since(start) > patience {
            stop.cancel();
        }
        tokio::task::yield_now().await;
    }
    let asked = broker.asked.lock().unwrap().clone();
    let pauses = asked.windows(2).map(|pair| pair[1].saturating_sub(pair[0]).as_secs()).collect();
    (publishing.await.unwrap(), pauses)
}

/// To the next time that somebody waits for.
fn pass_time(hands: &ManualClock) {
    if let Some(wait) = hands.next_wake() {
        hands.advance(wait);
    }
}

#[tokio::test]
async fn three_tries_after_one_and_two_seconds_and_then_the_delivery_is_kept_until_it_can_be_sent() {
    let hour = Duration::from_hours(1);
    assert_eq!(publish(2, hour).await, (true, vec![1, 2]));
    assert_eq!(publish(5, hour).await, (true, vec![1, 2, 10, 10, 10]));
}

#[tokio::test]
async fn whoever_is_told_to_stop_leaves_the_delivery_unacked() {
    let (sent, pauses) = publish(usize::MAX, Duration::from_mins(1)).await;
    assert!(!sent && pauses.starts_with(&[1, 2, 10, 10]), "{pauses:?}");
}

/// Hears nothing but that it has to stop.
struct Patient;

impl OutsideHandler for Patient {
    async fn handle(&self, _: &Incoming, stop: &CancellationToken) -> Option<Result<(), Failure>> {
        stop.cancelled().await;
        None
    }
}

#[tokio::test]
async fn whoever_is_told_to_stop_has_not_died_under_what_came_again() {
    let folder = tempfile::tempdir().unwrap();
    let clock = Clock::system();
    let store = Sqlite::open(SqliteConfig::new(folder.path().join("left.db")), clock.clone()).await.unwrap();
    let broker = Arc::new(Unwilling { clock: clock.clone(), refusals: 0, asked: Mutex::default() });
    let (name, service) = (ConsumerName::new("mail"), ServiceQueue::new("mail", RetryPolicy::default()));
    let (name, service) = (name.unwrap(), service.unwrap());
    let registry = Registry::new().on_outside("#", Patient);
    let consumer = Consumer::new(store.clone(), broker, clock.clone(), name.clone(), service, registry);
    let envelope = Event::new("shop.order.placed").unwrap().id("evt_1").unwrap().into_envelope(&clock);
    let arrived = consumer.read(Delivery {
        message: wire::encode(&envelope, WireFormat::Envelope, 0),
        exchange: ExchangeName::new("shop").unwrap(),
        routing_key: RoutingKey::from(&envelope.event_type),
        redelivered: true,
        receipt: Receipt::void(),
    });
    // Once as it came, and once with what a crash left.
    for marks in [0, 1] {
        if marks == 1 {
            store.begun(&name, "evt_1").await.unwrap();
        }
        let stop = CancellationToken::new();
        let told = stop.clone();
        let (fate, ()) = tokio::join!(consumer.deliver(&arrived, &stop), async {
            while store.unfinished(&name, "evt_1").await.unwrap() <= marks {
                tokio::task::yield_now().await;
            }
            told.cancel();
        });
        assert_eq!(fate, None);
        assert_eq!(store.unfinished(&name, "evt_1").await.unwrap(), marks, "what crashes left stays");
    }
}

/// A task is copied when it is begun, with the room for all that it may ever do.
#[test]
fn what_an_attempt_hardly_ever_does_takes_no_room_in_its_task() {
    fn size<'a, S: ConsumerStore, F: Future + 'a>(
        _: impl Fn(&'a Consumer<S>, &'a Arrived, &'a CancellationToken) -> F,
    ) -> usize {
        size_of::<F>()
    }
    let bytes = size::<Sqlite, _>(Consumer::deliver);
    assert!(bytes <= 4096, "{bytes} bytes");
}
