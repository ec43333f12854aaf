//! Three relays, 200,000 events of 5,000 keys, and everything that can go wrong with them: relays killed, relays stopped
//! beyond their lease and resumed, the broker restarted, the connections to PostgreSQL ended, streams among them. Nothing is
//! lost, every key arrives in its order, and what arrives twice is known to the inbox. Once with all events waiting, so that they
//! are polled, and once with events committed all the while, so that one relay streams them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use postrider::broker::{Delivery, Verdict};
use postrider::envelope::wire::{self, Identity};
use postrider::postgres::Postgres as Store;
use postrider::store::{Admission, Arrival, Inbox as _, Outbox as _, Store as _};
use postrider::topology::{ConsumerName, Queue, QueueName, Topology};
use postrider::{Broker, Clock, Event};
use postrider_testkit::servers::{Postgres, RabbitMq};
use postrider_testkit::worker::{self, WorkerProcess};
use tokio::sync::watch;

const EVENTS: usize = 200_000;
const KEYS: usize = 5_000;
const LIMIT: Duration = Duration::from_mins(4);
const WORKER: &str = env!("CARGO_BIN_EXE_postrider-worker");
const QUEUE: &str = "relayed";
/// While events are committed all the while, so many are ahead of the reader at most.
const AHEAD: usize = 10_000;
/// Events in a transaction.
const CHUNK: usize = 2_000;

/// Appends events, [`CHUNK`] to a transaction, at once or just ahead of the reader. The number of an event is its place in its key.
async fn commit_events(store: &Store, mut reader: Option<watch::Receiver<usize>>) {
    for chunk in 0..EVENTS / CHUNK {
        if let Some(arrived) = &mut reader {
            arrived.wait_for(|arrived| arrived + AHEAD > chunk * CHUNK).await.expect("the reader failed");
        }
        let events = (0..CHUNK).map(|at| {
            let number = chunk * CHUNK + at;
            let mut event = Event::new("work.item.made").unwrap();
            event = event.aggregate_id(format!("item-{}", number % KEYS)).unwrap();
            event.target_queue = Some(QueueName::new(QUEUE).unwrap());
            event.json(&serde_json::json!({ "number": number / KEYS })).unwrap()
        });
        let events: Vec<_> = events.collect();
        // The connection may be ended in the middle; without an answer it is not known whether the events are there.
        loop {
            let Ok(mut tx) = store.begin().await else { continue };
            if store.append(&mut tx, events.clone()).await.is_ok() {
                store.commit(tx).await.unwrap();
                break;
            }
        }
    }
}

/// What has arrived: for every key the place of its last new event.
#[derive(Default)]
struct Arrived {
    last: HashMap<String, u64>,
    new: usize,
    doubles: usize,
}

impl Arrived {
    /// Takes deliveries through the inbox, and expects each new event to be the next of its key.
    async fn take(&mut self, store: &Store, consumer: &ConsumerName, deliveries: &[Delivery], clock: &Clock) {
        let envelopes: Vec<_> = deliveries
            .iter()
            .map(|delivery| {
                wire::decode(&delivery.message, &delivery.routing_key, &Identity::default(), clock.now())
                    .unwrap()
            })
            .collect();
        let arrivals: Vec<_> = envelopes
            .iter()
            .map(|envelope| Arrival {
                event_id: envelope.id.clone(),
                tenant: envelope.tenant.group.clone(),
                payload_hash: envelope.payload.hash(),
            })
            .collect();
        // The inbox has a server of its own: were the answer to a commit lost, new events would count as doubles here.
        let mut tx = store.begin().await.unwrap();
        let admissions = store.admit(&mut tx, consumer, &arrivals).await.unwrap();
        store.commit(tx).await.unwrap();
        for ((envelope, delivery), admission) in envelopes.iter().zip(deliveries).zip(admissions) {
            if admission != Admission::New {
                self.doubles += 1;
                continue;
            }
            let payload: serde_json::Value = serde_json::from_slice(envelope.payload.bytes()).unwrap();
            let number = payload["number"].as_u64().unwrap();
            let key = envelope.ordering_key.as_ref().unwrap().to_string();
            let expected = self.last.get(&key).map_or(0, |last| last + 1);
            // Whether RabbitMQ gave it back in another order, or got it so.
            let again = if delivery.redelivered { "again" } else { "for the first time" };
            assert_eq!(number, expected, "{key} is out of order; the broker delivered this one {again}");
            self.last.insert(key, number);
            self.new += 1;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn three_relays_lose_nothing_and_keep_the_order_of_every_key() {
    trouble(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn three_relays_of_which_one_streams_lose_nothing_and_keep_the_order_of_every_key() {
    trouble(true).await;
}

async fn trouble(live: bool) {
    let (postgres, inbox, rabbitmq) = tokio::join!(Postgres::start(), Postgres::start(), RabbitMq::start());
    let (postgres, inbox, rabbitmq) = (postgres.unwrap(), inbox.unwrap(), rabbitmq.unwrap());
    let clock = Clock::system();
    let store = worker::connect_postgres(&postgres.url(), &clock).await.unwrap();
    store.migrate().await.unwrap();
    let inbox = worker::connect_postgres(&inbox.url(), &clock).await.unwrap();
    inbox.migrate().await.unwrap();
    let broker = worker::connect_rabbitmq(&rabbitmq.amqp_url(), &clock).await.unwrap();
    let queue = QueueName::new(QUEUE).unwrap();
    broker.declare(&Topology::default().queue(Queue::quorum(queue.clone()))).await.unwrap();
    if !live {
        commit_events(&store, None).await;
    }

    let (tell, mut progress) = watch::channel(0);
    let reading = tokio::spawn(read(broker.clone(), inbox, queue, clock.clone(), tell));
    let words = ["relay", "servers", &postgres.url(), &rabbitmq.amqp_url()];
    let start = || WorkerProcess::start(WORKER, &words).unwrap();
    let mut relays = vec![start(), start(), start()];
    let writing = live.then(|| {
        let (writer, arrived) = (store.clone(), progress.clone());
        tokio::spawn(async move {
            while writer.stream_state().await.unwrap().is_none() {
                writer.wait(Duration::from_millis(20)).await;
            }
            commit_events(&writer, Some(arrived)).await;
        })
    });
    // Each trouble comes when so much of everything has arrived.
    let mut percent = async |part: usize| {
        progress.wait_for(|arrived| *arrived >= EVENTS * part / 100).await.expect("the reader failed");
    };

    percent(10).await;
    relays[0].pause().unwrap();
    // One of the other two, whichever publishes: beside a stream the rest stand by.
    let (mut second, mut third) = (relays.remove(1), relays.remove(1));
    let (busy, idle) = tokio::select! {
        busy = second.until(|hands| hands.unconfirmed() > 0) => { busy.unwrap(); (second, third) }
        busy = third.until(|hands| hands.unconfirmed() > 0) => { busy.unwrap(); (third, second) }
    };
    relays.push(idle);
    let hands = busy.kill().await.unwrap();
    eprintln!("killed a relay with {} unconfirmed", hands.unconfirmed());
    relays.push(start());

    // The lease of two seconds ends; others take over what the stopped one held.
    clock.sleep(Duration::from_secs(3)).await;
    relays[0].resume().unwrap();

    percent(40).await;
    rabbitmq.kill().unwrap();
    rabbitmq.restart().await.unwrap();

    percent(60).await;
    let ended: i64 = sqlx::query_scalar(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
         WHERE backend_type IN ('client backend', 'walsender') AND pid <> pg_backend_pid() \
           AND NOT (query ILIKE 'COMMIT%' OR query ILIKE 'INSERT INTO%')",
    )
    .fetch_one(store.pool())
    .await
    .unwrap();
    assert!(ended > 3, "only {ended} connections were ended");

    if let Some(writing) = writing {
        tokio::time::timeout(LIMIT, writing).await.expect("not everything was committed in time").unwrap();
        let streams = async {
            while store.stream_state().await.unwrap().is_none() {
                clock.sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(LIMIT, streams).await.expect("nobody streams again");
    }
    let arrived =
        tokio::time::timeout(LIMIT, reading).await.expect("not everything arrived in time").unwrap();
    assert_eq!(arrived.new, EVENTS);
    assert!(arrived.last.values().all(|last| *last == (EVENTS / KEYS - 1) as u64));
    eprintln!("{} events arrived, and {} doubles that the inbox knew", arrived.new, arrived.doubles);
}

/// Reads until everything has arrived.
async fn read(
    broker: Arc<dyn Broker>,
    inbox: Store,
    queue: QueueName,
    clock: Clock,
    tell: watch::Sender<usize>,
) -> Arrived {
    let consumer = ConsumerName::new("reader").unwrap();
    let mut arrived = Arrived::default();
    let mut subscription = broker.subscribe(&queue, 2_000).await.unwrap();
    let settler = subscription.settler();
    while arrived.new < EVENTS {
        let deliveries = subscription.next(1_000).await.unwrap();
        arrived.take(&inbox, &consumer, &deliveries, &clock).await;
        tell.send_replace(arrived.new);
        let acks = deliveries.into_iter().map(|delivery| (delivery.receipt, Verdict::Ack)).collect();
        // Unacked after a lost connection: they come again, and the inbox knows them.
        let _lost = settler.settle(acks).await;
    }
    arrived
}
