//! The consumers of a chaos run: every effect in a table without a unique key, some events with trouble in them, and jobs that
//! have to complete once.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use postrider::consumer::ConsumerConfig;
use postrider::dedup::{Accelerator, AcceleratorConfig};
use postrider::envelope::OrderingKey;
use postrider::handler::handler_fn;
use postrider::postgres::{Postgres, PostgresTx};
use postrider::progress::{JobId, Mark, Progress};
use postrider::redis::{RedisCache, RedisConfig};
use postrider::registry::Registry;
use postrider::runtime::{Running, Runtime};
use postrider::settlement::RetryPolicy;
use postrider::store::{AppliedIn, Registration};
use postrider::topology::{ConsumerName, ExchangeKind, ExchangeName, OnDead, ServiceQueue, Topology};
use postrider::{Broker, Clock, Failure, Incoming};

use crate::worker::{connect_postgres, connect_rabbitmq};

/// The exchange of all events.
pub const EXCHANGE: &str = "chaos.events";

/// Who applies events, and by which key: two that want the same, one that is the only one who wants its own, and one that is
/// told of finished jobs.
pub const CONSUMERS: [(&str, &str); 4] = [
    ("free", "chaos.order.*"),
    ("ordered", "chaos.order.*"),
    ("solo", "chaos.solo.*"),
    ("jobs", "chaos.job.*"),
];

/// The table that a double would show in.
pub const CREATE: &str = "CREATE TABLE IF NOT EXISTS chaos_effect (position bigserial, consumer text NOT NULL, \
    event_id text NOT NULL, ordering_key text, number bigint, at timestamptz NOT NULL DEFAULT clock_timestamp(), process bigint, \
    attempt bigint)";

fn service(consumer: &str, key: &str) -> Result<ServiceQueue> {
    let retry = RetryPolicy::fixed(20, Duration::from_millis(500));
    let service =
        ServiceQueue::new(format!("chaos.{consumer}"), retry)?.bind(&ExchangeName::new(EXCHANGE)?, key)?;
    Ok(if consumer == "ordered" { service.ordered(OnDead::Continue) } else { service })
}

/// The consumers as the store knows them, for the account.
pub fn registrations() -> Result<Vec<Registration>> {
    let exchange = ExchangeName::new(EXCHANGE)?;
    let mut topology = Topology::default().exchange(exchange.clone(), ExchangeKind::Topic);
    for (consumer, key) in CONSUMERS {
        topology = topology.service(&service(consumer, key)?);
    }
    let registration = |(consumer, key): (&str, &str)| {
        let (name, service) = (ConsumerName::new(consumer)?, service(consumer, key)?);
        Ok(Registration {
            name,
            inbox: None,
            applied_in: AppliedIn::Inbox,
            service,
            topology: topology.clone(),
            exchange: exchange.clone(),
            since: None,
            push: None,
        })
    };
    CONSUMERS.into_iter().map(registration).collect()
}

/// Runs all consumers until the process is killed, and says from time to time how many duplicates were known.
pub async fn work(database: &str, rabbitmq: &str, redis: &str) -> Result<()> {
    let clock = Clock::system();
    // Whatever is away when the process starts will be back.
    let running = loop {
        match start(database, rabbitmq, redis, &clock).await {
            Ok(running) => break running,
            Err(error) => {
                eprintln!("cannot start yet: {error:#}");
                clock.sleep(Duration::from_millis(500)).await;
            }
        }
    };
    loop {
        clock.sleep(Duration::from_millis(500)).await;
        let duplicates: u64 = running.consumers().iter().map(|one| one.status.duplicates()).sum();
        println(&format!("duplicates {duplicates}"));
    }
}

#[allow(clippy::print_stdout, reason = "the line is for whoever started the worker")]
fn println(line: &str) {
    println!("{line}");
}

async fn start(database: &str, rabbitmq: &str, redis: &str, clock: &Clock) -> Result<Running<Postgres>> {
    let store = connect_postgres(database, clock).await?;
    let broker: Arc<dyn Broker> = connect_rabbitmq(rabbitmq, clock).await?;
    let cache = RedisCache::new(RedisConfig::new(redis), Duration::from_hours(1));
    let accelerator = Accelerator::start(Arc::new(cache), clock.clone(), AcceleratorConfig::default()).await;
    let exchange = ExchangeName::new(EXCHANGE)?;
    let mut runtime = Runtime::new(store.clone(), broker, clock.clone())
        .exchange(exchange.clone(), ExchangeKind::Topic)
        .relay(None)
        .events_from(exchange)
        .accelerator(accelerator);
    for (consumer, key) in CONSUMERS {
        let progress = Progress::new(store.clone());
        let apply = handler_fn::<Postgres, _>(move |tx, event| {
            let progress = progress.clone();
            Box::pin(async move { apply(tx, event, &progress).await })
        });
        let config = ConsumerConfig {
            prefetch: 100,
            handler_limit: Duration::from_secs(5),
            // The kills are ours, and not the events' fault.
            max_crashes: 0,
            poll_interval: Duration::from_millis(500),
            ..ConsumerConfig::default()
        };
        let (name, handlers) = (ConsumerName::new(consumer)?, Registry::new().on("#", apply));
        runtime = runtime.consumer_with(name, service(consumer, key)?, handlers, config);
    }
    Ok(runtime.start().await?)
}

async fn apply(tx: &mut PostgresTx, event: &Incoming, progress: &Progress<Postgres>) -> Result<(), Failure> {
    let payload: serde_json::Value = event.envelope.payload.parse()?;
    let insert = "INSERT INTO chaos_effect (consumer, event_id, ordering_key, number, process, attempt) VALUES ($1, $2, $3, $4, $5, $6)";
    sqlx::query(insert)
        .bind(event.consumer.as_str())
        .bind(event.envelope.id.as_str())
        .bind(event.envelope.ordering_key.as_ref().map(OrderingKey::as_str))
        .bind(payload["number"].as_i64())
        .bind(i64::from(std::process::id()))
        .bind(i64::from(event.attempt))
        .execute(tx.connection())
        .await
        .map_err(Failure::transient)?;
    if let (Some(job), "free") = (payload["job"].as_str(), event.consumer.as_str()) {
        let mark = Mark::done(event.envelope.id.as_str()).map_err(Failure::permanent)?;
        let job = JobId::new(job).map_err(Failure::permanent)?;
        progress.mark_in(tx, &job, &[mark]).await?;
    }
    match payload["trouble"].as_str() {
        Some("flaky") if event.attempt < 2 => Err(Failure::transient("not yet")),
        Some("rejected") => Err(Failure::permanent("no such account")),
        _ => Ok(()),
    }
}
