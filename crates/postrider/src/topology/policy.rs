//! What may change after a declaration: policies, and the safety that every queue should have.
//!
//! Arguments are fixed when a queue is declared, and everybody who declares it must give the same ones. A policy is set
//! beside it, by whoever operates the broker, and can change at any time. So what a design lacks for safety goes into
//! policies: no other declarer meets a refusal because of it.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Argument, DeadLetterTarget, Exchange, ExchangeName, Queue, QueueKind, Topology};

/// How often a message is delivered again after its consumer was lost, before it is taken for poison. RabbitMQ 4 has this
/// limit by itself; by policy it holds on every version, and for queues whose dead letters are kept.
pub const REDELIVERIES: u32 = 20;

/// What an operator may set on an exchange.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExchangePolicy {
    /// Where it sends what no binding wants, unless an argument says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alternate: Option<ExchangeName>,
}

/// What an operator may set on a queue.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueuePolicy {
    /// Where rejected and expired messages go, unless an argument says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dead_letter: Option<DeadLetterTarget>,
    /// Dead letters stay until their target has confirmed them (at-least-once, which needs reject-publish). Quorum queues
    /// only.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub safe_dead_lettering: bool,
    /// How often a message may come back from lost consumers. Quorum queues only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivery_limit: Option<DeliveryLimit>,
    /// How many messages may be ready; an argument that says less wins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_length: Option<u64>,
    /// How many bytes the bodies of ready messages may have; an argument that says less wins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_length_bytes: Option<u64>,
}

/// How often a message may come back from lost consumers before it is dead-lettered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeliveryLimit {
    /// So often; the next time it goes to the dead-letter target.
    Times(u32),
    /// For ever. Said aloud, because RabbitMQ 4 otherwise drops a message after 20 redeliveries where there is no target.
    Unlimited,
}

impl fmt::Display for DeliveryLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Times(times) => write!(f, "{times}"),
            Self::Unlimited => f.write_str("unlimited"),
        }
    }
}

/// A policy as RabbitMQ is told of it: for one object and no other.
///
/// RabbitMQ applies one policy to an object. Where somebody else has one that matches it too, whoever sets this one has to
/// merge the two.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BrokerPolicy {
    /// `postrider.queue.NAME` or `postrider.exchange.NAME`: a queue and an exchange may share a name.
    pub name: String,
    /// Matches the name of the object and nothing else.
    pub pattern: String,
    /// What it is for.
    pub applies_to: AppliesTo,
    /// The settings, by RabbitMQ's names for them.
    pub definition: BTreeMap<String, Argument>,
}

/// What a policy is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AppliesTo {
    /// Queues.
    Queues,
    /// Exchanges.
    Exchanges,
}

impl AppliesTo {
    /// RabbitMQ's word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queues => "queues",
            Self::Exchanges => "exchanges",
        }
    }
}

impl Topology {
    /// The policies that this topology wants, each for one object.
    ///
    /// `limits_by_itself`: the broker limits redeliveries without being told to, as RabbitMQ does since 4.0. Earlier ones
    /// have no word for "unlimited" and refuse a policy that says it.
    pub fn policies(&self, limits_by_itself: bool) -> Vec<BrokerPolicy> {
        let exchanges = self.exchanges.iter().map(Exchange::broker_policy);
        let queues = self.queues.iter().map(|queue| queue.broker_policy(limits_by_itself));
        exchanges.chain(queues).filter(|policy| !policy.definition.is_empty()).collect()
    }

    /// The same without any policy.
    #[must_use]
    pub fn without_policies(mut self) -> Self {
        self.exchanges.iter_mut().for_each(|exchange| exchange.policy = ExchangePolicy::default());
        self.queues.iter_mut().for_each(|queue| queue.policy = QueuePolicy::default());
        self
    }

    /// The same with the safety that quorum queues should have, by policy, where nothing else was said.
    ///
    /// - Dead letters are kept until their target has them.
    /// - A message that comes back from lost consumers too often goes to the dead letters, where these are no retry loop.
    /// - In a retry loop it would be dropped or stranded, and without a target it would be dropped: there is no limit there.
    #[must_use]
    pub fn protected(mut self) -> Self {
        let looping: Vec<bool> = self.queues.iter().map(|queue| self.is_retry_loop(&queue.name)).collect();
        for (queue, looping) in self.queues.iter_mut().zip(looping) {
            if queue.kind != QueueKind::Quorum {
                continue;
            }
            let dies = queue.effective_dead_letter().is_some();
            queue.policy.safe_dead_lettering |= dies && !queue.safe_dead_lettering;
            // Nobody consumes a wait queue: its messages leave by their time.
            let waits = dies && queue.message_ttl.is_some();
            if queue.policy.delivery_limit.is_none() && !waits {
                let limited = dies && !looping;
                let limit =
                    if limited { DeliveryLimit::Times(REDELIVERIES) } else { DeliveryLimit::Unlimited };
                queue.policy.delivery_limit = Some(limit);
            }
        }
        self
    }
}

impl Exchange {
    /// The policy it wants, which may be an empty one.
    pub fn broker_policy(&self) -> BrokerPolicy {
        let mut definition = BTreeMap::new();
        if let Some(alternate) = &self.policy.alternate {
            definition.insert("alternate-exchange".to_owned(), alternate.as_str().into());
        }
        BrokerPolicy {
            name: format!("postrider.exchange.{}", self.name),
            pattern: exactly(self.name.as_str()),
            applies_to: AppliesTo::Exchanges,
            definition,
        }
    }
}

impl Queue {
    /// The policy it wants, which may be an empty one; see [`Topology::policies`].
    pub fn broker_policy(&self, limits_by_itself: bool) -> BrokerPolicy {
        let mut definition = BTreeMap::new();
        let mut set = |name: &str, value: Argument| _ = definition.insert(name.to_owned(), value);
        if let Some(target) = &self.policy.dead_letter {
            set("dead-letter-exchange", target.exchange.as_str().into());
            if let Some(key) = &target.routing_key {
                set("dead-letter-routing-key", key.as_str().into());
            }
        }
        let limits =
            [("max-length", self.policy.max_length), ("max-length-bytes", self.policy.max_length_bytes)];
        for (name, most) in limits.into_iter().filter_map(|(name, most)| Some((name, most?))) {
            set(name, Argument::Int(i64::try_from(most).unwrap_or(i64::MAX)));
        }
        if self.kind == QueueKind::Quorum {
            let keeps = self.policy.safe_dead_lettering && self.may_keep_dead_letters();
            if keeps && self.effective_dead_letter().is_some() {
                // Without the overflow setting the strategy is taken and not kept to.
                set("dead-letter-strategy", "at-least-once".into());
                set("overflow", "reject-publish".into());
            }
            match self.policy.delivery_limit {
                Some(DeliveryLimit::Times(times)) => set("delivery-limit", Argument::Int(times.into())),
                Some(DeliveryLimit::Unlimited) if limits_by_itself => {
                    set("delivery-limit", Argument::Int(-1));
                }
                Some(DeliveryLimit::Unlimited) | None => {}
            }
        }
        BrokerPolicy {
            name: format!("postrider.queue.{}", self.name),
            pattern: exactly(self.name.as_str()),
            applies_to: AppliesTo::Queues,
            definition,
        }
    }
}

/// A pattern that matches one name.
fn exactly(name: &str) -> String {
    let mut pattern = String::from("^");
    for character in name.chars() {
        if r"\.+*?()[]{}|^$#&-~".contains(character) {
            pattern.push('\\');
        }
        pattern.push(character);
    }
    pattern.push('$');
    pattern
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::{Overflow, QueueName, RoutingKey};

    fn queue(name: &str, target: Option<&str>) -> Queue {
        let mut queue = Queue::quorum(QueueName::new(name).unwrap());
        queue.safe_dead_lettering = false;
        queue.dead_letter = target.map(|target| DeadLetterTarget {
            exchange: ExchangeName::default_exchange(),
            routing_key: Some(RoutingKey::new(target).unwrap()),
        });
        queue
    }

    fn definitions(topology: &Topology, limits_by_itself: bool) -> Vec<(String, String)> {
        let policies = topology.policies(limits_by_itself).into_iter();
        let shown =
            policies.map(|policy| (policy.pattern, serde_json::to_string(&policy.definition).unwrap()));
        shown.collect()
    }

    #[test]
    fn a_poison_message_goes_to_the_dead_letters_and_never_into_a_loop() {
        let topology = Topology::default()
            .queue(queue("main", Some("main.retry")))
            .queue(Queue {
                message_ttl: Some(std::time::Duration::from_secs(5)),
                ..queue("main.retry", Some("main"))
            })
            .queue(queue("mail", Some("mail.dlq")))
            .queue(queue("mail.dlq", None))
            .protected();
        let limits: Vec<_> = topology.queues.iter().map(|queue| queue.policy.delivery_limit).collect();
        let (unlimited, limited) = (Some(DeliveryLimit::Unlimited), Some(DeliveryLimit::Times(REDELIVERIES)));
        assert_eq!(limits, [unlimited, None, limited, unlimited]);
        assert_eq!(topology.clone().without_policies().policies(true), []);

        let safe = r#""dead-letter-strategy":"at-least-once""#;
        let four = definitions(&topology, true);
        assert_eq!(four[0].0, r"^main$");
        assert_eq!(four[0].1, format!(r#"{{{safe},"delivery-limit":-1,"overflow":"reject-publish"}}"#));
        assert_eq!(four[1], (r"^main\.retry$".into(), format!(r#"{{{safe},"overflow":"reject-publish"}}"#)));
        assert_eq!(four[2].1, format!(r#"{{{safe},"delivery-limit":20,"overflow":"reject-publish"}}"#));
        assert_eq!(four[3], (r"^mail\.dlq$".into(), r#"{"delivery-limit":-1}"#.into()));
        // RabbitMQ 3 knows no "unlimited" and needs none.
        assert_eq!(definitions(&topology, false).len(), 3);
    }

    #[test]
    fn classic_queues_cannot_be_protected_so() {
        let classic = Queue { kind: QueueKind::Classic, ..queue("main", Some("main.dlq")) };
        assert_eq!(Topology::default().queue(classic).protected().policies(true), []);
    }

    /// RabbitMQ lets the policy win: the queue would refuse what it was told to push out.
    #[test]
    fn a_queue_that_pushes_out_its_oldest_is_left_to_do_so() {
        let mut small = queue("small", Some("small.dlq"));
        small.arguments.insert("x-max-length".to_owned(), Argument::Int(10));
        let refusing = small.clone();
        small.arguments.insert("x-overflow".to_owned(), "drop-head".into());
        let lengths = |queue: &Queue| (queue.max_length(), queue.overflow());
        assert_eq!(lengths(&refusing), (Some(10), Overflow::DropHead), "nobody protects it yet");
        let protected = Topology::default().queue(small).queue(refusing).protected();
        assert_eq!(lengths(&protected.queues[0]), (Some(10), Overflow::DropHead));
        assert_eq!(lengths(&protected.queues[1]), (Some(10), Overflow::RejectPublish));
        let told = definitions(&protected, false);
        assert_eq!(told[0].1, r#"{"delivery-limit":20}"#);
        assert!(told[1].1.contains("reject-publish"), "{}", told[1].1);
    }

    #[test]
    fn the_lower_of_argument_and_policy_counts() {
        let mut limited = queue("limited", None);
        limited.policy.max_length_bytes = Some(500);
        assert_eq!(
            (limited.max_length(), limited.max_length_bytes(), limited.is_limited()),
            (None, Some(500), true)
        );
        limited.arguments.insert("x-max-length-bytes".to_owned(), Argument::Int(1000));
        assert_eq!(limited.max_length_bytes(), Some(500));
        limited.arguments.insert("x-max-length-bytes".to_owned(), Argument::Int(100));
        assert_eq!(limited.max_length_bytes(), Some(100));
        let told = definitions(&Topology::default().queue(limited), false);
        assert_eq!(told[0].1, r#"{"max-length-bytes":500}"#);
    }

    #[test]
    fn a_pattern_matches_one_name() {
        assert_eq!(exactly("fis.events"), r"^fis\.events$");
        assert_eq!(exactly("a+b(c)|d"), r"^a\+b\(c\)\|d$");
    }
}
