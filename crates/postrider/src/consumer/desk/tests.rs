//! What gathers while a batch is in hand.
#![cfg(feature = "sqlite")]

use async_trait::async_trait;
use jiff::Timestamp;
use tokio::sync::{Semaphore, mpsc};

use super::super::{BreakerState, Cause};
use super::*;
use crate::broker::{BrokerError, Delivery};
use crate::clock::{Clock, ManualClock};
use crate::embedded::EmbeddedBroker;
use crate::envelope::{Event, WireFormat, wire};
use crate::handler::{BatchLimits, batch_handler_fn};
use crate::registry::Registry;
use crate::settlement::RetryPolicy;
use crate::sqlite::{Sqlite, SqliteConfig};
use crate::topology::{ConsumerName, ExchangeName, RoutingKey, ServiceQueue};

struct Deaf;

#[async_trait]
impl Settler for Deaf {
    async fn settle(&self, _settled: Vec<(Receipt, Verdict)>) -> Result<(), BrokerError> {
        Ok(())
    }
}

/// A desk whose handler tells how large its batches are, and ends each when it may.
struct Stage {
    desk: Arc<Desk<Sqlite>>,
    sizes: mpsc::UnboundedReceiver<usize>,
    may_end: Arc<Semaphore>,
    hands: ManualClock,
    taken: usize,
    _folder: tempfile::TempDir,
}

impl Stage {
    async fn open() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (clock, hands) = Clock::manual(Timestamp::UNIX_EPOCH);
        let path = folder.path().join("desk.db");
        let store = Sqlite::open(SqliteConfig::new(path), Clock::system()).await.unwrap();
        let broker = Arc::new(EmbeddedBroker::open(store.clone(), Clock::system()).await.unwrap());
        let service = ServiceQueue::new("billing", RetryPolicy::default()).unwrap();
        let name = ConsumerName::new("billing").unwrap();
        let (tell, sizes) = mpsc::unbounded_channel();
        let may_end = Arc::new(Semaphore::new(0));
        let handler = batch_handler_fn::<Sqlite, _>({
            let may_end = may_end.clone();
            move |_, events| {
                tell.send(events.len()).unwrap();
                let may_end = may_end.clone();
                Box::pin(async move {
                    may_end.acquire().await.unwrap().forget();
                    Ok(())
                })
            }
        });
        let registry = Registry::new().on_batch("#", BatchLimits::default(), handler);
        let consumer = Arc::new(Consumer::new(store, broker, clock, name, service, registry));
        let desk = Desk::open(consumer, Box::new(Deaf), 250, CancellationToken::new());
        Self { desk, sizes, may_end, hands, taken: 0, _folder: folder }
    }

    /// So many deliveries arrive together.
    async fn take(&mut self, deliveries: usize) {
        for _ in 0..deliveries {
            self.taken += 1;
            let event = Event::new("shop.order.placed").unwrap().id(format!("evt_{}", self.taken)).unwrap();
            let envelope = event.into_envelope(&Clock::manual(Timestamp::UNIX_EPOCH).0);
            let delivery = Delivery {
                message: wire::encode(&envelope, WireFormat::Envelope, 0),
                exchange: ExchangeName::new("shop").unwrap(),
                routing_key: RoutingKey::from(&envelope.event_type),
                redelivered: false,
                receipt: Receipt::void(),
            };
            self.desk.take(self.desk.consumer.read(delivery)).await;
        }
        self.desk.flush(false).await;
    }

    fn in_hand(&self) -> usize {
        self.desk.consumer.status.in_flight()
    }

    /// Lets so many batches end, and ends the session when all is applied.
    async fn end(self, batches: usize) {
        self.may_end.add_permits(batches);
        while self.desk.consumer.status.applied() < self.taken as u64 {
            tokio::task::yield_now().await;
        }
        self.desk.stop.cancel();
        self.desk.close().await;
    }
}

#[tokio::test]
async fn what_comes_while_a_batch_is_in_hand_goes_together_when_it_ends() {
    let mut stage = Stage::open().await;
    stage.take(1).await;
    assert_eq!(stage.sizes.recv().await, Some(1), "one alone goes at once");
    for _ in 0..30 {
        stage.take(1).await;
    }
    assert_eq!(stage.in_hand(), 1, "the others gather");
    stage.may_end.add_permits(1);
    assert_eq!(stage.sizes.recv().await, Some(30));
    stage.end(1).await;
}

#[tokio::test]
async fn half_a_batch_waits_for_no_other() {
    let mut stage = Stage::open().await;
    stage.take(1).await;
    assert_eq!(stage.sizes.recv().await, Some(1));
    stage.take(49).await;
    assert_eq!(stage.in_hand(), 1);
    stage.take(1).await;
    assert_eq!(stage.in_hand(), 2, "the first has not ended");
    stage.end(2).await;
}

#[tokio::test]
async fn behind_a_slow_batch_a_few_wait_for_a_moment_only() {
    let mut stage = Stage::open().await;
    stage.take(1).await;
    assert_eq!(stage.sizes.recv().await, Some(1));
    stage.take(3).await;
    while stage.hands.next_wake() != Some(BEHIND_OTHERS) {
        tokio::task::yield_now().await;
    }
    stage.hands.advance(BEHIND_OTHERS);
    while stage.in_hand() < 2 {
        tokio::task::yield_now().await;
    }
    stage.end(2).await;
}

#[tokio::test]
async fn what_has_gathered_goes_back_when_the_consumer_is_held_up() {
    let mut stage = Stage::open().await;
    stage.take(1).await;
    assert_eq!(stage.sizes.recv().await, Some(1));
    stage.take(3).await;
    let status = stage.desk.consumer.status.clone();
    status.set_breaker(BreakerState::Open(Cause::Store));
    stage.may_end.add_permits(1);
    stage.desk.left.cancelled().await;
    stage.desk.close().await;
    assert_eq!(status.applied(), 1, "another session brings the others");
}
