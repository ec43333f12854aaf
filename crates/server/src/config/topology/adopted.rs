//! Queues of a preset that its document leaves to others, and that this configuration consumes all the same: the old queue of
//! `smap`, while old and new consumers run side by side.
//!
//! Such a queue stays as the document has it, without arguments and policies of ours. Beside it are wait queues and a dead-letter
//! queue, which its consumer publishes to by itself.

use std::collections::BTreeSet;

use postrider::settlement::RetryPolicy;
use postrider::topology::{ExchangeName, Layout, Queue, QueueName, ServiceQueue, Topology};

use super::super::sections::Settings;

/// The queues that somebody names in `[[consumer]]` or `[[push]]` and that only the preset's topology has. None under `strict`, which
/// has no place for their dead letters.
pub(super) fn adopted(settings: &Settings, preset: &Layout) -> Result<Vec<ServiceQueue>, String> {
    if settings.topology.strict {
        return Ok(Vec::new());
    }
    let consumers = settings.consumer.iter().filter_map(|consumer| {
        consumer.queue.clone().or_else(|| QueueName::new(consumer.name.as_str()).ok())
    });
    let pushed = settings.push.iter().filter_map(|push| push.queue.clone());
    let wanted: BTreeSet<QueueName> = consumers.chain(pushed).collect();
    let mut services = Vec::new();
    for name in wanted {
        let known = preset.services.iter().any(|service| *service.name() == name);
        let Some(queue) = preset.topology.find_queue(&name).filter(|_| !known) else { continue };
        if !gets_events(&preset.topology, &name) {
            continue;
        }
        let service = ServiceQueue::new(name.as_str(), RetryPolicy::default());
        let mut service = service.map_err(|error| format!("{name}: {error}"))?;
        service.queue = queue.clone();
        let bindings = preset.topology.bindings.iter().filter(|binding| binding.queue == name);
        service.bindings = bindings.cloned().collect();
        services.push(service);
    }
    Ok(services)
}

/// The dead-letter queue of one, which keeps what it has whatever type its neighbour is of.
pub(super) fn dead_letters(service: &ServiceQueue) -> Queue {
    Queue { safe_dead_lettering: false, ..Queue::quorum(service.dead_letter_queue.clone()) }
}

/// Whether a queue is bound to an exchange that events are published to: not one for dead letters, or for what nobody wants.
fn gets_events(topology: &Topology, queue: &QueueName) -> bool {
    let dead = topology.queues.iter().filter_map(|queue| Some(&queue.effective_dead_letter()?.exchange));
    let alternates = topology.exchanges.iter().filter_map(|exchange| exchange.effective_alternate());
    let for_others: BTreeSet<&ExchangeName> = dead.chain(alternates).collect();
    let mut bindings = topology.bindings.iter().filter(|binding| binding.queue == *queue);
    bindings.any(|binding| !for_others.contains(&binding.exchange))
}
