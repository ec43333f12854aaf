//! When RabbitMQ takes two declarations for the same: the rules by which it answers 406, as seen on 3.10 and 4.0.
//!
//! An existing queue is compared by the arguments that its type knows; all others are silently ignored, whatever they
//! say. An absent argument differs from any value, with one exception: no type is the same as the default type.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::topology::{Argument, Exchange, Queue, QueueKind, observed};

/// Arguments that both types of queues know.
const COMMON: [&str; 8] = [
    "x-dead-letter-exchange",
    "x-dead-letter-routing-key",
    "x-expires",
    "x-max-length",
    "x-max-length-bytes",
    "x-message-ttl",
    "x-overflow",
    "x-single-active-consumer",
];
/// Arguments that classic queues alone know.
const CLASSIC: [&str; 4] = ["x-max-priority", "x-queue-master-locator", "x-queue-mode", "x-queue-version"];
/// Arguments that quorum queues alone know.
const QUORUM: [&str; 5] = [
    "x-dead-letter-strategy",
    "x-delivery-limit",
    "x-max-in-memory-bytes",
    "x-max-in-memory-length",
    "x-quorum-initial-group-size",
];
/// Known to quorum queues, and to classic ones since RabbitMQ 4.
const LOCATOR: &str = "x-queue-leader-locator";

/// One setting in which a declaration and what exists differ.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Difference {
    /// The argument or property.
    pub setting: String,
    /// What is wanted; nothing when it should not be set.
    pub wanted: Option<Value>,
    /// What exists; nothing when it is not set.
    pub exists: Option<Value>,
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shown =
            |value: &Option<Value>| value.as_ref().map_or_else(|| "none".to_owned(), Value::to_string);
        write!(f, "{}: {} → {}", self.setting, shown(&self.exists), shown(&self.wanted))
    }
}

/// The settings over which RabbitMQ would refuse to declare a queue that exists. None means that it would not.
pub fn queue_differences(
    wanted: &Queue,
    exists: &observed::Queue,
    broker: &observed::Observed,
) -> Vec<Difference> {
    let arguments = values(wanted.declared_arguments());
    let mut found = Vec::new();
    let (type_wanted, type_exists) = (queue_type(wanted, broker), exists.kind());
    if type_wanted != type_exists {
        found.push(differ("x-queue-type", Some(type_wanted.into()), Some(type_exists.into())));
    }
    let same = |setting: &str, is: bool, wanted: bool| {
        (is != wanted).then(|| differ(setting, Some(wanted.into()), Some(is.into())))
    };
    found.extend(same("durable", exists.durable, true));
    found.extend(same("auto_delete", exists.auto_delete, false));
    found.extend(same("exclusive", exists.exclusive, false));
    found.extend(compared(type_exists, broker).filter_map(|name| {
        let (wanted, exists) = (arguments.get(name), exists.arguments.get(name));
        (wanted != exists).then(|| differ(name, wanted.cloned(), exists.cloned()))
    }));
    found
}

/// Arguments that differ without RabbitMQ ever saying so: it compares only those that the type knows.
pub fn ignored_differences(
    wanted: &Queue,
    exists: &observed::Queue,
    broker: &observed::Observed,
) -> Vec<Difference> {
    let arguments = values(wanted.declared_arguments());
    let known: Vec<_> = compared(exists.kind(), broker).chain(["x-queue-type"]).collect();
    let names = arguments.keys().chain(exists.arguments.keys().filter(|name| !arguments.contains_key(*name)));
    let unknown = names.filter(|name| !known.contains(&name.as_str()));
    unknown
        .filter(|name| arguments.get(*name) != exists.arguments.get(*name))
        .map(|name| differ(name, arguments.get(name).cloned(), exists.arguments.get(name).cloned()))
        .collect()
}

/// The settings over which RabbitMQ would refuse to declare an exchange that exists.
pub fn exchange_differences(wanted: &Exchange, exists: &observed::Exchange) -> Vec<Difference> {
    let mut found = Vec::new();
    if exists.kind != wanted.kind.as_str() {
        found.push(differ("type", Some(wanted.kind.as_str().into()), Some(exists.kind.as_str().into())));
    }
    for (setting, is, wanted) in [
        ("durable", exists.durable, true),
        ("auto_delete", exists.auto_delete, false),
        ("internal", exists.internal, false),
    ] {
        if is != wanted {
            found.push(differ(setting, Some(wanted.into()), Some(is.into())));
        }
    }
    let arguments = values(wanted.declared_arguments());
    let (wanted, exists) = (arguments.get("alternate-exchange"), exists.arguments.get("alternate-exchange"));
    if wanted != exists {
        found.push(differ("alternate-exchange", wanted.cloned(), exists.cloned()));
    }
    found
}

/// Arguments that no new queue of this type may have: RabbitMQ refuses the first declaration too.
pub fn refused_arguments(wanted: &Queue, broker: &observed::Observed) -> Vec<String> {
    let foreign: &[&str] = match queue_type(wanted, broker) {
        "classic" => &QUORUM,
        "quorum" => &CLASSIC,
        _ => &[],
    };
    let locator = (queue_type(wanted, broker) == "classic" && broker.major() < 4).then_some(LOCATOR);
    let arguments = wanted.declared_arguments();
    foreign
        .iter()
        .copied()
        .chain(locator)
        .filter(|name| arguments.contains_key(*name))
        .map(str::to_owned)
        .collect()
}

/// The type a declaration asks for; of one that says none, what this virtual host makes of it.
pub(super) fn queue_type<'a>(wanted: &'a Queue, broker: &'a observed::Observed) -> &'a str {
    match wanted.kind {
        QueueKind::Unsaid => {
            broker.default_queue_type.as_deref().filter(|kind| *kind != "undefined").unwrap_or("classic")
        }
        said => said.as_str(),
    }
}

fn compared(kind: &str, broker: &observed::Observed) -> impl Iterator<Item = &'static str> {
    let own: &[&str] = match kind {
        "classic" => &CLASSIC,
        "quorum" => &QUORUM,
        _ => &[],
    };
    let locator = (kind == "quorum" || broker.major() >= 4).then_some(LOCATOR);
    COMMON.into_iter().chain(own.iter().copied()).chain(locator)
}

fn values(arguments: BTreeMap<String, Argument>) -> BTreeMap<String, Value> {
    arguments.into_iter().map(|(name, value)| (name, Value::from(value))).collect()
}

fn differ(setting: &str, wanted: Option<Value>, exists: Option<Value>) -> Difference {
    Difference { setting: setting.to_owned(), wanted, exists }
}

impl From<Argument> for Value {
    fn from(argument: Argument) -> Self {
        match argument {
            Argument::Bool(value) => value.into(),
            Argument::Int(value) => value.into(),
            Argument::Text(value) => value.into(),
        }
    }
}
