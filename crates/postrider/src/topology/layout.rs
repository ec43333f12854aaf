//! A topology with what else a design says: where it lives, who consumes, how events are written.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{ExchangeName, QueueName, ServiceQueue, Topology, VhostName};
use crate::envelope::wire::WireFormat;

/// A whole layout, as a preset or a configuration gives it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// The virtual host it is made for; none means whichever the connection names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vhost: Option<VhostName>,
    /// Everything to declare.
    pub topology: Topology,
    /// The queues that are consumed, each with its ladder and its dead-letter queue. All their queues are in the topology.
    pub services: Vec<ServiceQueue>,
    /// The exchange of events that name no other.
    pub exchange: ExchangeName,
    /// How events are written, by exchange; the envelope where nothing is said.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub formats: BTreeMap<ExchangeName, WireFormat>,
    /// How queues are consumed, where the design says so.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub consuming: BTreeMap<QueueName, Consuming>,
    /// Queues behind alternate exchanges, beside the services' own: what arrives there is a dead letter, `unroutable`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unroutable: Vec<QueueName>,
    /// Whether dead letters are taken out of their queues into the table. Not where other tools watch these queues.
    pub collect: bool,
}

/// How a queue is consumed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Consuming {
    /// How many deliveries a consumer may have unsettled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefetch: Option<u16>,
    /// How many are handled at the same time to begin with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<u16>,
    /// How many are handled at the same time at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_concurrency: Option<u16>,
}

impl Layout {
    /// A layout of which nothing else is said. The services' queues are as the topology has them.
    pub fn of(topology: Topology, mut services: Vec<ServiceQueue>, exchange: ExchangeName) -> Self {
        for service in &mut services {
            if let Some(declared) = topology.find_queue(service.name()) {
                service.queue = declared.clone();
            }
        }
        let unroutable = unroutable(&topology, &services);
        Self {
            vhost: None,
            topology,
            services,
            exchange,
            formats: BTreeMap::new(),
            consuming: BTreeMap::new(),
            unroutable,
            collect: true,
        }
    }

    /// Whose dead letters are to be collected: nobody's where other tools watch for them.
    pub fn collected(&self) -> Vec<ServiceQueue> {
        if !self.collect {
            return Vec::new();
        }
        let unroutable = self.unroutable.iter().map(ServiceQueue::of_dead_letters);
        self.services.iter().cloned().chain(unroutable).collect()
    }

    /// How events of an exchange are written.
    pub fn format(&self, exchange: &ExchangeName) -> WireFormat {
        self.formats.get(exchange).copied().unwrap_or_default()
    }
}

/// The queues behind alternate exchanges that are no service's own.
fn unroutable(topology: &Topology, services: &[ServiceQueue]) -> Vec<QueueName> {
    let alternates: Vec<_> =
        topology.exchanges.iter().filter_map(|exchange| exchange.effective_alternate()).collect();
    let mut found = Vec::new();
    for binding in topology.bindings.iter().filter(|binding| alternates.contains(&&binding.exchange)) {
        let known = services
            .iter()
            .any(|service| *service.name() == binding.queue || service.dead_letter_queue == binding.queue);
        if !known && !found.contains(&binding.queue) {
            found.push(binding.queue.clone());
        }
    }
    found
}
