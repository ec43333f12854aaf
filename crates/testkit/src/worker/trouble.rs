//! Work with trouble in it: events that fail and pass, that are rejected, and that take the process down.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use postrider::consumer::ConsumerConfig;
use postrider::handler::handler_fn;
use postrider::registry::Registry;
use postrider::relay::RelayConfig;
use postrider::runtime::{Running, Runtime};
use postrider::settlement::RetryPolicy;
use postrider::store::{AppliedIn, Registration};
use postrider::topology::{ConsumerName, ExchangeKind, ExchangeName, OnDead, ServiceQueue, Topology};
use postrider::{Broker, Clock, Event, Failure};
use rustix::process::{Signal, getpid, kill_process};

use super::fault::{Fault, Step};
use crate::effects::Effects;

/// Who applies the troubled events: one as they come, one in the order of their keys.
pub const TROUBLED: [&str; 2] = ["free", "ordered"];

/// What an event does to those who handle it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// Nothing.
    None,
    /// Fails twice, then passes.
    Flaky,
    /// Is rejected.
    Rejected,
    /// Kills the process.
    Poison,
}

impl Trouble {
    fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Flaky => "flaky",
            Self::Rejected => "rejected",
            Self::Poison => "poison",
        }
    }
}

/// An event with its trouble, one of five keys.
pub fn event(number: usize, trouble: Trouble) -> Result<Event> {
    let event = Event::new("trouble.item.made")?.aggregate_id(format!("item-{}", number % 5))?;
    Ok(event.json(&serde_json::json!({ "number": number, "trouble": trouble.as_str() }))?)
}

fn exchange() -> Result<ExchangeName> {
    Ok(ExchangeName::new("trouble.events")?)
}

fn service(consumer: &str) -> Result<ServiceQueue> {
    let retry = RetryPolicy::fixed(5, Duration::from_millis(50));
    let service = ServiceQueue::new(format!("trouble.{consumer}"), retry)?.bind(&exchange()?, "trouble.#")?;
    Ok(if consumer == "ordered" { service.ordered(OnDead::Continue) } else { service })
}

/// The consumers as the store knows them, for the account.
pub fn registrations() -> Result<Vec<Registration>> {
    let mut topology = Topology::default().exchange(exchange()?, ExchangeKind::Topic);
    for consumer in TROUBLED {
        topology = topology.service(&service(consumer)?);
    }
    let registration = |consumer: &&str| {
        let (name, exchange) = (ConsumerName::new(consumer)?, exchange()?);
        Ok(Registration {
            name,
            inbox: None,
            applied_in: AppliedIn::Inbox,
            service: service(consumer)?,
            topology: topology.clone(),
            exchange,
            since: None,
            push: None,
        })
    };
    TROUBLED.iter().map(registration).collect()
}

/// Starts a relay, the consumers and their collectors. With a fault, crashes are not counted: they are the test's own.
pub async fn start<S: Effects>(
    store: S,
    broker: Arc<dyn Broker>,
    clock: Clock,
    fault: Option<Fault>,
) -> Result<Running<S>> {
    let relay = RelayConfig {
        exchange: exchange()?,
        lease: Duration::from_secs(2),
        poll_interval: Duration::from_millis(200),
        ..RelayConfig::default()
    };
    let mut runtime = Runtime::new(store.clone(), broker, clock)
        .exchange(exchange()?, ExchangeKind::Topic)
        .relay(Some(relay));
    for consumer in TROUBLED {
        let (store, at) = (store.clone(), fault.clone());
        let apply = handler_fn::<S, _>(move |tx, event| {
            let (store, at) = (store.clone(), at.clone());
            Box::pin(async move {
                store.insert_effect(tx, event.consumer.as_str(), &event.envelope.id).await?;
                if let Some(fault) = at {
                    fault.at(Step::Handling);
                }
                let payload: serde_json::Value = event.envelope.payload.parse()?;
                match payload["trouble"].as_str() {
                    Some("flaky") if event.attempt < 3 => Err(Failure::transient("not yet")),
                    Some("rejected") => Err(Failure::permanent("no such account")),
                    Some("poison") => {
                        let _ = kill_process(getpid(), Signal::KILL);
                        std::future::pending().await
                    }
                    _ => Ok(()),
                }
            })
        });
        let config = ConsumerConfig {
            // Held events are leased for a little longer than this: a crash leaves them to nobody for so long.
            handler_limit: Duration::from_secs(2),
            max_crashes: if fault.is_some() { 0 } else { 3 },
            poll_interval: Duration::from_millis(100),
            ..ConsumerConfig::default()
        };
        let (name, handlers) = (ConsumerName::new(consumer)?, Registry::new().on("#", apply));
        runtime = runtime.consumer_with(name, service(consumer)?, handlers, config);
    }
    Ok(runtime.start().await?)
}
