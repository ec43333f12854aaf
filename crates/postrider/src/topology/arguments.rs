//! The arguments that an exchange or a queue is declared with, by RabbitMQ's names for them.

use std::collections::BTreeMap;

use super::{Argument, Exchange, Overflow, Queue, QueueKind};

impl Exchange {
    /// The arguments of its declaration.
    pub fn declared_arguments(&self) -> BTreeMap<String, Argument> {
        let alternate = self.alternate.as_ref();
        alternate.map(|to| ("alternate-exchange".to_owned(), to.as_str().into())).into_iter().collect()
    }
}

impl Queue {
    /// The arguments of its declaration. Whoever else declares it must give the same ones.
    pub fn declared_arguments(&self) -> BTreeMap<String, Argument> {
        let mut arguments = self.arguments.clone();
        let mut set = |name: &str, value: Argument| _ = arguments.insert(name.to_owned(), value);
        if self.kind != QueueKind::Unsaid {
            set("x-queue-type", self.kind.as_str().into());
        }
        if let Some(ttl) = self.message_ttl {
            set("x-message-ttl", Argument::Int(i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX)));
        }
        if let Some(target) = &self.dead_letter {
            set("x-dead-letter-exchange", target.exchange.as_str().into());
            if let Some(key) = &target.routing_key {
                set("x-dead-letter-routing-key", key.as_str().into());
            }
            if self.safe_dead_lettering && self.may_keep_dead_letters() {
                // Without the overflow setting the strategy is taken and not kept to.
                set("x-dead-letter-strategy", "at-least-once".into());
                set("x-overflow", "reject-publish".into());
            }
        }
        if self.single_active_consumer {
            set("x-single-active-consumer", Argument::Bool(true));
        }
        arguments
    }

    /// How many messages may be ready in it: by its argument or its policy, the lower of both.
    pub fn max_length(&self) -> Option<u64> {
        self.limit("x-max-length", self.policy.max_length)
    }

    /// How many bytes the bodies of its ready messages may have: by its argument or its policy, the lower of both.
    pub fn max_length_bytes(&self) -> Option<u64> {
        self.limit("x-max-length-bytes", self.policy.max_length_bytes)
    }

    /// Whether there is a limit to what may be ready in it.
    pub fn is_limited(&self) -> bool {
        self.max_length().is_some() || self.max_length_bytes().is_some()
    }

    fn limit(&self, argument: &str, policy: Option<u64>) -> Option<u64> {
        let declared = match self.arguments.get(argument) {
            Some(Argument::Int(most)) => u64::try_from(*most).ok(),
            _ => None,
        };
        declared.into_iter().chain(policy).min()
    }

    /// What it does with more than that: as its argument says, else as the safety of its dead letters needs it.
    pub fn overflow(&self) -> Overflow {
        let refuses = match self.arguments.get("x-overflow") {
            Some(word) => matches!(word, Argument::Text(word) if word.starts_with("reject-publish")),
            None => self.keeps_dead_letters(),
        };
        if refuses { Overflow::RejectPublish } else { Overflow::DropHead }
    }

    /// Whether its dead letters stay until their target has them.
    fn keeps_dead_letters(&self) -> bool {
        let by_argument = self.safe_dead_lettering && self.dead_letter.is_some();
        let by_policy = self.policy.safe_dead_lettering && self.effective_dead_letter().is_some();
        (by_argument || by_policy) && self.may_keep_dead_letters()
    }

    /// RabbitMQ keeps dead letters for quorum queues alone, and for none that pushes its oldest messages out: a policy that asks
    /// for it would win over the argument, and the queue would refuse instead.
    pub(super) fn may_keep_dead_letters(&self) -> bool {
        self.kind == QueueKind::Quorum && self.arguments.get("x-overflow") != Some(&"drop-head".into())
    }
}
