//! A store, a broker and an exchange to play on.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use postrider::audit::Account;
use postrider::broker::{Message, Outgoing};
use postrider::consumer::ConsumerConfig;
use postrider::dedup::Accelerator;
use postrider::embedded::EmbeddedBroker;
use postrider::handler::handler_fn;
use postrider::postgres::{Postgres, PostgresConfig};
use postrider::rabbitmq::{RabbitMq, RabbitMqConfig};
use postrider::registry::Registry;
use postrider::relay::RelayConfig;
use postrider::runtime::{Running, Runtime};
use postrider::settlement::RetryPolicy;
use postrider::sqlite::{Sqlite, SqliteConfig};
use postrider::store::DeadLetter;
use postrider::topology::{
    Argument, ConsumerName, DeliveryLimit, ExchangeKind, ExchangeName, OnDead, QueueName, ServiceQueue,
};
use postrider::{Broker, Clock, Event, EventId, Failure, Incoming};
use postrider_testkit::effects::Effects;

/// Whatever is waited for comes within this time, or the test fails.
const LIMIT: Duration = Duration::from_mins(1);

/// The name of the one consumer and of its queue.
pub(super) const CONSUMER: &str = "mail";

/// The first attempt at an event of this aggregate never ends by itself.
pub(super) const HANGS: &str = "hangs";

pub(super) struct Stage<S> {
    pub(super) store: S,
    pub(super) broker: Arc<dyn Broker>,
    pub(super) clock: Clock,
    /// What the consumer keeps to.
    pub(super) retry: RetryPolicy,
    pub(super) handler_limit: Duration,
    pub(super) max_attempts: u32,
    /// Whether the queue keeps order per key.
    pub(super) order: Option<OnDead>,
    /// How often the broker lets a message come back; absent: as it does by itself.
    pub(super) delivery_limit: Option<u32>,
    /// How the consumer works; the handler's limit is apart.
    pub(super) config: ConsumerConfig,
    /// Which attempts of which events the handler was called for.
    pub(super) calls: Arc<Mutex<Vec<(EventId, u32)>>>,
    /// When.
    pub(super) times: Arc<Mutex<Vec<Timestamp>>>,
    /// What is asked before the inbox.
    pub(super) accelerator: Option<Accelerator>,
}

impl Stage<Sqlite> {
    pub(super) async fn embedded(path: &Path) -> Self {
        let clock = Clock::system();
        let store = Sqlite::open(SqliteConfig::new(path), clock.clone()).await.unwrap();
        let broker = Arc::new(EmbeddedBroker::open(store.clone(), clock.clone()).await.unwrap());
        Self::on(store, broker, clock).await
    }
}

impl Stage<Postgres> {
    pub(super) async fn servers(database: &str, rabbitmq: &str) -> Self {
        let clock = Clock::system();
        let store = Postgres::connect(PostgresConfig::new(database), clock.clone()).await.unwrap();
        store.migrate().await.unwrap();
        let broker = RabbitMq::connect(RabbitMqConfig::new(rabbitmq), clock.clone()).await.unwrap();
        Self::on(store, Arc::new(broker), clock).await
    }
}

impl<S: Effects> Stage<S> {
    async fn on(store: S, broker: Arc<dyn Broker>, clock: Clock) -> Self {
        store.create_effects().await.unwrap();
        Self {
            store,
            broker,
            clock,
            retry: RetryPolicy::fixed(10, Duration::from_millis(50)),
            handler_limit: Duration::from_secs(30),
            max_attempts: 10,
            order: None,
            delivery_limit: None,
            config: ConsumerConfig { poll_interval: Duration::from_millis(50), ..ConsumerConfig::default() },
            calls: Arc::default(),
            times: Arc::default(),
            accelerator: None,
        }
    }

    /// Starts a relay and the consumer. Its handler writes an effect and then does what `judge` says.
    pub(super) async fn start<J>(&self, judge: J) -> Running<S>
    where
        J: Fn(&Incoming) -> Result<Vec<Event>, Failure> + Clone + Send + Sync + 'static,
    {
        let (store, calls) = (self.store.clone(), self.calls.clone());
        let (clock, times) = (self.clock.clone(), self.times.clone());
        let handler = handler_fn::<S, _>(move |tx, event| {
            let (store, calls, judge) = (store.clone(), calls.clone(), judge.clone());
            let (clock, times) = (clock.clone(), times.clone());
            Box::pin(async move {
                calls.lock().unwrap().push((event.envelope.id.clone(), event.attempt));
                times.lock().unwrap().push(clock.now());
                store.insert_effect(tx, event.consumer.as_str(), &event.envelope.id).await?;
                if event.attempt == 1
                    && event.envelope.aggregate_id.as_ref().is_some_and(|id| id.as_str() == HANGS)
                {
                    std::future::pending::<()>().await;
                }
                let follow_ups = judge(event)?;
                store.append(tx, follow_ups).await?;
                Ok(())
            })
        });
        self.start_with(Registry::new().on("order.placed", handler)).await
    }

    /// Starts a relay and the consumer with handlers of its own.
    pub(super) async fn start_with(&self, handlers: Registry<S>) -> Running<S> {
        let exchange = ExchangeName::new("events").unwrap();
        let mut service =
            ServiceQueue::new(CONSUMER, self.retry.clone()).unwrap().bind(&exchange, "order.#").unwrap();
        if let Some(on_dead) = self.order {
            service = service.ordered(on_dead);
        }
        if let Some(limit) = self.delivery_limit {
            // RabbitMQ is told by an argument, because nobody sets policies here; the embedded broker takes the policy.
            service.queue.arguments.insert("x-delivery-limit".to_owned(), Argument::Int(limit.into()));
            service.queue.policy.delivery_limit = Some(DeliveryLimit::Times(limit));
        }
        let config = ConsumerConfig { handler_limit: self.handler_limit, ..self.config.clone() };
        let relay = RelayConfig { max_attempts: self.max_attempts, lanes: 2, ..RelayConfig::default() };
        let mut runtime = Runtime::new(self.store.clone(), self.broker.clone(), self.clock.clone());
        if let Some(accelerator) = &self.accelerator {
            runtime = runtime.accelerator(accelerator.clone());
        }
        runtime
            .relay(Some(relay))
            .exchange(exchange, ExchangeKind::Topic)
            .consumer_with(ConsumerName::new(CONSUMER).unwrap(), service, handlers, config)
            .start()
            .await
            .unwrap()
    }

    /// Commits an event.
    pub(super) async fn commit(&self, event: Event) -> EventId {
        let mut tx = self.store.begin().await.unwrap();
        let ids = self.store.append(&mut tx, vec![event]).await.unwrap();
        self.store.commit(tx).await.unwrap();
        ids[0].clone()
    }

    /// Puts a message into the consumer's queue, past outbox and exchange.
    pub(super) async fn deliver(&self, message: Message) {
        let outgoing = Outgoing::to_queue(&QueueName::new(CONSUMER).unwrap(), message);
        let answer = self.broker.publish(vec![outgoing]).await;
        assert_eq!(answer, [postrider::broker::Published::Confirmed]);
    }

    /// Waits until the consumer's account is as wanted.
    pub(super) async fn account(&self, running: &Running<S>, wanted: impl Fn(&Account) -> bool) -> Account {
        let mut last = None;
        self.until(async || {
            let account = running.accounts().await.unwrap().remove(0);
            let found = wanted(&account);
            last = Some(account);
            found
        })
        .await;
        last.unwrap()
    }

    /// Waits until so many dead letters are collected.
    pub(super) async fn dead_letters(&self, count: usize) -> Vec<DeadLetter> {
        self.until(async || self.store.dead_letters(100).await.unwrap().len() >= count).await;
        let letters = self.store.dead_letters(100).await.unwrap();
        assert_eq!(letters.len(), count, "{letters:?}");
        letters
    }

    pub(super) async fn effects(&self) -> usize {
        self.store.effects().await.unwrap().len()
    }

    /// How many effects there are, if the store can be asked.
    pub(super) async fn effects_or_none(&self) -> Option<usize> {
        self.store.effects().await.ok().map(|effects| effects.len())
    }

    /// How often the handler was called.
    pub(super) fn calls(&self) -> Vec<(EventId, u32)> {
        self.calls.lock().unwrap().clone()
    }

    /// The attempts at one event, in the order of the calls.
    pub(super) fn attempts(&self, id: &EventId) -> Vec<u32> {
        self.calls().into_iter().filter(|(other, _)| other == id).map(|(_, attempt)| attempt).collect()
    }

    pub(super) async fn until(&self, mut so: impl AsyncFnMut() -> bool) {
        let start = self.clock.monotonic();
        while !so().await {
            assert!(self.clock.since(start) < LIMIT, "it did not come about within {LIMIT:?}");
            self.clock.sleep(Duration::from_millis(10)).await;
        }
    }
}
