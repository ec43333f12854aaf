//! One thing to do, and how it is shown.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Difference;
use crate::topology::observed::{self, Policy};
use crate::topology::{Binding, Exchange, Queue};

/// One thing to do. Each can be done again without harm.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "snake_case")]
pub enum Step {
    /// Create the virtual host, with every right for us.
    CreateVhost {
        /// Its name.
        name: String,
    },
    /// Declare an exchange that is not there.
    AddExchange {
        /// The exchange.
        exchange: Exchange,
    },
    /// Declare a queue that is not there.
    AddQueue {
        /// The queue.
        queue: Queue,
    },
    /// Replace a queue that is there with other arguments; none of its messages is lost.
    ReplaceQueue {
        /// The queue as it should be.
        queue: Queue,
        /// Over what a plain declaration would be refused.
        differences: Vec<Difference>,
        /// How many messages have to be moved, as the statistics have it.
        messages: u64,
        /// How many consumers will have to come back.
        consumers: u64,
    },
    /// Go on with a replacement that was interrupted.
    FinishReplacing {
        /// The queue as it should be.
        queue: Queue,
        /// How many messages wait, as the statistics have it.
        messages: u64,
        /// What the queue is still to get.
        differences: Vec<Difference>,
    },
    /// Set a policy.
    SetPolicy {
        /// The policy.
        policy: Policy,
        /// What one of this name says now.
        was: Option<BTreeMap<String, Value>>,
    },
    /// Bind a queue.
    AddBinding {
        /// The binding.
        binding: Binding,
    },
    /// Unbind a queue of ours.
    RemoveBinding {
        /// The binding.
        binding: observed::Binding,
    },
    /// Delete a policy of ours.
    RemovePolicy {
        /// Its name.
        name: String,
        /// What it says.
        definition: BTreeMap<String, Value>,
    },
    /// Delete a wait queue of ours, once it is empty.
    RemoveQueue {
        /// Its name.
        name: String,
        /// How many messages it holds, as the statistics have it.
        messages: u64,
        /// How many consumers it has.
        consumers: u64,
    },
}

/// What a step does, in one mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sign {
    /// `+`
    Add,
    /// `~`
    Change,
    /// `-/+`
    Replace,
    /// `-`
    Remove,
}

impl Sign {
    /// The mark.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Add => "+",
            Self::Change => "~",
            Self::Replace => "-/+",
            Self::Remove => "-",
        }
    }
}

impl Step {
    /// What it does, in one mark.
    pub fn sign(&self) -> Sign {
        match self {
            Self::CreateVhost { .. }
            | Self::AddExchange { .. }
            | Self::AddQueue { .. }
            | Self::AddBinding { .. }
            | Self::SetPolicy { was: None, .. } => Sign::Add,
            Self::SetPolicy { was: Some(_), .. } => Sign::Change,
            Self::ReplaceQueue { .. } | Self::FinishReplacing { .. } => Sign::Replace,
            Self::RemoveBinding { .. } | Self::RemovePolicy { .. } | Self::RemoveQueue { .. } => Sign::Remove,
        }
    }

    /// When its turn is. A queue that is replaced meets its consumers at once: what it needs is there before it, and what the old one
    /// needs stays until it is gone.
    pub(super) fn turn(&self) -> u8 {
        match self {
            Self::CreateVhost { .. } => 0,
            Self::AddExchange { .. } => 1,
            Self::AddQueue { .. } => 2,
            Self::SetPolicy { policy, was }
                if was.iter().flatten().all(|(key, _)| policy.definition.contains_key(key)) =>
            {
                3
            }
            Self::ReplaceQueue { .. } | Self::FinishReplacing { .. } => 4,
            Self::SetPolicy { .. } | Self::RemovePolicy { .. } => 5,
            Self::AddBinding { .. } => 6,
            Self::RemoveBinding { .. } | Self::RemoveQueue { .. } => 7,
        }
    }

    /// What it is about.
    pub fn subject(&self) -> String {
        match self {
            Self::CreateVhost { name } => format!("virtual host {name}"),
            Self::AddExchange { exchange } => {
                format!("exchange {} ({})", exchange.name, exchange.kind.as_str())
            }
            Self::AddQueue { queue } => format!("queue {} ({})", queue.name, queue.kind.as_str()),
            Self::ReplaceQueue { queue, .. } | Self::FinishReplacing { queue, .. } => {
                format!("queue {}", queue.name)
            }
            Self::SetPolicy { policy, .. } => format!("policy {}", policy.name),
            Self::AddBinding { binding } => {
                format!("binding {} → {} for {:?}", binding.exchange, binding.queue, binding.key.as_str())
            }
            Self::RemoveBinding { binding } => {
                let arguments = if binding.arguments.is_empty() { "" } else { " with arguments" };
                format!(
                    "binding {} → {} for {:?}{arguments}",
                    binding.source, binding.destination, binding.routing_key
                )
            }
            Self::RemovePolicy { name, .. } => format!("policy {name}"),
            Self::RemoveQueue { name, .. } => format!("queue {name}"),
        }
    }

    /// What else there is to say about it, a line each.
    pub fn details(&self) -> Vec<String> {
        match self {
            Self::AddExchange { exchange } => pairs(exchange.declared_arguments()),
            Self::AddQueue { queue } => {
                pairs(queue.declared_arguments().into_iter().filter(|(name, _)| name != "x-queue-type"))
            }
            Self::ReplaceQueue { differences, messages, consumers, .. } => {
                let mut lines: Vec<_> = differences.iter().map(ToString::to_string).collect();
                lines.push(format!(
                    "{} to move, {} to come back",
                    many(*messages, "message"),
                    many(*consumers, "consumer")
                ));
                lines
            }
            Self::FinishReplacing { messages, differences, .. } => {
                let mut lines: Vec<_> = differences.iter().map(ToString::to_string).collect();
                lines
                    .push(format!("its replacement was interrupted; {} waiting", many(*messages, "message")));
                lines
            }
            Self::SetPolicy { policy, was } => {
                let was = was.as_ref();
                let mut lines: Vec<_> =
                    policy.definition.iter().map(|(key, value)| changed(key, Some(value), was)).collect();
                let gone = was.into_iter().flatten().filter(|(key, _)| !policy.definition.contains_key(*key));
                lines.extend(gone.map(|(key, _)| changed(key, None, was)));
                lines
            }
            Self::RemovePolicy { definition, .. } => pairs(definition),
            Self::RemoveQueue { messages, consumers, .. } => {
                vec![format!(
                    "{}, {}; it goes once it is empty",
                    many(*messages, "message"),
                    many(*consumers, "consumer")
                )]
            }
            Self::CreateVhost { .. } | Self::AddBinding { .. } | Self::RemoveBinding { .. } => Vec::new(),
        }
    }
}

fn pairs<K: std::fmt::Display, V: std::fmt::Display>(all: impl IntoIterator<Item = (K, V)>) -> Vec<String> {
    all.into_iter().map(|(name, value)| format!("{name}: {value}")).collect()
}

fn changed(key: &str, value: Option<&Value>, was: Option<&BTreeMap<String, Value>>) -> String {
    let shown = |value: Option<&Value>| value.map_or_else(|| "none".to_owned(), Value::to_string);
    match was {
        None => format!("{key}: {}", shown(value)),
        Some(was) if was.get(key) == value => format!("{key}: {}", shown(value)),
        Some(was) => format!("{key}: {} → {}", shown(was.get(key)), shown(value)),
    }
}

fn many(count: u64, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}
