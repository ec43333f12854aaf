//! What the management API answers, as far as we read it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The broker.
#[derive(Debug, Clone, Deserialize)]
pub struct Overview {
    /// `3.10.8`
    pub rabbitmq_version: String,
}

/// A user.
#[derive(Debug, Clone, Deserialize)]
pub struct Whoami {
    /// Its name.
    pub name: String,
    /// `management`, `policymaker`, `monitoring`, `administrator`.
    pub tags: Vec<String>,
}

impl Whoami {
    /// Whether it may create virtual hosts.
    pub fn is_administrator(&self) -> bool {
        self.tags.iter().any(|tag| tag == "administrator")
    }

    /// Whether it may set policies, in virtual hosts it has access to.
    pub fn may_set_policies(&self) -> bool {
        self.is_administrator() || self.tags.iter().any(|tag| tag == "policymaker")
    }
}

/// A virtual host.
#[derive(Debug, Clone, Deserialize)]
pub struct Vhost {
    /// Its name.
    pub name: String,
    /// The type of queues that are declared without one; absent or `undefined` means classic.
    #[serde(default)]
    pub default_queue_type: Option<String>,
}

/// What a user may do in a virtual host: patterns of names.
#[derive(Debug, Clone, Deserialize)]
pub struct Permission {
    /// Declare and delete.
    pub configure: String,
    /// Publish and bind.
    pub write: String,
    /// Consume and bind.
    pub read: String,
}

/// An exchange.
#[derive(Debug, Clone, Deserialize)]
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
#[derive(Debug, Clone, Deserialize)]
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
    #[serde(default)]
    pub messages: Option<u64>,
    /// Delivered and not yet settled.
    #[serde(default)]
    pub messages_unacknowledged: Option<u64>,
    /// How many consumers are attached.
    #[serde(default)]
    pub consumers: Option<u64>,
    /// What the policies that apply to it set, operator policies included.
    #[serde(default, deserialize_with = "table_or_nothing")]
    pub effective_policy_definition: BTreeMap<String, Value>,
    /// `running`, or that its node is down.
    #[serde(default)]
    pub state: Option<String>,
}

/// An empty table is written as an empty list by some versions.
fn table_or_nothing<'de, D: serde::Deserializer<'de>>(from: D) -> Result<BTreeMap<String, Value>, D::Error> {
    Ok(match Value::deserialize(from)? {
        Value::Object(table) => table.into_iter().collect(),
        _ => BTreeMap::new(),
    })
}

/// A binding.
#[derive(Debug, Clone, PartialEq, Deserialize)]
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
}

/// A policy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Policy {
    /// Its name.
    pub name: String,
    /// Which objects, by name.
    pub pattern: String,
    /// `queues`, `exchanges`, `all`; `classic_queues`, `quorum_queues` since 3.12.
    #[serde(rename = "apply-to")]
    pub apply_to: String,
    /// The highest one alone applies.
    pub priority: i64,
    /// The settings.
    pub definition: BTreeMap<String, Value>,
}
