//! HoldCo: one topic exchange, a queue for each purpose, and a direct exchange for the dead letters of all.
//!
//! The document gives no queue types, and its consumer asserts `orders.consumer` as durable and nothing more. So the queues are
//! declared without a type, and `orders.consumer` without any argument (its dead-letter target is policy): a consumer
//! written like the document's is never refused. `queue_type=quorum` where every declarer says so too.
//!
//! `stock_*.*` and `price_*.*` match nothing, because a wildcard of a topic exchange stands for whole words. They become one
//! binding for each aggregate type they mean; `strict=true` binds them as they stand.

use std::collections::BTreeMap;

use super::{
    Given, Parameter, Preset, PresetError, binding, catch_unroutable, consumed, dying, exchange, own_ladder,
    plain, queue, target,
};
use crate::topology::{
    Binding, Consuming, ExchangeKind, ExchangeName, Layout, QueueKind, QueueName, Topology,
};

/// The document's examples: a queue and the keys it wants.
const EXAMPLES: &[(&str, &[&str])] = &[
    ("analytics.ingest", &["#"]),
    ("erp.sync", &["invoice.*", "payment_intent.*"]),
    ("inventory.reconcile", &["stock_*.*"]),
    ("pricing.refresh", &["price_*.*"]),
    ("notifications", &["order.*", "payment_intent.failed"]),
    (ASSERTED, &["order.*"]),
];

/// The queue that the document's own consumer declares.
const ASSERTED: &str = "orders.consumer";
const ASSERTED_PREFETCH: u16 = 10;

pub(super) const PRESET: Preset = Preset {
    name: "holdco",
    summary: "the topic exchange holdco.events, a queue for each purpose with its dead-letter queue behind holdco.events.dlx",
    parameters: &[
        Parameter {
            name: "queues",
            default: "analytics.ingest,erp.sync,inventory.reconcile,pricing.refresh,notifications",
            repeatable: false,
            what: "the queues, separated by commas: one of the examples (also orders.consumer), or NAME:KEY+KEY for your own",
        },
        Parameter {
            name: "aggregate_types",
            default: "stock_adjustment,stock_level,stock_movement,stock_reservation,stock_transfer,\
                      price_change,price_list,price_rule",
            repeatable: false,
            what: "the aggregate types that keys such as stock_*.* stand for, separated by commas",
        },
        Parameter {
            name: "queue_type",
            default: "unsaid",
            repeatable: false,
            what: "quorum, classic or unsaid; orders.consumer is never given a type",
        },
    ],
    build,
};

fn build(given: &Given<'_>) -> Result<Layout, PresetError> {
    let (events, dlx) = (exchange("holdco.events")?, exchange("holdco.events.dlx")?);
    let kind = given.queue_kind("queue_type", QueueKind::Unsaid)?;
    let mut topology = Topology::default()
        .exchange(events.clone(), ExchangeKind::Topic)
        .exchange(dlx.clone(), ExchangeKind::Direct);
    let (mut services, mut consuming) = (Vec::new(), BTreeMap::new());
    for entry in given.list("queues")? {
        let (name, keys) = wanted(given, entry)?;
        let (main, dead) = (queue(name)?, queue(format!("{name}.dlq"))?);
        let bindings = bindings(given, &events, &main, &keys)?;
        let dies_to = target(&dlx, dead.as_str())?;
        let declared = if name == ASSERTED {
            let prefetch = Some(ASSERTED_PREFETCH);
            consuming.insert(main.clone(), Consuming { prefetch, ..Consuming::default() });
            let mut asserted = plain(&main, QueueKind::Unsaid);
            asserted.policy.dead_letter = Some(dies_to.clone());
            asserted
        } else {
            dying(&main, kind, dies_to.clone())
        };
        if topology.find_queue(&main).is_some() {
            return Err(given.malformed("queues", entry, "the queue is there twice; give each once"));
        }
        let service = consumed(declared.clone(), bindings.clone(), dies_to, &dead, own_ladder(given))?;
        topology = topology.queue(declared).queue(plain(&dead, kind));
        topology.queues.extend(service.wait_declarations());
        topology.bindings.extend(bindings);
        topology.bindings.push(binding(&dlx, &dead, dead.as_str())?);
        services.push(service);
    }
    if !given.strict() {
        let into = queue("holdco.events.unroutable")?;
        topology = catch_unroutable(topology, &events, &exchange("holdco.events.unroutable")?, &into)?;
    }
    Ok(Layout { consuming, ..Layout::of(topology.protected(), services, events) })
}

/// A queue and the keys it wants, of `NAME` or `NAME:KEY+KEY`.
fn wanted<'a>(given: &Given<'_>, entry: &'a str) -> Result<(&'a str, Vec<&'a str>), PresetError> {
    if let Some((name, keys)) = entry.split_once(':') {
        return Ok((name, keys.split('+').collect()));
    }
    let example = EXAMPLES.iter().find(|(name, _)| *name == entry);
    let (_, keys) = example.ok_or_else(|| {
        let known: Vec<_> = EXAMPLES.iter().map(|(name, _)| *name).collect();
        let problem = format!(
            "{entry} is none of the examples ({}); say which keys it wants: {entry}:KEY+KEY",
            known.join(", ")
        );
        given.malformed("queues", entry, &problem)
    })?;
    Ok((entry, keys.to_vec()))
}

/// One binding for each key, those with a part of a word left open written out.
fn bindings(
    given: &Given<'_>,
    events: &ExchangeName,
    queue: &QueueName,
    keys: &[&str],
) -> Result<Vec<Binding>, PresetError> {
    let types = given.list("aggregate_types")?;
    let mut written_out = Vec::new();
    for key in keys {
        let expanded = if given.strict() { Vec::new() } else { expand(key, &types) };
        if expanded.is_empty() {
            written_out.push((*key).to_owned());
        }
        written_out.extend(expanded);
    }
    Ok(written_out.iter().map(|key| binding(events, queue, key)).collect::<Result<_, _>>()?)
}

/// `stock_*.*` over `stock_adjustment` and others; nothing for a key that needs no writing out, or that means none of them.
fn expand(key: &str, types: &[&str]) -> Vec<String> {
    let (first, rest) = key.split_once('.').unwrap_or((key, ""));
    let Some((start, end)) = first.split_once('*').filter(|_| first.len() > 1) else { return Vec::new() };
    let means = |name: &&&str| {
        name.len() >= start.len() + end.len() && name.starts_with(start) && name.ends_with(end)
    };
    types
        .iter()
        .filter(means)
        .map(|name| if rest.is_empty() { (*name).to_owned() } else { format!("{name}.{rest}") })
        .collect()
}
