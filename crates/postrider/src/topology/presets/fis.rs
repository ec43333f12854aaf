//! FIS, the financial ingestion service: one intake queue for every event of three words, and its dead letters.
//!
//! Added: what `*.*.*` does not match goes to the dead letters through an alternate exchange, and a failed event waits in a
//! queue of its own instead of going back to the front of the intake queue.

use std::collections::BTreeMap;

use super::{
    Given, Parameter, Preset, PresetError, binding, catch_unroutable, consumed, dying, exchange, own_ladder,
    plain, queue, target,
};
use crate::envelope::wire::Identity;
use crate::topology::{Consuming, ExchangeKind, Layout, QueueKind, Topology, VhostName};

pub(super) const PRESET: Preset = Preset {
    name: "fis",
    summary: "financial ingestion: a topic exchange into one quorum intake queue, a direct exchange for its dead letters",
    parameters: &[Parameter { name: "vhost", default: "/fis", repeatable: false, what: "the virtual host" }],
    build,
};

fn build(given: &Given<'_>) -> Result<Layout, PresetError> {
    let (events, dlx) = (exchange("fis.events.exchange")?, exchange("fis.dlx.exchange")?);
    let (intake, dead) = (queue("fis.ingestion.queue")?, queue("fis.ingestion.dlq.queue")?);
    let dies_to = target(&dlx, "fis.ingestion.dlq")?;
    let main = dying(&intake, QueueKind::Quorum, dies_to.clone());
    let wanted = binding(&events, &intake, "*.*.*")?;

    let mut service = consumed(main.clone(), vec![wanted.clone()], dies_to, &dead, own_ladder(given))?;
    service.identity = Identity::fis();
    let mut topology = Topology::default()
        .exchange(events.clone(), ExchangeKind::Topic)
        .exchange(dlx.clone(), ExchangeKind::Direct)
        .exchange(exchange("fis.domain.exchange")?, ExchangeKind::Topic)
        .queue(main)
        .queue(plain(&dead, QueueKind::Quorum));
    topology.queues.extend(service.wait_declarations());
    topology.bindings = vec![wanted, binding(&dlx, &dead, "fis.ingestion.dlq")?];
    if !given.strict() {
        topology = catch_unroutable(topology, &events, &exchange("fis.unroutable.exchange")?, &dead)?;
    }
    let consuming = Consuming { prefetch: Some(250), concurrency: Some(10), max_concurrency: Some(50) };
    Ok(Layout {
        vhost: Some(VhostName::new(given.text("vhost")?)?),
        consuming: BTreeMap::from([(intake, consuming)]),
        ..Layout::of(topology.protected(), vec![service], events)
    })
}
