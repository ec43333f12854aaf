//! The relay that streams, on a real PostgreSQL, with a broker that remembers what it was sent and can be told to fail.

mod connecting;
mod publication;
mod relaying;
mod rows;
mod trouble;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use postrider::broker::{BrokerError, Outgoing, Published, Subscription};
use postrider::postgres::{Postgres, PostgresConfig};
use postrider::relay::{Backoff, Relay, RelayConfig, RelayMode, RelayStatus};
use postrider::topology::{ExchangeName, QueueName, Topology};
use postrider::{Broker, Clock, Event, Outbox as _, Store as _};
use postrider_testkit::servers::{TestDatabase, shared};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Whatever is waited for comes within this time, or the test fails.
const LIMIT: Duration = Duration::from_mins(1);

/// A broker that takes everything, and remembers it.
#[derive(Default)]
struct Memory {
    taken: Mutex<Vec<String>>,
    /// Ids that no queue wants, for now.
    unwanted: Mutex<HashSet<String>>,
    away: AtomicBool,
}

#[async_trait]
impl Broker for Memory {
    async fn declare(&self, _topology: &Topology) -> Result<(), BrokerError> {
        Ok(())
    }

    async fn publish(&self, batch: Vec<Outgoing>) -> Vec<Published> {
        if self.away.load(Ordering::Acquire) {
            return batch.iter().map(|_| Published::Unknown("away".to_owned())).collect();
        }
        let unwanted = self.unwanted.lock().unwrap();
        let mut taken = self.taken.lock().unwrap();
        let answer = |outgoing: Outgoing| {
            let id = outgoing.message.properties.message_id.unwrap();
            if unwanted.contains(&id) {
                return Published::Returned("no queue".to_owned());
            }
            taken.push(id);
            Published::Confirmed
        };
        batch.into_iter().map(answer).collect()
    }

    async fn subscribe(&self, _: &QueueName, _: u16) -> Result<Box<dyn Subscription>, BrokerError> {
        unimplemented!("nobody subscribes here")
    }

    async fn depth(&self, _queue: &QueueName) -> Result<u64, BrokerError> {
        Ok(0)
    }

    async fn ping(&self) -> Result<(), BrokerError> {
        Ok(())
    }

    async fn close(&self) {}
}

impl Memory {
    fn taken(&self) -> Vec<String> {
        self.taken.lock().unwrap().clone()
    }

    fn want(&self, id: &str, wanted: bool) {
        let mut unwanted = self.unwanted.lock().unwrap();
        if wanted {
            unwanted.remove(id)
        } else {
            unwanted.insert(id.to_owned())
        };
    }
}

/// A database and a broker.
struct Stage {
    store: Postgres,
    broker: Arc<Memory>,
    clock: Clock,
    config: RelayConfig,
    database: TestDatabase,
}

/// A relay that runs.
struct Running {
    status: Arc<RelayStatus>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Running {
    async fn stop(self) {
        self.stop.cancel();
        self.task.await.unwrap();
    }
}

impl Stage {
    async fn new() -> Self {
        let database = shared().unwrap().migrated_database().await.unwrap();
        let store = Self::connect(&database.url).await;
        store.migrate().await.unwrap();
        let config = RelayConfig {
            exchange: ExchangeName::new("events").unwrap(),
            lease: Duration::from_secs(2),
            poll_interval: Duration::from_millis(100),
            backoff: Backoff { base: Duration::from_millis(100), max: Duration::from_secs(1) },
            mode: RelayMode::Cdc,
            ..RelayConfig::default()
        };
        Self { store, broker: Arc::default(), clock: Clock::system(), config, database }
    }

    async fn connect(url: &str) -> Postgres {
        let config = PostgresConfig { max_payload_bytes: 4 << 20, ..PostgresConfig::new(url) };
        Postgres::connect(config, Clock::system()).await.unwrap()
    }

    fn start(&self) -> Running {
        let relay =
            Relay::new(self.store.clone(), self.broker.clone(), self.clock.clone(), self.config.clone());
        let (status, stop) = (relay.status(), CancellationToken::new());
        let task = tokio::spawn(relay.run(stop.clone()));
        Running { status, stop, task }
    }

    /// A relay that streams already.
    async fn start_streaming(&self) -> Running {
        let running = self.start();
        self.until("it streams", async || running.status.is_streaming()).await;
        running
    }

    /// Commits events in one transaction.
    async fn commit(&self, events: Vec<Event>) {
        let mut tx = self.store.begin().await.unwrap();
        self.store.append(&mut tx, events).await.unwrap();
        self.store.commit(tx).await.unwrap();
    }

    /// Waits until nothing is due any more, and expects that so many were taken, each once.
    async fn drained(&self, count: usize) {
        self.until("everything is published", async || {
            let backlog = self.store.backlog().await.unwrap();
            self.broker.taken().len() >= count && backlog.due + backlog.later == 0
        })
        .await;
        let taken = self.broker.taken();
        let mut seen = HashSet::new();
        let twice: Vec<_> = taken.iter().filter(|id| !seen.insert(*id)).collect();
        assert_eq!((taken.len(), twice), (count, Vec::<&String>::new()), "each once");
    }

    /// Expects each key's events in their order; an id is `key-number`.
    fn in_order(&self) {
        let mut last: HashMap<String, usize> = HashMap::new();
        for id in self.broker.taken() {
            let (key, number) = id.rsplit_once('-').unwrap();
            let number: usize = number.parse().unwrap();
            if let Some(before) = last.insert(key.to_owned(), number) {
                assert!(before < number, "{key}: {number} came after {before}");
            }
        }
    }

    async fn execute(&self, sql: &'static str) -> u64 {
        sqlx::query(sql).execute(self.store.pool()).await.unwrap().rows_affected()
    }

    /// Replication slots on this database.
    async fn slots(&self) -> i64 {
        let count = "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()";
        sqlx::query_scalar(count).fetch_one(self.store.pool()).await.unwrap()
    }

    async fn until(&self, what: &str, mut so: impl AsyncFnMut() -> bool) {
        let start = self.clock.monotonic();
        while !so().await {
            assert!(self.clock.since(start) < LIMIT, "{what}: not within {LIMIT:?}");
            self.clock.sleep(Duration::from_millis(5)).await;
        }
    }
}

/// Event number so-and-so of a key.
fn event(key: &str, number: usize) -> Event {
    Event::new("shop.order.placed").unwrap().id(format!("{key}-{number}")).unwrap().aggregate_id(key).unwrap()
}

fn events(key: &str, numbers: std::ops::Range<usize>) -> Vec<Event> {
    numbers.map(|number| event(key, number)).collect()
}
