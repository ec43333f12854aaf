//! Positive controls on real servers: services with a flaw are killed where it hurts, and the checker goes red. If it stayed green, its
//! green on our own processes would mean nothing.

use std::sync::Arc;
use std::time::Duration;

use postrider::{Broker, Clock};
use postrider_testkit::checkers::{EffectLog, Verdict};
use postrider_testkit::effects::Effects;
use postrider_testkit::servers::{Postgres, RabbitMq};
use postrider_testkit::worker::flawed::{self, CONSUMER, Flaw, PRODUCER};
use postrider_testkit::worker::{self, WorkerProcess};

const WORKER: &str = env!("CARGO_BIN_EXE_postrider-worker");
const EVENTS: usize = 6;
/// A generous limit for everything that has to happen.
const LIMIT: Duration = Duration::from_mins(2);

struct Stage {
    store: postrider::postgres::Postgres,
    broker: Arc<dyn Broker>,
    clock: Clock,
    words: [String; 3],
}

impl Stage {
    async fn set(postgres: &Postgres, rabbitmq: &RabbitMq) -> Self {
        let clock = Clock::system();
        let store = worker::connect_postgres(&postgres.url(), &clock).await.unwrap();
        store.migrate().await.unwrap();
        store.create_effects().await.unwrap();
        let broker = worker::connect_rabbitmq(&rabbitmq.amqp_url(), &clock).await.unwrap();
        broker.declare(&flawed::topology().unwrap()).await.unwrap();
        Self { store, broker, clock, words: ["servers".to_owned(), postgres.url(), rabbitmq.amqp_url()] }
    }

    fn start(&self, flaw: Flaw) -> WorkerProcess {
        let words: Vec<_> =
            std::iter::once(flaw.as_str()).chain(self.words.iter().map(String::as_str)).collect();
        WorkerProcess::start(WORKER, &words).unwrap()
    }

    /// kill -9 where it hurts.
    async fn kill(&self, flaw: Flaw) {
        let mut service = self.start(flaw);
        service.until(|hands| hands.between > 1).await.unwrap();
        service.kill().await.unwrap();
    }

    async fn until(&self, what: &str, so: impl AsyncFn() -> bool) {
        let start = self.clock.monotonic();
        while !so().await {
            assert!(self.clock.since(start) < LIMIT, "{what} within {LIMIT:?}");
            self.clock.sleep(Duration::from_millis(50)).await;
        }
    }

    /// How often anybody was this far.
    async fn count(&self, who: &str) -> usize {
        self.store.effects().await.unwrap().iter().filter(|(name, _)| name == who).count()
    }

    /// What the checker says of a consumer with this flaw, and then the table is empty again.
    async fn judge_consumer(&self, flaw: Flaw) -> Verdict {
        let mut log = EffectLog::new();
        for number in 0..EVENTS {
            log.commit([flawed::publish(self.broker.as_ref(), &self.clock, number).await.unwrap()]);
        }
        self.kill(flaw).await;
        let last = self.start(flaw);
        // The last event came through, and nothing waits behind it.
        let last_one = format!("work-{}", EVENTS - 1);
        self.until("the queue is worked off", async || {
            let effects = self.store.effects().await.unwrap();
            let through = effects.iter().any(|(who, id)| who == CONSUMER && id.as_str() == last_one);
            through && self.broker.depth(&flawed::queue().unwrap()).await.unwrap() == 0
        })
        .await;
        last.kill().await.unwrap();
        log.effects(self.store.effects().await.unwrap()).judge(CONSUMER)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_services_with_a_flaw_and_the_checker_goes_red() {
    for flaw in [Flaw::AckBeforeCommit, Flaw::NoInbox, Flaw::InboxApart] {
        let (postgres, rabbitmq) = (Postgres::start().await.unwrap(), RabbitMq::start().await.unwrap());
        let verdict = Stage::set(&postgres, &rabbitmq).await.judge_consumer(flaw).await;
        let found = if flaw == Flaw::NoInbox { verdict.doubled.len() } else { verdict.lost.len() };
        assert!(found > 0, "{flaw:?} stayed green: {verdict}");
        eprintln!("{flaw:?} is red: {verdict}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_a_service_that_writes_twice_and_the_checker_goes_red() {
    let (postgres, rabbitmq) = (Postgres::start().await.unwrap(), RabbitMq::start().await.unwrap());
    let stage = Stage::set(&postgres, &rabbitmq).await;
    stage.kill(Flaw::DualWrite).await;
    stage.kill(Flaw::DualWrite).await;
    let committed = stage.count(PRODUCER).await as u64;
    let waiting = stage.broker.depth(&flawed::queue().unwrap()).await.unwrap();
    assert!(waiting < committed, "{waiting} of {committed} events arrived: dual write stayed green");
}
