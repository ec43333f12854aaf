//! kill -9 between every two steps of collecting and replaying: each dead letter is kept once, each event takes effect once.
//!
//! The handler rejects every event until it is mended; then everything is replayed. In each test the worker dies at one step, in
//! the middle of the work, and another goes on.

use std::sync::Arc;
use std::time::Duration;

use postrider::audit::account;
use postrider::embedded::EmbeddedBroker;
use postrider::operation::{LetterPlan, start};
use postrider::sqlite::{Sqlite, SqliteConfig};
use postrider::store::{LetterFilter, LetterQuery, LetterStatus, OperationKind, OperationState};
use postrider::{Broker, Clock};
use postrider_testkit::checkers::EffectLog;
use postrider_testkit::effects::Effects;
use postrider_testkit::servers::{RabbitVersion, shared};
use postrider_testkit::worker::{self, CONSUMERS, DieAt, WorkerProcess};
use uuid::Uuid;

const EVENTS: usize = 300;
/// Dead letters: one for each consumer.
const LETTERS: usize = EVENTS * CONSUMERS.len();
const LIMIT: Duration = Duration::from_mins(3);
const WORKER: &str = env!("CARGO_BIN_EXE_postrider-worker");

struct Stage<S> {
    store: S,
    words: Vec<String>,
    mended: std::path::PathBuf,
    log: EffectLog,
    clock: Clock,
}

impl<S: Effects> Stage<S> {
    async fn set(store: S, words: &[&str], folder: &std::path::Path) -> Self {
        store.create_effects().await.unwrap();
        let mut log = EffectLog::new();
        let mut tx = store.begin().await.unwrap();
        let events = (0..EVENTS).map(|number| worker::event(number).unwrap()).collect();
        log.commit(store.append(&mut tx, events).await.unwrap());
        store.commit(tx).await.unwrap();
        let words = words.iter().map(ToString::to_string).collect();
        Self { store, words, mended: folder.join("mended"), log, clock: Clock::system() }
    }

    fn worker(&self, step: &str) -> WorkerProcess {
        let mut words = vec!["triage", self.mended.to_str().unwrap(), step];
        words.extend(self.words.iter().map(String::as_str));
        WorkerProcess::start(WORKER, &words).unwrap()
    }

    async fn until(&self, what: &str, mut so: impl AsyncFnMut() -> bool) {
        let start = self.clock.monotonic();
        while !so().await {
            assert!(self.clock.since(start) < LIMIT, "{what} did not come about within {LIMIT:?}");
            self.clock.sleep(Duration::from_millis(50)).await;
        }
    }

    async fn letters(&self, status: LetterStatus) -> usize {
        let filter = LetterFilter { status: Some(status), ..LetterFilter::default() };
        let query = LetterQuery { filter, limit: 10 * LETTERS, ..LetterQuery::default() };
        self.store.letters(&query).await.map_or(0, |page| page.letters.len())
    }

    async fn dies(&self, at: Option<DieAt>) {
        let died = self.worker(at.map_or("-", DieAt::as_str)).ended().await.unwrap();
        assert!(!died.success(), "the worker was to die at {at:?}");
    }

    /// Kills one worker after another, each when the operation has come a part further.
    async fn kill_on_the_way(&self, op: Uuid) {
        const KILLS: u64 = 2;
        for kill in 1..=KILLS {
            let worker = self.worker("-");
            let part = LETTERS as u64 * kill / (KILLS + 1);
            let far = async || {
                let operation = self.store.operation(op).await.ok().flatten();
                operation.is_some_and(|found| found.done >= part)
            };
            self.until("a part of the operation", far).await;
            worker.kill().await.unwrap();
            let operation = self.store.operation(op).await.unwrap().unwrap();
            assert_ne!(operation.state, OperationState::Done, "the kill was to come before the end");
        }
    }

    /// Everything dies, is collected, is replayed and takes effect; the worker dies at this step, or on the way of the replay.
    async fn play(mut self, at: Option<DieAt>, broker: impl AsyncFn(&Self) -> Arc<dyn Broker>) {
        let collecting = matches!(at, Some(DieAt::Received | DieAt::Stored | DieAt::Acked));
        if collecting {
            self.dies(at).await;
        }
        let mut worker = Some(self.worker("-"));
        self.until("collecting", async || self.letters(LetterStatus::Open).await == LETTERS).await;
        // Nothing is collected a second time.
        assert!(self.store.effects().await.unwrap().is_empty());
        std::fs::write(&self.mended, "").unwrap();
        if !collecting && let Some(worker) = worker.take() {
            worker.kill().await.unwrap();
        }
        let plan = LetterPlan::default();
        let kind = OperationKind::ReplayLetters;
        let op =
            start(&self.store, &self.clock, kind, &plan, Some(400.0), "test", None).await.unwrap().unwrap();
        if !collecting {
            match at {
                Some(_) => self.dies(at).await,
                None => self.kill_on_the_way(op).await,
            }
            worker = Some(self.worker("-"));
        }
        let done = async || {
            let operation = self.store.operation(op).await;
            operation.is_ok_and(|found| found.is_some_and(|found| found.state == OperationState::Done))
        };
        self.until("replaying", done).await;
        self.until("taking effect", async || {
            self.store.effects().await.is_ok_and(|effects| effects.len() >= LETTERS)
        })
        .await;
        let broker = broker(&self).await;
        for registration in worker::registrations().unwrap() {
            let mut last = None;
            let holds = async || {
                last = account(&self.store, &broker, &registration).await.ok();
                last.as_ref().is_some_and(|account| account.holds() && account.applied == EVENTS as u64)
            };
            self.until("the account", holds).await;
        }
        drop(worker);
        assert_eq!(self.letters(LetterStatus::Replayed).await, LETTERS, "each dead letter was kept once");
        assert_eq!(self.letters(LetterStatus::Open).await, 0);
        let operation = self.store.operation(op).await.unwrap().unwrap();
        assert_eq!((operation.done, operation.skipped), (LETTERS as u64, 0));
        self.log.effects(self.store.effects().await.unwrap());
        for consumer in CONSUMERS {
            let verdict = self.log.judge(consumer);
            assert!(verdict.is_clean(), "{consumer}: {verdict}");
        }
    }
}

async fn embedded(at: Option<DieAt>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("work.db");
    let clock = Clock::system();
    let store = Sqlite::open(SqliteConfig::new(&path), clock.clone()).await.unwrap();
    let stage = Stage::set(store, &["sqlite", path.to_str().unwrap()], folder.path()).await;
    let broker = async |stage: &Stage<Sqlite>| {
        let broker = EmbeddedBroker::open(stage.store.clone(), clock.clone()).await.unwrap();
        Arc::new(broker) as Arc<dyn Broker>
    };
    stage.play(at, broker).await;
}

async fn servers(version: RabbitVersion, at: Option<DieAt>) {
    let folder = tempfile::tempdir().unwrap();
    let shared = shared().unwrap();
    let (database, vhost) =
        (shared.migrated_database().await.unwrap(), shared.vhost_on(version).await.unwrap());
    let clock = Clock::system();
    let store = worker::connect_postgres(&database.url, &clock).await.unwrap();
    store.migrate().await.unwrap();
    let stage = Stage::set(store, &["servers", &database.url, &vhost.amqp_url], folder.path()).await;
    let broker = async |_: &Stage<_>| worker::connect_rabbitmq(&vhost.amqp_url, &clock).await.unwrap();
    stage.play(at, broker).await;
}

steps!(
    dies_with_dead_letters_in_hand: Some(DieAt::Received),
    dies_between_storing_and_acking: Some(DieAt::Stored),
    dies_after_acking: Some(DieAt::Acked),
    dies_before_a_replay_is_published: Some(DieAt::Publishing),
    dies_between_confirm_and_mark_of_a_replay: Some(DieAt::Published),
    dies_again_and_again_on_the_way: None,
);
