//! Leases: who has a delivery, for how long, and what happens when nobody says anything.

use std::sync::atomic::AtomicBool;

use super::*;
use crate::clock::ManualClock;
use crate::envelope::Event;
use crate::topology::ConsumerName;

const MINUTE: Duration = Duration::from_mins(1);

/// An inbox with one mark, or none.
struct Marked(Arc<AtomicBool>);

impl Applied for Marked {
    fn is_applied<'a>(&'a self, _event: &'a Incoming) -> BoxFuture<'a, bool> {
        Box::pin(async { self.0.load(Ordering::Relaxed) })
    }
}

struct Stage {
    marked: Arc<AtomicBool>,
    desk: Arc<PullDesk>,
    hands: ManualClock,
    stop: CancellationToken,
    handling: tokio::task::JoinHandle<Option<Result<(), Failure>>>,
}

impl Stage {
    fn new() -> Self {
        let (clock, hands) = Clock::manual("2026-01-01T00:00:00Z".parse().unwrap());
        let envelope = Event::new("order.placed").unwrap().into_envelope(&clock);
        let event = Incoming::new(ConsumerName::new("mail").unwrap(), envelope, 1);
        let (desk, stop, marked) = (PullDesk::new(clock), CancellationToken::new(), Arc::default());
        let marked: Arc<AtomicBool> = marked;
        let (handler, told) = (PullHandler::new(desk.clone(), Marked(marked.clone())), stop.clone());
        let handling = tokio::spawn(async move { handler.handle(&event, &told).await });
        Self { marked, desk, hands, stop, handling }
    }

    /// Waits without limit: time stands still.
    async fn lease(&self) -> Leased {
        self.desk.lease(10, MINUTE, MINUTE).await.remove(0)
    }
}

#[tokio::test]
async fn a_worker_says_what_became_of_it_once() {
    let stage = Stage::new();
    let leased = stage.lease().await;
    assert_eq!((leased.event.attempt, stage.desk.leased()), (1, 1));
    assert_eq!(stage.desk.settle("lease_00", Verdict::Ack), Err(LeaseOver));
    assert_eq!(stage.desk.settle(&leased.token, Verdict::Ack), Ok(()));
    assert_eq!(stage.desk.settle(&leased.token, Verdict::Ack), Err(LeaseOver));
    assert_eq!(stage.handling.await.unwrap(), Some(Ok(())));
}

#[tokio::test]
async fn a_lease_that_runs_out_offers_it_again_and_fails_in_the_end() {
    let stage = Stage::new();
    for _ in 0..MOST_EXPIRED {
        let leased = stage.lease().await;
        while stage.desk.leased() > 0 {
            stage.hands.advance(MINUTE);
            tokio::task::yield_now().await;
        }
        assert_eq!(stage.desk.settle(&leased.token, Verdict::Ack), Err(LeaseOver));
    }
    let failure = stage.handling.await.unwrap().unwrap().unwrap_err();
    assert_eq!(failure.class.as_deref(), Some("lease_expired"));
}

#[tokio::test]
async fn what_was_acked_elsewhere_is_not_offered_again() {
    let stage = Stage::new();
    let leased = stage.lease().await;
    let (clock, _) = Clock::manual("2026-01-01T00:00:00Z".parse().unwrap());
    let elsewhere = PullDesk::with_key(clock.clone(), stage.desk.key.clone());
    assert_eq!(PullDesk::new(clock).of_another(&leased.token), None, "its key is another");
    assert_eq!(elsewhere.settle(&leased.token, Verdict::Ack), Err(LeaseOver));
    assert_eq!(elsewhere.of_another(&leased.token).unwrap().arrival().event_id, leased.event.envelope.id);
    assert_eq!(stage.desk.of_another(&leased.token), None);
    stage.marked.store(true, Ordering::Relaxed);
    while stage.desk.leased() > 0 {
        stage.hands.advance(MINUTE);
        tokio::task::yield_now().await;
    }
    assert_eq!(stage.handling.await.unwrap(), Some(Ok(())));
}

#[tokio::test]
async fn a_lease_can_be_extended_but_not_for_ever() {
    let stage = Stage::new();
    let leased = stage.lease().await;
    assert_eq!(stage.desk.extend(&leased.token, MINUTE * 10), Ok(MINUTE * 10));
    stage.hands.advance(MINUTE * 9);
    tokio::task::yield_now().await;
    assert_eq!(stage.desk.extend(&leased.token, MINUTE * 60), Ok(MINUTE * 21));
    let reject = Verdict::Reject { reason: "no such customer".to_owned() };
    stage.desk.settle(&leased.token, reject).unwrap();
    let failure = stage.handling.await.unwrap().unwrap().unwrap_err();
    assert_eq!(failure.kind, crate::handler::FailureKind::Permanent);
}

#[tokio::test]
async fn a_lease_that_is_cut_short_ends_then_and_not_when_it_would_have() {
    let stage = Stage::new();
    let leased = stage.lease().await;
    let second = Duration::from_secs(1);
    assert_eq!(stage.desk.extend(&leased.token, second), Ok(second));
    let mut seconds = 0;
    while stage.desk.leased() > 0 {
        stage.hands.advance(second);
        tokio::task::yield_now().await;
        seconds += 1;
    }
    assert!(seconds < 30, "it took {seconds} seconds");
    assert_eq!(stage.lease().await.event.envelope.id, leased.event.envelope.id);
}

#[tokio::test]
async fn told_to_stop_it_leaves_the_delivery_to_the_broker() {
    let stage = Stage::new();
    let leased = stage.lease().await;
    stage.stop.cancel();
    assert_eq!(stage.handling.await.unwrap(), None);
    assert_eq!(stage.desk.settle(&leased.token, Verdict::Ack), Err(LeaseOver));
    let desk = stage.desk;
    assert!(desk.lease(1, MINUTE, Duration::ZERO).await.is_empty());
}
