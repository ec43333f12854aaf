//! What goes back to its queue in peace, again and again: a broker counts it as if its consumers had been lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use postrider::consumer::{BreakerConfig, Concurrency};
use postrider::handler::OutsideHandler;
use postrider::registry::Registry;
use postrider::settlement::RetryPolicy;
use postrider::topology::OnDead;
use postrider::{Event, Failure, Incoming};
use postrider_testkit::effects::Effects;
use tokio_util::sync::CancellationToken;

use super::ordering::{Applied, commit_all, in_order, note};
use super::stage::Stage;

/// The broker gives up what came back more often than this.
const LIMIT: u32 = 12;

/// Each probe of an ordered queue is handed all that wait there, and all but one go back.
pub(super) async fn what_waits_while_its_handler_is_down_is_not_given_up_and_keeps_its_order<S: Effects>(
    stage: Stage<S>,
) {
    outlasts(stage, &["a", "b", "c", "d", "e", "f", "g", "h"], 4).await;
}

/// All of them are behind the one that is tried, and that fails sooner than they could be held one by one.
pub(super) async fn what_waits_behind_one_key_while_its_handler_is_down_is_not_given_up<S: Effects>(
    stage: Stage<S>,
) {
    outlasts(stage, &["a"], 100).await;
}

/// So many events of each key wait until their handler is well again, which takes longer than the broker has patience.
async fn outlasts<S: Effects>(mut stage: Stage<S>, keys: &[&str], events: u64) {
    let pause = Duration::from_millis(20);
    stage.order = Some(OnDead::Park);
    stage.delivery_limit = Some(LIMIT);
    stage.retry = RetryPolicy::fixed(1_000, Duration::from_millis(50));
    stage.config.breaker = BreakerConfig { failures: 1, pause, max_pause: pause };
    stage.config.concurrency = Concurrency::fixed(1);
    let (well, applied) = (Arc::new(AtomicBool::new(false)), Applied::default());
    commit_all(&stage, keys, events).await;
    let judge = {
        let (well, applied) = (well.clone(), applied.clone());
        move |event: &Incoming| {
            if well.load(Ordering::SeqCst) { note(&applied, event) } else { Err(Failure::transient("down")) }
        }
    };
    let running = stage.start(judge).await;
    stage.until(async || stage.calls().len() >= 5 * LIMIT as usize).await;
    well.store(true, Ordering::SeqCst);
    let all = keys.len() as u64 * events;
    let account = stage.account(&running, |account| account.applied == all || account.dead > 0).await;
    assert_eq!((account.applied, account.dead), (all, 0), "{account:?}");
    in_order(&applied, keys, events);
}

/// Has everything in hand until it is well.
struct Slow {
    well: Arc<AtomicBool>,
    calls: Arc<AtomicUsize>,
}

impl OutsideHandler for Slow {
    async fn handle(&self, _event: &Incoming, stop: &CancellationToken) -> Option<Result<(), Failure>> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        if !self.well.load(Ordering::SeqCst) {
            stop.cancelled().await;
            return None;
        }
        Some(Ok(()))
    }
}

pub(super) async fn what_many_restarts_give_back_is_not_given_up<S: Effects>(mut stage: Stage<S>) {
    stage.delivery_limit = Some(LIMIT);
    stage.config.concurrency = Concurrency::fixed(2);
    for _ in 0..10 {
        stage.commit(Event::new("order.placed").unwrap()).await;
    }
    let (well, calls) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let handlers = || {
        let handler = Slow { well: well.clone(), calls: calls.clone() };
        Registry::new().on_outside("order.placed", handler)
    };
    for _ in 0..2 * LIMIT + 2 {
        let before = calls.load(Ordering::SeqCst);
        let running = stage.start_with(handlers()).await;
        stage.until(async || calls.load(Ordering::SeqCst) > before).await;
        assert!(running.finish(Duration::from_secs(30)).await);
    }
    well.store(true, Ordering::SeqCst);
    let running = stage.start_with(handlers()).await;
    let account = stage.account(&running, |account| account.applied == 10 || account.dead > 0).await;
    assert_eq!((account.applied, account.dead), (10, 0), "{account:?}");
}
