//! What a broker has, as it tells: plain data, to be compared with what is wanted.
//!
//! Names and arguments are kept as they are found, because other people's objects follow other rules than ours.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::Topology;

/// One virtual host of a broker, as it was found.
#[derive(Debug, Clone, Default)]
pub struct Observed {
    /// The broker's version, `3.10.8`.
    pub version: String,
    /// The virtual host.
    pub vhost: String,
    /// Whether there is such a virtual host; where there is none, nothing else is there either.
    pub vhost_exists: bool,
    /// The type of queues that are declared without one.
    pub default_queue_type: Option<String>,
    /// Whether we may set policies.
    pub may_set_policies: bool,
    /// All exchanges.
    pub exchanges: Vec<Exchange>,
    /// All queues.
    pub queues: Vec<Queue>,
    /// All bindings, without those of the default exchange.
    pub bindings: Vec<Binding>,
    /// All policies.
    pub policies: Vec<Policy>,
}

/// An exchange.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Exchange {
    /// Its name; empty for the default exchange.
    pub name: String,
    /// `topic`, `fanout`, `direct`, `headers`, or a plugin's.
    #[serde(rename = "type")]
    pub kind: String,
    /// Whether it outlives a restart.
    pub durable: bool,
    /// Whether it goes with its last binding.
    pub auto_delete: bool,
    /// Whether clients may not publish to it.
    pub internal: bool,
    /// How it was declared.
    pub arguments: BTreeMap<String, Value>,
}

/// A queue. Counts are statistics: late, and absent while the queue is young or its node is away.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Queue {
    /// Its name.
    pub name: String,
    /// `classic`, `quorum`, `stream`; absent while its node is away.
    #[serde(rename = "type", default)]
    pub kind: Option<String>,
    /// Whether it outlives a restart.
    pub durable: bool,
    /// Whether it goes with its last consumer.
    pub auto_delete: bool,
    /// Whether it belongs to one connection.
    #[serde(default)]
    pub exclusive: bool,
    /// How it was declared.
    pub arguments: BTreeMap<String, Value>,
    /// Ready and unacknowledged.
    #[serde(default, skip_serializing)]
    pub messages: Option<u64>,
    /// Delivered and not yet settled.
    #[serde(default, skip_serializing)]
    pub messages_unacknowledged: Option<u64>,
    /// How many consumers are attached.
    #[serde(default, skip_serializing)]
    pub consumers: Option<u64>,
    /// What the policies that apply to it set, operators' policies included.
    #[serde(default, skip_serializing, deserialize_with = "table_or_nothing")]
    pub effective_policy_definition: BTreeMap<String, Value>,
}

/// A binding.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Binding {
    /// The exchange; empty for the default exchange.
    pub source: String,
    /// The queue or the exchange that is fed.
    pub destination: String,
    /// `queue` or `exchange`.
    pub destination_type: String,
    /// The key.
    pub routing_key: String,
    /// For headers exchanges and plugins.
    pub arguments: BTreeMap<String, Value>,
    /// What the management API calls it.
    #[serde(default)]
    pub properties_key: String,
}

/// A policy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Policy {
    /// Its name.
    pub name: String,
    /// Which objects, by name.
    pub pattern: String,
    /// `queues`, `exchanges`, `all`; also `classic_queues` and `quorum_queues` since 3.12.
    #[serde(rename = "apply-to")]
    pub apply_to: String,
    /// The highest one alone applies.
    pub priority: i64,
    /// The settings.
    pub definition: BTreeMap<String, Value>,
}

impl Observed {
    /// Whether the broker limits redeliveries without being told to, as RabbitMQ does since 4.0.
    pub fn limits_by_itself(&self) -> bool {
        self.major() >= 4
    }

    /// The first number of the version; of one that cannot be read, the oldest that is supported.
    pub fn major(&self) -> u32 {
        self.version.split('.').next().and_then(|major| major.parse().ok()).unwrap_or(3)
    }

    /// The exchange of this name.
    pub fn exchange(&self, name: &str) -> Option<&Exchange> {
        self.exchanges.iter().find(|exchange| exchange.name == name)
    }

    /// The queue of this name.
    pub fn queue(&self, name: &str) -> Option<&Queue> {
        self.queues.iter().find(|queue| queue.name == name)
    }

    /// The bindings of a queue.
    pub fn bindings_of<'a>(&'a self, queue: &'a str) -> impl Iterator<Item = &'a Binding> {
        self.bindings.iter().filter(move |binding| binding.is_of(queue))
    }

    /// A mark of everything that a plan for this topology depends on, our rights included and counts left out. Two looks with the same mark give the
    /// same plan.
    pub fn fingerprint(&self, wanted: &Topology) -> String {
        let exchanges = self
            .exchanges
            .iter()
            .filter(|seen| wanted.exchanges.iter().any(|e| e.name.as_str() == seen.name));
        let of_wanted = |name: &str| {
            wanted.queues.iter().any(|queue| {
                let rest = name.strip_prefix(queue.name.as_str());
                rest.is_some_and(|rest| {
                    rest.is_empty() || rest.starts_with(".postrider-") || rest.starts_with(".wait.")
                })
            })
        };
        let queues = self.queues.iter().filter(|seen| of_wanted(&seen.name));
        let bindings = self.bindings.iter().filter(|seen| of_wanted(&seen.destination));
        let mut parts: Vec<String> = vec![
            self.vhost.clone(),
            self.vhost_exists.to_string(),
            self.version.clone(),
            self.default_queue_type.clone().unwrap_or_default(),
            self.may_set_policies.to_string(),
        ];
        parts.extend(sorted(exchanges));
        parts.extend(sorted(queues));
        parts.extend(sorted(bindings));
        parts.extend(sorted(self.policies.iter()));
        let digest = Sha256::digest(parts.join("\n"));
        digest.iter().fold(String::new(), |mut text, byte| {
            // Writing to a String cannot fail.
            let _ = write!(text, "{byte:02x}");
            text
        })
    }
}

fn sorted<'a, T: Serialize + 'a>(all: impl Iterator<Item = &'a T>) -> Vec<String> {
    let mut texts: Vec<_> = all.filter_map(|one| serde_json::to_string(one).ok()).collect();
    texts.sort_unstable();
    texts
}

impl Binding {
    /// Whether it feeds this queue.
    pub fn is_of(&self, queue: &str) -> bool {
        self.destination_type == "queue" && self.destination == queue
    }
}

impl Queue {
    /// `classic`, `quorum` or `stream`. A queue whose node is away does not say; its arguments do.
    pub fn kind(&self) -> &str {
        self.kind
            .as_deref()
            .or_else(|| self.arguments.get("x-queue-type").and_then(Value::as_str))
            .unwrap_or("classic")
    }
}

/// An empty table is written as an empty list by some versions.
fn table_or_nothing<'de, D: serde::Deserializer<'de>>(from: D) -> Result<BTreeMap<String, Value>, D::Error> {
    Ok(match Value::deserialize(from)? {
        Value::Object(table) => table.into_iter().collect(),
        _ => BTreeMap::new(),
    })
}
