//! Pausing, the breaker and the rate limit, on a running consumer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use postrider::broker::Message;
use postrider::consumer::{BreakerConfig, BreakerState, Cause, Concurrency, ConsumerState};
use postrider::handler::{OutsideHandler, handler_fn};
use postrider::registry::Registry;
use postrider::settlement::RetryPolicy;
use postrider::topology::ConsumerName;
use postrider::{Clock, Event, Failure, Incoming};
use postrider_testkit::effects::Effects;
use postrider_testkit::servers::{Postgres as Database, RabbitVersion, shared};
use tokio_util::sync::CancellationToken;

use super::stage::{CONSUMER, Stage};

postrider_testkit::on_each_rabbitmq!(a_store_that_is_killed_costs_no_retries);

fn placed() -> Event {
    Event::new("order.placed").unwrap()
}

pub(super) async fn a_paused_consumer_takes_nothing_until_it_is_resumed<S: Effects>(stage: Stage<S>) {
    let mail = ConsumerName::new(CONSUMER).unwrap();
    let running = stage.start(|_| Ok(Vec::new())).await;
    let status = running.consumers()[0].status.clone();
    stage.commit(placed()).await;
    stage.account(&running, |account| account.applied == 1).await;

    assert!(stage.store.pause(&mail, "ann", "the mail server moves").await.unwrap());
    let by_ann = |state| matches!(state, ConsumerState::Paused(pause) if pause.by == "ann");
    stage.until(async || by_ann(status.state())).await;
    for _ in 0..20 {
        stage.commit(placed()).await;
    }
    // Nothing is in anybody's hands: all of it waits where the account finds it.
    let account = stage.account(&running, |account| account.waiting == 20 && account.holds()).await;
    assert_eq!((account.applied, stage.calls().len()), (1, 1));

    assert!(stage.store.resume(&mail, "bob", "").await.unwrap());
    stage.account(&running, |account| account.applied == 21).await;
    assert_eq!(status.state(), ConsumerState::Running);
}

pub(super) async fn the_breaker_saves_the_retries_of_everybody<S: Effects>(mut stage: Stage<S>) {
    let pause = Duration::from_millis(100);
    stage.config.breaker = BreakerConfig { failures: 5, pause, max_pause: pause };
    stage.config.concurrency = Concurrency::fixed(2);
    stage.retry = RetryPolicy::fixed(3, Duration::from_millis(50));
    let well = Arc::new(AtomicBool::new(false));
    let works = well.clone();
    let running = stage
        .start(move |_| {
            if works.load(Ordering::SeqCst) {
                Ok(Vec::new())
            } else {
                Err(Failure::transient("the bank is down"))
            }
        })
        .await;
    let status = running.consumers()[0].status.clone();
    // All at once: were they to come one by one, the first might be through with its retries before five have failed.
    let mut tx = stage.store.begin().await.unwrap();
    stage.store.append(&mut tx, (0..60).map(|_| placed()).collect()).await.unwrap();
    stage.store.commit(tx).await.unwrap();
    stage.until(async || matches!(status.state(), ConsumerState::Tripped(_))).await;
    // For as long as a hundred attempts would have taken, only probes are made: most of the 60 were never called.
    stage.until(async || stage.calls().len() >= 10).await;
    assert!(stage.calls().len() < 30, "{} calls", stage.calls().len());
    assert_eq!(status.dead(), 0, "nobody's retries were used up");
    well.store(true, Ordering::SeqCst);
    let account = stage.account(&running, |account| account.applied == 60).await;
    assert!(account.holds(), "{account:?}");
    assert_eq!(status.state(), ConsumerState::Running);
}

pub(super) async fn a_rate_limit_is_kept<S: Effects>(mut stage: Stage<S>) {
    stage.config.max_rate = Some(40.0);
    for _ in 0..20 {
        stage.commit(placed()).await;
    }
    let started = stage.clock.now();
    let running = stage.start(|_| Ok(Vec::new())).await;
    stage.account(&running, |account| account.applied == 20).await;
    let last = stage.times.lock().unwrap().iter().max().copied().unwrap();
    let took = last.duration_since(started);
    // 20 at 40 a second, of which the bucket had 4 at the start.
    assert!(took >= Duration::from_millis(350).try_into().unwrap(), "{took}");
}

/// From the least on, a step a second, while the queue is backed up and nothing gets slower; never beyond the most.
pub(super) async fn concurrency_grows_with_the_backlog<S: Effects>(mut stage: Stage<S>) {
    stage.config.concurrency = Concurrency { min: 2, max: 4 };
    stage.config.handler_limit = Duration::from_mins(1);
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (inside, highest, clock) = (now.clone(), most.clone(), stage.clock.clone());
    let handler = handler_fn::<S, _>(move |_, _| {
        let (inside, highest, clock) = (inside.clone(), highest.clone(), clock.clone());
        Box::pin(async move {
            highest.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            clock.sleep(Duration::from_millis(50)).await;
            inside.fetch_sub(1, Ordering::SeqCst);
            Ok(())
        })
    });
    let mut tx = stage.store.begin().await.unwrap();
    stage.store.append(&mut tx, (0..2_000).map(|_| placed()).collect()).await.unwrap();
    stage.store.commit(tx).await.unwrap();
    let running = stage.start_with(Registry::new().on("order.placed", handler)).await;
    stage.until(async || now.load(Ordering::SeqCst) > 0).await;
    assert!(most.load(Ordering::SeqCst) <= 2, "it begins with the least");
    stage.until(async || most.load(Ordering::SeqCst) == 4).await;
    running.stop(Duration::from_secs(10)).await;
    assert_eq!(most.load(Ordering::SeqCst), 4, "never beyond the most");
}

/// Outside of a transaction, so that no pool of connections sets the limit.
struct Calling {
    takes: Arc<AtomicU64>,
    clock: Clock,
}

impl OutsideHandler for Calling {
    async fn handle(&self, _event: &Incoming, _stop: &CancellationToken) -> Option<Result<(), Failure>> {
        self.clock.sleep(Duration::from_millis(self.takes.load(Ordering::SeqCst))).await;
        Some(Ok(()))
    }
}

/// One call at a time, and nine that were delivered and wait for theirs.
pub(super) async fn what_waits_for_a_call_goes_back_when_it_is_paused<S: Effects>(mut stage: Stage<S>) {
    let mail = ConsumerName::new(CONSUMER).unwrap();
    stage.config.concurrency = Concurrency::fixed(1);
    let (takes, clock) = (Arc::new(AtomicU64::new(500)), stage.clock.clone());
    let handler = Calling { takes: takes.clone(), clock };
    for _ in 0..10 {
        stage.commit(placed()).await;
    }
    let running = stage.start_with(Registry::new().on_outside("order.placed", handler)).await;
    let status = running.consumers()[0].status.clone();
    stage.until(async || status.applied() == 1).await;
    assert!(stage.store.pause(&mail, "ann", "it moves").await.unwrap());
    stage.until(async || matches!(status.state(), ConsumerState::Paused(_))).await;
    // The call that is under way ends, and then nothing is in anybody's hands.
    stage.until(async || status.in_flight() == 0).await;
    let applied = status.applied();
    assert!(applied < 6, "{applied} were called");

    takes.store(1, Ordering::SeqCst);
    assert!(stage.store.resume(&mail, "bob", "").await.unwrap());
    let account = stage.account(&running, |account| account.applied == 10 && account.holds()).await;
    assert_eq!(account.dead, 0);
}

/// As often as a process is ended while an endpoint is slow: nothing died under what it gave back.
pub(super) async fn what_was_given_back_in_peace_counts_as_no_crash<S: Effects>(mut stage: Stage<S>) {
    let mail = ConsumerName::new(CONSUMER).unwrap();
    stage.config.concurrency = Concurrency::fixed(1);
    for _ in 0..30 {
        stage.commit(placed()).await;
    }
    for _ in 0..3 {
        let (takes, clock) = (Arc::new(AtomicU64::new(300)), stage.clock.clone());
        let handlers = Registry::new().on_outside("order.placed", Calling { takes, clock });
        let running = stage.start_with(handlers).await;
        let status = running.consumers()[0].status.clone();
        stage.until(async || status.applied() > 0 && status.in_flight() > 1).await;
        assert!(running.finish(Duration::from_secs(30)).await);
        assert_eq!(stage.store.crash_marks(&mail).await.unwrap(), Vec::<String>::new());
    }
}

/// With the default settings: up while there is more to do than is done, down when the load ends, and down when each takes longer.
pub(super) async fn concurrency_goes_from_ten_towards_fifty_and_comes_back<S: Effects>(stage: Stage<S>) {
    const LOAD: usize = 3_000;
    assert_eq!(stage.config.concurrency, Concurrency { min: 10, max: 50 });
    let millis = Arc::new(AtomicU64::new(100));
    let (takes, clock) = (millis.clone(), stage.clock.clone());
    let handler = Calling { takes, clock };
    let running = stage.start_with(Registry::new().on_outside("order.placed", handler)).await;
    let status = running.consumers()[0].status.clone();
    let most = AtomicUsize::new(0);
    let until = async |so: fn(usize) -> bool| {
        stage
            .until(async || {
                most.fetch_max(status.concurrency(), Ordering::SeqCst);
                so(status.concurrency())
            })
            .await;
    };
    until(|limit| limit == 10).await;
    let load = async || {
        let mut tx = stage.store.begin().await.unwrap();
        stage.store.append(&mut tx, (0..LOAD).map(|_| placed()).collect()).await.unwrap();
        stage.store.commit(tx).await.unwrap();
    };
    load().await;
    until(|limit| limit >= 30).await;
    // The load ends.
    stage.until(async || status.applied() == LOAD as u64).await;
    until(|limit| limit == 10).await;
    // Another one, under which the handlers become ten times as slow.
    load().await;
    until(|limit| limit >= 20).await;
    millis.store(1_000, Ordering::SeqCst);
    until(|limit| limit <= 15).await;
    millis.store(1, Ordering::SeqCst);
    stage.until(async || status.applied() == 2 * LOAD as u64).await;
    assert!(most.load(Ordering::SeqCst) <= 50);
}

async fn a_store_that_is_killed_costs_no_retries(version: RabbitVersion) {
    let database = Database::start().await.unwrap();
    let vhost = shared().unwrap().vhost_on(version).await.unwrap();
    let mut stage = Stage::servers(&database.url(), &vhost.amqp_url).await;
    let pause = Duration::from_millis(200);
    stage.config.breaker = BreakerConfig { failures: 5, pause, max_pause: pause };
    stage.retry = RetryPolicy::fixed(1, Duration::from_millis(50));
    let running = stage.start(|_| Ok(Vec::new())).await;
    let status = running.consumers()[0].status.clone();
    stage.commit(placed()).await;
    stage.account(&running, |account| account.applied == 1).await;

    database.kill().unwrap();
    for number in 0..30 {
        let mut message = Message { body: "{}".into(), ..Message::default() };
        message.properties.message_id = Some(format!("evt_{number}"));
        message.properties.kind = Some("order.placed".to_owned());
        stage.deliver(message).await;
    }
    let tripped = ConsumerState::Tripped(BreakerState::Open(Cause::Store));
    stage.until(async || status.state() == tripped).await;
    assert_eq!(stage.calls().len(), 1, "no handler is called without a transaction");
    database.restart().await.unwrap();
    stage.until(async || stage.effects_or_none().await == Some(31)).await;
    assert!(stage.calls().iter().all(|(_, attempt)| *attempt == 1), "{:?}", stage.calls());
    assert_eq!((status.dead(), stage.calls().len()), (0, 31));
    stage.until(async || status.state() == ConsumerState::Running).await;
}
