//! A mail service that moves from an old bus to a new one: a relay, and consumers of both queues with one inbox.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use postrider::consumer::ConsumerConfig;
use postrider::handler::handler_fn;
use postrider::migration::{Definition, LatencyRule, Legacy, LegacyFormat, MigrationName, Template};
use postrider::registry::Registry;
use postrider::relay::RelayConfig;
use postrider::runtime::{FurtherOutbox, Running, Runtime};
use postrider::settlement::RetryPolicy;
use postrider::store::HouseRules;
use postrider::topology::{
    BindingKey, ConsumerName, ExchangeKind, ExchangeName, QueueName, ServiceQueue, Topology,
};
use postrider::{Broker, Clock, Event, WireFormat};

use crate::effects::Effects;

/// The inbox that both consumers share, and the name that effects are under.
pub const INBOX: &str = "smtp";

/// Which parts of the service run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mailer {
    /// The relay alone.
    Relay,
    /// The consumers alone.
    Consumers,
    /// All of it.
    Whole,
    /// All but the consumer of the old queue.
    Moved,
}

fn events() -> Result<ExchangeName> {
    Ok(ExchangeName::new("smap.events")?)
}

fn legacy() -> Result<ExchangeName> {
    Ok(ExchangeName::new("smtp_send_email_exc")?)
}

fn service(old: bool) -> Result<ServiceQueue> {
    let retry = RetryPolicy::fixed(10, Duration::from_millis(200));
    Ok(if old {
        ServiceQueue::new("smtp_send_email", retry)?.bind(&legacy()?, "")?
    } else {
        ServiceQueue::new("smtp_send_email_v2", retry)?.bind(&events()?, "email.#")?
    })
}

/// From the e-mail fanout to the topic exchange; the old body is made of the event's data.
pub fn definition() -> Result<Definition> {
    let template = serde_json::json!({ "to": "/data/email", "number": "/data/number", "message_id": "$id" });
    Ok(Definition {
        name: MigrationName::new("mail")?,
        exchange: events()?,
        events: vec![BindingKey::new("email.#")?],
        legacy: Legacy {
            exchange: legacy()?,
            queue: Some(QueueName::new("smtp_send_email")?),
            waits: service(true)?.wait_queues.into_iter().map(|wait| wait.name).collect(),
            routing_key: None,
            format: LegacyFormat::Template(Template::new(template)?),
        },
        block_on_legacy: false,
        latency: LatencyRule::default(),
    })
}

/// Queues that hear everything on the old bus and on the new one, from before the migration: what an independent listener would have.
pub fn taps() -> Result<(Topology, [QueueName; 2])> {
    let tap = |name: &str| ServiceQueue::new(name, RetryPolicy::default());
    let (old, new) = (tap("tap.old")?.bind(&legacy()?, "")?, tap("tap.new")?.bind(&events()?, "email.#")?);
    let topology = Topology::default()
        .exchange(legacy()?, ExchangeKind::Fanout)
        .exchange(events()?, ExchangeKind::Topic)
        .service(&old)
        .service(&new);
    Ok((topology, [old.name().clone(), new.name().clone()]))
}

/// Someone asks for an e-mail.
pub fn email(number: usize) -> Result<Event> {
    let data =
        serde_json::json!({ "data": { "email": format!("user-{number}@example.com"), "number": number } });
    Ok(Event::new("email.verification.requested")?.id(format!("mail-{number}"))?.json(&data)?)
}

/// Starts it on a store and a broker. `others` are databases that have outboxes too, by their names.
pub async fn start<S: Effects>(
    store: S,
    others: Vec<(String, S)>,
    broker: Arc<dyn Broker>,
    clock: Clock,
    mailer: Mailer,
) -> Result<Running<S>> {
    let relay = RelayConfig {
        exchange: events()?,
        formats: [(events()?, WireFormat::Smap)].into(),
        lease: Duration::from_secs(2),
        poll_interval: Duration::from_millis(200),
        batch_size: 50,
        ..RelayConfig::default()
    };
    let topology = Topology::default().exchange(legacy()?, ExchangeKind::Fanout);
    let mut runtime = Runtime::new(store.clone(), broker, clock)
        .exchange(events()?, ExchangeKind::Topic)
        .topology(topology)
        .relay((mailer != Mailer::Consumers).then_some(relay.clone()));
    for (number, (name, store)) in others.into_iter().enumerate() {
        runtime = runtime.outbox(FurtherOutbox {
            store,
            label: format!("other-{number}"),
            relay: relay.clone(),
            house: HouseRules::default(),
            database: Some(name),
        });
    }
    for old in [false, true] {
        if mailer == Mailer::Relay || (old && mailer == Mailer::Moved) {
            runtime = runtime.topology(Topology::default().service(&service(old)?));
            continue;
        }
        let store = store.clone();
        let send = handler_fn::<S, _>(move |tx, event| {
            let store = store.clone();
            Box::pin(async move {
                store.insert_effect(tx, INBOX, &event.envelope.id).await?;
                Ok(())
            })
        });
        let config = ConsumerConfig {
            prefetch: 50,
            inbox: Some(ConsumerName::new(INBOX)?),
            ..ConsumerConfig::default()
        };
        let name = ConsumerName::new(if old { "smtp-legacy" } else { INBOX })?;
        runtime = runtime.consumer_with(name, service(old)?, Registry::new().on("#", send), config);
    }
    Ok(runtime.start().await?)
}
