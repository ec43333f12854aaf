//! event-bus: one fanout per prefix, and for each service a queue, a retry queue and a dead-letter queue.
//!
//! Quorum queues, because a classic queue's dead-lettering loses what it moves while the target's node is away. The document
//! has classic ones: `strict=true` declares the queues without a type, which is classic wherever the virtual host's
//! default is untouched and never refuses a service that declares them so; `queue_type=classic` says classic aloud.

use std::time::Duration;

use super::{
    EVENT_ID, Given, Parameter, Preset, PresetError, binding, consumed, dying, event_id, exchange, plain,
    queue, target, to_queue,
};
use crate::envelope::EventType;
use crate::envelope::wire::Identity;
use crate::settlement::RetryPolicy;
use crate::text::InvalidText;
use crate::topology::{
    ExchangeKind, ExchangeName, Layout, Queue, QueueKind, ServiceQueue, Topology, WaitQueue,
};

pub(super) const PRESET: Preset = Preset {
    name: "event-bus",
    summary: "a fanout per prefix; each service has a queue, a retry queue of 5 s and a dead-letter queue",
    parameters: &[
        Parameter {
            name: "service",
            default: "",
            repeatable: true,
            what: "a service's name, such as wms-cincout; what stands before the first hyphen is the prefix",
        },
        Parameter {
            name: "queue_type",
            default: "quorum",
            repeatable: false,
            what: "quorum, classic or unsaid; with strict unsaid, which is classic unless the virtual host says otherwise",
        },
        Parameter {
            name: "retry_delay_ms",
            default: "5000",
            repeatable: false,
            what: "how long a failed message waits before it comes again; a retry queue that is there keeps its own",
        },
        EVENT_ID,
    ],
    build,
};

fn build(given: &Given<'_>) -> Result<Layout, PresetError> {
    let default = if given.strict() { QueueKind::Unsaid } else { QueueKind::Quorum };
    let kind = given.queue_kind("queue_type", default)?;
    let delay = given.millis("retry_delay_ms")?;
    let event_id = event_id(given)?;
    let (mut topology, mut services) = (Topology::default(), Vec::new());
    let mut published_to = None;
    for name in given.all("service")? {
        if name.contains(|character: char| character == ',' || character.is_whitespace()) {
            return Err(given.malformed(
                "service",
                name,
                "one name, without commas and blanks; give each service its own",
            ));
        }
        let main = exchange(format!("{}.main-exchange", prefix(name)))?;
        if topology.find_exchange(&main).is_none() {
            topology = topology.exchange(main.clone(), ExchangeKind::Fanout);
        }
        let (with_service, mut service) = add(topology, &main, name, kind, delay)?;
        // Its own table tries every 4xx again; by itself we let those die at once that will fail again.
        let policy = if given.strict() { RetryPolicy::event_bus() } else { RetryPolicy::default() };
        service.retry = RetryPolicy { delays: vec![delay], ..policy };
        // Producers of a fanout need no routing key, so often nothing tells the type.
        let usual_type = Some(EventType::new(format!("{}.event", prefix(name)))?);
        service.identity = Identity { event_id: event_id.clone(), usual_type, ..Identity::default() };
        if services.iter().any(|other: &ServiceQueue| other.name() == service.name()) {
            return Err(given.malformed("service", name, "it is given twice; give each service once"));
        }
        topology = with_service;
        services.push(service);
        published_to.get_or_insert(main);
    }
    let exchange = published_to.unwrap_or_else(ExchangeName::default_exchange);
    Ok(Layout::of(topology.protected(), services, exchange))
}

/// What stands before the first hyphen, or `default` where there is none.
fn prefix(service: &str) -> &str {
    match service.split_once('-') {
        Some((prefix, _)) if !prefix.is_empty() => prefix,
        _ => "default",
    }
}

fn add(
    topology: Topology,
    main: &ExchangeName,
    service: &str,
    kind: QueueKind,
    delay: Duration,
) -> Result<(Topology, ServiceQueue), InvalidText> {
    let prefix = prefix(service);
    let retry_exchange = exchange(format!("{prefix}.retry-exchange.{service}"))?;
    let name = queue(format!("{prefix}.queue.{service}"))?;
    let retry = queue(format!("{prefix}.retry-queue.{service}"))?;
    let dead = queue(format!("{prefix}.dlq.{service}"))?;

    let queue = dying(&name, kind, target(&retry_exchange, "retry")?);
    let wanted = binding(main, &name, "")?;
    let (wants, dies) = (vec![wanted.clone()], to_queue(&dead));
    let mut service = consumed(queue.clone(), wants, dies, &dead, RetryPolicy::default())?;
    service.wait_queues = vec![WaitQueue { name: retry.clone(), delay }];
    let mut topology = topology
        .exchange(retry_exchange.clone(), ExchangeKind::Direct)
        .queue(queue)
        .queue(Queue { message_ttl: Some(delay), ..dying(&retry, kind, to_queue(&name)) })
        .queue(plain(&dead, kind));
    topology.bindings.push(wanted);
    topology.bindings.push(binding(&retry_exchange, &retry, "retry")?);
    Ok((topology, service))
}
