//! A process to be killed: a relay, consumers, or both, which tells what it has in its hands.
//!
//! The worker writes a line before and after everything that a kill could fall between; the test that kills it reads
//! them to the last one, and so knows whether messages were unconfirmed or unsettled at that moment.

pub mod counter;
mod dying;
pub mod fault;
pub mod flawed;
pub mod mailer;
pub mod operator;
mod process;
pub mod trouble;
mod watched;

pub use dying::{DieAt, Dying};
pub use process::{Hands, WorkerProcess};
pub use watched::Watched;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use postrider::consumer::ConsumerConfig;
use postrider::handler::handler_fn;
use postrider::postgres::{Postgres, PostgresConfig};
use postrider::rabbitmq::{RabbitMq, RabbitMqConfig};
use postrider::registry::Registry;
use postrider::relay::RelayConfig;
use postrider::runtime::{Running, Runtime};
use postrider::settlement::RetryPolicy;
use postrider::store::{AppliedIn, Registration};
use postrider::topology::{ConsumerName, ExchangeKind, ExchangeName, ServiceQueue, Topology};
use postrider::{Broker, Clock, Event, Failure};

use crate::effects::Effects;

/// The two consumers that each want every event.
pub const CONSUMERS: [&str; 2] = ["first", "second"];

/// What a worker does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Role {
    /// Publishes what is committed.
    Relay,
    /// Applies what arrives.
    Consumers,
    /// Both.
    Both,
    /// Both, with a handler that rejects everything for as long as the file named here does not exist.
    Triage(std::path::PathBuf),
    /// Both, with a handler that rejects every event that does not say it is mended.
    Correcting,
}

fn exchange() -> Result<ExchangeName> {
    Ok(ExchangeName::new("work.events")?)
}

fn service(consumer: &str) -> Result<ServiceQueue> {
    let retry = RetryPolicy::fixed(10, Duration::from_millis(200));
    Ok(ServiceQueue::new(format!("work.{consumer}"), retry)?.bind(&exchange()?, "work.#")?)
}

/// The consumers as the store knows them, for the account.
pub fn registrations() -> Result<Vec<Registration>> {
    let mut topology = Topology::default().exchange(exchange()?, ExchangeKind::Topic);
    for consumer in CONSUMERS {
        topology = topology.service(&service(consumer)?);
    }
    CONSUMERS
        .iter()
        .map(|consumer| {
            let name = ConsumerName::new(consumer)?;
            Ok(Registration {
                name,
                inbox: None,
                applied_in: AppliedIn::Inbox,
                service: service(consumer)?,
                topology: topology.clone(),
                exchange: exchange()?,
                since: None,
                push: None,
            })
        })
        .collect()
}

/// An event of the work: 50 ordering keys.
pub fn event(number: usize) -> Result<Event> {
    let event = Event::new("work.item.made")?.aggregate_id(format!("item-{}", number % 50))?;
    Ok(event.json(&serde_json::json!({ "number": number }))?)
}

/// Starts the role on a store and a broker.
pub async fn start<S: Effects>(
    store: S,
    broker: Arc<dyn Broker>,
    clock: Clock,
    role: Role,
) -> Result<Running<S>> {
    let relay = RelayConfig {
        exchange: exchange()?,
        lease: Duration::from_secs(2),
        poll_interval: Duration::from_millis(200),
        ..RelayConfig::default()
    };
    let mut runtime = Runtime::new(store.clone(), broker, clock)
        .exchange(exchange()?, ExchangeKind::Topic)
        .relay((role != Role::Consumers).then_some(relay));
    for consumer in CONSUMERS {
        if role == Role::Relay {
            runtime = runtime.topology(Topology::default().service(&service(consumer)?));
            continue;
        }
        let (store, role) = (store.clone(), role.clone());
        let apply = handler_fn::<S, _>(move |tx, event| {
            let (store, role) = (store.clone(), role.clone());
            Box::pin(async move {
                let mended = match role {
                    Role::Triage(path) => path.exists(),
                    Role::Correcting => {
                        event.envelope.payload.parse::<serde_json::Value>()?["mended"] == true
                    }
                    _ => true,
                };
                if !mended {
                    return Err(Failure::permanent("not mended yet"));
                }
                store.insert_effect(tx, event.consumer.as_str(), &event.envelope.id).await?;
                Ok(())
            })
        });
        let config = ConsumerConfig { prefetch: 100, ..ConsumerConfig::default() };
        runtime = runtime.consumer_with(
            ConsumerName::new(consumer)?,
            service(consumer)?,
            Registry::new().on("#", apply),
            config,
        );
    }
    Ok(runtime.start().await?)
}

/// The database, with the schema already there.
pub async fn connect_postgres(url: &str, clock: &Clock) -> Result<Postgres> {
    let config = PostgresConfig { max_connections: 24, ..PostgresConfig::new(url) };
    Ok(Postgres::connect(config, clock.clone()).await?)
}

/// The broker; several nodes of a cluster are separated by commas.
pub async fn connect_rabbitmq(urls: &str, clock: &Clock) -> Result<Arc<dyn Broker>> {
    Ok(Arc::new(RabbitMq::connect(RabbitMqConfig::new(urls), clock.clone()).await?))
}
