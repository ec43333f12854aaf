//! What has to be done so that a broker has what is wanted, decided without touching it.
//!
//! A plan adds what is missing, sets policies, and replaces queues whose arguments differ, which is where a plain
//! declaration would be refused (406). It never removes what it does not know to be ours, and removes nothing at all unless
//! it is told to prune.

mod equivalence;
mod policies;
mod step;
#[cfg(test)]
mod tests;

pub use equivalence::{
    Difference, exchange_differences, ignored_differences, queue_differences, refused_arguments,
};
pub(crate) use policies::applied;
pub use step::{Sign, Step};

use serde::{Deserialize, Serialize};

use super::observed::{self, Observed};
use super::{Binding, Overflow, Queue, QueueName, Topology};

/// What is behind the name of a queue that holds its messages while it is replaced.
pub const ASIDE: &str = ".postrider-replacing";
/// What is behind the names of the exchanges through which messages are moved there and back.
const MOVERS: [&str; 2] = [".postrider-aside", ".postrider-back"];

/// What has to be done, in this order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The virtual host.
    pub vhost: String,
    /// The steps.
    pub steps: Vec<Step>,
    /// Removals that were left out because nobody asked to prune: bindings on our queues that nobody wants, wait queues of
    /// an earlier ladder, policies of ours whose object is gone.
    pub extra: Vec<Step>,
    /// Policies that the broker lacks, and that this user may not set. An apply by this user leaves them as they are.
    #[serde(default)]
    pub unset: Vec<Step>,
    /// Declarations that RabbitMQ would refuse, and that no step can mend. With any of these nothing is applied.
    pub blocked: Vec<String>,
    /// What is good to know.
    pub notes: Vec<String>,
    /// See [`Observed::fingerprint`].
    pub fingerprint: String,
}

impl Plan {
    /// Whether the broker has all that is wanted.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty() && self.blocked.is_empty()
    }

    /// How many things differ on the broker from what is wanted, whoever may do something about it.
    pub fn drift(&self) -> usize {
        self.steps.len() + self.blocked.len() + self.extra.len() + self.unset.len()
    }

    /// How many steps have this sign.
    pub fn count(&self, sign: Sign) -> usize {
        self.steps.iter().filter(|step| step.sign() == sign).count()
    }
}

/// Compares what is wanted with what exists.
pub fn diff(wanted: &Topology, observed: &Observed, prune: bool) -> Plan {
    let mut draft = Draft {
        wanted,
        observed,
        steps: Vec::new(),
        unset: Vec::new(),
        blocked: Vec::new(),
        notes: Vec::new(),
    };
    if !observed.vhost_exists {
        draft.steps.push(Step::CreateVhost { name: observed.vhost.clone() });
    }
    draft.exchanges();
    draft.queues();
    draft.policies();
    draft.bindings();
    draft.steps.sort_by_key(Step::turn);
    let extra = draft.extra();
    let Draft { mut steps, unset, blocked, notes, .. } = draft;
    let extra = if prune {
        steps.extend(extra);
        Vec::new()
    } else {
        extra
    };
    let fingerprint = observed.fingerprint(wanted);
    Plan { vhost: observed.vhost.clone(), steps, extra, unset, blocked, notes, fingerprint }
}

/// A plan in the making.
struct Draft<'a> {
    wanted: &'a Topology,
    observed: &'a Observed,
    steps: Vec<Step>,
    unset: Vec<Step>,
    blocked: Vec<String>,
    notes: Vec<String>,
}

impl Draft<'_> {
    fn exchanges(&mut self) {
        for exchange in self.wanted.exchanges.iter().filter(|exchange| !exchange.name.is_default()) {
            let Some(exists) = self.observed.exchange(exchange.name.as_str()) else {
                self.steps.push(Step::AddExchange { exchange: exchange.clone() });
                continue;
            };
            let differences = exchange_differences(exchange, exists);
            if !differences.is_empty() {
                self.blocked.push(format!(
                    "exchange {} exists with other settings ({}), which RabbitMQ cannot change while messages pass through \
                     it; declare what exists, or use a new name and move the bindings",
                    exchange.name,
                    listed(&differences)
                ));
            }
        }
    }

    fn queues(&mut self) {
        for queue in &self.wanted.queues {
            let refused = refused_arguments(queue, self.observed);
            let exists = self.observed.queue(queue.name.as_str());
            let aside = self.observed.queue(&aside_of(&queue.name));
            let differences =
                exists.map(|exists| queue_differences(queue, exists, self.observed)).unwrap_or_default();
            if !refused.is_empty() && (exists.is_none() || !differences.is_empty()) {
                self.blocked.push(format!(
                    "queue {} is {} and cannot have {}; leave it out, or choose the other type",
                    queue.name,
                    equivalence::queue_type(queue, self.observed),
                    refused.join(", ")
                ));
                continue;
            }
            match (exists, aside) {
                (None, None) => self.steps.push(Step::AddQueue { queue: queue.clone() }),
                (Some(exists), None) if differences.is_empty() => self.note_ignored(queue, exists),
                (Some(exists), None) => self.replace(queue, exists, differences),
                (_, Some(aside)) => {
                    let messages = aside.messages.unwrap_or(0) + exists.and_then(|q| q.messages).unwrap_or(0);
                    self.steps.push(Step::FinishReplacing { queue: queue.clone(), messages, differences });
                }
            }
        }
    }

    fn replace(&mut self, queue: &Queue, exists: &observed::Queue, differences: Vec<Difference>) {
        if exists.exclusive || exists.kind() == "stream" {
            let what = if exists.exclusive { "belongs to one connection" } else { "is a stream" };
            self.blocked.push(format!(
                "queue {} exists and {what}, so that its messages cannot be moved; choose another name, or delete it yourself",
                queue.name
            ));
            return;
        }
        self.steps.push(Step::ReplaceQueue {
            queue: queue.clone(),
            differences,
            messages: exists.messages.unwrap_or(0),
            consumers: exists.consumers.unwrap_or(0),
        });
        self.note_too_many(queue, exists.messages.unwrap_or(0));
        if queue.single_active_consumer {
            self.notes.push(format!(
                "queue {}: messages published in the moment when the bindings move may change places; pause publishers \
                 where that matters",
                queue.name
            ));
        }
        if exists.kind() == "quorum" {
            self.notes.push(format!(
                "queue {}: RabbitMQ cannot close a quorum queue to those who publish to it by its name; who does so without \
                 `mandatory` should pause",
                queue.name
            ));
        }
    }

    /// More messages than the new queue may have.
    fn note_too_many(&mut self, queue: &Queue, messages: u64) {
        let Some(most) = queue.max_length().filter(|most| *most < messages) else { return };
        self.notes.push(match queue.overflow() {
            Overflow::DropHead => format!(
                "queue {}: of its {messages} messages the oldest {} do not fit; RabbitMQ takes them out, to its dead letters or \
                 for good",
                queue.name,
                messages - most
            ),
            Overflow::RejectPublish => format!(
                "queue {}: {most} of its {messages} messages fit; the others wait beside it until consumers make room, and after some \
                 minutes of that the apply has to be repeated: let them work off the rest first",
                queue.name
            ),
        });
    }

    fn note_ignored(&mut self, queue: &Queue, exists: &observed::Queue) {
        let ignored = ignored_differences(queue, exists, self.observed);
        if !ignored.is_empty() {
            self.notes.push(format!(
                "queue {}: RabbitMQ does not compare {} and keeps what it has ({})",
                queue.name,
                if ignored.len() == 1 { "an argument" } else { "some arguments" },
                listed(&ignored)
            ));
        }
    }

    fn policies(&mut self) {
        let (steps, notes) = policies::steps(self.wanted, self.observed);
        if self.observed.may_set_policies {
            self.steps.extend(steps);
            self.notes.extend(notes);
        } else if !steps.is_empty() {
            let unprotected: Vec<_> = steps.iter().map(Step::subject).collect();
            self.notes.push(format!(
                "no right to set policies (the tag `policymaker`), so these are not set: {}",
                unprotected.join(", ")
            ));
            self.unset = steps;
        }
    }

    fn bindings(&mut self) {
        for binding in self.wanted.bindings.iter().filter(|binding| !binding.exchange.is_default()) {
            if !self.is_there(binding) {
                self.steps.push(Step::AddBinding { binding: binding.clone() });
            }
        }
    }

    /// Whether a binding exists: at the queue, or at the one that stands in for it while it is replaced.
    fn is_there(&self, wanted: &Binding) -> bool {
        let aside = aside_of(&wanted.queue);
        self.observed.bindings.iter().any(|seen| {
            (seen.is_of(wanted.queue.as_str()) || seen.is_of(&aside))
                && seen.source == wanted.exchange.as_str()
                && seen.routing_key == wanted.key.as_str()
                && seen.arguments.is_empty()
        })
    }

    /// What is on the broker beyond what is wanted, and is ours to remove.
    fn extra(&self) -> Vec<Step> {
        let mut extra = Vec::new();
        for queue in &self.wanted.queues {
            for seen in self.observed.bindings_of(queue.name.as_str()) {
                let wanted = self.wanted.bindings.iter().any(|binding| {
                    binding.queue == queue.name
                        && binding.exchange.as_str() == seen.source
                        && binding.key.as_str() == seen.routing_key
                        && seen.arguments.is_empty()
                });
                let ours_for_now = MOVERS.iter().any(|end| seen.source == format!("{}{end}", queue.name));
                if !wanted && !ours_for_now {
                    extra.push(Step::RemoveBinding { binding: seen.clone() });
                }
            }
            extra.extend(self.old_waits(queue));
        }
        if self.observed.may_set_policies {
            extra.extend(policies::orphans(self.wanted, self.observed));
        }
        extra
    }

    /// Wait queues of an earlier ladder of this queue: named so, and leading back to it.
    fn old_waits<'b>(&'b self, queue: &'b Queue) -> impl Iterator<Item = Step> + 'b {
        let prefix = format!("{}.wait.", queue.name);
        let leads_back = |seen: &observed::Queue| {
            seen.arguments.get("x-dead-letter-exchange").is_some_and(|to| to == "")
                && seen
                    .arguments
                    .get("x-dead-letter-routing-key")
                    .is_some_and(|key| key == queue.name.as_str())
        };
        let old = move |seen: &&observed::Queue| {
            seen.name.starts_with(&prefix)
                && leads_back(seen)
                && !self.wanted.queues.iter().any(|queue| queue.name.as_str() == seen.name)
        };
        let remove = |seen: &observed::Queue| Step::RemoveQueue {
            name: seen.name.clone(),
            messages: seen.messages.unwrap_or(0),
            consumers: seen.consumers.unwrap_or(0),
        };
        self.observed.queues.iter().filter(old).map(remove)
    }
}

/// The queue that holds a queue's messages while it is replaced.
pub fn aside_of(queue: &QueueName) -> String {
    format!("{queue}{ASIDE}")
}

fn listed(differences: &[Difference]) -> String {
    differences.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
