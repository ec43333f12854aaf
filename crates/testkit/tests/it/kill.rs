//! kill -9 in the middle of 10,000 events, of every process there is: each event takes effect once.
//!
//! A killed worker's lines are read to the last one, so what it had in its hands when it died is known. Where a server is
//! killed the worker lives on, and its hands are looked at right after the kill: near the moment, not at it. Effects go to a
//! table without a unique key, so that a double would show.

use std::time::Duration;

use postrider::audit::{Account, account};
use postrider::embedded::EmbeddedBroker;
use postrider::sqlite::{Sqlite, SqliteConfig};
use postrider::{Broker, Clock};
use postrider_testkit::checkers::EffectLog;
use postrider_testkit::effects::Effects;
use postrider_testkit::servers::{Postgres, RabbitCluster, RabbitMq, RabbitVersion};
use postrider_testkit::worker::{self, CONSUMERS, Hands, WorkerProcess};

/// Events in every test.
const EVENTS: usize = 10_000;
/// The kill falls when so many were through, and not all.
const MIDDLE: usize = 3_000;
/// A generous limit for everything to take effect.
const LIMIT: Duration = Duration::from_mins(6);

postrider_testkit::on_each_rabbitmq!(kill_a_rabbitmq_node_of_three);

const WORKER: &str = env!("CARGO_BIN_EXE_postrider-worker");

/// Commits the events, 500 to a transaction.
async fn commit_events<S: Effects>(store: &S, log: &mut EffectLog) {
    store.create_effects().await.unwrap();
    for chunk in 0..EVENTS / 500 {
        let mut tx = store.begin().await.unwrap();
        let events = (0..500).map(|number| worker::event(chunk * 500 + number).unwrap()).collect();
        log.commit(store.append(&mut tx, events).await.unwrap());
        store.commit(tx).await.unwrap();
    }
}

/// Waits until every consumer has applied everything, then judges.
async fn judge<S: Effects>(store: &S, broker: std::sync::Arc<dyn Broker>, log: &mut EffectLog) {
    let clock = Clock::system();
    let start = clock.monotonic();
    loop {
        assert!(clock.since(start) < LIMIT, "not everything took effect within {LIMIT:?}");
        // The database may still be coming back.
        let accounts = accounts(store, &broker).await.unwrap_or_default();
        let all = |account: &Account| account.applied == EVENTS as u64;
        if accounts.len() == CONSUMERS.len() && accounts.iter().all(all) {
            break;
        }
        clock.sleep(Duration::from_millis(100)).await;
    }
    log.effects(store.effects().await.unwrap());
    for consumer in CONSUMERS {
        let verdict = log.judge(consumer);
        assert!(verdict.is_clean(), "{consumer}: {verdict}");
    }
    for account in accounts(store, &broker).await.unwrap() {
        assert!(account.holds(), "{account:?}");
        assert_eq!((account.committed, account.applied), (EVENTS as u64, EVENTS as u64));
    }
}

async fn accounts<S: Effects>(
    store: &S,
    broker: &std::sync::Arc<dyn Broker>,
) -> anyhow::Result<Vec<Account>> {
    let mut accounts = Vec::new();
    for registration in worker::registrations()? {
        accounts.push(account(store, broker, &registration).await?);
    }
    Ok(accounts)
}

/// In the middle of publishing, with messages on their way.
fn publishing(hands: &Hands) -> bool {
    hands.answered > MIDDLE && hands.unconfirmed() > 0
}

/// In the middle of applying, with deliveries in hand.
fn applying(hands: &Hands) -> bool {
    hands.settled > MIDDLE && hands.unsettled() > 0
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_the_embedded_process() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("work.db");
    let words = ["both", "sqlite", path.to_str().unwrap()];
    let clock = Clock::system();
    let store = Sqlite::open(SqliteConfig::new(&path), clock.clone()).await.unwrap();
    let mut log = EffectLog::new();
    commit_events(&store, &mut log).await;

    for in_the_middle in [publishing, applying] {
        let mut worker = WorkerProcess::start(WORKER, &words).unwrap();
        worker.until(in_the_middle).await.unwrap();
        let hands = worker.kill().await.unwrap();
        assert!(hands.unconfirmed() + hands.unsettled() > 0, "the kill found empty hands: {hands:?}");
        eprintln!("killed with {} unconfirmed, {} unsettled", hands.unconfirmed(), hands.unsettled());
    }
    let _worker = WorkerProcess::start(WORKER, &words).unwrap();
    // Only the worker runs a broker on the file; the test looks at it when the worker is done.
    let broker = std::sync::Arc::new(EmbeddedBroker::open(store.clone(), clock).await.unwrap());
    judge(&store, broker, &mut log).await;
}

/// A database and a broker with the events committed, and the words for workers on them.
struct Stage {
    store: postrider::postgres::Postgres,
    broker: std::sync::Arc<dyn Broker>,
    words: [String; 3],
    log: EffectLog,
}

impl Stage {
    async fn set(database_url: &str, amqp_urls: &str) -> Self {
        let clock = Clock::system();
        let store = worker::connect_postgres(database_url, &clock).await.unwrap();
        store.migrate().await.unwrap();
        let broker = worker::connect_rabbitmq(amqp_urls, &clock).await.unwrap();
        let mut log = EffectLog::new();
        commit_events(&store, &mut log).await;
        let words = ["servers", database_url, amqp_urls].map(str::to_owned);
        Self { store, broker, words, log }
    }

    fn worker(&self, role: &str) -> WorkerProcess {
        let words = [role, &self.words[0], &self.words[1], &self.words[2]];
        WorkerProcess::start(WORKER, &words).unwrap()
    }

    async fn judge(mut self) {
        judge(&self.store, self.broker, &mut self.log).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_the_relay_and_the_consumer() {
    let (postgres, rabbitmq) = (Postgres::start().await.unwrap(), RabbitMq::start().await.unwrap());
    let stage = Stage::set(&postgres.url(), &rabbitmq.amqp_url()).await;

    let mut relay = stage.worker("relay");
    relay.until(publishing).await.unwrap();
    let hands = relay.kill().await.unwrap();
    assert!(hands.unconfirmed() > 0, "the relay had nothing unconfirmed: {hands:?}");
    let _relay = stage.worker("relay");

    let mut consumers = stage.worker("consumers");
    consumers.until(applying).await.unwrap();
    let hands = consumers.kill().await.unwrap();
    assert!(hands.unsettled() > 0, "the consumers had nothing unsettled: {hands:?}");
    let _consumers = stage.worker("consumers");
    stage.judge().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_postgres() {
    let (postgres, rabbitmq) = (Postgres::start().await.unwrap(), RabbitMq::start().await.unwrap());
    let stage = Stage::set(&postgres.url(), &rabbitmq.amqp_url()).await;
    let mut both = stage.worker("both");

    both.until(|hands| publishing(hands) || applying(hands)).await.unwrap();
    postgres.kill().unwrap();
    let hands = both.hands();
    assert!(hands.unconfirmed() + hands.unsettled() > 0, "the kill found empty hands: {hands:?}");
    postgres.restart().await.unwrap();

    both.until(applying).await.unwrap();
    postgres.kill().unwrap();
    let hands = both.hands();
    assert!(hands.unsettled() > 0, "the second kill found nothing unsettled: {hands:?}");
    postgres.restart().await.unwrap();
    stage.judge().await;
}

async fn kill_a_rabbitmq_node_of_three(version: RabbitVersion) {
    let postgres = Postgres::start().await.unwrap();
    let cluster = RabbitCluster::start_version(version).await.unwrap();
    let urls: Vec<_> = (0..RabbitCluster::NODES).map(|node| cluster.amqp_url(node)).collect();
    let stage = Stage::set(&postgres.url(), &urls.join(",")).await;
    let mut both = stage.worker("both");

    // The first node of the list is the one the worker is connected to.
    both.until(|hands| hands.publishing > 0).await.unwrap();
    for queue in CONSUMERS {
        cluster.wait_registered(&format!("work.{queue}")).await.unwrap();
    }
    // A node that stands still answers for nothing, so what is in hand then is in hand when it dies.
    loop {
        both.until(|hands| publishing(hands) || applying(hands)).await.unwrap();
        cluster.pause(0).unwrap();
        let hands = both.hands();
        if hands.unconfirmed() + hands.unsettled() > 0 {
            eprintln!("killed with {} unconfirmed, {} unsettled", hands.unconfirmed(), hands.unsettled());
            break;
        }
        cluster.resume(0).unwrap();
    }
    cluster.kill(0).unwrap();
    cluster.restart(0).await.unwrap();
    stage.judge().await;
}
