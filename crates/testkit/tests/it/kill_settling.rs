//! kill -9 between every two steps of settling a delivery, and events that kill: nothing is lost, nothing takes effect twice.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use postrider::audit::{Account, account};
use postrider::embedded::EmbeddedView;
use postrider::sqlite::{Sqlite, SqliteConfig};
use postrider::store::DeadLetter;
use postrider::{Broker, Clock, EventId};
use postrider_testkit::checkers::EffectLog;
use postrider_testkit::effects::Effects;
use postrider_testkit::servers::{RabbitVersion, shared};
use postrider_testkit::worker::fault::Step;
use postrider_testkit::worker::trouble::{self, TROUBLED, Trouble};
use postrider_testkit::worker::{self, WorkerProcess};

/// A generous limit for everything to end.
const LIMIT: Duration = Duration::from_mins(3);

const WORKER: &str = env!("CARGO_BIN_EXE_postrider-worker");

/// A store, a way to look at its broker, and the words for workers on them.
struct Stage<S> {
    store: S,
    broker: Arc<dyn Broker>,
    words: Vec<String>,
    log: EffectLog,
    rejected: BTreeSet<EventId>,
    committed: u64,
}

impl<S: Effects> Stage<S> {
    async fn on(store: S, broker: Arc<dyn Broker>, words: &[&str]) -> Self {
        store.create_effects().await.unwrap();
        let words = words.iter().map(ToString::to_string).collect();
        let (log, rejected) = (EffectLog::new(), BTreeSet::new());
        Self { store, broker, words, log, rejected, committed: 0 }
    }

    fn worker(&self, role: &str) -> WorkerProcess {
        let mut words = vec![role];
        words.extend(self.words.iter().map(String::as_str));
        WorkerProcess::start(WORKER, &words).unwrap()
    }

    /// Commits events of every trouble in turn.
    async fn commit(&mut self, troubles: &[Trouble], rounds: usize) {
        for round in 0..rounds {
            let mut tx = self.store.begin().await.unwrap();
            for (nth, trouble) in troubles.iter().enumerate() {
                let event = trouble::event(round + nth, *trouble).unwrap();
                let ids = self.store.append(&mut tx, vec![event]).await.unwrap();
                match trouble {
                    Trouble::None | Trouble::Flaky => _ = self.log.commit(ids),
                    Trouble::Rejected | Trouble::Poison => self.rejected.extend(ids),
                }
                self.committed += 1;
            }
            self.store.commit(tx).await.unwrap();
        }
    }

    async fn accounts(&self) -> Vec<Account> {
        let mut accounts = Vec::new();
        for registration in trouble::registrations().unwrap() {
            // The queues may not be declared yet.
            accounts.extend(account(&self.store, &self.broker, &registration).await);
        }
        accounts
    }

    async fn is_over(&self) -> bool {
        let over = |account: &Account| {
            account.holds() && account.waiting == 0 && account.dead == self.rejected.len() as u64
        };
        let accounts = self.accounts().await;
        accounts.len() == TROUBLED.len()
            && accounts.iter().all(over)
            && self.letters().await.len() >= 2 * self.rejected.len()
    }

    async fn letters(&self) -> Vec<DeadLetter> {
        self.store.dead_letters(10_000).await.unwrap()
    }

    /// Judges when everything has ended.
    async fn judge(mut self) -> Vec<DeadLetter> {
        self.log.effects(self.store.effects().await.unwrap());
        for consumer in TROUBLED {
            let verdict = self.log.judge(consumer);
            assert!(verdict.is_clean(), "{consumer}: {verdict}");
        }
        let letters = self.letters().await;
        for consumer in TROUBLED {
            let of = letters
                .iter()
                .filter(|letter| letter.consumer.as_ref().is_some_and(|name| name.as_str() == consumer));
            let dead: Vec<_> = of.filter_map(|letter| letter.event_id.clone()).collect();
            assert_eq!(dead.iter().cloned().collect::<BTreeSet<_>>(), self.rejected, "{consumer}");
            assert_eq!(dead.len(), self.rejected.len(), "{consumer} has a dead letter twice");
        }
        letters
    }
}

async fn until(what: &str, mut so: impl AsyncFnMut() -> bool) {
    let clock = Clock::system();
    let start = clock.monotonic();
    while !so().await {
        assert!(clock.since(start) < LIMIT, "{what} did not come about within {LIMIT:?}");
        clock.sleep(Duration::from_millis(50)).await;
    }
}

/// When a process dies: the first time that it comes to its step, or later, with others under way beside it.
const EARLY: &[u32] = &[1];
const EARLY_AND_LATE: &[u32] = &[1, 4];

/// One process after the other dies at its step; the last one lives.
async fn between_every_two_steps<S: Effects>(mut stage: Stage<S>, times: &[u32]) {
    for step in Step::ALL {
        for nth in times {
            stage.commit(&[Trouble::None, Trouble::Flaky, Trouble::Rejected], 5).await;
            let mut dying = stage.worker(&format!("trouble@{}:{nth}", step.as_str()));
            let ended = tokio::time::timeout(LIMIT, dying.ended()).await;
            ended.unwrap_or_else(|_| panic!("it never came to {step:?} for the {nth}. time")).unwrap();
        }
    }
    let mut living = stage.worker("trouble@settled:1000000");
    until("the end of everything", async || stage.is_over().await).await;
    assert!(!living.has_ended().unwrap());
    stage.judge().await;
}

/// Processes die until the events that kill them are dead letters; the events beside them take effect once.
async fn poison<S: Effects>(mut stage: Stage<S>) {
    stage.commit(&[Trouble::None, Trouble::Flaky], 20).await;
    stage.commit(&[Trouble::Poison, Trouble::None], 1).await;
    stage.commit(&[Trouble::None, Trouble::Flaky], 20).await;
    let (mut living, mut deaths) = (stage.worker("trouble"), 0);
    until("the end of the dying", async || {
        if living.has_ended().unwrap() {
            deaths += 1;
            assert!(deaths < 20, "it dies for ever");
            living = stage.worker("trouble");
        }
        stage.is_over().await
    })
    .await;
    // Each consumer has its own marks: three deaths alone, one or two before that.
    assert!(deaths >= 4, "{deaths} deaths");
    let letters = stage.judge().await;
    assert!(letters.iter().all(|letter| letter.reason == "crashed"), "{letters:?}");
}

async fn embedded(folder: &tempfile::TempDir) -> Stage<Sqlite> {
    let path = folder.path().join("trouble.db");
    let store = Sqlite::open(SqliteConfig::new(&path), Clock::system()).await.unwrap();
    let broker = Arc::new(EmbeddedView::new(store.clone()));
    Stage::on(store, broker, &["sqlite", path.to_str().unwrap()]).await
}

async fn servers(version: RabbitVersion) -> (Stage<postrider::postgres::Postgres>, impl Sized) {
    let shared = shared().unwrap();
    let (database, vhost) =
        (shared.migrated_database().await.unwrap(), shared.vhost_on(version).await.unwrap());
    let clock = Clock::system();
    let store = worker::connect_postgres(&database.url, &clock).await.unwrap();
    store.migrate().await.unwrap();
    let broker = worker::connect_rabbitmq(&vhost.amqp_url, &clock).await.unwrap();
    let stage = Stage::on(store, broker, &["servers", &database.url, &vhost.amqp_url]).await;
    (stage, (database, vhost))
}

#[tokio::test(flavor = "multi_thread")]
async fn embedded_between_every_two_steps() {
    let folder = tempfile::tempdir().unwrap();
    between_every_two_steps(embedded(&folder).await, EARLY_AND_LATE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_between_every_two_steps() {
    let (stage, _kept) = servers(RabbitVersion::Packaged).await;
    between_every_two_steps(stage, EARLY_AND_LATE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn newer_servers_between_every_two_steps() {
    let (stage, _kept) = servers(RabbitVersion::Newer).await;
    between_every_two_steps(stage, EARLY).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn embedded_events_that_kill_are_dead_letters_in_the_end() {
    let folder = tempfile::tempdir().unwrap();
    poison(embedded(&folder).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_events_that_kill_are_dead_letters_in_the_end() {
    let (stage, _kept) = servers(RabbitVersion::Packaged).await;
    poison(stage).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn newer_servers_events_that_kill_are_dead_letters_in_the_end() {
    let (stage, _kept) = servers(RabbitVersion::Newer).await;
    poison(stage).await;
}
