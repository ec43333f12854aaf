//! A relay, consumers and collectors together: what a service, the binary, the demo and the test harness all start.

mod birth;
#[doc(hidden)]
pub mod compiled;
mod further;
mod operations;
mod running;
mod supervise;

pub use further::FurtherOutbox;
pub use running::{Running, RunningConsumer};

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::operations::{run_operations, run_replays};
use self::supervise::supervise;
use crate::broker::{Broker, BrokerError};
use crate::clock::Clock;
use crate::consumer::{Consumer, ConsumerConfig, Orders};
use crate::dead_letter::Collector;
use crate::dedup::{Accelerator, InboxKeeper};
use crate::migration::{Errands, Source};
use crate::registry::Registry;
use crate::relay::{Housekeeper, Relay, RelayConfig};
use crate::store::{AppliedIn, Backend, HouseRules, MadeIn, Registration, StoreError};
use crate::topology::{ConsumerName, ExchangeKind, ExchangeName, ServiceQueue, Topology};
use crate::triage::Rule;

/// What is to run, before it runs.
///
/// ```no_run
/// # use postrider::{Failure, clock::Clock, runtime::Runtime, registry::Registry, handler::handler_fn, sqlite::*, embedded::*};
/// # use postrider::topology::{ExchangeKind, ExchangeName, ServiceQueue};
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let clock = Clock::system();
/// let store = Sqlite::open(SqliteConfig::new("shop.db"), clock.clone()).await?;
/// let broker = EmbeddedBroker::open(store.clone(), clock.clone()).await?;
/// let exchange = ExchangeName::new("shop.events")?;
/// let mail = ServiceQueue::new("mail", Default::default())?.bind(&exchange, "order.*")?;
/// let handlers = Registry::new().on("order.placed", handler_fn::<Sqlite, _>(|_tx, event| Box::pin(async move {
///     println!("thank you for order {:?}", event.envelope.aggregate_id);
///     Ok::<(), Failure>(())
/// })));
/// let running = Runtime::new(store, std::sync::Arc::new(broker), clock)
///     .exchange(exchange, ExchangeKind::Topic)
///     .consumer("mail", mail, handlers)?
///     .start()
///     .await?;
/// running.stop(std::time::Duration::from_secs(10)).await;
/// # Ok(()) }
/// ```
pub struct Runtime<S: Backend> {
    store: S,
    broker: Arc<dyn Broker>,
    clock: Clock,
    topology: Topology,
    relay: Option<RelayConfig>,
    house: HouseRules,
    more: Vec<FurtherOutbox<S>>,
    consumers: Vec<(ConsumerName, ServiceQueue, Registry<S>, ConsumerConfig)>,
    beside: Vec<(ConsumerName, ServiceQueue, AppliedIn)>,
    collected: Vec<ServiceQueue>,
    rules: Vec<Rule>,
    operations: bool,
    inbox_keeps: Option<Duration>,
    accelerator: Option<Accelerator>,
    collects: bool,
    origin: ExchangeName,
    push: Option<MadeIn>,
    orders: Arc<Orders>,
    operates: bool,
}

/// What metrics call the first outbox.
const FIRST_OUTBOX: &str = "event_outbox";

/// How long the inbox remembers what was applied, if nobody says: longer than the outbox keeps what it could send again.
pub const INBOX_KEEPS: Duration = Duration::from_hours(45 * 24);

impl<S: Backend> Runtime<S> {
    /// A relay on this store and broker; consumers are added.
    pub fn new(store: S, broker: Arc<dyn Broker>, clock: Clock) -> Self {
        Self {
            store,
            broker,
            clock,
            topology: Topology::default(),
            relay: Some(RelayConfig::default()),
            house: HouseRules::default(),
            more: Vec::new(),
            consumers: Vec::new(),
            beside: Vec::new(),
            collected: Vec::new(),
            rules: Vec::new(),
            operations: false,
            inbox_keeps: Some(INBOX_KEEPS),
            accelerator: None,
            collects: true,
            origin: ExchangeName::default_exchange(),
            push: None,
            orders: Arc::default(),
            operates: true,
        }
    }

    /// The exchange that the outbox's events go to, if they name no other. Said twice, the last one counts; further ones are
    /// declared by [`Self::topology`].
    #[must_use]
    pub fn exchange(mut self, name: ExchangeName, kind: ExchangeKind) -> Self {
        if let Some(relay) = &mut self.relay {
            relay.exchange = name.clone();
        }
        self.origin = name.clone();
        self.topology = self.topology.exchange(name, kind);
        self
    }

    /// More of the topology than the consumers bring along.
    #[must_use]
    pub fn topology(mut self, topology: Topology) -> Self {
        self.topology.exchanges.extend(topology.exchanges);
        self.topology.queues.extend(topology.queues);
        self.topology.bindings.extend(topology.bindings);
        self
    }

    /// The relay's settings, or no relay here. Settings that name no exchange have that of [`Self::exchange`], whichever is said first.
    #[must_use]
    pub fn relay(mut self, config: Option<RelayConfig>) -> Self {
        self.relay = config;
        if let Some(relay) = self.relay.as_mut().filter(|relay| relay.exchange.is_default()) {
            relay.exchange = self.origin.clone();
        }
        self
    }

    /// A relay on another outbox, of the same database or of another, beside the first.
    #[must_use]
    pub fn outbox(mut self, outbox: FurtherOutbox<S>) -> Self {
        self.more.push(outbox);
        self
    }

    /// How long the outbox keeps what is published, and where it goes then. Looked after where a relay runs.
    #[must_use]
    pub fn house(mut self, rules: HouseRules) -> Self {
        self.house = rules;
        self
    }

    /// How long the inbox remembers what was applied. Must be longer than any event can come again: after its retries, from
    /// the outbox, or from the dead letters.
    #[must_use]
    pub fn inbox_keeps(mut self, keep: Duration) -> Self {
        self.inbox_keeps = Some(keep);
        self
    }

    /// Leaves forgetting to others: whoever shares a store with another runtime, which knows how long the inbox remembers.
    #[must_use]
    pub fn leave_inbox(mut self) -> Self {
        self.inbox_keeps = None;
        self
    }

    /// Asks this before the inbox, for every consumer.
    #[must_use]
    pub fn accelerator(mut self, accelerator: Accelerator) -> Self {
        self.accelerator = Some(accelerator);
        self
    }

    /// A consumer with the default settings.
    pub fn consumer(
        self,
        name: impl AsRef<str>,
        service: ServiceQueue,
        registry: Registry<S>,
    ) -> Result<Self, crate::InvalidText> {
        Ok(self.consumer_with(ConsumerName::new(name)?, service, registry, ConsumerConfig::default()))
    }

    /// A consumer with settings of its own. Its dead letters are collected, unless its queue says otherwise.
    #[must_use]
    pub fn consumer_with(
        mut self,
        name: ConsumerName,
        service: ServiceQueue,
        registry: Registry<S>,
        config: ConsumerConfig,
    ) -> Self {
        self.collected.push(service.clone());
        self.consumers.push((name, service, registry, config));
        self
    }

    /// A consumer that somebody else runs, and that is to be found like any other: it is listed, can be paused and has an account. Its dead
    /// letters are collected by who is told to.
    #[must_use]
    pub fn beside(mut self, name: ConsumerName, service: ServiceQueue, applied_in: AppliedIn) -> Self {
        self.beside.push((name, service, applied_in));
        self
    }

    /// Collects the dead letters of a queue that is consumed elsewhere, unless that queue says otherwise.
    #[must_use]
    pub fn collect(mut self, service: ServiceQueue) -> Self {
        self.collected.push(service);
        self
    }

    /// The exchange of events that name no other, where the relay runs elsewhere: for the consumers' accounts.
    #[must_use]
    pub fn events_from(mut self, exchange: ExchangeName) -> Self {
        self.origin = exchange;
        self
    }

    /// Its consumers are push subscriptions, which were made there.
    #[must_use]
    pub fn pushes(mut self, made: MadeIn) -> Self {
        self.push = Some(made);
        self
    }

    /// Leaves dead letters to others to collect.
    #[must_use]
    pub fn leave_dead_letters(mut self) -> Self {
        self.collects = false;
        self
    }

    /// Is one of many in this process: their consumers ask together what operators tell them, and another runs the operations.
    #[must_use]
    pub fn among_many(mut self, orders: &Arc<Orders>) -> Self {
        self.orders = orders.clone();
        self.operates = false;
        self
    }

    /// Runs the operations that people start, also where nothing is collected.
    #[must_use]
    pub fn operations(mut self) -> Self {
        self.operations = true;
        self
    }

    /// Replays dead letters by schedule.
    #[must_use]
    pub fn rule(mut self, rule: Rule) -> Self {
        self.rules.push(rule);
        self.operations()
    }

    /// What was given, and of the consumers' queues what that does not say already.
    fn whole_topology(&self) -> Topology {
        let own = self.consumers.iter().map(|(_, service, ..)| service);
        let all = own.chain(self.beside.iter().map(|(_, service, _)| service));
        all.fold(self.topology.clone(), Topology::service)
    }

    fn registrations(&self) -> Vec<Registration> {
        let topology = self.whole_topology();
        let exchange = self.relay.as_ref().map_or(&self.origin, |relay| &relay.exchange);
        let registration = |name: &ConsumerName, service: &ServiceQueue| Registration {
            name: name.clone(),
            inbox: None,
            applied_in: AppliedIn::Inbox,
            service: service.clone(),
            topology: topology.clone(),
            exchange: exchange.clone(),
            since: None,
            push: self.push,
        };
        let own = self.consumers.iter().map(|(name, service, _, config)| Registration {
            inbox: config.inbox.clone(),
            ..registration(name, service)
        });
        let beside = self.beside.iter().map(|(name, service, applied_in)| Registration {
            applied_in: *applied_in,
            ..registration(name, service)
        });
        // Its own come first: they are started in this order.
        own.chain(beside).collect()
    }

    /// Declares the topology and starts everything.
    ///
    /// The consumers are registered in the store first, so that `postrider audit` knows them from any process.
    pub async fn start(mut self) -> Result<Running<S>, StartError> {
        if !self.collects {
            self.collected.clear();
        }
        birth::register(&self.store, self.registrations(), &self.clock, async || {
            self.broker.declare(&self.whole_topology()).await
        })
        .await?;
        let stop = CancellationToken::new();
        let tasks = TaskTracker::new();
        let registrations = self.registrations();
        let relay = self.relay.map(|config| {
            let first = Source::new(self.store.clone(), FIRST_OUTBOX, config.clone());
            let relay = Relay::new(self.store.clone(), self.broker.clone(), self.clock.clone(), config);
            let status = relay.status();
            tasks.spawn(relay.run(stop.clone()));
            let keeper =
                Housekeeper::new(self.store.clone(), self.clock.clone(), self.house.clone(), FIRST_OUTBOX);
            tasks.spawn(keeper.run(stop.clone()));
            let further = self.more.iter().map(FurtherOutbox::source).collect();
            let errands = Errands::new(first, further, self.broker.clone(), self.clock.clone());
            tasks.spawn(errands.databases().clone().lead(stop.clone()));
            tasks.spawn(errands.serve(stop.clone()));
            for FurtherOutbox { store, label, relay, house, .. } in &self.more {
                let keeper = Housekeeper::new(store.clone(), self.clock.clone(), house.clone(), label);
                tasks.spawn(keeper.run(stop.clone()));
                let relay = Relay::new(store.clone(), self.broker.clone(), self.clock.clone(), relay.clone());
                tasks.spawn(relay.run(stop.clone()));
            }
            status
        });
        if let Some(keep) = self.inbox_keeps {
            let keeper = InboxKeeper::new(self.store.clone(), self.clock.clone(), keep);
            tasks.spawn(keeper.run(stop.clone()));
        }
        let (mut consumers, process) = (Vec::new(), Arc::default());
        for ((name, service, registry, config), registration) in self.consumers.into_iter().zip(registrations)
        {
            let (store, broker, clock) = (self.store.clone(), self.broker.clone(), self.clock.clone());
            let mut consumer = Consumer::new(store, broker, clock, name.clone(), service, registry)
                .config(config)
                .under(&self.orders)
                .beside(&process);
            if let Some(accelerator) = &self.accelerator {
                consumer = consumer.accelerated(accelerator);
            }
            consumers.push(RunningConsumer { registration, status: consumer.status() });
            let (consumer, clock, stop) = (Arc::new(consumer), self.clock.clone(), stop.clone());
            tasks.spawn(async move {
                let run = || consumer.clone().run(stop.clone());
                supervise(&format!("consumer {name}"), run, &clock, &stop).await;
            });
        }
        if self.operations || (self.operates && !self.collected.is_empty()) {
            let (store, clock, stop, rules) =
                (self.store.clone(), self.clock.clone(), stop.clone(), self.rules);
            // An operation is where its events are.
            for outbox in self.more.iter().filter(|outbox| outbox.database.is_some()) {
                tasks.spawn(run_replays(outbox.store.clone(), clock.clone(), stop.clone()));
            }
            tasks.spawn(run_operations(store, clock, rules, stop));
        }
        for service in self.collected.into_iter().filter(|service| service.collect) {
            let what = format!("collector of {}", service.dead_letter_queue);
            let (store, broker, clock) = (self.store.clone(), self.broker.clone(), self.clock.clone());
            let collector = Arc::new(Collector::new(store, broker, clock, service));
            let (clock, stop) = (self.clock.clone(), stop.clone());
            tasks.spawn(async move {
                supervise(&what, || collector.clone().run(stop.clone()), &clock, &stop).await;
            });
        }
        tasks.close();
        Ok(Running {
            store: self.store,
            broker: self.broker,
            clock: self.clock,
            relay,
            consumers,
            stop,
            tasks,
        })
    }
}

/// Why nothing was started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The broker failed.
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// Two consumers have this name.
    #[error(
        "two consumers are named {0}: each would take what the other has applied for a duplicate. Give both a name of their own; \
         `ConsumerConfig::inbox` shares an inbox where that is meant"
    )]
    Twice(ConsumerName),
}
