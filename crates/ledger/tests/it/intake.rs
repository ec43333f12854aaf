//! From a queue into the books, on the embedded broker and on RabbitMQ: every event is posted once or a dead letter with its reason.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use postrider::broker::{Broker, BrokerError, Message, Outgoing, Published, Subscription, Verdict};
use postrider::embedded::EmbeddedBroker;
use postrider::envelope::TenantId;
use postrider::envelope::wire::Identity;
use postrider::postgres::{Postgres, PostgresConfig};
use postrider::rabbitmq::{RabbitMq, RabbitMqConfig};
use postrider::settlement::RetryPolicy;
use postrider::sqlite::{Sqlite, SqliteConfig};
use postrider::store::DeadLetters;
use postrider::topology::{
    ConsumerName, Exchange, ExchangeKind, ExchangeName, ExchangePolicy, QueueName, RoutingKey, ServiceQueue,
    Topology,
};
use postrider::{Clock, Inbox, dead_letter};
use postrider_ledger::Ledger;
use postrider_ledger::books::Books;
use postrider_ledger::chart::Book;
use postrider_ledger::intake::{Intake, IntakeStatus};
use postrider_ledger::money::Currency;
use postrider_ledger::rules::ready;
use postrider_ledger::sequencer::Sequencer;
use postrider_ledger::verify::Scope;
use postrider_testkit::conformance::books::chart;
use postrider_testkit::servers::shared;
use tokio_util::sync::CancellationToken;

const TENANTS: usize = 5;
const EVENTS: usize = 300;
/// What every broker agrees to.
const FRAME: usize = 128 << 10;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_of_the_embedded_broker_ends_up_in_the_books() {
    let folder = tempfile::tempdir().unwrap();
    let config = SqliteConfig::new(folder.path().join("books.db"));
    let store = Sqlite::open(config, Clock::system()).await.unwrap();
    let broker = EmbeddedBroker::open(store.clone(), Clock::system()).await.unwrap();
    plays(store, Arc::new(broker)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_leaves_the_embedded_broker_no_room_is_a_dead_letter() {
    let folder = tempfile::tempdir().unwrap();
    let config = SqliteConfig::new(folder.path().join("books.db"));
    let store = Sqlite::open(config, Clock::system()).await.unwrap();
    let broker = EmbeddedBroker::open(store.clone(), Clock::system()).await.unwrap();
    refuses_what_fills_a_frame(store, Arc::new(broker)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_leaves_rabbitmq_no_room_is_a_dead_letter() {
    let servers = shared().unwrap();
    let (database, vhost) = (servers.migrated_database().await.unwrap(), servers.vhost().await.unwrap());
    let store = Postgres::connect(PostgresConfig::new(&database.url), Clock::system()).await.unwrap();
    store.migrate().await.unwrap();
    let broker = RabbitMq::connect(RabbitMqConfig::new(&vhost.amqp_url), Clock::system()).await.unwrap();
    refuses_what_fills_a_frame(store, Arc::new(broker)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_of_rabbitmq_ends_up_in_the_books() {
    let servers = shared().unwrap();
    let (database, vhost) = (servers.migrated_database().await.unwrap(), servers.vhost().await.unwrap());
    let store = Postgres::connect(PostgresConfig::new(&database.url), Clock::system()).await.unwrap();
    store.migrate().await.unwrap();
    let broker = RabbitMq::connect(RabbitMqConfig::new(&vhost.amqp_url), Clock::system()).await.unwrap();
    plays(store, Arc::new(broker)).await;
}

/// A broker whose first publish panics; everything else is the real one's.
struct Panicking {
    broker: Arc<dyn Broker>,
    panicked: AtomicBool,
}

#[async_trait]
impl Broker for Panicking {
    async fn declare(&self, topology: &Topology) -> Result<(), BrokerError> {
        self.broker.declare(topology).await
    }

    async fn publish(&self, batch: Vec<Outgoing>) -> Vec<Published> {
        assert!(self.panicked.swap(true, Ordering::Relaxed), "the first publish panics");
        self.broker.publish(batch).await
    }

    async fn subscribe(
        &self,
        queue: &QueueName,
        prefetch: u16,
    ) -> Result<Box<dyn Subscription>, BrokerError> {
        self.broker.subscribe(queue, prefetch).await
    }

    async fn depth(&self, queue: &QueueName) -> Result<u64, BrokerError> {
        self.broker.depth(queue).await
    }

    async fn ping(&self) -> Result<(), BrokerError> {
        self.broker.ping().await
    }

    async fn close(&self) {
        self.broker.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delivery_over_which_the_intake_panics_comes_again() {
    let folder = tempfile::tempdir().unwrap();
    let store =
        Sqlite::open(SqliteConfig::new(folder.path().join("books.db")), Clock::system()).await.unwrap();
    let real: Arc<dyn Broker> = Arc::new(EmbeddedBroker::open(store.clone(), Clock::system()).await.unwrap());
    let (ledger, service) = opened(store, &real).await;
    assert_eq!(real.publish(vec![message(0, "\"much\"")]).await, [Published::Confirmed]);

    let (stop, status) = (CancellationToken::new(), Arc::<IntakeStatus>::default());
    let broker: Arc<dyn Broker> =
        Arc::new(Panicking { broker: real.clone(), panicked: AtomicBool::new(false) });
    let intake = intake(&ledger, &broker, &service, &status, &stop);
    let running = tokio::spawn(intake.clone().run(stop.clone()));
    // It refuses the event, and the letter that says so panics on its way. The same subscription gets it again.
    let letters = dead_letters(real.clone(), service.clone(), 1).await;
    assert_eq!(letters.into_values().collect::<Vec<_>>(), ["rule_failed"]);
    stop.cancel();
    running.await.unwrap().unwrap();
    intake.sequencer.finish().await;
    assert_eq!(real.depth(service.name()).await.unwrap(), 0, "it is acked");
    real.close().await;
}

/// Each event is sent twice, every tenth has another payload the second time, every seventh is bad; and the intake is stopped and
/// started again in the middle.
async fn plays<B: Books + Inbox + DeadLetters>(books: B, broker: Arc<dyn Broker>) {
    let (ledger, service) = opened(books, &broker).await;
    let mut batch = Vec::new();
    for round in 0..2 {
        for n in 0..EVENTS {
            let amount = if n % 7 == 0 {
                "\"much\"".to_owned()
            } else if n % 10 == 0 {
                format!("{}", 10 + round)
            } else {
                "10".to_owned()
            };
            batch.push(message(n, &amount));
        }
    }
    batch.push(Outgoing::to_queue(
        service.name(),
        Message { body: b"nonsense".to_vec().into(), ..Message::default() },
    ));
    assert!(broker.publish(batch).await.iter().all(|answer| *answer == Published::Confirmed));

    let bad = (0..EVENTS).filter(|n| n % 7 == 0).count();
    let conflicts = (0..EVENTS).filter(|n| n % 7 != 0 && n % 10 == 0).count();
    let (good, status) = ((EVENTS - bad) as u64, Arc::<IntakeStatus>::default());
    // Read while the intake runs: what a life gives back may be in the queue again only a moment after its end.
    let letters = tokio::spawn(dead_letters(broker.clone(), service.clone(), bad + conflicts + 1));
    // The first life ends after a third of the deliveries, the second runs until the queue is empty and every letter came.
    for life in 0..2 {
        let stop = CancellationToken::new();
        let intake = intake(&ledger, &broker, &service, &status, &stop);
        let running = tokio::spawn(intake.clone().run(stop.clone()));
        let waiting = async {
            let is_done = async || letters.is_finished() && broker.depth(service.name()).await.unwrap() == 0;
            let enough = if life == 0 { good / 3 } else { good };
            while status.posted() < enough || life > 0 && !is_done().await {
                Clock::system().sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_mins(2), waiting).await.expect("the queue is emptied");
        stop.cancel();
        running.await.unwrap().unwrap();
        intake.sequencer.finish().await;
    }

    assert_eq!(status.posted(), good, "each good event once");
    let letters = letters.await.unwrap();
    let of_class = |wanted: &str| letters.values().filter(|class| *class == wanted).count();
    let found = ["rule_failed", "conflict", "malformed"].map(of_class);
    assert_eq!(
        found,
        [bad, conflicts, 1],
        "one dead letter for each that was refused, whatever was sent twice"
    );
    let mut entries = 0;
    for tenant in ledger.books().tenants().await.unwrap() {
        let verification = ledger.verify(&tenant, Scope::default()).await.unwrap().unwrap();
        assert!(verification.holds() && verification.balances_compared, "{verification:?}");
        entries += verification.entries;
    }
    assert_eq!(entries, good);
    broker.close().await;
}

/// An event that the rules refuse, with headers that leave no room in a frame for why: it is stored with all of them, and acked.
async fn refuses_what_fills_a_frame<B: Books + Inbox + DeadLetters>(books: B, broker: Arc<dyn Broker>) {
    let (ledger, service) = opened(books, &broker).await;
    let mut full = message(0, "\"much\"");
    // A queue that is not there tells what fits and takes nothing.
    let nowhere = QueueName::new("nowhere").unwrap();
    let mut filling = FRAME;
    loop {
        full.message.headers.insert("filling".to_owned(), "x".repeat(filling).into());
        let probe = Outgoing::to_queue(&nowhere, full.message.clone());
        if !matches!(&broker.publish(vec![probe]).await[..], [Published::Unfit(_)]) {
            break;
        }
        filling -= 1;
    }
    assert_eq!(broker.publish(vec![full]).await, [Published::Confirmed]);

    let (stop, status) = (CancellationToken::new(), Arc::<IntakeStatus>::default());
    let intake = intake(&ledger, &broker, &service, &status, &stop);
    let running = tokio::spawn(intake.clone().run(stop.clone()));
    let waiting = async {
        while status.refused() == 0 {
            Clock::system().sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_mins(2), waiting).await.expect("it is given up");
    stop.cancel();
    running.await.unwrap().unwrap();
    intake.sequencer.finish().await;

    let letters = ledger.books().dead_letters(10).await.unwrap();
    let [letter] = &letters[..] else { panic!("one letter: {letters:?}") };
    assert_eq!(letter.event_id.as_ref().unwrap().as_str(), "evt_0");
    assert_eq!((letter.reason.as_str(), letter.error_class.as_deref()), ("rejected", Some("rule_failed")));
    assert_eq!(letter.queue, *service.name());
    let kept = letter.headers.get("filling").and_then(|value| value.as_str()).map(str::len);
    assert_eq!(kept, Some(filling), "nothing of what it came with is missing");
    assert_eq!(broker.depth(service.name()).await.unwrap(), 0, "it is acked");
    assert_eq!(broker.depth(&service.dead_letter_queue).await.unwrap(), 0);
    broker.close().await;
}

/// Books for every tenant, and the queue that feeds them.
async fn opened<B: Books + Inbox>(books: B, broker: &Arc<dyn Broker>) -> (Ledger<B>, ServiceQueue) {
    let ledger = Ledger::new(books, Clock::system());
    for tenant in 0..TENANTS {
        let book = Book::new(TenantId::new(format!("t{tenant}")).unwrap(), Currency::new("EUR").unwrap());
        ledger.open_books(&book, &chart(), ready::RULES).await.unwrap();
    }
    let mut service = ServiceQueue::new("fis.ingestion.queue", RetryPolicy::default()).unwrap();
    service.identity = Identity::fis();
    service = service.bind(&exchange(), "*.*.*").unwrap();
    let events = Exchange {
        name: exchange(),
        kind: ExchangeKind::Topic,
        alternate: None,
        policy: ExchangePolicy::default(),
    };
    let topology =
        Topology { exchanges: vec![events], queues: service.queues(), bindings: service.bindings.clone() };
    broker.declare(&topology).await.unwrap();
    (ledger, service)
}

fn intake<B: Books + Inbox + DeadLetters>(
    ledger: &Ledger<B>,
    broker: &Arc<dyn Broker>,
    service: &ServiceQueue,
    status: &Arc<IntakeStatus>,
    stop: &CancellationToken,
) -> Arc<Intake<B>> {
    Arc::new(Intake {
        sequencer: Sequencer::new(ledger.clone(), 4, stop.clone()),
        broker: broker.clone(),
        service: service.clone(),
        name: ConsumerName::new("ledger").unwrap(),
        tenant: None,
        prefetch: 50,
        sight: None,
        clock: Clock::system(),
        status: status.clone(),
    })
}

/// An event as the seed's producers send it: identity in the body, the type in the routing key.
fn message(n: usize, amount: &str) -> Outgoing {
    let body = format!(
        r#"{{"eventId": "evt_{n}", "tenantId": "t{}", "employeeId": "e", "gross": {amount}, "currency": "EUR", "paidOn": "2026-03-01"}}"#,
        n % TENANTS
    );
    let message = Message { body: body.into_bytes().into(), ..Message::default() };
    Outgoing {
        exchange: exchange(),
        routing_key: RoutingKey::new("payroll.salary.disbursed").unwrap(),
        message,
    }
}

fn exchange() -> ExchangeName {
    ExchangeName::new("fis.events.exchange").unwrap()
}

/// The classes of all dead letters, by what makes each of them one.
async fn dead_letters(
    broker: Arc<dyn Broker>,
    service: ServiceQueue,
    count: usize,
) -> BTreeMap<String, String> {
    let mut subscription = broker.subscribe(&service.dead_letter_queue, 1000).await.unwrap();
    let settler = subscription.settler();
    let mut classes = BTreeMap::new();
    while classes.len() < count {
        let mut settled = Vec::new();
        let letters = tokio::time::timeout(Duration::from_mins(2), subscription.next(1000)).await;
        for letter in letters.unwrap_or_else(|_| panic!("only {} of {count} came", classes.len())).unwrap() {
            let header = |name| letter.message.header(name).unwrap().to_owned();
            classes.insert(
                header(dead_letter::header::DEAD_LETTER_ID),
                header(dead_letter::header::ERROR_CLASS),
            );
            settled.push((letter.receipt, Verdict::Ack));
        }
        settler.settle(settled).await.unwrap();
    }
    classes
}
