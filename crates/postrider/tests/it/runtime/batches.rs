//! Batch handlers: many events in one transaction, and each for itself when one of them is bad.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use postrider::consumer::{BreakerConfig, ConsumerState};
use postrider::handler::{BatchLimits, batch_handler_fn};
use postrider::registry::Registry;
use postrider::settlement::RetryPolicy;
use postrider::topology::OnDead;
use postrider::{Failure, Incoming};
use postrider_testkit::effects::Effects;

use super::ordering::{Applied, aggregate, commit_all, in_order, number};
use super::stage::Stage;

/// The sizes of the batches that were handled.
type Sizes = Arc<Mutex<Vec<usize>>>;

/// Writes the effects of a batch and lets `judge` decide about all of it.
fn batching<S, J>(stage: &Stage<S>, limits: BatchLimits, judge: J) -> (Registry<S>, Sizes)
where
    S: Effects,
    J: Fn(&[Incoming]) -> Result<(), Failure> + Clone + Send + Sync + 'static,
{
    let (store, sizes) = (stage.store.clone(), Sizes::default());
    let told = sizes.clone();
    let handler = batch_handler_fn::<S, _>(move |tx, events| {
        let (store, told, judge) = (store.clone(), told.clone(), judge.clone());
        Box::pin(async move {
            told.lock().unwrap().push(events.len());
            for event in events {
                store.insert_effect(tx, event.consumer.as_str(), &event.envelope.id).await?;
            }
            judge(events)
        })
    });
    (Registry::new().on_batch("order.placed", limits, handler), sizes)
}

const TENS: BatchLimits = BatchLimits { max_size: 10, max_wait: Duration::from_millis(100) };

pub(super) async fn a_batch_is_applied_together_and_each_event_once<S: Effects>(stage: Stage<S>) {
    let ids = commit_all(&stage, &["a", "b", "c"], 15).await;
    let (registry, sizes) = batching(&stage, TENS, |_| Ok(()));
    let running = stage.start_with(registry).await;
    let account = stage.account(&running, |account| account.applied == 45).await;
    assert!(account.holds(), "{account:?}");
    assert_eq!((stage.effects().await, ids.len()), (45, 45));
    let sizes = sizes.lock().unwrap().clone();
    assert!(sizes.iter().all(|size| *size <= 10) && sizes.len() < 45, "{sizes:?}");
}

pub(super) async fn one_bad_event_never_fails_its_neighbours<S: Effects>(mut stage: Stage<S>) {
    stage.retry = RetryPolicy::fixed(2, Duration::from_millis(50));
    commit_all(&stage, &["good", "bad", "flaky"], 5).await;
    let (registry, _) = batching(&stage, TENS, |events| {
        let of = |name: &str| events.iter().filter(|event| aggregate(event) == name).collect::<Vec<_>>();
        if !of("bad").is_empty() {
            return Err(Failure::permanent("no such account"));
        }
        if of("flaky").iter().any(|event| event.attempt == 1) {
            return Err(Failure::transient("not yet"));
        }
        Ok(())
    });
    let running = stage.start_with(registry).await;
    let account = stage.account(&running, |account| account.applied == 10 && account.dead == 5).await;
    assert!(account.holds(), "{account:?}");
    assert_eq!(stage.effects().await, 10);
    let letters = stage.dead_letters(5).await;
    assert!(letters.iter().all(|letter| letter.attempts == 1 && letter.reason == "rejected"));
}

/// What is left of a batch that fails is not tried once the breaker has opened.
pub(super) async fn a_batch_that_fails_saves_the_retries_of_the_rest<S: Effects>(mut stage: Stage<S>) {
    const ALL: BatchLimits = BatchLimits { max_size: 60, max_wait: Duration::from_millis(500) };
    let pause = Duration::from_mins(10);
    stage.config.breaker = BreakerConfig { failures: 5, pause, max_pause: pause };
    stage.retry = RetryPolicy::fixed(1_000, Duration::from_mins(10));
    commit_all(&stage, &["a", "b", "c"], 20).await;
    let (registry, sizes) = batching(&stage, ALL, |_| Err(Failure::transient("the bank is down")));
    let running = stage.start_with(registry).await;
    let status = running.consumers()[0].status.clone();
    stage.until(async || matches!(status.state(), ConsumerState::Tripped(_))).await;
    stage.until(async || status.in_flight() == 0).await;
    let alone = sizes.lock().unwrap().iter().filter(|size| **size == 1).count();
    assert!(alone < 20, "{alone} of 60 were tried by themselves");
    assert!(status.retried() < 20, "{} used up a retry", status.retried());
}

pub(super) async fn batches_keep_the_order_of_a_key<S: Effects>(mut stage: Stage<S>) {
    stage.order = Some(OnDead::Continue);
    stage.retry = RetryPolicy::fixed(5, Duration::from_millis(50));
    let keys = ["a", "b", "c", "d"];
    commit_all(&stage, &keys, 12).await;
    let applied = Applied::default();
    let (registry, _) = batching(&stage, TENS, {
        let applied = applied.clone();
        move |events| {
            if events.iter().any(|event| number(event) % 5 == 2 && event.attempt < 3) {
                return Err(Failure::transient("not yet"));
            }
            for event in events {
                applied.lock().unwrap().entry(aggregate(event)).or_default().push(number(event));
            }
            Ok(())
        }
    });
    let running = stage.start_with(registry).await;
    let account = stage.account(&running, |account| account.applied == 48).await;
    assert!(account.holds(), "{account:?}");
    in_order(&applied, &keys, 12);
    assert_eq!(stage.effects().await, 48);
}
