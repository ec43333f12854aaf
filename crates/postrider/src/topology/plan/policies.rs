//! Our policies beside other people's: RabbitMQ applies one policy to an object, so ours carries theirs along.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use regex::Regex;
use serde_json::Value;

use super::Step;
use super::equivalence::queue_type;
use crate::topology::observed::{Observed, Policy};
use crate::topology::{AppliesTo, Argument, BrokerPolicy, DeliveryLimit, Queue, QueueKind, Topology};

/// The beginning of the names of all policies that we set.
const OURS: &str = "postrider.";
/// As good as no delivery limit.
const NEVER: i64 = 1_000_000;

/// The policies to set and to remove, and what to say about them.
pub(super) fn steps(wanted: &Topology, observed: &Observed) -> (Vec<Step>, Vec<String>) {
    let (mut steps, mut notes) = (Vec::new(), Vec::new());
    let mut policies = wanted.policies(observed.limits_by_itself());
    if !observed.limits_by_itself() {
        lift_limits(&mut policies, wanted, observed);
    }
    for policy in &policies {
        let (merged, other) = merge(policy, wanted, observed);
        if let Some(other) = other {
            notes.push(carried_along(policy, other));
        }
        let exists = observed.policies.iter().find(|seen| seen.name == policy.name);
        if !exists.is_some_and(|seen| is_as_good(seen, &merged)) {
            let was = exists.map(|seen| seen.definition.clone());
            steps.push(Step::SetPolicy { policy: merged, was });
        }
    }
    // Ours on an object of ours, and no longer wanted.
    for seen in observed.policies.iter().filter(|seen| seen.name.starts_with(OURS)) {
        let of_ours = wanted.queues.iter().any(|queue| queue.broker_policy(true).name == seen.name)
            || wanted.exchanges.iter().any(|exchange| exchange.broker_policy().name == seen.name);
        if of_ours && !policies.iter().any(|policy| policy.name == seen.name) {
            steps.push(Step::RemovePolicy { name: seen.name.clone(), definition: seen.definition.clone() });
        }
    }
    (steps, notes)
}

/// Before RabbitMQ 4 there is no limit by itself, and no word for none. Somebody else's policy may set one all the same, and in a retry
/// loop, or where there is no dead-letter target, what reaches it is gone: so ours sets one that nothing reaches.
fn lift_limits(policies: &mut Vec<BrokerPolicy>, wanted: &Topology, observed: &Observed) {
    let unlimited = |queue: &&Queue| {
        let theirs = strongest(observed, queue.name.as_str(), AppliesTo::Queues, queue.kind.as_str());
        queue.kind == QueueKind::Quorum
            && queue.policy.delivery_limit == Some(DeliveryLimit::Unlimited)
            && theirs.is_some_and(|policy| policy.definition.contains_key("delivery-limit"))
    };
    for queue in wanted.queues.iter().filter(unlimited) {
        let mut ours = queue.broker_policy(false);
        ours.definition.insert("delivery-limit".to_owned(), Argument::Int(NEVER));
        policies.retain(|policy| policy.name != ours.name);
        policies.push(ours);
    }
}

/// Our policies on objects that nobody has any more.
pub(super) fn orphans(wanted: &Topology, observed: &Observed) -> Vec<Step> {
    let gone = |policy: &&Policy| {
        let queue = policy.name.strip_prefix("postrider.queue.");
        let exchange = policy.name.strip_prefix("postrider.exchange.");
        queue.is_some_and(|name| {
            observed.queue(name).is_none() && !wanted.queues.iter().any(|queue| queue.name.as_str() == name)
        }) || exchange.is_some_and(|name| {
            observed.exchange(name).is_none() && !wanted.exchanges.iter().any(|e| e.name.as_str() == name)
        })
    };
    let remove = |policy: &Policy| Step::RemovePolicy {
        name: policy.name.clone(),
        definition: policy.definition.clone(),
    };
    observed.policies.iter().filter(gone).map(remove).collect()
}

/// The policy to set: ours over what the other one says, above it in priority.
fn merge<'a>(
    policy: &BrokerPolicy,
    wanted: &Topology,
    observed: &'a Observed,
) -> (Policy, Option<&'a Policy>) {
    let object = policy.name.strip_prefix(prefix(policy.applies_to)).unwrap_or(&policy.name);
    let kind = wanted.queues.iter().find(|queue| queue.name.as_str() == object);
    let kind = kind.map_or("", |queue| queue_type(queue, observed));
    let other = strongest(observed, object, policy.applies_to, kind);
    let mut definition = other.map(|other| other.definition.clone()).unwrap_or_default();
    definition.extend(policy.definition.iter().map(|(key, value)| (key.clone(), Value::from(value.clone()))));
    let priority = other.map_or(0, |other| other.priority.saturating_add(1).max(0));
    let merged = Policy {
        name: policy.name.clone(),
        pattern: policy.pattern.clone(),
        apply_to: policy.applies_to.as_str().to_owned(),
        priority,
        definition,
    };
    (merged, other)
}

/// What RabbitMQ applies to an object: ours, or another one that is above it.
pub(crate) fn applied<'a>(
    observed: &'a Observed,
    object: &str,
    applies: AppliesTo,
    kind: &str,
) -> Option<&'a Policy> {
    let name = format!("{}{object}", prefix(applies));
    let ours = observed.policies.iter().find(|policy| policy.name == name);
    strongest(observed, object, applies, kind).into_iter().chain(ours).max_by_key(|policy| policy.priority)
}

/// What stands before an object's name in the name of our policy for it.
fn prefix(applies: AppliesTo) -> &'static str {
    match applies {
        AppliesTo::Queues => "postrider.queue.",
        AppliesTo::Exchanges => "postrider.exchange.",
    }
}

/// Of other people's policies, the one that would apply to an object if ours did not.
fn strongest<'a>(observed: &'a Observed, object: &str, applies: AppliesTo, kind: &str) -> Option<&'a Policy> {
    let fits = |policy: &&Policy| {
        let word = policy.apply_to.as_str();
        let kinds = match applies {
            AppliesTo::Queues => {
                matches!(word, "all" | "queues") || word.strip_suffix("_queues") == Some(kind)
            }
            AppliesTo::Exchanges => matches!(word, "all" | "exchanges"),
        };
        // A pattern that only RabbitMQ's own engine understands is taken to match: carrying too much along loses nothing.
        kinds && Regex::new(&policy.pattern).map_or(true, |pattern| pattern.is_match(object))
    };
    observed
        .policies
        .iter()
        .filter(|policy| !policy.name.starts_with(OURS))
        .filter(fits)
        .max_by_key(|p| p.priority)
}

/// Equal, or above the other policy already: a priority is not lowered for its own sake.
fn is_as_good(seen: &Policy, wanted: &Policy) -> bool {
    seen.pattern == wanted.pattern
        && seen.apply_to == wanted.apply_to
        && seen.priority >= wanted.priority
        && seen.definition == wanted.definition
}

fn carried_along(policy: &BrokerPolicy, other: &Policy) -> String {
    let overridden: BTreeMap<_, _> =
        other.definition.iter().filter(|(key, _)| policy.definition.contains_key(*key)).collect();
    let mut text = format!(
        "policy {:?} matches too; RabbitMQ applies one policy only, so ours ({}) carries its settings along: apply again \
         when that one changes",
        other.name, policy.name
    );
    for (key, value) in overridden {
        if Value::from(policy.definition[key].clone()) != *value {
            let _ = write!(text, "; its {key} = {value} is overridden");
        }
    }
    text
}
