//! Delivery to effect: transaction, inbox, handler, commit; then, and only then, the delivery is settled.
//!
//! A crash before the commit leaves nothing, and the broker delivers again. A crash after it leaves the effects and the
//! inbox's mark, and the next delivery is known as a duplicate. So effects happen once, whatever dies when.
//!
//! A consumer works in sessions. Each is a subscription; it ends when the consumer is stopped or paused or its breaker
//! opens. What was begun is finished and settled, and the rest goes back to the queue.

mod arrived;
mod attempt;
mod breaker;
mod contradiction;
mod crash;
mod desk;
mod due;
mod leaving;
mod meters;
mod obey;
mod order;
mod outside;
mod pace;
mod release;
mod session;
mod settle;
mod sight;
mod status;
mod throttle;
mod together;
mod turns;
mod unfit;
mod worn;

pub use breaker::{BreakerConfig, BreakerState, Cause};
pub use obey::{Orders, note_store, obey};
pub use pace::Concurrency;
pub use status::{ConsumerState, ConsumerStatus, InHand, Opened};

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, RwLock};
use tokio_util::sync::CancellationToken;

use self::breaker::Breaker;
use self::meters::Meters;
use self::pace::Pace;
use self::throttle::Throttle;
use self::together::Together;
use crate::broker::{Broker, BrokerError};
use crate::clock::Clock;
use crate::dedup::Accelerator;
use crate::registry::Registry;
use crate::store::{Admission, Arrival, ConsumerStore};
use crate::topology::{ConsumerName, ServiceQueue};

/// How a consumer works.
#[derive(Debug, Clone)]
pub struct ConsumerConfig {
    /// Unsettled deliveries the broker may hand out.
    pub prefetch: u16,
    /// Deliveries handled at the same time; adapts to the load between these two.
    pub concurrency: Concurrency,
    /// How long one attempt may take.
    pub handler_limit: Duration,
    /// At most so many deliveries are begun each second; absent: no limit.
    pub max_rate: Option<f64>,
    /// When to leave the queue alone.
    pub breaker: BreakerConfig,
    /// An event under which the process died so many times while it was handled alone is a dead letter; 0: never.
    pub max_crashes: u32,
    /// How often to look whether it is paused, and for held events.
    pub poll_interval: Duration,
    /// What its keys begin with in front of the inbox; absent: its name.
    pub key_prefix: Option<String>,
    /// Shares the inbox of this name with other consumers: an event that one of them has applied is a duplicate to all. Their queues may
    /// have it in different formats, so the same id is the same event here, whatever it says. Absent: an inbox of its own.
    pub inbox: Option<ConsumerName>,
}

impl Default for ConsumerConfig {
    fn default() -> Self {
        Self {
            prefetch: 250,
            concurrency: Concurrency::default(),
            handler_limit: Duration::from_secs(30),
            max_rate: None,
            breaker: BreakerConfig::default(),
            max_crashes: 3,
            poll_interval: Duration::from_secs(1),
            key_prefix: None,
            inbox: None,
        }
    }
}

/// One consumer of one queue.
pub struct Consumer<S: ConsumerStore> {
    name: ConsumerName,
    service: ServiceQueue,
    registry: Registry<S>,
    store: S,
    broker: Arc<dyn Broker>,
    clock: Clock,
    config: ConsumerConfig,
    status: Arc<ConsumerStatus>,
    breaker: Mutex<Breaker>,
    pace: Mutex<Pace>,
    throttle: Option<Mutex<Throttle>>,
    /// Held for writing by a delivery that is handled alone.
    alone: Arc<RwLock<()>>,
    /// The names of the crash marks that were there when the session began.
    marked: Mutex<HashSet<String>>,
    /// What operators told the consumers of this process.
    orders: Arc<Orders>,
    /// Somebody has to look for held events.
    released: Notify,
    /// What is asked before the inbox, if there is one.
    accelerator: Option<Accelerator>,
    /// Which history the store has; empty while that is not known.
    lineage: Mutex<String>,
    told_of_lineage: AtomicBool,
    /// What is asked of the inbox for handlers that work outside, and told it.
    looks: Together<Arrival, Admission>,
    marks: Together<outside::Worked, Admission>,
    meters: OnceLock<Meters>,
    /// How many events such handlers have in hand.
    calls: AtomicUsize,
    calls_ended: Notify,
    /// Of copies of an event, one at a time is with a handler that works outside.
    turns: turns::Turns,
}

impl<S: ConsumerStore> Consumer<S> {
    /// A consumer with the default settings.
    pub fn new(
        store: S,
        broker: Arc<dyn Broker>,
        clock: Clock,
        name: ConsumerName,
        service: ServiceQueue,
        registry: Registry<S>,
    ) -> Self {
        let (config, status, now) = (ConsumerConfig::default(), Arc::default(), clock.monotonic());
        let breaker = Mutex::new(Breaker::new(config.breaker.clone()));
        let pace = Mutex::new(Pace::new(config.concurrency, now));
        Self {
            name,
            service,
            registry,
            store,
            broker,
            clock,
            config,
            status,
            breaker,
            pace,
            throttle: None,
            alone: Arc::default(),
            marked: Mutex::default(),
            orders: Arc::default(),
            released: Notify::new(),
            accelerator: None,
            lineage: Mutex::default(),
            told_of_lineage: AtomicBool::new(false),
            looks: Together::default(),
            marks: Together::default(),
            meters: OnceLock::new(),
            calls: AtomicUsize::new(0),
            calls_ended: Notify::new(),
            turns: turns::Turns::default(),
        }
    }

    /// With these settings instead of the defaults.
    #[must_use]
    pub fn config(mut self, config: ConsumerConfig) -> Self {
        let now = self.clock.monotonic();
        self.breaker = Mutex::new(Breaker::new(config.breaker.clone()));
        self.pace = Mutex::new(Pace::new(config.concurrency, now));
        let rate = config.max_rate.filter(|rate| *rate > 0.0);
        self.throttle = rate.map(|rate| Mutex::new(Throttle::new(rate, now)));
        self.config = config;
        self
    }

    /// Asks this before the inbox, under its own keys. Comes after [`Self::config`].
    #[must_use]
    pub fn accelerated(mut self, accelerator: &Accelerator) -> Self {
        let prefix = self.config.key_prefix.as_deref().unwrap_or(self.inbox().as_str());
        self.accelerator = Some(accelerator.space(prefix));
        self
    }

    /// The name that its marks are made under.
    fn inbox(&self) -> &ConsumerName {
        self.config.inbox.as_ref().unwrap_or(&self.name)
    }

    /// In a shared inbox the same id is the same event.
    fn admitted(&self, admission: Admission) -> Admission {
        match admission {
            Admission::Conflict if self.config.inbox.is_some() => Admission::Duplicate(None),
            other => other,
        }
    }

    /// Shares the process with other consumers: what is handled alone is alone among all of them.
    #[must_use]
    pub(crate) fn beside(mut self, others: &Arc<RwLock<()>>) -> Self {
        self.alone = others.clone();
        self
    }

    /// Asks what operators told it together with others of the process.
    #[must_use]
    pub(crate) fn under(mut self, orders: &Arc<Orders>) -> Self {
        self.orders = orders.clone();
        self
    }

    /// A view of what it is doing.
    pub fn status(&self) -> Arc<ConsumerStatus> {
        self.status.clone()
    }

    /// Works until told to stop, then lets the attempts in progress finish and settles them. What it did not begin goes
    /// back to the queue.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) -> Result<(), BrokerError> {
        let ended = stop.child_token();
        // From now on there are counters to look at, whatever comes first.
        self.meters();
        self.note_time();
        self.learn_lineage().await;
        // For itself, and before the first delivery: one that was paused a moment ago takes nothing.
        let _answered = obey(&self.store, &self.name, &self.status).await;
        let watching = tokio::spawn(self.clone().obey(ended.clone()));
        let releasing = self.service.order.map(|_| tokio::spawn(self.clone().release_held(ended.clone())));
        let result = self.sessions(&stop).await;
        ended.cancel();
        let _ended = watching.await;
        if let Some(releasing) = releasing {
            let _ended = releasing.await;
        }
        Meters::end(&self.name);
        result
    }

    /// Looks every second or so whether somebody paused it.
    async fn obey(self: Arc<Self>, ended: CancellationToken) {
        loop {
            tokio::select! {
                () = ended.cancelled() => return,
                () = self.clock.sleep(self.config.poll_interval) => self.obey_once().await,
            }
        }
    }

    async fn obey_once(&self) {
        self.note_time();
        self.learn_lineage().await;
        // Its breaker notices by the attempts whether the store is away.
        let within = self.config.poll_interval / 2;
        self.orders.obey(&self.store, &self.clock, within, &self.name, &self.status).await;
    }

    /// Tells the breaker something and shows what it made of it. Opening and closing are logged once.
    fn with_breaker<T>(&self, tell: impl FnOnce(&mut Breaker) -> T) -> T {
        let mut breaker = lock(&self.breaker);
        let before = breaker.state();
        let told = tell(&mut breaker);
        let after = breaker.state();
        if before == after {
            return told;
        }
        match after {
            BreakerState::Open(cause) if before == BreakerState::Closed => {
                let why = match cause {
                    Cause::Handler => "its handler fails for every event",
                    Cause::Store => "its store cannot be reached",
                };
                tracing::error!(consumer = %self.name,
                    "{why}; the queue is left alone and probed from time to time, so that what waits there keeps its retries");
            }
            BreakerState::Closed => {
                tracing::info!(consumer = %self.name, "it works again; the queue is taken up");
            }
            BreakerState::Open(_) | BreakerState::HalfOpen => {}
        }
        metrics::gauge!("postrider_consumer_breaker_open", "consumer" => self.name.to_string())
            .set(if after == BreakerState::Closed { 0.0 } else { 1.0 });
        self.status.set_breaker(after);
        told
    }

    /// The store failed under us.
    fn store_away(&self) {
        self.forget_lineage();
        let now = self.clock.monotonic();
        self.with_breaker(|breaker| breaker.store_away(now));
    }

    fn meters(&self) -> &Meters {
        self.meters.get_or_init(|| Meters::of(&self.name))
    }

    fn pace(&self) -> MutexGuard<'_, Pace> {
        lock(&self.pace)
    }
}

/// What is behind it is whole even if somebody panicked.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
