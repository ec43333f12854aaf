//! Two relays, two buses, on PostgreSQL and RabbitMQ: every phase is obeyed by both, and a comparison sees what is not the same.

mod following;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use postrider::broker::{
    BrokerError, Delivery, Outgoing, Published, Removal, Settler, Subscription, Verdict,
};
use postrider::envelope::{WireFormat, wire};
use postrider::migration::{
    self, Comparing, Databases, Definition, Difference, Parity, Side, Source, Standing, Taken,
};
use postrider::postgres::{Postgres, PostgresConfig};
use postrider::relay::{RelayConfig, RelayMode};
use postrider::runtime::{FurtherOutbox, Running, Runtime};
use postrider::settlement::RetryPolicy;
use postrider::store::{HouseRules, Operations as _, Outbox as _, Store as _};
use postrider::topology::{ExchangeKind, QueueName, RoutingKey, ServiceQueue, Topology};
use postrider::{Broker, Clock, Envelope};
use postrider_testkit::servers::{TestDatabase, TestVhost, shared};
use postrider_testkit::worker::{self, mailer};
use tokio::sync::Notify;

const LIMIT: Duration = Duration::from_mins(2);
/// How people call the other database.
const SHOP: &str = "the shop's";

struct Buses {
    store: Postgres,
    databases: Databases<Postgres>,
    sources: Vec<Source<Postgres>>,
    broker: Arc<dyn Broker>,
    clock: Clock,
    definition: Definition,
    relays: Vec<Running<Postgres>>,
    _servers: (TestDatabase, TestVhost),
}

impl Buses {
    /// Relays on the same outbox, each with a connection of its own.
    async fn with_relays(count: usize) -> Self {
        Self::with_other(count, None).await
    }

    /// The same, and each also on the outbox of another database.
    async fn with_other(count: usize, other: Option<&Postgres>) -> Self {
        let (shared, clock, definition) = (shared().unwrap(), Clock::system(), mailer::definition().unwrap());
        let (database, vhost) = (shared.migrated_database().await.unwrap(), shared.vhost().await.unwrap());
        let store = Postgres::connect(PostgresConfig::new(&database.url), clock.clone()).await.unwrap();
        store.migrate().await.unwrap();
        let relay = RelayConfig {
            exchange: definition.exchange.clone(),
            formats: [(definition.exchange.clone(), WireFormat::Smap)].into(),
            // A stream would be one relay's, and the other would stand by.
            mode: RelayMode::Poll,
            // A copy that is late comes twice, and here they are counted.
            legacy_patience: LIMIT,
            ..RelayConfig::default()
        };
        let service = |queue: &str| ServiceQueue::new(queue, RetryPolicy::default()).unwrap();
        let topology = Topology::default()
            .exchange(definition.exchange.clone(), ExchangeKind::Topic)
            .exchange(definition.legacy.exchange.clone(), ExchangeKind::Fanout)
            .service(&service("smtp_send_email").bind(&definition.legacy.exchange, "").unwrap())
            .service(&service("smtp_send_email_v2").bind(&definition.exchange, "email.#").unwrap());
        let mut relays = Vec::new();
        for _ in 0..count {
            let broker = worker::connect_rabbitmq(&vhost.amqp_url, &clock).await.unwrap();
            let mut runtime = Runtime::new(store.clone(), broker, clock.clone())
                .topology(topology.clone())
                .relay(Some(relay.clone()));
            if let Some(other) = other {
                runtime = runtime.outbox(FurtherOutbox {
                    store: other.clone(),
                    label: "shop".to_owned(),
                    relay: relay.clone(),
                    house: HouseRules::default(),
                    database: Some(SHOP.to_owned()),
                });
            }
            relays.push(runtime.start().await.unwrap());
        }
        let broker = worker::connect_rabbitmq(&vhost.amqp_url, &clock).await.unwrap();
        let mut sources = vec![Source::new(store.clone(), "event_outbox", relay.clone())];
        sources.extend(other.map(|other| Source::new(other.clone(), "shop", relay).elsewhere(SHOP)));
        let databases = Databases::new(store.clone(), clock.clone()).with(&sources);
        let servers = (database, vhost);
        Self { store, databases, sources, broker, clock, definition, relays, _servers: servers }
    }

    async fn until(&self, what: &str, so: impl AsyncFn() -> bool) {
        let start = self.clock.monotonic();
        while !so().await {
            assert!(self.clock.since(start) < LIMIT, "{what} within {LIMIT:?}");
            self.clock.sleep(Duration::from_millis(50)).await;
        }
    }

    async fn commit(&self, numbers: std::ops::Range<usize>) {
        commit(&self.store, numbers).await;
    }

    async fn depth(&self, queue: &str) -> u64 {
        self.broker.depth(&QueueName::new(queue).unwrap()).await.unwrap()
    }

    /// Somebody takes everything out of a queue.
    async fn emptied(&self, queue: &str) {
        let queue = QueueName::new(queue).unwrap();
        let mut left = self.broker.depth(&queue).await.unwrap();
        let mut session = self.broker.subscribe(&queue, 100).await.unwrap();
        while left > 0 {
            let deliveries = session.next(100).await.unwrap();
            left = left.saturating_sub(deliveries.len() as u64);
            let acks = deliveries.into_iter().map(|delivery| (delivery.receipt, Verdict::Ack)).collect();
            session.settler().settle(acks).await.unwrap();
        }
    }

    /// So many e-mails are in the new queue and in the old one, in the end.
    async fn arrive(&self, new: u64, old: u64) {
        self.until(&format!("{new} are on the new bus and {old} on the old one"), async || {
            (self.depth("smtp_send_email_v2").await, self.depth("smtp_send_email").await) == (new, old)
        })
        .await;
    }

    async fn standing(&self) -> Standing {
        self.databases.standings().await.unwrap().remove(0)
    }

    /// Every relay obeys the phase.
    async fn obeyed(&self) {
        assert!(migration::settled(&self.databases, LIMIT).await.unwrap());
        // One that has just started may not have said that it is there. It reads the phase before it does anything.
        self.until("every relay is known and obeys", async || {
            let (standing, relays) = (self.standing().await, self.relays.len() * self.sources.len());
            (standing.relays.len(), standing.obedient()) == (relays, relays)
        })
        .await;
    }

    /// Everything that is committed is marked as published: a comparison judges no other.
    async fn marked(&self) {
        let open = "SELECT count(*) FROM postrider.event_outbox WHERE status <> 'published'";
        for source in &self.sources {
            self.until("everything is marked", async || {
                sqlx::query_scalar::<_, i64>(open).fetch_one(source.store.pool()).await.unwrap() == 0
            })
            .await;
        }
    }

    /// Somebody else publishes.
    async fn publish(&self, side: Side, envelope: &Envelope) {
        let exchange = match side {
            Side::New => self.definition.exchange.clone(),
            Side::Legacy => self.definition.legacy.exchange.clone(),
        };
        let message = match side {
            Side::New => wire::encode(envelope, WireFormat::Smap, 0),
            Side::Legacy => self.definition.legacy.format.message(envelope, 0),
        };
        let routing_key = RoutingKey::from(&envelope.event_type);
        self.broker.publish(vec![Outgoing { exchange, routing_key, message }]).await;
    }

    /// Compares until so many events have arrived, and does something meanwhile.
    async fn compare(&self, most_events: usize, meanwhile: impl AsyncFn()) -> Parity {
        let how = Comparing { listen: LIMIT, most_events, patience: LIMIT };
        let listening = Arc::new(Notify::new());
        let heard: Arc<dyn Broker> =
            Arc::new(Heard { broker: self.broker.clone(), listening: listening.clone() });
        let doing = async {
            listening.notified().await;
            meanwhile().await;
        };
        let comparing = Box::pin(migration::compare(&self.sources, &heard, &self.clock, &how));
        tokio::join!(comparing, doing).0.unwrap()
    }
}

async fn commit(store: &Postgres, numbers: std::ops::Range<usize>) {
    let mut tx = store.begin().await.unwrap();
    let emails = numbers.map(|number| mailer::email(number).unwrap()).collect();
    store.append(&mut tx, emails).await.unwrap();
    store.commit(tx).await.unwrap();
}

/// The broker, and that somebody has begun to listen to a queue of it.
struct Heard {
    broker: Arc<dyn Broker>,
    listening: Arc<Notify>,
}

#[async_trait]
impl Broker for Heard {
    async fn declare(&self, topology: &Topology) -> Result<(), BrokerError> {
        self.broker.declare(topology).await
    }

    async fn publish(&self, batch: Vec<Outgoing>) -> Vec<Published> {
        self.broker.publish(batch).await
    }

    async fn subscribe(
        &self,
        queue: &QueueName,
        prefetch: u16,
    ) -> Result<Box<dyn Subscription>, BrokerError> {
        let subscription = self.broker.subscribe(queue, prefetch).await?;
        Ok(Box::new(HeardQueue { subscription, listening: self.listening.clone() }))
    }

    async fn depth(&self, queue: &QueueName) -> Result<u64, BrokerError> {
        self.broker.depth(queue).await
    }

    async fn remove(&self, removal: &Removal) -> Result<(), BrokerError> {
        self.broker.remove(removal).await
    }

    async fn ping(&self) -> Result<(), BrokerError> {
        self.broker.ping().await
    }

    async fn close(&self) {}
}

struct HeardQueue {
    subscription: Box<dyn Subscription>,
    listening: Arc<Notify>,
}

#[async_trait]
impl Subscription for HeardQueue {
    async fn next(&mut self, max: usize) -> Result<Vec<Delivery>, BrokerError> {
        self.listening.notify_one();
        self.subscription.next(max).await
    }

    fn settler(&self) -> Box<dyn Settler> {
        self.subscription.settler()
    }
}

fn step(forced: bool) -> Taken {
    Taken { by: "ann".to_owned(), reason: "the plan".to_owned(), forced }
}

fn email(number: usize) -> Envelope {
    mailer::email(number).unwrap().into_envelope(&Clock::system())
}

/// Marked by somebody who knows nothing of the migration: no copy of it was ever made. A row with a time of its own is not streamed.
async fn withheld(pool: &sqlx::PgPool, number: usize) {
    let insert = format!(
        "INSERT INTO postrider.event_outbox (id, aggregate_type, event_type, payload, status, published_at, available_at) \
         VALUES ('mail-{number}', 'email.verification', 'requested', \
             '{{\"data\": {{\"email\": \"user-{number}@example.com\", \"number\": {number}}}}}', \
             'published', now(), now() + interval '1 day')"
    );
    sqlx::query(sqlx::AssertSqlSafe(insert)).execute(pool).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn two_relays_obey_every_phase() {
    let buses = Buses::with_relays(2).await;
    migration::start(&buses.databases, &buses.definition, &step(false)).await.unwrap();
    buses.obeyed().await;
    buses.commit(0..40).await;
    buses.arrive(40, 40).await;
    migration::cut_over(&buses.databases, &step(true)).await.unwrap();
    buses.obeyed().await;
    buses.commit(40..80).await;
    buses.arrive(80, 40).await;
    migration::roll_back(&buses.databases, &step(false)).await.unwrap();
    buses.obeyed().await;
    buses.arrive(80, 80).await;
    buses.commit(80..120).await;
    buses.arrive(120, 120).await;
    for relay in &buses.relays {
        assert!(relay.relay().unwrap().published() > 0, "both publish");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_difference_between_the_buses_is_named_and_stops_the_cutover() {
    let buses = Buses::with_relays(1).await;
    migration::start(&buses.databases, &buses.definition, &step(false)).await.unwrap();
    buses.obeyed().await;
    // Before anybody listened.
    withheld(buses.store.pool(), 900).await;
    let parity = buses
        .compare(12, async || {
            buses.commit(0..10).await;
            withheld(buses.store.pool(), 901).await;
            buses.publish(Side::New, &email(901)).await;
            let mut other = email(3);
            other.payload = email(4).payload;
            buses.publish(Side::Legacy, &other).await;
            buses.marked().await;
            // The last to arrive.
            buses.publish(Side::Legacy, &email(902)).await;
        })
        .await;
    assert_eq!((parity.holds, parity.compared), (false, 11), "{parity:#?}");
    assert_eq!((parity.missing, parity.extra, parity.different), (2, 1, 1), "{parity:#?}");
    for number in [900, 901] {
        let error = Some("no relay made a copy of it; one is made now".to_owned());
        let missing = Difference::Missing { side: Side::Legacy, event_id: format!("mail-{number}"), error };
        assert!(parity.differences.contains(&missing), "{parity:#?}");
    }
    let extra = Difference::Extra { side: Side::Legacy, event_id: Some("mail-902".to_owned()) };
    assert!(parity.differences.contains(&extra), "{parity:#?}");
    let different = |difference: &Difference| matches!(difference, Difference::Different { side: Side::Legacy, event_id, .. } if event_id == "mail-3");
    assert!(parity.differences.iter().any(different), "{parity:#?}");

    let refused = migration::cut_over(&buses.databases, &step(false)).await.unwrap_err().to_string();
    assert!(refused.contains("2 missing, 1 extra and 1 different among 11 events"), "{refused}");
    assert_eq!(buses.standing().await.phase, migration::Phase::Dual);

    // The copies are made up for, so the next one holds.
    buses.arrive(10 + 1, 10 + 2 + 2).await;
    let more = async || {
        buses.commit(10..20).await;
        buses.marked().await;
        buses.commit(20..21).await;
    };
    let parity = buses.compare(11, more).await;
    // The last one may not be marked yet when it has arrived.
    assert!(parity.holds && parity.compared >= 10, "{parity:#?}");

    // Whoever forces it is in the log, with what stood against it.
    withheld(buses.store.pool(), 903).await;
    let parity = buses.compare(1, async || buses.commit(21..22).await).await;
    assert_eq!((parity.holds, parity.missing), (false, 1), "{parity:#?}");
    migration::cut_over(&buses.databases, &step(true)).await.unwrap();
    let log = buses.store.log_of("migration/mail", 1).await.unwrap().remove(0);
    assert_eq!((log.actor.as_str(), log.action.as_str()), ("ann", "migration.cutover"));
    assert!(log.detail.unwrap().to_string().contains("1 missing"));
}
