//! Services with the flaws of the designs that Postrider comes from, on real servers: killed at the wrong moment they lose events or
//! apply them twice, and the checker has to see it.
//!
//! Each says `between` when it is where a kill hurts, and stays there for a moment, so that a kill finds it there.

use std::io::Write as _;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use jiff::Timestamp;
use postrider::broker::{Outgoing, Published, Verdict};
use postrider::envelope::wire::{self, Identity};
use postrider::topology::{ExchangeKind, ExchangeName, QueueName, RoutingKey, ServiceQueue, Topology};
use postrider::{Broker, Clock, EventId, WireFormat};

use crate::effects::Effects;

/// Who applies events here.
pub const CONSUMER: &str = "flawed";
/// Who commits them, where the service that publishes has the flaw.
pub const PRODUCER: &str = "service";

/// How long it stays where a kill hurts.
const MOMENT: Duration = Duration::from_millis(200);

/// What is wrong with a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    /// Acks, then commits.
    AckBeforeCommit,
    /// Has no inbox: a redelivery is another effect.
    NoInbox,
    /// Marks the event in a transaction of its own, before its effects.
    InboxApart,
    /// Commits its row, then publishes in a second call.
    DualWrite,
}

impl Flaw {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::AckBeforeCommit, Self::NoInbox, Self::InboxApart, Self::DualWrite];

    /// Its name, on the command line and in the simulation's list.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::AckBeforeCommit => "ack-before-commit",
            Self::NoInbox => "no-inbox",
            Self::InboxApart => "inbox-apart",
            Self::DualWrite => "dual-write",
        }
    }
}

impl FromStr for Flaw {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|flaw| flaw.as_str() == name).with_context(|| format!("no flaw {name:?}"))
    }
}

fn exchange() -> Result<ExchangeName> {
    Ok(ExchangeName::new("flawed.events")?)
}

/// The queue of the one consumer.
pub fn queue() -> Result<QueueName> {
    Ok(QueueName::new("flawed.work")?)
}

/// The exchange, the queue and its binding.
pub fn topology() -> Result<Topology> {
    let service = ServiceQueue::new(queue()?.as_str(), postrider::settlement::RetryPolicy::default())?;
    let service = service.bind(&exchange()?, "work.#")?;
    Ok(Topology::default().exchange(exchange()?, ExchangeKind::Topic).service(&service))
}

/// Publishes the event of this number, and waits for the confirm.
pub async fn publish(broker: &dyn Broker, clock: &Clock, number: usize) -> Result<EventId> {
    let envelope = super::event(number)?.id(format!("work-{number}"))?.into_envelope(clock);
    let outgoing = Outgoing {
        exchange: exchange()?,
        routing_key: RoutingKey::from(&envelope.event_type),
        message: wire::encode(&envelope, WireFormat::Envelope, 0),
    };
    let answers = broker.publish(vec![outgoing]).await;
    ensure!(answers == [Published::Confirmed], "{number} was not confirmed: {answers:?}");
    Ok(envelope.id)
}

/// Works until it is killed.
pub async fn work<S: Effects>(store: S, broker: Arc<dyn Broker>, clock: Clock, flaw: Flaw) -> Result<()> {
    if flaw == Flaw::DualWrite {
        return write_twice(&store, broker.as_ref(), &clock).await;
    }
    let mut session = broker.subscribe(&queue()?, 10).await?;
    let settler = session.settler();
    loop {
        for delivery in session.next(10).await? {
            let read = wire::decode(
                &delivery.message,
                &delivery.routing_key,
                &Identity::default(),
                Timestamp::UNIX_EPOCH,
            );
            let id = read?.id;
            match flaw {
                Flaw::AckBeforeCommit => {
                    settler.settle(vec![(delivery.receipt, Verdict::Ack)]).await?;
                    between(&clock).await;
                    apply(&store, CONSUMER, &id).await?;
                    continue;
                }
                Flaw::NoInbox => {
                    apply(&store, CONSUMER, &id).await?;
                    between(&clock).await;
                }
                Flaw::InboxApart => {
                    if !applied(&store, "inbox", &id).await? {
                        apply(&store, "inbox", &id).await?;
                        between(&clock).await;
                        apply(&store, CONSUMER, &id).await?;
                    }
                }
                Flaw::DualWrite => bail!("it consumes nothing"),
            }
            settler.settle(vec![(delivery.receipt, Verdict::Ack)]).await?;
        }
    }
}

/// Commits and publishes, from where the one before it was killed.
async fn write_twice<S: Effects>(store: &S, broker: &dyn Broker, clock: &Clock) -> Result<()> {
    let mut number = store.effects().await?.iter().filter(|(who, _)| who == PRODUCER).count();
    loop {
        apply(store, PRODUCER, &EventId::new(format!("work-{number}"))?).await?;
        between(clock).await;
        publish(broker, clock, number).await?;
        number += 1;
    }
}

async fn apply<S: Effects>(store: &S, who: &str, id: &EventId) -> Result<()> {
    let mut tx = store.begin().await?;
    store.insert_effect(&mut tx, who, id).await?;
    Ok(store.commit(tx).await?)
}

async fn applied<S: Effects>(store: &S, who: &str, id: &EventId) -> Result<bool> {
    Ok(store.effects().await?.iter().any(|(name, known)| name == who && known == id))
}

async fn between(clock: &Clock) {
    // An ack is on its way for a moment, and shared with others.
    clock.sleep(MOMENT).await;
    let _ = std::io::stdout().lock().write_all(b"between 1\n");
    let _ = std::io::stdout().flush();
    clock.sleep(MOMENT).await;
}
