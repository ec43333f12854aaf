//! A broker's topology as our own data, and what of it our data cannot hold.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::Value;

use super::observed::{self, Observed, Policy};
use super::plan::applied;
use super::{
    AppliesTo, Argument, Binding, BindingKey, DeadLetterTarget, DeliveryLimit, Exchange, ExchangeKind,
    ExchangeName, ExchangePolicy, Queue, QueueKind, QueueName, QueuePolicy, RoutingKey, Topology,
};

/// Arguments that are settings of their own, as far as they were not read into them: no configuration has them as arguments.
const SETTINGS: [&str; 2] = ["x-dead-letter-strategy", "x-single-active-consumer"];

/// What was found, as a topology.
#[derive(Debug, Clone, PartialEq)]
pub struct Export {
    /// What could be held. Planned against the same broker, it leaves nothing to do.
    pub topology: Topology,
    /// What could not, a line each.
    pub left_out: Vec<String>,
}

/// Writes down what a virtual host has. The broker's own exchanges and what belongs to a connection are no topology; nor is what
/// leads to an exchange that is not in it or has a value that goes with no other setting: no configuration can say that.
pub fn export(observed: &Observed) -> Export {
    let mut export = found(observed);
    while leave_out_what_cannot_be_said(&mut export) {}
    export
}

/// Everything of a virtual host that our data can hold, wherever it leads.
fn found(observed: &Observed) -> Export {
    let mut export = Export { topology: Topology::default(), left_out: Vec::new() };
    let own = |name: &str| name.is_empty() || name.starts_with("amq.");
    for seen in observed.exchanges.iter().filter(|seen| !own(&seen.name)) {
        match exchange(seen, observed) {
            Ok(exchange) => export.topology.exchanges.push(exchange),
            Err(why) => export.left_out.push(format!("exchange {}: {why}", seen.name)),
        }
    }
    for seen in observed.queues.iter().filter(|seen| !seen.exclusive) {
        match queue(seen, observed) {
            Ok(queue) => export.topology.queues.push(queue),
            Err(why) => export.left_out.push(format!("queue {}: {why}", seen.name)),
        }
    }
    for seen in &observed.bindings {
        match binding(seen, &export.topology) {
            Ok(binding) => export.topology.bindings.push(binding),
            Err(why) => {
                let (from, to, key) = (&seen.source, &seen.destination, &seen.routing_key);
                export.left_out.push(format!("binding {from} → {to} for {key:?}: {why}"));
            }
        }
    }
    for policy in &observed.policies {
        if let Some(why) = foreign(policy, &export.topology) {
            export.left_out.push(format!("policy {} ({}): {why}", policy.name, policy.pattern));
        }
    }
    export
}

/// One round of it: what is left out now may be where something else leads to. Whether there was anything.
fn leave_out_what_cannot_be_said(export: &mut Export) -> bool {
    let Export { topology, left_out } = export;
    let before = left_out.len();
    let known: BTreeSet<_> = topology.exchanges.iter().map(|exchange| exchange.name.clone()).collect();
    let nowhere = |to: Option<&ExchangeName>| {
        let to = to.filter(|to| !to.is_default() && !known.contains(*to));
        to.map(|to| format!("it leads to exchange {to}, which is not here"))
    };
    let mut keep = |what: &str, name: &str, problem: Option<String>| {
        left_out.extend(problem.iter().map(|problem| format!("{what} {name}: {problem}")));
        problem.is_none()
    };
    topology
        .exchanges
        .retain(|exchange| keep("exchange", exchange.name.as_str(), nowhere(exchange.effective_alternate())));
    topology.queues.retain(|queue| {
        let setting = queue.arguments.keys().find(|name| SETTINGS.contains(&name.as_str()));
        let setting = setting.map(|name| format!("its {name} does not go with its other settings"));
        let to = queue.effective_dead_letter().map(|target| &target.exchange);
        keep("queue", queue.name.as_str(), setting.or_else(|| nowhere(to)))
    });
    if left_out.len() == before {
        return false;
    }
    let (exchanges, queues) = (&topology.exchanges, &topology.queues);
    topology.bindings.retain(|binding| {
        let holds = exchanges.iter().any(|exchange| exchange.name == binding.exchange)
            && queues.iter().any(|queue| queue.name == binding.queue);
        if !holds {
            let Binding { exchange, queue, key } = binding;
            left_out.push(format!(
                "binding {exchange} → {queue} for {:?}: one of them was left out",
                key.as_str()
            ));
        }
        holds
    });
    true
}

/// The same as it works: where messages go by the policy that RabbitMQ applies, whoever set it.
pub fn in_effect(observed: &Observed) -> Export {
    let mut export = found(observed);
    for exchange in &mut export.topology.exchanges {
        let policy = applied(observed, exchange.name.as_str(), AppliesTo::Exchanges, "");
        let alternate = policy.and_then(|policy| policy.definition.get("alternate-exchange"));
        exchange.policy.alternate = alternate.and_then(|to| exchange_name(to.clone()).ok());
    }
    for queue in &mut export.topology.queues {
        let kind = observed.queue(queue.name.as_str()).map_or("", observed::Queue::kind);
        let policy = applied(observed, queue.name.as_str(), AppliesTo::Queues, kind);
        let says = |name: &str| policy.and_then(|policy| policy.definition.get(name));
        let to = target(says("dead-letter-exchange").cloned(), says("dead-letter-routing-key"));
        queue.policy.dead_letter = to.unwrap_or_default();
    }
    export
}

fn exchange(seen: &observed::Exchange, observed: &Observed) -> Result<Exchange, String> {
    let kind = match seen.kind.as_str() {
        "topic" => ExchangeKind::Topic,
        "fanout" => ExchangeKind::Fanout,
        "direct" => ExchangeKind::Direct,
        other => return Err(format!("exchanges of type {other} are not supported")),
    };
    check(seen.durable, "it does not outlive a restart")?;
    check(!seen.auto_delete, "it deletes itself")?;
    check(!seen.internal, "it is internal")?;
    let mut arguments = seen.arguments.clone();
    let alternate = arguments.remove("alternate-exchange").map(exchange_name).transpose()?;
    check(arguments.is_empty(), "it has arguments of a plugin")?;
    let name = ExchangeName::new(&seen.name).map_err(|error| error.to_string())?;
    let ours = policy(observed, &format!("postrider.exchange.{name}"));
    let policy =
        ExchangePolicy { alternate: ours.get("alternate-exchange").cloned().map(exchange_name).transpose()? };
    Ok(Exchange { name, kind, alternate, policy })
}

fn queue(seen: &observed::Queue, observed: &Observed) -> Result<Queue, String> {
    check(seen.durable, "it does not outlive a restart")?;
    check(!seen.auto_delete, "it deletes itself")?;
    let name = QueueName::new(&seen.name).map_err(|error| error.to_string())?;
    let mut arguments = seen.arguments.clone();
    let kind = match (arguments.remove("x-queue-type").as_ref().and_then(Value::as_str), seen.kind()) {
        (Some("quorum"), _) | (None, "quorum") => QueueKind::Quorum,
        (Some("classic"), _) => QueueKind::Classic,
        (None, "classic") => QueueKind::Unsaid,
        (said, kind) => return Err(format!("queues of type {} are not supported", said.unwrap_or(kind))),
    };
    let message_ttl =
        arguments.remove("x-message-ttl").and_then(|ttl| ttl.as_u64()).map(Duration::from_millis);
    let single_active_consumer = arguments.get("x-single-active-consumer") == Some(&Value::Bool(true));
    if single_active_consumer {
        arguments.remove("x-single-active-consumer");
    }
    let dead_letter = {
        let key = arguments.remove("x-dead-letter-routing-key");
        target(arguments.remove("x-dead-letter-exchange"), key.as_ref())?
    };
    let says = |name: &str, value: &str| arguments.get(name).is_some_and(|said| said == value);
    let safe_dead_lettering = kind == QueueKind::Quorum
        && dead_letter.is_some()
        && says("x-dead-letter-strategy", "at-least-once")
        && says("x-overflow", "reject-publish");
    if safe_dead_lettering {
        arguments.remove("x-dead-letter-strategy");
        arguments.remove("x-overflow");
    }
    let arguments = arguments.into_iter().map(|(name, value)| {
        let value = match value {
            Value::Bool(value) => Argument::Bool(value),
            Value::Number(number) if number.is_i64() => Argument::Int(number.as_i64().unwrap_or_default()),
            Value::String(text) => Argument::Text(text),
            other => return Err(format!("its argument {name} = {other} cannot be written")),
        };
        Ok((name, value))
    });
    let arguments = arguments.collect::<Result<BTreeMap<_, _>, String>>()?;
    let policy = queue_policy(&policy(observed, &format!("postrider.queue.{name}")))?;
    Ok(Queue {
        name,
        kind,
        message_ttl,
        dead_letter,
        single_active_consumer,
        safe_dead_lettering,
        arguments,
        policy,
    })
}

fn queue_policy(definition: &BTreeMap<String, Value>) -> Result<QueuePolicy, String> {
    let get = |name: &str| definition.get(name).cloned();
    Ok(QueuePolicy {
        dead_letter: target(get("dead-letter-exchange"), definition.get("dead-letter-routing-key"))?,
        safe_dead_lettering: get("dead-letter-strategy").is_some_and(|strategy| strategy == "at-least-once"),
        delivery_limit: get("delivery-limit")
            .and_then(|limit| limit.as_i64())
            .map(|limit| u32::try_from(limit).map_or(DeliveryLimit::Unlimited, DeliveryLimit::Times)),
        max_length: get("max-length").and_then(|most| most.as_u64()),
        max_length_bytes: get("max-length-bytes").and_then(|most| most.as_u64()),
    })
}

fn binding(seen: &observed::Binding, topology: &Topology) -> Result<Binding, String> {
    check(seen.destination_type == "queue", "it binds two exchanges")?;
    check(seen.arguments.is_empty(), "it has arguments")?;
    let exchange = ExchangeName::new(&seen.source).map_err(|error| error.to_string())?;
    let queue = QueueName::new(&seen.destination).map_err(|error| error.to_string())?;
    let key = BindingKey::new(&seen.routing_key).map_err(|error| error.to_string())?;
    check(topology.find_exchange(&exchange).is_some(), "its exchange is the broker's own, or was left out")?;
    check(topology.find_queue(&queue).is_some(), "its queue was left out")?;
    Ok(Binding { exchange, queue, key })
}

/// Why a policy is not part of the topology: it is somebody else's, or says more than ours do.
fn foreign(policy: &Policy, topology: &Topology) -> Option<String> {
    let queue = topology.queues.iter().find(|queue| queue.broker_policy(true).name == policy.name);
    let exchange = topology.exchanges.iter().find(|exchange| exchange.broker_policy().name == policy.name);
    let known = queue.map(|queue| queue.broker_policy(true)).or(exchange.map(Exchange::broker_policy));
    let Some(known) = known else {
        return Some(
            "it is not Postrider's; it stays as it is, and is carried along where ours applies".to_owned(),
        );
    };
    let more: Vec<_> =
        policy.definition.keys().filter(|key| !known.definition.contains_key(*key)).cloned().collect();
    (!more.is_empty()).then(|| format!("{} came along from another policy", more.join(", ")))
}

fn policy(observed: &Observed, name: &str) -> BTreeMap<String, Value> {
    let found = observed.policies.iter().find(|policy| policy.name == name);
    found.map(|policy| policy.definition.clone()).unwrap_or_default()
}

fn target(exchange: Option<Value>, key: Option<&Value>) -> Result<Option<DeadLetterTarget>, String> {
    let Some(exchange) = exchange.map(exchange_name).transpose()? else { return Ok(None) };
    let key = key.and_then(Value::as_str).map(RoutingKey::new).transpose();
    Ok(Some(DeadLetterTarget { exchange, routing_key: key.map_err(|error| error.to_string())? }))
}

fn exchange_name(value: Value) -> Result<ExchangeName, String> {
    let Value::String(name) = value else { return Err(format!("{value} is no name of an exchange")) };
    ExchangeName::new(name).map_err(|error| error.to_string())
}

fn check(holds: bool, otherwise: &str) -> Result<(), String> {
    if holds { Ok(()) } else { Err(otherwise.to_owned()) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn queue(name: &str, arguments: &Value) -> observed::Queue {
        let queue = json!({"name": name, "type": "quorum", "durable": true, "auto_delete": false, "arguments": arguments});
        serde_json::from_value(queue).unwrap()
    }

    fn exchange(name: &str, arguments: &Value) -> observed::Exchange {
        let exchange = json!({"name": name, "type": "topic", "durable": true, "auto_delete": false, "internal": false,
            "arguments": arguments});
        serde_json::from_value(exchange).unwrap()
    }

    fn binding(from: &str, to: &str) -> observed::Binding {
        let binding = json!({"source": from, "destination": to, "destination_type": "queue", "routing_key": "#",
            "arguments": {}});
        serde_json::from_value(binding).unwrap()
    }

    #[test]
    fn what_no_configuration_can_say_is_left_out_and_named() {
        let observed = Observed {
            exchanges: vec![
                exchange("events", &json!({})),
                exchange("first", &json!({"alternate-exchange": "second"})),
                exchange("second", &json!({"alternate-exchange": "gone"})),
            ],
            queues: vec![
                queue("kept", &json!({})),
                queue("dies", &json!({"x-dead-letter-exchange": "amq.direct"})),
                queue("odd", &json!({"x-single-active-consumer": false})),
            ],
            bindings: vec![binding("events", "kept"), binding("events", "dies"), binding("first", "kept")],
            ..Observed::default()
        };
        let Export { topology, left_out } = export(&observed);
        let Topology { exchanges, queues, bindings } = topology;
        let names = (exchanges[0].name.as_str(), queues[0].name.as_str());
        assert_eq!((exchanges.len(), queues.len(), bindings.len(), names), (1, 1, 1, ("events", "kept")));
        assert_eq!(left_out.len(), 6, "{left_out:?}");
        assert_eq!(
            in_effect(&observed).topology.queues.len(),
            3,
            "a message goes wherever the broker sends it"
        );
    }
}
