//! Tests your own handlers: everything real, on a file that is thrown away, with time in your hand.
//!
//! ```
//! # use postrider::{Event, Failure, handler::handler_fn, harness::Harness, registry::Registry, settlement::RetryPolicy, sqlite::Sqlite};
//! # use std::time::Duration;
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! let flaky = handler_fn::<Sqlite, _>(|_tx, event| Box::pin(async move {
//!     if event.attempt < 3 { Err(Failure::transient("smtp is down")) } else { Ok(()) }
//! }));
//! let harness = Harness::new()
//!     .consumer("mail", "order.*", RetryPolicy::default(), Registry::new().on("order.placed", flaky))?
//!     .start()
//!     .await?;
//! harness.publish(Event::new("order.placed")?).await?;
//! harness.until_quiet().await?;
//! assert_eq!(harness.account("mail").await?.waiting, 1);
//! harness.advance(Duration::from_secs(5)).await?;
//! harness.advance(Duration::from_secs(5)).await?;
//! assert_eq!(harness.account("mail").await?.applied, 1);
//! # Ok::<(), postrider::harness::HarnessError>(()) }).unwrap();
//! ```
//!
//! Handlers that speak PostgreSQL's SQL are tested on a database of their own ([`Harness::on`]), with the broker embedded. Such a store goes
//! by the time of its server, which nobody can move: [`Harness::advance`] waits there, so give the ladder of a test short delays.
//!
//! ```no_run
//! # use postrider::{Clock, Event, Failure, handler::handler_fn, harness::Harness, registry::Registry, settlement::RetryPolicy};
//! # use std::time::Duration;
//! # #[cfg(feature = "postgres")]
//! # async fn example() -> Result<(), postrider::harness::HarnessError> {
//! use postrider::postgres::{Postgres, PostgresConfig};
//!
//! let store = Postgres::connect(PostgresConfig::new("postgres://localhost/shop_test"), Clock::system()).await?;
//! store.migrate().await?;
//! let bill = handler_fn::<Postgres, _>(|tx, event| Box::pin(async move {
//!     sqlx::query("INSERT INTO invoice (order_id) VALUES ($1)")
//!         .bind(event.envelope.aggregate_id.as_ref().map(|id| id.as_str()))
//!         .execute(tx.connection())
//!         .await?;
//!     Ok(())
//! }));
//! let soon = RetryPolicy::fixed(3, Duration::from_millis(20));
//! let harness = Harness::on(store)
//!     .consumer("billing", "order.*", soon, Registry::new().on("order.placed", bill))?
//!     .start()
//!     .await?;
//! harness.publish(Event::new("order.placed")?.aggregate_id("order-42")?).await?;
//! harness.until_quiet().await?;
//! assert_eq!(harness.account("billing").await?.applied, 1);
//! # Ok(()) }
//! ```

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;

use crate::audit::Account;
use crate::broker::{Broker, Message, Outgoing};
use crate::clock::{Clock, ManualClock};
use crate::consumer::{BreakerState, ConsumerConfig, ConsumerState, ConsumerStatus};
use crate::embedded::EmbeddedBroker;
use crate::envelope::{Event, EventId};
use crate::registry::Registry;
use crate::relay::RelayConfig;
use crate::runtime::{Running, Runtime};
use crate::settlement::RetryPolicy;
use crate::sqlite::{Sqlite, SqliteConfig};
use crate::store::{Backend, DeadLetter, HeldState, Registration};
use crate::topology::{ConsumerName, ExchangeKind, ExchangeName, OnDead, QueueName, ServiceQueue};

/// Any error of the harness; tests only show it.
pub type HarnessError = Box<dyn std::error::Error + Send + Sync>;

/// The exchange that the harness publishes to.
const EXCHANGE: &str = "harness.events";

/// How long, in real time, [`Harness::until_quiet`] waits before it says that something hangs.
const PATIENCE: Duration = Duration::from_secs(30);

/// What is to be tested, before it runs.
pub struct Setup<S: Backend = Sqlite> {
    ground: BoxFuture<'static, Result<Ground<S>, HarnessError>>,
    consumers: Vec<Planned<S>>,
}

/// What everything stands on.
struct Ground<S> {
    store: S,
    broker: Arc<EmbeddedBroker>,
    clock: Clock,
    /// The hands of the clock, where time can be moved.
    hands: Option<ManualClock>,
    folder: Folder,
}

struct Planned<S: Backend> {
    name: ConsumerName,
    service: ServiceQueue,
    handlers: Registry<S>,
    config: ConsumerConfig,
}

impl Default for Setup {
    /// On a file that is thrown away.
    fn default() -> Self {
        let ground = async {
            let (clock, hands) = Clock::manual("2026-01-01T00:00:00Z".parse()?);
            let (store, folder) = thrown_away(&clock).await?;
            let broker = Arc::new(EmbeddedBroker::open(store.clone(), clock.clone()).await?);
            Ok(Ground { store, broker, clock, hands: Some(hands), folder })
        };
        Self { ground: Box::pin(ground), consumers: Vec::new() }
    }
}

impl<S: Backend> Setup<S> {
    /// A consumer, with a queue of its own name bound by this key.
    pub fn consumer(
        mut self,
        name: &str,
        key: &str,
        retry: RetryPolicy,
        handlers: Registry<S>,
    ) -> Result<Self, HarnessError> {
        let service = ServiceQueue::new(name, retry)?.bind(&ExchangeName::new(EXCHANGE)?, key)?;
        let (name, config) = (ConsumerName::new(name)?, ConsumerConfig::default());
        self.consumers.push(Planned { name, service, handlers, config });
        Ok(self)
    }

    /// The same on an ordered queue.
    pub fn ordered(
        mut self,
        name: &str,
        key: &str,
        retry: RetryPolicy,
        on_dead: OnDead,
        handlers: Registry<S>,
    ) -> Result<Self, HarnessError> {
        self = self.consumer(name, key, retry, handlers)?;
        if let Some(last) = self.consumers.pop() {
            self.consumers.push(Planned { service: last.service.ordered(on_dead), ..last });
        }
        Ok(self)
    }

    /// The consumer that was added last works like this: how many at a time, how fast, when to leave its queue alone.
    #[must_use]
    pub fn with(mut self, config: ConsumerConfig) -> Self {
        if let Some(last) = self.consumers.last_mut() {
            last.config = config;
        }
        self
    }

    /// Opens a new file and starts everything.
    pub async fn start(self) -> Result<Harness<S>, HarnessError> {
        let Ground { store, broker, clock, hands, folder } = self.ground.await?;
        let mut runtime = Runtime::new(store.clone(), broker.clone(), clock.clone())
            .relay(Some(RelayConfig { lanes: 1, ..RelayConfig::default() }))
            .exchange(ExchangeName::new(EXCHANGE)?, ExchangeKind::Topic);
        for Planned { name, service, handlers, config } in self.consumers {
            runtime = runtime.consumer_with(name, service, handlers, config);
        }
        let running = runtime.start().await?;
        Ok(Harness { store, broker, clock, hands, running, _folder: folder })
    }
}

/// Your handlers, running on the embedded backend, or on a store of yours.
pub struct Harness<S = Sqlite> {
    store: S,
    broker: Arc<EmbeddedBroker>,
    clock: Clock,
    hands: Option<ManualClock>,
    running: Running<S>,
    _folder: Folder,
}

impl Harness {
    /// Nothing yet: add consumers, then start.
    #[expect(clippy::new_ret_no_self, reason = "a harness exists only when it runs")]
    pub fn new() -> Setup {
        Setup::default()
    }
}

impl<S: Backend> Harness<S> {
    /// The same on a store of yours, which nothing else uses meanwhile and which has its schema. The broker is embedded. Time is that of the
    /// machine: it cannot be moved, only waited for.
    pub fn on(store: S) -> Setup<S> {
        let ground = async {
            let clock = Clock::system();
            let (queues, folder) = thrown_away(&clock).await?;
            let broker = Arc::new(EmbeddedBroker::open(queues, clock.clone()).await?);
            Ok(Ground { store, broker, clock, hands: None, folder })
        };
        Setup { ground: Box::pin(ground), consumers: Vec::new() }
    }

    /// The store, for domain tables and assertions on effects.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// Commits an event to the outbox.
    pub async fn publish(&self, event: Event) -> Result<EventId, HarnessError> {
        let mut tx = self.store.begin().await?;
        let mut ids = self.store.append(&mut tx, vec![event]).await?;
        self.store.commit(tx).await?;
        ids.pop().ok_or_else(|| "the outbox gave no id".into())
    }

    /// Puts a message into a queue as a foreign producer would, past outbox and exchange.
    pub async fn deliver(&self, queue: &str, message: Message) -> Result<(), HarnessError> {
        self.broker.publish(vec![Outgoing::to_queue(&QueueName::new(queue)?, message)]).await;
        Ok(())
    }

    /// Waits until nothing is left to do before time moves on.
    pub async fn until_quiet(&self) -> Result<(), HarnessError> {
        let real = Clock::system();
        let start = real.monotonic();
        let mut quiet = 0;
        while quiet < 2 {
            quiet = if self.is_quiet().await? { quiet + 1 } else { 0 };
            if real.since(start) > PATIENCE {
                return Err(
                    format!("still busy after {PATIENCE:?}: {:?}", self.running.accounts().await?).into()
                );
            }
            real.sleep(Duration::from_millis(2)).await;
        }
        Ok(())
    }

    /// Moves time, then waits until everything that became due is done.
    pub async fn advance(&self, by: Duration) -> Result<(), HarnessError> {
        self.until_quiet().await?;
        self.pass(by).await;
        self.until_quiet().await
    }

    /// Moves time and waits for nothing but a moment in which others can use it: for consumers that keep to a rate.
    pub async fn let_pass(&self, time: Duration) {
        self.pass(time).await;
        Clock::system().sleep(Duration::from_millis(1)).await;
    }

    /// Moves time, or waits where it cannot be moved.
    async fn pass(&self, time: Duration) {
        match &self.hands {
            Some(hands) => hands.advance(time),
            None => self.clock.sleep(time).await,
        }
    }

    /// Waits until this is so, while time stands still.
    pub async fn until(&self, mut so: impl AsyncFnMut() -> bool) -> Result<(), HarnessError> {
        let real = Clock::system();
        let start = real.monotonic();
        while !so().await {
            if real.since(start) > PATIENCE {
                return Err(format!("it did not come about within {PATIENCE:?}").into());
            }
            real.sleep(Duration::from_millis(2)).await;
        }
        Ok(())
    }

    /// What a consumer is doing: whether it is paused, how many it handles at a time, what it has done.
    pub fn status(&self, consumer: &str) -> Result<Arc<ConsumerStatus>, HarnessError> {
        let mut consumers = self.running.consumers().iter();
        let found = consumers.find(|running| running.registration.name.as_str() == consumer);
        found.map(|running| running.status.clone()).ok_or_else(|| no_consumer(consumer))
    }

    /// A consumer's account.
    pub async fn account(&self, consumer: &str) -> Result<Account, HarnessError> {
        let accounts = self.running.accounts().await?;
        let found = accounts.into_iter().find(|account| account.name == consumer);
        found.ok_or_else(|| no_consumer(consumer))
    }

    /// The dead letters, newest first.
    pub async fn dead_letters(&self) -> Result<Vec<DeadLetter>, HarnessError> {
        Ok(self.store.dead_letters(1000).await?)
    }

    async fn is_quiet(&self) -> Result<bool, HarnessError> {
        if self.broker.has_work() || self.store.backlog().await?.due > 0 {
            return Ok(false);
        }
        for consumer in self.running.consumers() {
            let Registration { name, service, .. } = &consumer.registration;
            // What is in the queue of one that is paused, or whose breaker is open, stays there.
            let waits = matches!(
                consumer.status.state(),
                ConsumerState::Paused(_) | ConsumerState::Tripped(BreakerState::Open(_))
            );
            let ready = if waits { 0 } else { self.broker.depth(service.name()).await? };
            let dead = self.broker.depth(&service.dead_letter_queue).await?;
            let account = self.account(name.as_str()).await?;
            let held = self.store.held_keys(Some(name), usize::MAX).await?;
            let now = self.clock.now();
            let due = held.iter().any(|key| key.state == HeldState::Waiting && key.due_at <= now);
            if due || ready > 0 || dead > 0 || consumer.status.in_flight() > 0 || !account.holds() {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

fn no_consumer(name: &str) -> HarnessError {
    format!("there is no consumer {name:?} here").into()
}

/// A store on a file in a folder of its own.
async fn thrown_away(clock: &Clock) -> Result<(Sqlite, Folder), HarnessError> {
    let folder = Folder(std::env::temp_dir().join(format!("postrider-harness-{}", clock.new_id())));
    let store = Sqlite::open(SqliteConfig::new(folder.0.join("harness.db")), clock.clone()).await?;
    Ok((store, folder))
}

/// A folder that goes away with the harness.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
