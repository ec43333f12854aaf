//! Old buses that a finished migration removed: whoever still has them in the configuration does not bring them back.

use postrider::migration::{Phase, Standing};
use postrider::topology::{QueueName, Topology};

fn finished(standings: &[Standing]) -> impl Iterator<Item = &Standing> {
    standings.iter().filter(|one| one.phase == Phase::Finished)
}

/// A topology without them.
pub(crate) fn without_removed(topology: &Topology, standings: &[Standing]) -> Topology {
    let mut topology = topology.clone();
    for standing in finished(standings) {
        let legacy = &standing.definition.legacy;
        let gone = |queue: &QueueName| legacy.queue.iter().chain(&legacy.waits).any(|gone| gone == queue);
        topology.exchanges.retain(|exchange| exchange.name != legacy.exchange);
        topology.queues.retain(|queue| !gone(&queue.name));
        topology.bindings.retain(|binding| binding.exchange != legacy.exchange && !gone(&binding.queue));
    }
    topology
}

/// Whether this queue is one of theirs.
pub(crate) fn is_removed(queue: &QueueName, standings: &[Standing]) -> bool {
    finished(standings).any(|standing| standing.definition.legacy.queue.as_ref() == Some(queue))
}
