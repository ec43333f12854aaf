//! kill -9 between every two steps of `dlq edit`: each dead letter is replaced by one event, which takes effect once, and the log
//! has one entry for each.
//!
//! The handler rejects every event until it is corrected. One process collects the letters; another carries out the edit, or
//! publishes what it made, and dies at one step; a third goes on.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use postrider::audit::account;
use postrider::dead_letter::Correction;
use postrider::embedded::EmbeddedBroker;
use postrider::operation::{LetterPlan, start};
use postrider::sqlite::{Sqlite, SqliteConfig};
use postrider::store::{
    LetterFilter, LetterQuery, LetterStatus, LetterSummary, Operation, OperationKind, OperationState,
};
use postrider::{Broker, Clock, EventId};
use postrider_testkit::checkers::EffectLog;
use postrider_testkit::effects::Effects;
use postrider_testkit::servers::{RabbitVersion, shared};
use postrider_testkit::worker::operator::ChunkStep;
use postrider_testkit::worker::{self, CONSUMERS, DieAt, WorkerProcess};
use uuid::Uuid;

const EVENTS: usize = 150;
/// Dead letters: one for each consumer.
const LETTERS: usize = EVENTS * CONSUMERS.len();
/// A hundred to a chunk.
const RATE: f64 = 400.0;
const LIMIT: Duration = Duration::from_mins(3);
const WORKER: &str = env!("CARGO_BIN_EXE_postrider-worker");

/// Where the process dies that carries out the edit.
#[derive(Debug, Clone, Copy)]
enum At {
    /// At a step of a chunk.
    Chunk(ChunkStep),
    /// When what was made is published.
    Relay(DieAt),
    /// Wherever it is, twice.
    OnTheWay,
}

struct Stage<S> {
    store: S,
    words: Vec<String>,
    clock: Clock,
}

impl<S: Effects> Stage<S> {
    async fn set(store: S, words: &[&str]) -> Self {
        store.create_effects().await.unwrap();
        let mut tx = store.begin().await.unwrap();
        let events = (0..EVENTS).map(|number| worker::event(number).unwrap()).collect();
        store.append(&mut tx, events).await.unwrap();
        store.commit(tx).await.unwrap();
        let words = words.iter().map(ToString::to_string).collect();
        Self { store, words, clock: Clock::system() }
    }

    fn worker(&self, role: &str, step: &str) -> WorkerProcess {
        let mut words = vec![role, step];
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

    async fn letters(&self, status: LetterStatus) -> Vec<LetterSummary> {
        let filter = LetterFilter { status: Some(status), ..LetterFilter::default() };
        let query = LetterQuery { filter, limit: 10 * LETTERS, ..LetterQuery::default() };
        self.store.letters(&query).await.map_or(Vec::new(), |page| page.letters)
    }

    async fn operation(&self, op: Uuid) -> Option<Operation> {
        self.store.operation(op).await.ok().flatten()
    }

    async fn dies(&self, role: &str, step: &str) {
        let died = self.worker(role, step).ended().await.unwrap();
        assert!(!died.success(), "the worker was to die at {step}");
    }

    async fn strike(&self, at: At, op: Uuid) {
        match at {
            At::Chunk(step) => {
                self.dies("edit", step.as_str()).await;
                let left = self.operation(op).await.unwrap();
                // Of the rest the first chunk is done: 32, because nobody knows yet how long its items take.
                let done = if step == ChunkStep::Over { LETTERS as u64 } else { 32 };
                assert_eq!((left.state, left.done), (OperationState::Running, done), "at {step:?}");
            }
            At::Relay(step) => self.dies("correct", step.as_str()).await,
            At::OnTheWay => {
                for part in [1, LETTERS as u64 / 2] {
                    let worker = self.worker("correct", "-");
                    let far = async || self.operation(op).await.is_some_and(|found| found.done >= part);
                    self.until("a part of the operation", far).await;
                    worker.kill().await.unwrap();
                }
            }
        }
    }

    async fn play(self, at: At, broker: impl AsyncFn(&Self) -> Arc<dyn Broker>) {
        let worker = self.worker("correct", "-");
        self.until("collecting", async || self.letters(LetterStatus::Open).await.len() == LETTERS).await;
        worker.kill().await.unwrap();
        let edit = Correction::merge(r#"{"mended": true}"#).unwrap();
        let plan = LetterPlan { edit: Some(edit), ..LetterPlan::default() };
        let kind = OperationKind::EditLetters;
        let op = start(&self.store, &self.clock, kind, &plan, Some(RATE), "ada", Some("typo")).await;
        let op = op.unwrap().unwrap();
        self.strike(at, op).await;

        let worker = self.worker("correct", "-");
        let done = async || self.operation(op).await.is_some_and(|found| found.state == OperationState::Done);
        self.until("the edit", done).await;
        self.until("taking effect", async || {
            self.store.effects().await.is_ok_and(|effects| effects.len() >= LETTERS)
        })
        .await;
        let broker = broker(&self).await;
        for registration in worker::registrations().unwrap() {
            let holds = async || {
                let account = account(&self.store, &broker, &registration).await.ok();
                account.is_some_and(|account| account.holds() && account.applied == EVENTS as u64)
            };
            self.until("the account", holds).await;
        }
        drop(worker);
        self.judge(op).await;
    }

    async fn judge(&self, op: Uuid) {
        let operation = self.operation(op).await.unwrap();
        assert_eq!((operation.done, operation.skipped), (LETTERS as u64, 0));
        assert!(self.letters(LetterStatus::Open).await.is_empty());
        let letters = self.letters(LetterStatus::Discarded).await;
        let new: BTreeSet<_> = letters.iter().filter_map(|letter| letter.replaced_by.clone()).collect();
        assert_eq!((letters.len(), new.len()), (LETTERS, LETTERS), "each letter has an event of its own");
        let effects = self.store.effects().await.unwrap();
        for consumer in CONSUMERS {
            let mut log = EffectLog::new();
            let own = letters.iter().filter(|letter| letter.consumer.as_deref() == Some(consumer));
            log.commit(own.filter_map(|letter| EventId::new(letter.replaced_by.clone()?).ok()));
            let verdict = log.effects(effects.clone()).judge(consumer);
            assert!(verdict.is_clean(), "{consumer}: {verdict}");
        }
        for letter in &letters {
            assert_eq!(letter.operation_id, Some(op));
            let log = self.store.log_of(&format!("dead_letter/{}", letter.id), 10).await.unwrap();
            let [entry] = log.as_slice() else { panic!("letter {}: {log:?}", letter.id) };
            let told = (entry.action.as_str(), entry.actor.as_str(), entry.reason.as_deref());
            assert_eq!(told, ("dead_letter.edited", "ada", Some("typo")));
            let detail = entry.detail.as_ref().unwrap();
            assert_eq!(detail["replaced_by"].as_str(), letter.replaced_by.as_deref());
            assert_eq!(detail["operation"], op.to_string());
        }
        let log = self.store.log_of(&format!("operation/{op}"), 10).await.unwrap();
        assert_eq!(log.iter().map(|entry| entry.action.as_str()).collect::<Vec<_>>(), ["operation.created"]);
    }
}

async fn embedded(at: At) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("work.db");
    let clock = Clock::system();
    let store = Sqlite::open(SqliteConfig::new(&path), clock.clone()).await.unwrap();
    let stage = Stage::set(store, &["sqlite", path.to_str().unwrap()]).await;
    let broker = async |stage: &Stage<Sqlite>| {
        let broker = EmbeddedBroker::open(stage.store.clone(), clock.clone()).await.unwrap();
        Arc::new(broker) as Arc<dyn Broker>
    };
    stage.play(at, broker).await;
}

async fn servers(version: RabbitVersion, at: At) {
    let shared = shared().unwrap();
    let (database, vhost) =
        (shared.migrated_database().await.unwrap(), shared.vhost_on(version).await.unwrap());
    let clock = Clock::system();
    let store = worker::connect_postgres(&database.url, &clock).await.unwrap();
    store.migrate().await.unwrap();
    let stage = Stage::set(store, &["servers", &database.url, &vhost.amqp_url]).await;
    let broker = async |_: &Stage<_>| worker::connect_rabbitmq(&vhost.amqp_url, &clock).await.unwrap();
    stage.play(at, broker).await;
}

steps!(
    dies_with_letters_off_the_list: At::Chunk(ChunkStep::Taken),
    dies_before_the_commit_of_corrected_letters: At::Chunk(ChunkStep::Worked),
    dies_after_the_last_commit: At::Chunk(ChunkStep::Over),
    dies_before_a_corrected_event_is_published: At::Relay(DieAt::Publishing),
    dies_between_confirm_and_mark_of_a_corrected_event: At::Relay(DieAt::Published),
    dies_again_and_again_on_the_way: At::OnTheWay,
);
