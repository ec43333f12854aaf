//! The arguments that an exchange or a queue is declared with, by RabbitMQ's names for them.

use std::collections::BTreeMap;

use super::{Argument, Exchange, Queue, QueueKind};

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
            if self.safe_dead_lettering && self.kind == QueueKind::Quorum {
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
}
