//! The layouts of five designs, each exactly as its document has it, with what it lacks for safety added by policy.
//!
//! `strict=true` leaves the additions out: no policies, no alternate exchange, no queues of ours, and dead letters stay where
//! other tools watch for them.

mod event_bus;
mod fis;
mod given;
mod holdco;
mod ratatoskr;
mod smap;

pub use given::{Parameter, PresetError};

use super::{
    Binding, BindingKey, DeadLetterTarget, Exchange, ExchangeKind, ExchangeName, Layout, Queue, QueueKind,
    QueueName, RoutingKey, ServiceQueue, Topology,
};
use crate::envelope::wire::{Identity, Place};
use crate::settlement::RetryPolicy;
use crate::text::InvalidText;
use given::Given;

/// A layout with parameters.
#[derive(Debug, Clone, Copy)]
pub struct Preset {
    /// What it is called.
    pub name: &'static str,
    /// What it is, in a sentence.
    pub summary: &'static str,
    /// What `--set` may say, beside `strict`.
    pub parameters: &'static [Parameter],
    build: fn(&Given<'_>) -> Result<Layout, PresetError>,
}

/// All of them.
pub const PRESETS: &[Preset] =
    &[fis::PRESET, event_bus::PRESET, ratatoskr::PRESET, smap::PRESET, holdco::PRESET];

/// What every preset takes.
pub const STRICT: Parameter = Parameter {
    name: "strict",
    default: "false",
    repeatable: false,
    what: "only what the document has: no policies, no alternate exchange, no wait queues of ours, no collector",
};

/// For designs that do not say how their messages are told apart.
const EVENT_ID: Parameter = Parameter {
    name: "event_id",
    default: "message_id,x-event-id",
    repeatable: false,
    what: "where producers put an event's id: a JSON pointer into the body (/id), message_id or a header, the first that has one",
};

/// Where it is said to be; nothing for the default, which every reader looks at anyway.
fn event_id(given: &Given<'_>) -> Result<Vec<Place>, PresetError> {
    Ok(if given.is_set(EVENT_ID.name) { Identity::places(given.text(EVENT_ID.name)?) } else { Vec::new() })
}

impl Preset {
    /// The preset of this name; the error lists those there are.
    pub fn find(name: &str) -> Result<&'static Self, PresetError> {
        let found = PRESETS.iter().find(|preset| preset.name == name);
        found.ok_or_else(|| PresetError::Unknown {
            name: name.to_owned(),
            known: PRESETS.iter().map(|preset| preset.name).collect::<Vec<_>>().join(", "),
        })
    }

    /// The layout with these parameters set, each as `(name, value)`.
    pub fn layout(&self, set: &[(String, String)]) -> Result<Layout, PresetError> {
        let given = Given::new(self, set)?;
        let layout = (self.build)(&given)?;
        Ok(if given.strict() { stripped(layout) } else { layout })
    }
}

/// Without what the document does not have and every preset adds in the same way.
fn stripped(mut layout: Layout) -> Layout {
    layout.topology = layout.topology.without_policies();
    layout.services.iter_mut().for_each(|service| service.queue.policy = super::QueuePolicy::default());
    layout.collect = false;
    layout
}

/// The names of a document are good ones; those made of parameters may be too long.
fn exchange(name: impl AsRef<str>) -> Result<ExchangeName, InvalidText> {
    ExchangeName::new(name)
}

fn queue(name: impl AsRef<str>) -> Result<QueueName, InvalidText> {
    QueueName::new(name)
}

/// A queue with no arguments but its type.
fn plain(name: &QueueName, kind: QueueKind) -> Queue {
    Queue { kind, safe_dead_lettering: false, ..Queue::quorum(name.clone()) }
}

/// A queue whose dead letters go to an exchange under a key, by argument.
fn dying(name: &QueueName, kind: QueueKind, target: DeadLetterTarget) -> Queue {
    Queue { dead_letter: Some(target), ..plain(name, kind) }
}

fn target(exchange: &ExchangeName, key: impl AsRef<str>) -> Result<DeadLetterTarget, InvalidText> {
    Ok(DeadLetterTarget { exchange: exchange.clone(), routing_key: Some(RoutingKey::new(key)?) })
}

fn to_queue(name: &QueueName) -> DeadLetterTarget {
    DeadLetterTarget {
        exchange: ExchangeName::default_exchange(),
        routing_key: Some(RoutingKey::to_queue(name)),
    }
}

fn binding(exchange: &ExchangeName, queue: &QueueName, key: impl AsRef<str>) -> Result<Binding, InvalidText> {
    Ok(Binding { exchange: exchange.clone(), queue: queue.clone(), key: BindingKey::new(key)? })
}

/// Retries by wait queues of our own where the document has none for them; under `strict` there are none, and a failure is a
/// dead letter at once.
fn own_ladder(given: &Given<'_>) -> RetryPolicy {
    if given.strict() { RetryPolicy::ladder(0, []) } else { RetryPolicy::default() }
}

/// A consumer's queue as a document has it; only the wait queues are ours.
fn consumed(
    queue: Queue,
    bindings: Vec<Binding>,
    dead_letter: DeadLetterTarget,
    dead_letter_queue: &QueueName,
    retry: RetryPolicy,
) -> Result<ServiceQueue, InvalidText> {
    let mut service = ServiceQueue::new(queue.name.as_str(), retry)?;
    service.queue = queue;
    service.bindings = bindings;
    service.dead_letter = dead_letter;
    service.dead_letter_queue = dead_letter_queue.clone();
    Ok(service)
}

/// Sends what no binding of an exchange wants to a queue, through a fanout of its own: the message keeps its key, so no other
/// kind of exchange would find the queue.
fn catch_unroutable(
    mut topology: Topology,
    of: &ExchangeName,
    through: &ExchangeName,
    into: &QueueName,
) -> Result<Topology, InvalidText> {
    topology.exchanges.push(Exchange::new(through.clone(), ExchangeKind::Fanout));
    if topology.find_queue(into).is_none() {
        topology.queues.push(plain(into, QueueKind::Quorum));
    }
    topology.bindings.push(binding(through, into, "")?);
    for exchange in topology.exchanges.iter_mut().filter(|exchange| exchange.name == *of) {
        exchange.policy.alternate = Some(through.clone());
    }
    Ok(topology)
}

#[cfg(test)]
mod tests;
