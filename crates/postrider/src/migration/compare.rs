//! Proves parity: taps both buses, and compares by event id what arrived there with what the outboxes say should have.
//!
//! A tap is a queue of its own, bound to an exchange as its consumers are. Both taps are bound before the window opens, and the
//! window is made of outbox positions: an event committed after the taps were bound is published after it, so it must arrive at
//! both. A crash leaves the taps behind; RabbitMQ drops them after ten minutes, and the next comparison starts with fresh ones.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{Either, select};

use super::parity::Arrivals;
use super::source::Window;
use super::steps::{obstacles_to_settling, running};
use super::{Course, Databases, Definition, MigrationError, MigrationName, Parity, Phase, Side, Source};
use crate::broker::{Broker, BrokerError, Delivery, Removal, Subscription, Verdict};
use crate::clock::Clock;
use crate::envelope::wire::{self, Identity};
use crate::envelope::{EventId, EventType, Payload, PayloadHash};
use crate::store::{Outbox, OutboxDesk, StoreError};
use crate::topology::{Argument, Binding, BindingKey, ExchangeName, Queue, QueueKind, QueueName, Topology};

/// Deliveries that are fetched at a time.
const BATCH: usize = 500;
/// What is heard is marked as published a moment later, and expected from then on: for so long such marks are waited for.
const MARKED: Duration = Duration::from_secs(2);
/// How long to listen between two looks at the outbox.
const BREATH: Duration = Duration::from_millis(250);
/// A tap that nobody uses is dropped by RabbitMQ after this long, in milliseconds.
const TAP_EXPIRES_MS: i64 = 600_000;
/// Of so many arrivals outside of the window it is asked whether somebody committed them.
const ASKED: usize = 10_000;
/// How often it is asked of those that are not found.
const LOOKS: u32 = 20;

/// How to compare.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Comparing {
    /// Listen for so long.
    pub listen: Duration,
    /// Or until so many events arrived.
    pub most_events: usize,
    /// Wait so long for what is still on its way.
    pub patience: Duration,
}

impl Default for Comparing {
    fn default() -> Self {
        Self { listen: Duration::from_secs(30), most_events: 100_000, patience: Duration::from_secs(30) }
    }
}

/// Compares both buses of the migration that runs, and keeps the report where a cutover looks for it. `sources` are all outboxes
/// that publish to the new bus; the first one is in the database that has the migration.
///
/// Events that were published without a copy since the phase began are found, too, and copies of them are made now.
pub async fn compare<S: Outbox + OutboxDesk>(
    sources: &[Source<S>],
    broker: &Arc<dyn Broker>,
    clock: &Clock,
    how: &Comparing,
) -> Result<Parity, MigrationError> {
    let (first, more) = sources.split_first().ok_or(MigrationError::NoneRuns)?;
    let databases = Databases::new(first.store.clone(), clock.clone()).with(more);
    let standing = running(&databases).await?;
    let store = databases.main();
    let course = store.course().await?.ok_or(MigrationError::NoneRuns)?;
    if standing.phase != Phase::Dual || course.version != standing.version {
        let name = course.definition.name.clone();
        let why = "there is nothing to compare unless both buses are published to";
        return Err(MigrationError::NotNow { name, phase: course.phase, why });
    }
    let unsettled = obstacles_to_settling(&standing);
    if !unsettled.is_empty() {
        return Err(MigrationError::Obstacles(unsettled));
    }
    if let Some(queue) = &course.definition.legacy.queue {
        // With a tap bound, RabbitMQ would confirm copies that reach nobody else.
        broker.depth(queue).await?;
    }
    let name = course.definition.name.clone();
    remove_taps(broker.as_ref(), &name).await?;
    let compared = listen(sources, broker, clock, how, &course).await;
    remove_taps(broker.as_ref(), &name).await?;
    let parity = compared?;
    store.keep_parity(&name, &parity).await?;
    Ok(parity)
}

/// Removes the taps of a migration, if some were left behind.
pub async fn remove_taps(broker: &dyn Broker, name: &MigrationName) -> Result<(), BrokerError> {
    let queues = [Side::New, Side::Legacy].into_iter().filter_map(|side| tap_name(name, side)).collect();
    broker.remove(&Removal { queues, ..Removal::default() }).await
}

fn tap_name(name: &MigrationName, side: Side) -> Option<QueueName> {
    let side = match side {
        Side::New => "new",
        Side::Legacy => "legacy",
    };
    QueueName::new(format!("postrider.tap.{name}.{side}")).ok()
}

/// The taps as a topology. Both exchanges are there already.
fn taps(definition: &Definition) -> Topology {
    let mut topology = Topology::default();
    let mut tap = |side: Side, exchange: &ExchangeName, keys: Vec<BindingKey>| {
        let Some(name) = tap_name(&definition.name, side) else { return };
        topology.queues.push(Queue {
            kind: QueueKind::Classic,
            arguments: [("x-expires".to_owned(), Argument::Int(TAP_EXPIRES_MS))].into(),
            ..Queue::quorum(name.clone())
        });
        for key in keys {
            topology.bindings.push(Binding { exchange: exchange.clone(), queue: name.clone(), key });
        }
    };
    tap(Side::New, &definition.exchange, definition.events.clone());
    let own = definition.legacy.routing_key.as_ref().and_then(|key| BindingKey::new(key.as_str()).ok());
    let keys = own.map_or_else(|| definition.events.clone(), |key| vec![key]);
    tap(Side::Legacy, &definition.legacy.exchange, keys);
    topology
}

/// What both taps heard so far.
struct Ears {
    new: Box<dyn Subscription>,
    legacy: Box<dyn Subscription>,
    arrivals: Arrivals,
    clock: Clock,
}

async fn listen<S: Outbox + OutboxDesk>(
    sources: &[Source<S>],
    broker: &Arc<dyn Broker>,
    clock: &Clock,
    how: &Comparing,
    course: &Course,
) -> Result<Parity, MigrationError> {
    let definition = &course.definition;
    broker.declare(&taps(definition)).await?;
    let prefetch = u16::try_from(BATCH * 2).unwrap_or(u16::MAX);
    let (Some(new), Some(legacy)) =
        (tap_name(&definition.name, Side::New), tap_name(&definition.name, Side::Legacy))
    else {
        return Err(MigrationError::Obstacles(vec!["the migration's name is too long for a tap".to_owned()]));
    };
    let mut ears = Ears {
        new: broker.subscribe(&new, prefetch).await?,
        legacy: broker.subscribe(&legacy, prefetch).await?,
        arrivals: Arrivals::default(),
        clock: clock.clone(),
    };
    // Whatever is committed from here on is published while both taps are bound.
    let mut windows = Vec::new();
    for source in sources {
        windows.push(Window::open(source, course).await.map_err(away(source))?);
    }
    let started = clock.monotonic();
    while clock.since(started) < how.listen && ears.arrivals.len() < how.most_events {
        ears.hear(BREATH).await?;
    }
    for window in &mut windows {
        window.close().await.map_err(away(window.source))?;
    }
    let waiting = clock.monotonic();
    loop {
        for window in &mut windows {
            window.read().await.map_err(away(window.source))?;
        }
        // What is committed may wait for a relay that takes over from another.
        let published =
            windows.iter().any(|window| !window.expected.is_empty()) || windows.iter().all(Window::is_empty);
        let expected: Vec<_> = windows.iter().flat_map(|window| &window.expected).collect();
        let all_there = expected.iter().all(|event| ears.arrivals.has(event));
        let waited = clock.since(waiting);
        let unmarked = waited < MARKED && !ears.arrivals.unexpected(&expected).is_empty();
        if (published && all_there && !unmarked) || waited >= how.patience {
            break;
        }
        ears.hear(BREATH).await?;
    }
    for window in &mut windows {
        window.look_back(clock.now()).await.map_err(away(window.source))?;
    }
    let expected: Vec<_> = windows.iter().flat_map(|window| &window.expected).collect();
    let earlier: Vec<_> = windows.iter().flat_map(|window| &window.earlier).collect();
    let strangers = strangers(sources, clock, ears.arrivals.unexpected(&expected)).await?;
    let report = ears.arrivals.report(&expected, &earlier, &strangers, course.version, clock.now());
    for window in &windows {
        window.make_up().await.map_err(away(window.source))?;
    }
    Ok(report)
}

/// That the database of an outbox cannot be asked; which one, if there are several.
fn away<S>(source: &Source<S>) -> impl Fn(StoreError) -> MigrationError {
    let database = source.database.clone();
    move |cause| match database.clone() {
        Some(database) => MigrationError::Away { database, cause },
        None => cause.into(),
    }
}

/// Of the arrivals outside of the window, those that nobody committed. A relay that streams may publish an event a moment before its
/// commit can be seen, so those that are not found are looked for again.
async fn strangers<S: OutboxDesk>(
    sources: &[Source<S>],
    clock: &Clock,
    mut suspects: Vec<EventId>,
) -> Result<Vec<EventId>, MigrationError> {
    suspects.truncate(ASKED);
    for _ in 0..LOOKS {
        let mut missing = Vec::new();
        for event in suspects {
            if !committed(sources, &event).await? {
                missing.push(event);
            }
        }
        suspects = missing;
        if suspects.is_empty() {
            break;
        }
        clock.sleep(BREATH).await;
    }
    Ok(suspects)
}

async fn committed<S: OutboxDesk>(sources: &[Source<S>], event: &EventId) -> Result<bool, MigrationError> {
    for source in sources {
        let found = source.store.committed(std::slice::from_ref(event)).await.map_err(away(source))?;
        if !found.is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}

impl Ears {
    /// Listens for so long, or until something arrived. Whoever speaks first does not drown out the other: under load one side may always
    /// have something to say.
    async fn hear(&mut self, at_most: Duration) -> Result<(), BrokerError> {
        let clock = self.clock.clone();
        let either = select(self.new.next(BATCH), self.legacy.next(BATCH));
        let (new, legacy) = tokio::select! {
            heard = either => match heard {
                Either::Left((new, legacy)) => (Some(new?), legacy.now_or_never().transpose()?),
                Either::Right((legacy, new)) => (new.now_or_never().transpose()?, Some(legacy?)),
            },
            () = clock.sleep(at_most) => return Ok(()),
        };
        for (side, deliveries) in [(Side::New, new), (Side::Legacy, legacy)] {
            self.note(side, deliveries.unwrap_or_default()).await?;
        }
        Ok(())
    }

    async fn note(&mut self, side: Side, deliveries: Vec<Delivery>) -> Result<(), BrokerError> {
        let settler = match side {
            Side::New => self.new.settler(),
            Side::Legacy => self.legacy.settler(),
        };
        let now = self.clock.now();
        let mut settled = Vec::with_capacity(deliveries.len());
        for delivery in deliveries {
            let (event, body) = read(side, &delivery, now);
            self.arrivals.note(side, event, body);
            settled.push((delivery.receipt, Verdict::Ack));
        }
        settler.settle(settled).await
    }
}

/// Which event a message is, and what it says: the payload on the new side, the body as it is on the old one.
fn read(side: Side, delivery: &Delivery, now: jiff::Timestamp) -> (Option<EventId>, PayloadHash) {
    let body = || Payload::new("", delivery.message.body.clone()).hash();
    // Somebody else's message may name its id and no type; the report names it all the same.
    let identity = Identity { usual_type: EventType::new("type.unsaid").ok(), ..Identity::default() };
    match wire::decode(&delivery.message, &delivery.routing_key, &identity, now) {
        Ok(envelope) => {
            let hash = if side == Side::New { envelope.payload.hash() } else { body() };
            (Some(envelope.id), hash)
        }
        Err(_) => (None, body()),
    }
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;

    use super::*;
    use crate::broker::{Message, Receipt, Settler};
    use crate::topology::RoutingKey;

    /// A tap that always has one more message of an event.
    struct Talker(&'static str);

    #[async_trait]
    impl Subscription for Talker {
        async fn next(&mut self, _max: usize) -> Result<Vec<Delivery>, BrokerError> {
            let mut message = Message::default();
            message.properties.message_id = Some(self.0.to_owned());
            message.properties.kind = Some("mail.wanted".to_owned());
            Ok(vec![Delivery {
                message,
                exchange: ExchangeName::default_exchange(),
                routing_key: RoutingKey::new("mail.wanted").unwrap(),
                redelivered: false,
                receipt: Receipt::void(),
            }])
        }

        fn settler(&self) -> Box<dyn Settler> {
            Box::new(Deaf)
        }
    }

    struct Deaf;

    #[async_trait]
    impl Settler for Deaf {
        async fn settle(&self, _settled: Vec<(Receipt, Verdict)>) -> Result<(), BrokerError> {
            Ok(())
        }
    }

    #[test]
    fn a_message_of_somebody_else_is_known_by_its_id_alone() {
        let read = |message_id: Option<&str>| {
            let mut message = Message { body: b"{}".to_vec().into(), ..Message::default() };
            message.properties.message_id = message_id.map(str::to_owned);
            let routing_key = RoutingKey::new("").unwrap();
            let exchange = ExchangeName::default_exchange();
            let delivery =
                Delivery { message, exchange, routing_key, redelivered: false, receipt: Receipt::void() };
            super::read(Side::Legacy, &delivery, jiff::Timestamp::UNIX_EPOCH).0
        };
        assert_eq!(read(Some("theirs-1")), Some(EventId::new("theirs-1").unwrap()));
        assert_eq!(read(None), None);
    }

    #[tokio::test]
    async fn a_bus_that_never_falls_silent_does_not_drown_out_the_other() {
        let (new, legacy) = (Box::new(Talker("a")), Box::new(Talker("b")));
        let mut ears = Ears { new, legacy, arrivals: Arrivals::default(), clock: Clock::system() };
        ears.hear(BREATH).await.unwrap();
        assert_eq!(ears.arrivals.unexpected(&[]).len(), 2, "one of each");
    }
}
