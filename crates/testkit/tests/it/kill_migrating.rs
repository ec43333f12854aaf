//! The four phases of a migration under load, with the relay killed in each: no e-mail is lost, none is sent twice, parity is
//! proven before the cutover, and listeners of our own on both buses heard the same.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use postrider::broker::{Delivery, Verdict};
use postrider::migration::{self, Comparing, Databases, Errand, Parity, Phase, Standing, Taken};
use postrider::sqlite::{Sqlite, SqliteConfig};
use postrider::store::{Operation, OperationState, StoreError, StoreErrorKind};
use postrider::topology::QueueName;
use postrider::{Broker, Clock, EventId};
use postrider_testkit::checkers::EffectLog;
use postrider_testkit::effects::Effects;
use postrider_testkit::servers::{Postgres, RabbitMq};
use postrider_testkit::worker::mailer::{self, INBOX};
use postrider_testkit::worker::{self, WorkerProcess};
use tokio::task::JoinHandle;

const WORKER: &str = env!("CARGO_BIN_EXE_postrider-worker");
/// A generous limit for everything that has to happen.
const LIMIT: Duration = Duration::from_mins(2);

/// Commits e-mails until it is told to stop, a few at a time.
struct Load {
    stop: Arc<AtomicBool>,
    committed: Arc<AtomicUsize>,
    committing: JoinHandle<EffectLog>,
}

impl Load {
    /// By turns into each of these.
    fn start<S: Effects>(stores: Vec<S>) -> Self {
        let (stop, committed) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (told, count) = (stop.clone(), committed.clone());
        let committing = tokio::spawn(async move {
            let (clock, mut log, mut number) = (Clock::system(), EffectLog::new(), 0);
            while !told.load(Ordering::Relaxed) {
                match commit(&stores[number / 5 % stores.len()], number).await {
                    Ok(ids) => {
                        log.commit(ids);
                        number += 5;
                        count.store(number, Ordering::Relaxed);
                    }
                    // A busy machine; the same e-mails again.
                    Err(error) if error.is_transient() => eprintln!("not committed, trying again: {error}"),
                    Err(error) => panic!("{error}"),
                }
                clock.sleep(Duration::from_millis(25)).await;
            }
            log
        });
        Self { stop, committed, committing }
    }

    /// So many e-mails are committed, and perhaps a few more.
    fn committed(&self) -> usize {
        self.committed.load(Ordering::Relaxed)
    }

    async fn end(self) -> EffectLog {
        self.stop.store(true, Ordering::Relaxed);
        self.committing.await.unwrap()
    }
}

/// Commits a few e-mails, also if it is the second time.
async fn commit<S: Effects>(store: &S, number: usize) -> Result<Vec<EventId>, StoreError> {
    let emails: Vec<_> = (number..number + 5).map(|number| mailer::email(number).unwrap()).collect();
    let ids = emails.iter().filter_map(|email| email.id.clone()).collect();
    let mut tx = store.begin().await?;
    match store.append(&mut tx, emails).await {
        Ok(_) => store.commit(tx).await.map(|()| ids),
        Err(error) if error.kind == StoreErrorKind::Duplicate => Ok(ids),
        Err(error) => Err(error),
    }
}

/// Listeners of our own on both buses, which know nothing of the migration.
struct Taps {
    broker: Arc<dyn Broker>,
    queues: [QueueName; 2],
    databases: Vec<String>,
}

impl Taps {
    async fn set(broker: Arc<dyn Broker>, databases: Vec<String>) -> Self {
        let (topology, queues) = mailer::taps().unwrap();
        broker.declare(&topology).await.unwrap();
        Self { broker, queues, databases }
    }

    /// Nothing comes in by the old bus any more: whoever is still bound to its exchange keeps it from being removed.
    async fn leave_the_old_bus(&self) {
        let (topology, [old, _]) = mailer::taps().unwrap();
        let bindings = topology.bindings.into_iter().filter(|binding| binding.queue == old);
        self.broker.unbind(&bindings.collect::<Vec<_>>()).await.unwrap();
    }

    /// Whether all before this number are published, and marked.
    async fn are_published(&self, before: usize) -> bool {
        use sqlx::Connection as _;
        let open = "SELECT count(*) FROM postrider.event_outbox \
                    WHERE status <> 'published' AND substr(id, 6)::bigint < $1";
        let mut left = 0;
        for database in &self.databases {
            let mut connection = sqlx::PgConnection::connect(database).await.unwrap();
            let open = sqlx::query_scalar::<_, i64>(open).bind(i64::try_from(before).unwrap());
            left += open.fetch_one(&mut connection).await.unwrap();
        }
        left == 0
    }

    /// The e-mails of these numbers were heard on both buses, and the old one heard nothing that the new one did not.
    async fn judge(&self, both: &[Range<usize>]) {
        let [old, new] = &self.queues;
        let (old, new) = (self.heard(old, "/message_id").await, self.heard(new, "/event_id").await);
        let strangers: Vec<_> = old.difference(&new).collect();
        assert!(strangers.is_empty(), "only on the old bus: {strangers:?}");
        let wanted: BTreeSet<_> =
            both.iter().cloned().flatten().map(|number| format!("mail-{number}")).collect();
        let missing: Vec<_> = wanted.iter().filter(|id| !old.contains(*id) || !new.contains(*id)).collect();
        assert!(missing.is_empty(), "not on both buses: {missing:?}");
        eprintln!("{} e-mails were on both buses", wanted.len());
        assert!(wanted.len() > 50, "hardly anything was compared");
    }

    /// The ids in the bodies that arrived, by what a reader of the body finds there.
    async fn heard(&self, queue: &QueueName, pointer: &str) -> BTreeSet<String> {
        let mut left = self.broker.depth(queue).await.unwrap();
        let mut session = self.broker.subscribe(queue, 500).await.unwrap();
        let (settler, mut ids) = (session.settler(), BTreeSet::new());
        while left > 0 {
            let deliveries = session.next(500).await.unwrap();
            left = left.saturating_sub(deliveries.len() as u64);
            let id = |delivery: &Delivery| {
                let body: serde_json::Value = serde_json::from_slice(&delivery.message.body).unwrap();
                let id = body.pointer(pointer).and_then(|id| id.as_str()).expect("the body has the id");
                id.strip_prefix("evt_").unwrap_or(id).to_owned()
            };
            ids.extend(deliveries.iter().map(id));
            let acks = deliveries.into_iter().map(|delivery| (delivery.receipt, Verdict::Ack)).collect();
            settler.settle(acks).await.unwrap();
        }
        ids
    }
}

/// A world in which a mail service moves.
struct Stage<S> {
    store: S,
    /// Databases that have outboxes and follow, by their names.
    others: Vec<(String, S)>,
    clock: Clock,
    words: Vec<String>,
    taps: Option<Taps>,
}

impl<S: Effects> Stage<S> {
    fn worker(&self, role: &str) -> WorkerProcess {
        let words: Vec<_> = std::iter::once(role).chain(self.words.iter().map(String::as_str)).collect();
        WorkerProcess::start(WORKER, &words).unwrap()
    }

    /// Kills the relay while messages are on their way, and starts another.
    async fn kill(&self, mut relay: WorkerProcess, role: &str) -> WorkerProcess {
        let before = relay.hands().answered;
        relay.until(|hands| hands.answered > before + 50 && hands.unconfirmed() > 0).await.unwrap();
        let hands = relay.kill().await.unwrap();
        eprintln!("killed with {} unconfirmed", hands.unconfirmed());
        self.worker(role)
    }

    fn databases(&self) -> Databases<S> {
        let main = Databases::new(self.store.clone(), self.clock.clone());
        self.others.iter().fold(main, |all, (name, store)| all.and(name, store.clone()))
    }

    async fn standing(&self) -> Standing {
        self.databases().standings().await.unwrap().remove(0)
    }

    async fn until(&self, what: &str, so: impl AsyncFn() -> bool) {
        let start = self.clock.monotonic();
        while !so().await {
            assert!(self.clock.since(start) < LIMIT, "{what} within {LIMIT:?}");
            self.clock.sleep(Duration::from_millis(50)).await;
        }
    }

    /// All relays obey, and every copy has arrived.
    async fn settled(&self) {
        self.until("the phase is settled", async || self.databases().settle().await.unwrap()).await;
        self.until("all copies arrive", async || {
            let legacy = self.standing().await.legacy;
            legacy.pending + legacy.failed == 0
        })
        .await;
    }

    /// The e-mails since this one are published on both buses.
    async fn on_both(&self, since: usize, load: &Load) -> Range<usize> {
        let until = load.committed();
        if let Some(taps) = &self.taps {
            self.until("they are published", async || taps.are_published(until).await).await;
        }
        self.settled().await;
        // What was being committed when the phase was settled may count to the one before.
        since + 5..until
    }

    /// Asks whoever has the broker.
    async fn errand(&self, errand: Errand) -> Operation {
        let id = migration::ask(&self.store, &self.clock, errand, "test", None).await.unwrap();
        let over = async || self.store.operation(id).await.unwrap().unwrap().state.is_over();
        self.until("the errand is done", over).await;
        self.store.operation(id).await.unwrap().unwrap()
    }

    async fn compare(&self) -> Parity {
        let how = Comparing { listen: Duration::from_secs(2), patience: LIMIT, ..Comparing::default() };
        // On a busy machine the relay that takes over may publish nothing while it listens.
        self.until("something is compared", async || {
            let operation = self.errand(Errand::compare(&how)).await;
            assert_eq!(operation.state, OperationState::Done, "{:?}", operation.error);
            self.standing().await.parity.unwrap().compared > 0
        })
        .await;
        self.standing().await.parity.unwrap()
    }

    /// The whole of it. `whole` is the role of the process that is killed; others, if there are any, live on.
    async fn migrate(&self, whole: &str, moved: &str, consumers: Option<WorkerProcess>) {
        let step = Taken { by: "test".to_owned(), reason: "the plan".to_owned(), forced: false };
        let others = self.others.iter().map(|(_, store)| store.clone());
        let load = Load::start(std::iter::once(self.store.clone()).chain(others).collect());
        let mut relay = self.worker(whole);
        relay.until(|hands| hands.answered > 0).await.unwrap();

        // Week 1: both buses.
        migration::start(&self.databases(), &mailer::definition().unwrap(), &step).await.unwrap();
        relay = self.kill(relay, whole).await;
        self.settled().await;
        let since = load.committed();
        let refused = migration::cut_over(&self.databases(), &step).await.unwrap_err();
        assert!(refused.to_string().contains("never compared"), "{refused}");

        // Week 2: proof.
        relay = self.kill(relay, whole).await;
        let parity = self.compare().await;
        assert!(parity.holds && parity.compared > 0, "{parity:#?}");

        // Week 3: the new bus alone, back, and again.
        let mut both = vec![self.on_both(since, &load).await];
        assert_eq!(migration::cut_over(&self.databases(), &step).await.unwrap(), Vec::<String>::new());
        relay = self.kill(relay, whole).await;
        self.settled().await;
        migration::roll_back(&self.databases(), &step).await.unwrap();
        relay = self.kill(relay, whole).await;
        self.settled().await;
        let since = load.committed();
        let parity = self.compare().await;
        assert!(parity.holds, "{parity:#?}");
        both.push(self.on_both(since, &load).await);
        migration::cut_over(&self.databases(), &step).await.unwrap();
        relay = self.kill(relay, whole).await;
        self.settled().await;

        // Week 4: the old bus goes, once nobody uses it.
        self.until("the old queue is empty", async || {
            // Nothing comes in any more; what is being handled when it is looked at is done a moment later.
            for _ in 0..3 {
                let refused = self.errand(Errand::Finish { forced: false }).await.error.unwrap();
                if !refused.contains("smtp_send_email\" is in use (messages: 0,") {
                    return false;
                }
            }
            true
        })
        .await;
        drop((relay, consumers));
        if let Some(taps) = &self.taps {
            taps.leave_the_old_bus().await;
        }
        // Asked for, perhaps begun, perhaps done when the process dies: the next one takes it up.
        let finish = Errand::Finish { forced: false };
        let relay = self.worker(moved);
        migration::ask(&self.store, &self.clock, finish, "test", None).await.unwrap();
        let _relay = self.kill(relay, moved).await;
        let finished = async || {
            self.standing().await.phase == Phase::Finished || self.errand(finish).await.error.is_none()
        };
        self.until("the old queue is empty and removed", finished).await;
        assert_eq!(self.standing().await.phase, Phase::Finished);

        let mut log = load.end().await;
        self.until("every e-mail is sent", async || {
            let mut now = log.clone();
            now.effects(self.store.effects().await.unwrap());
            now.judge(INBOX).lost.is_empty()
        })
        .await;
        log.effects(self.store.effects().await.unwrap());
        let verdict = log.judge(INBOX);
        assert!(verdict.is_clean(), "{verdict}");
        if let Some(taps) = &self.taps {
            taps.judge(&both).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_the_embedded_process_in_every_phase() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mail.db");
    let clock = Clock::system();
    let store = Sqlite::open(SqliteConfig::new(&path), clock.clone()).await.unwrap();
    store.create_effects().await.unwrap();
    let words = vec!["sqlite".to_owned(), path.to_str().unwrap().to_owned()];
    Stage { store, others: Vec::new(), clock, words, taps: None }
        .migrate("mailer-whole", "mailer-moved", None)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_the_relay_in_every_phase() {
    migrate_on_servers(0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_the_relay_of_two_databases_in_every_phase() {
    migrate_on_servers(1).await;
}

/// With so many databases that follow.
async fn migrate_on_servers(followers: usize) {
    let (postgres, rabbitmq) = (Postgres::start().await.unwrap(), RabbitMq::start().await.unwrap());
    let clock = Clock::system();
    let store = worker::connect_postgres(&postgres.url(), &clock).await.unwrap();
    store.migrate().await.unwrap();
    store.create_effects().await.unwrap();
    let mut words = vec!["servers".to_owned(), postgres.url(), rabbitmq.amqp_url()];
    let (mut databases, mut others) = (vec![postgres.url()], Vec::new());
    for number in 0..followers {
        let name = format!("other_{number}");
        let create = format!("CREATE DATABASE {name}");
        sqlx::query(sqlx::AssertSqlSafe(create)).execute(store.pool()).await.unwrap();
        let url = other_database(&postgres.url(), &name);
        let other = worker::connect_postgres(&url, &clock).await.unwrap();
        other.migrate().await.unwrap();
        databases.push(url.clone());
        others.push((url.clone(), other));
        words.push(url);
    }
    let broker = worker::connect_rabbitmq(&rabbitmq.amqp_url(), &clock).await.unwrap();
    let taps = Some(Taps::set(broker, databases).await);
    let stage = Stage { store, others, clock, words, taps };
    let consumers = stage.worker("mailer-consumers");
    Box::pin(stage.migrate("mailer-relay", "mailer-moved", Some(consumers))).await;
}

/// Another database of the same server.
fn other_database(url: &str, name: &str) -> String {
    let mut url = url::Url::parse(url).unwrap();
    url.set_path(name);
    url.to_string()
}
