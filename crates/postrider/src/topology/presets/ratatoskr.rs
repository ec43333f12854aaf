//! Ratatoskr: quorum queues only, a retry loop by one wait queue, and a fanout exchange for the dead letters of each queue.
//!
//! Added: an alternate exchange for keys that nobody is bound for. It is the exchange's own, with a queue of its own, because
//! several services share the exchange and one of them must not get the others' unroutable messages.

use super::{
    EVENT_ID, Given, Parameter, Preset, PresetError, binding, catch_unroutable, consumed, dying, event_id,
    exchange, plain, queue, to_queue,
};
use crate::settlement::RetryPolicy;
use crate::topology::{DeadLetterTarget, ExchangeKind, Layout, Queue, QueueKind, Topology, WaitQueue};

pub(super) const PRESET: Preset = Preset {
    name: "ratatoskr",
    summary: "a quorum queue with a managed retry loop and a fanout exchange of its own for its dead letters",
    parameters: &[
        Parameter {
            name: "queue",
            default: "my-service.events",
            repeatable: false,
            what: "the main queue; QUEUE.retry and QUEUE.dlq go with it",
        },
        Parameter {
            name: "exchange",
            default: "ratatoskr.events",
            repeatable: false,
            what: "the topic exchange that it is bound to",
        },
        Parameter {
            name: "keys",
            default: "#",
            repeatable: false,
            what: "the routing keys it wants, separated by commas",
        },
        Parameter {
            name: "retry_delay_ms",
            default: "5000",
            repeatable: false,
            what: "how long a failed message waits before it comes again",
        },
        EVENT_ID,
    ],
    build,
};

fn build(given: &Given<'_>) -> Result<Layout, PresetError> {
    let name = given.text("queue")?;
    let (main, retry, dead) = (queue(name)?, queue(format!("{name}.retry"))?, queue(format!("{name}.dlq"))?);
    let (events, dead_exchange) = (exchange(given.text("exchange")?)?, exchange(format!("{name}.dlq"))?);
    let delay = given.millis("retry_delay_ms")?;
    let keys = given.list("keys")?;

    let wanted: Vec<_> = keys.iter().map(|key| binding(&events, &main, key)).collect::<Result<_, _>>()?;
    let consumed_queue = dying(&main, QueueKind::Quorum, to_queue(&retry));
    // The fanout needs no key: a dead letter keeps its own.
    let dead_letter = DeadLetterTarget { exchange: dead_exchange.clone(), routing_key: None };
    let policy = RetryPolicy { delays: vec![delay], ..RetryPolicy::default() };
    let mut service = consumed(consumed_queue.clone(), wanted.clone(), dead_letter, &dead, policy)?;
    service.identity.event_id = event_id(given)?;
    service.wait_queues = vec![WaitQueue { name: retry.clone(), delay }];

    let mut topology = Topology::default()
        .exchange(events.clone(), ExchangeKind::Topic)
        .exchange(dead_exchange.clone(), ExchangeKind::Fanout)
        .queue(consumed_queue)
        .queue(Queue { message_ttl: Some(delay), ..dying(&retry, QueueKind::Quorum, to_queue(&main)) })
        .queue(plain(&dead, QueueKind::Quorum));
    topology.bindings = wanted;
    topology.bindings.push(binding(&dead_exchange, &dead, "")?);
    if !given.strict() {
        let through = exchange(format!("{events}.unroutable"))?;
        let into = queue(format!("{events}.unroutable"))?;
        topology = catch_unroutable(topology, &events, &through, &into)?;
    }
    Ok(Layout::of(topology.protected(), vec![service], events))
}
