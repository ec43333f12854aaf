//! Why a key reaches the queues it reaches: exchange by exchange, binding by binding, and where it goes when it dies.

use serde::Serialize;

use super::{
    Binding, BindingKey, DeadLetterTarget, ExchangeKind, ExchangeName, Queue, QueueName, RoutingKey,
    Topology, topic_matches,
};

/// The way of one message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// Where it is published to.
    pub exchange: ExchangeName,
    /// With which key.
    pub routing_key: RoutingKey,
    /// The exchanges it meets: the first, and then each alternate for as long as nobody wants it.
    pub steps: Vec<ExchangeStep>,
    /// The queues it reaches, each once.
    pub queues: Vec<ReachedQueue>,
}

/// What one exchange does with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ExchangeStep {
    /// The exchange.
    pub exchange: ExchangeName,
    /// How it routes; nothing if it is not declared, or is the default exchange, which routes by queue name.
    pub kind: Option<ExchangeKind>,
    /// Whether there is such an exchange.
    pub declared: bool,
    /// Its bindings, and which of them want the key.
    pub bindings: Vec<TriedBinding>,
    /// Where it sends what none of them wants.
    pub alternate: Option<ExchangeName>,
}

/// A binding that was asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TriedBinding {
    /// The queue behind it.
    pub queue: QueueName,
    /// Its key.
    pub key: BindingKey,
    /// Whether it wants the message.
    pub matches: bool,
}

/// A queue it reaches, and what comes after.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ReachedQueue {
    /// The queue.
    pub queue: QueueName,
    /// The exchange whose bindings led here.
    pub through: ExchangeName,
    /// Where it goes when it is rejected or expires here, step by step, until it would come to a queue again.
    pub deaths: Vec<DeathStep>,
}

/// Where a queue's dead letters go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DeathStep {
    /// The queue it dies in.
    pub from: QueueName,
    /// The exchange it goes to.
    pub exchange: ExchangeName,
    /// The key it goes with.
    pub routing_key: RoutingKey,
    /// The queues it reaches; without any it is lost on RabbitMQ.
    pub queues: Vec<QueueName>,
    /// How long it waits before that, in milliseconds, where the queue has a time limit.
    pub after_ms: Option<u64>,
}

impl Topology {
    /// Explains [`Topology::route`]: the queues are the same.
    pub fn explain(&self, exchange: &ExchangeName, key: &RoutingKey) -> Explanation {
        let mut steps = Vec::new();
        let mut next = Some(exchange.clone());
        while let Some(at) = next.take() {
            let step = self.step(&at, key);
            let wanted = step.bindings.iter().any(|binding| binding.matches);
            // A ring of alternates ends when each has been asked once.
            let asked = |name: &ExchangeName| steps.iter().any(|step: &ExchangeStep| step.exchange == *name);
            next = step.alternate.clone().filter(|name| !wanted && *name != at && !asked(name));
            steps.push(step);
        }
        let through = steps.last().map_or_else(|| exchange.clone(), |step| step.exchange.clone());
        let reached = self.route(exchange, key).into_iter().map(|queue| ReachedQueue {
            queue: queue.clone(),
            through: through.clone(),
            deaths: self.deaths(queue, key),
        });
        let queues = reached.collect();
        Explanation { exchange: exchange.clone(), routing_key: key.clone(), steps, queues }
    }

    fn step(&self, name: &ExchangeName, key: &RoutingKey) -> ExchangeStep {
        if name.is_default() {
            let named = self.queues.iter().filter(|queue| queue.name.as_str() == key.as_str());
            let bindings = named.filter_map(|queue| {
                let key = BindingKey::new(queue.name.as_str()).ok()?;
                Some(TriedBinding { queue: queue.name.clone(), key, matches: true })
            });
            let bindings = bindings.collect();
            return ExchangeStep {
                exchange: name.clone(),
                kind: None,
                declared: true,
                bindings,
                alternate: None,
            };
        }
        let found = self.find_exchange(name);
        let kind = found.map(|exchange| exchange.kind);
        let bindings = self.bindings.iter().filter(|binding| binding.exchange == *name).map(|binding| {
            let matches = match kind {
                Some(ExchangeKind::Fanout) => true,
                Some(ExchangeKind::Direct) => binding.key.as_str() == key.as_str(),
                Some(ExchangeKind::Topic) => topic_matches(binding.key.as_str(), key.as_str()),
                None => false,
            };
            TriedBinding { queue: binding.queue.clone(), key: binding.key.clone(), matches }
        });
        ExchangeStep {
            exchange: name.clone(),
            kind,
            declared: found.is_some(),
            bindings: bindings.collect(),
            alternate: found.and_then(|exchange| exchange.effective_alternate()).cloned(),
        }
    }

    fn deaths(&self, queue: &QueueName, key: &RoutingKey) -> Vec<DeathStep> {
        let mut steps: Vec<DeathStep> = Vec::new();
        let mut dying = vec![(queue.clone(), key.clone())];
        while let Some((from, key)) = dying.pop() {
            if steps.iter().any(|step| step.from == from) {
                continue;
            }
            let Some(dead) = self.find_queue(&from) else { continue };
            let Some(DeadLetterTarget { exchange, routing_key }) = dead.effective_dead_letter() else {
                continue;
            };
            let key = routing_key.clone().unwrap_or(key);
            let queues: Vec<_> = self.route(exchange, &key).into_iter().cloned().collect();
            dying.extend(queues.iter().rev().map(|queue| (queue.clone(), key.clone())));
            let after_ms = dead.message_ttl.map(|ttl| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX));
            let exchange = exchange.clone();
            steps.push(DeathStep { from, exchange, routing_key: key, queues, after_ms });
        }
        steps
    }

    /// What is allowed and probably not meant, in sentences.
    pub fn doubts(&self) -> Vec<String> {
        let mut doubts = Vec::new();
        for binding in &self.bindings {
            if self.matches_nothing(binding) {
                doubts.push(format!(
                    "queue {} is bound to {} for {:?}, which matches no event: * and # stand for whole words; write the words out",
                    binding.queue,
                    binding.exchange,
                    binding.key.as_str()
                ));
            }
        }
        for queue in &self.queues {
            doubts.extend(self.doubts_of_deaths(queue));
        }
        doubts
    }

    /// Whether no event can match a binding: in a pattern of a topic exchange, a part of a word stands for itself.
    pub fn matches_nothing(&self, binding: &Binding) -> bool {
        let kind = self.find_exchange(&binding.exchange).map(|exchange| exchange.kind);
        let open = |word: &str| word.len() > 1 && word.contains(['*', '#']);
        kind == Some(ExchangeKind::Topic) && binding.key.as_str().split('.').any(open)
    }

    fn doubts_of_deaths(&self, queue: &Queue) -> Option<String> {
        let name = &queue.name;
        let Some(target) = queue.effective_dead_letter() else {
            let ttl = queue.message_ttl?;
            return Some(format!(
                "queue {name} throws messages away after {ttl:?}: it has a time limit and no dead-letter target"
            ));
        };
        let reaches = match &target.routing_key {
            Some(key) => !self.route(&target.exchange, key).is_empty(),
            None => target.exchange.is_default() || !self.fed_by(&target.exchange).is_empty(),
        };
        if !reaches {
            let key = target.routing_key.as_ref().map_or("the message's own key", RoutingKey::as_str);
            return Some(format!(
                "the dead letters of queue {name} reach no queue: exchange {:?}, key {key:?}; RabbitMQ would drop them",
                target.exchange.as_str()
            ));
        }
        let limited = matches!(queue.policy.delivery_limit, Some(super::DeliveryLimit::Times(_)))
            || queue.arguments.contains_key("x-delivery-limit");
        (limited && self.is_retry_loop(name)).then(|| {
            format!(
                "queue {name} has a delivery limit and its dead letters come back to it: RabbitMQ drops or strands what reaches \
                 the limit; say unlimited"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::Preset;

    fn explained(preset: &str, set: &[(&str, &str)], exchange: &str, key: &str) -> Explanation {
        let set: Vec<_> = set.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let layout = Preset::find(preset).unwrap().layout(&set).unwrap();
        layout.topology.explain(&ExchangeName::new(exchange).unwrap(), &RoutingKey::new(key).unwrap())
    }

    #[test]
    fn an_alternate_is_asked_when_nobody_wants_a_key() {
        let told = explained("fis", &[], "fis.events.exchange", "order.completed");
        let steps: Vec<_> = told.steps.iter().map(|step| step.exchange.as_str()).collect();
        assert_eq!(steps, ["fis.events.exchange", "fis.unroutable.exchange"]);
        assert!(!told.steps[0].bindings[0].matches);
        assert_eq!(told.queues[0].queue.as_str(), "fis.ingestion.dlq.queue");
        assert_eq!(told.queues[0].through.as_str(), "fis.unroutable.exchange");
    }

    #[test]
    fn a_retry_loop_is_told_once() {
        let told = explained("event-bus", &[("service", "wms-a")], "wms.main-exchange", "x.y");
        let deaths: Vec<_> =
            told.queues[0].deaths.iter().map(|step| (step.from.as_str(), step.after_ms)).collect();
        assert_eq!(deaths, [("wms.queue.wms-a", None), ("wms.retry-queue.wms-a", Some(5000))]);
    }

    #[test]
    fn what_does_not_exist_is_said() {
        let told = explained("fis", &[], "fis.evnts", "a.b.c");
        assert!(!told.steps[0].declared);
        assert!(told.queues.is_empty());
        let told = explained("fis", &[], "", "fis.ingestion.queue");
        assert_eq!(told.queues.len(), 1);
    }

    #[test]
    fn doubts_are_raised_where_messages_would_vanish() {
        let doubts = |preset: &str, strict: &str| {
            let set = [("strict".to_owned(), strict.to_owned())];
            Preset::find(preset).unwrap().layout(&set).unwrap().topology.doubts()
        };
        let holdco = doubts("holdco", "true");
        assert_eq!(holdco.len(), 2, "{holdco:?}");
        assert!(holdco[0].contains("stock_*.*"));
        for preset in ["fis", "ratatoskr", "smap", "holdco"] {
            assert_eq!(doubts(preset, "false"), Vec::<String>::new(), "{preset}");
        }
    }
}
