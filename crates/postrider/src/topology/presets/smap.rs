//! SMAP: the topic exchange of the new bus beside the fanout of the old one, while both are published to.
//!
//! The document gives no queue types, and its services declare both queues by themselves: they are declared without one, so
//! that none of them is refused. Added: dead letters of the new queue (by policy), its wait queue, and an alternate exchange
//! for the new bus. The old bus is left as it is.

use std::collections::BTreeMap;

use super::{
    Given, Parameter, Preset, PresetError, binding, catch_unroutable, consumed, exchange, own_ladder, plain,
    queue, to_queue,
};
use crate::envelope::wire::WireFormat;
use crate::topology::{ExchangeKind, Layout, QueueKind, Topology};

pub(super) const PRESET: Preset = Preset {
    name: "smap",
    summary: "the topic exchange smap.events beside the legacy e-mail fanout, for a migration without downtime",
    parameters: &[Parameter {
        name: "queue_type",
        default: "unsaid",
        repeatable: false,
        what: "quorum, classic or unsaid, for smtp_send_email_v2; the legacy queue is never given a type",
    }],
    build,
};

fn build(given: &Given<'_>) -> Result<Layout, PresetError> {
    let (events, legacy) = (exchange("smap.events")?, exchange("smtp_send_email_exc")?);
    let (old, new) = (queue("smtp_send_email")?, queue("smtp_send_email_v2")?);
    let mut main = plain(&new, given.queue_kind("queue_type", QueueKind::Unsaid)?);
    let wanted = binding(&events, &new, "email.#")?;

    let mut topology = Topology::default()
        .exchange(events.clone(), ExchangeKind::Topic)
        .exchange(legacy.clone(), ExchangeKind::Fanout)
        .queue(plain(&old, QueueKind::Unsaid));
    topology.bindings = vec![binding(&legacy, &old, "")?, wanted.clone()];
    let mut services = Vec::new();
    if given.strict() {
        // The document has no place for dead letters, so nothing of ours consumes here.
        topology = topology.queue(main);
    } else {
        let dead = queue("smtp_send_email_v2.dlq")?;
        main.policy.dead_letter = Some(to_queue(&dead));
        let service = consumed(main.clone(), vec![wanted], to_queue(&dead), &dead, own_ladder(given))?;
        topology = topology.queue(main).queue(plain(&dead, QueueKind::Quorum));
        topology.queues.extend(service.wait_declarations());
        services.push(service);
        let into = queue("smap.events.unroutable")?;
        topology = catch_unroutable(topology, &events, &exchange("smap.events.unroutable")?, &into)?;
    }
    Ok(Layout {
        formats: BTreeMap::from([(events.clone(), WireFormat::Smap), (legacy, WireFormat::Bare)]),
        ..Layout::of(topology.protected(), services, events)
    })
}
