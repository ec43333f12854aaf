//! What has been declared, and where it leads a message. Pure: the tables are written by those who ask.

use std::collections::HashMap;
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use crate::broker::{BrokerError, BrokerErrorKind};
use crate::topology::{
    Binding, Exchange, ExchangeName, ExchangePolicy, Queue, QueueName, QueuePolicy, RoutingKey, Topology,
};

/// The number of a queue, in the tables and in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct QueueId(pub(super) i64);

/// So many routes are remembered; then they are worked out anew.
const ROUTES: usize = 10_000;

/// What must be written to have what somebody wants.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Lacking {
    /// What is not there.
    pub(super) added: Topology,
    /// What is there under another policy. Who says nothing of a policy leaves it as it is, as on a broker where somebody
    /// else sets them.
    pub(super) exchange_policies: Vec<(ExchangeName, ExchangePolicy)>,
    pub(super) queue_policies: Vec<(QueueName, QueuePolicy)>,
}

/// Everything that has been declared.
#[derive(Default)]
pub(super) struct Catalog {
    topology: Topology,
    ids: HashMap<QueueName, QueueId>,
    /// Worked out once for each exchange and key.
    routes: HashMap<(ExchangeName, RoutingKey), Arc<[QueueId]>>,
}

impl Catalog {
    /// The queues a message reaches, each once; nothing if there is no such exchange.
    pub(super) fn route(&mut self, exchange: &ExchangeName, key: &RoutingKey) -> Option<Arc<[QueueId]>> {
        let asked = (exchange.clone(), key.clone());
        if let Some(known) = self.routes.get(&asked) {
            return Some(known.clone());
        }
        if !exchange.is_default() && !self.topology.exchanges.iter().any(|e| e.name == *exchange) {
            return None;
        }
        let reached: Arc<[QueueId]> = self
            .topology
            .route(exchange, key)
            .into_iter()
            .filter_map(|name| self.ids.get(name).copied())
            .collect();
        if self.routes.len() >= ROUTES {
            self.routes.clear();
        }
        self.routes.insert(asked, reached.clone());
        Some(reached)
    }

    /// A queue that an exchange leads to and that is none of these.
    pub(super) fn fed_beside(&self, exchange: &ExchangeName, queues: &[QueueName]) -> Option<&QueueName> {
        let bindings = self.topology.bindings.iter().filter(|binding| binding.exchange == *exchange);
        bindings.map(|binding| &binding.queue).find(|queue| !queues.contains(queue))
    }

    /// The number of a queue.
    pub(super) fn id(&self, queue: &QueueName) -> Option<QueueId> {
        self.ids.get(queue).copied()
    }

    /// Takes up what was added to the tables, with the numbers of its queues.
    pub(super) fn add(&mut self, added: Topology, numbers: impl IntoIterator<Item = QueueId>) {
        self.ids.extend(added.queues.iter().map(|queue| queue.name.clone()).zip(numbers));
        self.topology.exchanges.extend(added.exchanges);
        self.topology.queues.extend(added.queues);
        self.topology.bindings.extend(added.bindings);
        self.routes.clear();
    }

    /// Forgets queues and exchanges, with their bindings.
    pub(super) fn forget(&mut self, queues: &[QueueName], exchanges: &[ExchangeName]) {
        let topology = &mut self.topology;
        topology.queues.retain(|queue| !queues.contains(&queue.name));
        topology.exchanges.retain(|exchange| !exchanges.contains(&exchange.name));
        topology
            .bindings
            .retain(|binding| !queues.contains(&binding.queue) && !exchanges.contains(&binding.exchange));
        self.ids.retain(|name, _| !queues.contains(name));
        self.routes.clear();
    }

    /// Forgets bindings.
    pub(super) fn unbind(&mut self, gone: &[(Binding, QueueId)]) {
        self.topology.bindings.retain(|binding| !gone.iter().any(|(gone, _)| gone == binding));
        self.routes.clear();
    }

    /// Takes up the policies that were written to the tables.
    pub(super) fn change(
        &mut self,
        exchanges: Vec<(ExchangeName, ExchangePolicy)>,
        queues: &[(QueueName, QueuePolicy)],
    ) {
        for (name, policy) in exchanges {
            let known = self.topology.exchanges.iter_mut().filter(|known| known.name == name);
            known.for_each(|known| known.policy = policy.clone());
        }
        for (name, policy) in queues {
            let known = self.topology.queues.iter_mut().filter(|known| known.name == *name);
            known.for_each(|known| known.policy = policy.clone());
        }
        self.routes.clear();
    }

    /// What must be written to have all of `wanted`, or an error that names everything that is in the way.
    pub(super) fn lacks(&self, wanted: &Topology) -> Result<Lacking, BrokerError> {
        let mut lacking = Topology::default();
        let (mut exchange_policies, mut queue_policies) = (Vec::new(), Vec::new());
        let mut differences = Vec::new();
        for exchange in &wanted.exchanges {
            if exchange.name.is_default() {
                return Err(denied(
                    "the default exchange is always there and cannot be declared; leave it out",
                ));
            }
            let mut known = self.topology.exchanges.iter().chain(&lacking.exchanges);
            match known.find(|known| known.name == exchange.name) {
                Some(known) => {
                    differ_exchange(known, exchange, &mut differences);
                    if exchange.policy != known.policy && exchange.policy != ExchangePolicy::default() {
                        exchange_policies.push((known.name.clone(), exchange.policy.clone()));
                    }
                }
                None => lacking.exchanges.push(exchange.clone()),
            }
        }
        for queue in &wanted.queues {
            let queue = Queue { message_ttl: queue.message_ttl.map(whole_micros), ..queue.clone() };
            let mut known = self.topology.queues.iter().chain(&lacking.queues);
            match known.find(|known| known.name == queue.name) {
                Some(known) => {
                    differ_queue(known, &queue, &mut differences);
                    if queue.policy != known.policy && queue.policy != QueuePolicy::default() {
                        queue_policies.push((queue.name.clone(), queue.policy.clone()));
                    }
                }
                None => lacking.queues.push(queue),
            }
        }
        if !differences.is_empty() {
            let text = format!(
                "{}; nothing was changed: declare it as it is, or under another name",
                differences.join("; ")
            );
            return Err(BrokerError::new(BrokerErrorKind::Mismatch, text));
        }
        for binding in &wanted.bindings {
            if binding.exchange.is_default() {
                return Err(denied(
                    "nothing can be bound to the default exchange: it reaches every queue by its name",
                ));
            }
            let mut exchanges = self.topology.exchanges.iter().chain(&lacking.exchanges);
            if !exchanges.any(|exchange| exchange.name == binding.exchange) {
                return Err(no_exchange(&binding.exchange));
            }
            let mut queues = self.topology.queues.iter().chain(&lacking.queues);
            if !queues.any(|queue| queue.name == binding.queue) {
                return Err(no_queue(&binding.queue));
            }
            if !self.topology.bindings.contains(binding) && !lacking.bindings.contains(binding) {
                lacking.bindings.push(binding.clone());
            }
        }
        Ok(Lacking { added: lacking, exchange_policies, queue_policies })
    }
}

/// The answer to whoever names a queue that is not there.
pub(super) fn no_queue(name: &QueueName) -> BrokerError {
    BrokerError::new(BrokerErrorKind::NotFound, format!("there is no queue {name:?}; declare it first"))
}

fn no_exchange(name: &ExchangeName) -> BrokerError {
    let text = format!("there is no exchange {name:?} to bind to; nothing was changed: declare it first");
    BrokerError::new(BrokerErrorKind::NotFound, text)
}

fn denied(text: &str) -> BrokerError {
    BrokerError::new(BrokerErrorKind::Denied, text)
}

/// The tables keep whole microseconds.
fn whole_micros(ttl: Duration) -> Duration {
    Duration::from_micros(u64::try_from(ttl.as_micros()).unwrap_or(u64::MAX).min(i64::MAX.unsigned_abs() / 2))
}

fn differ_exchange(known: &Exchange, wanted: &Exchange, differences: &mut Vec<String>) {
    let mut differ = |what, is: String, not: String| {
        if is != not {
            differences.push(format!("exchange {:?} exists with {what} {is}, not {not}", known.name));
        }
    };
    differ("type", known.kind.as_str().to_owned(), wanted.kind.as_str().to_owned());
    differ("alternate exchange", or_none(known.alternate.as_ref()), or_none(wanted.alternate.as_ref()));
}

fn differ_queue(known: &Queue, wanted: &Queue, differences: &mut Vec<String>) {
    let mut differ = |what, is: String, not: String| {
        if is != not {
            differences.push(format!("queue {:?} exists with {what} {is}, not {not}", known.name));
        }
    };
    let ttl = |queue: &Queue| queue.message_ttl.map_or("none".to_owned(), |ttl| format!("{ttl:?}"));
    let exchange = |queue: &Queue| or_none(queue.dead_letter.as_ref().map(|target| target.exchange.as_str()));
    let key =
        |queue: &Queue| or_none(queue.dead_letter.as_ref().and_then(|target| target.routing_key.as_ref()));
    differ("type", known.kind.as_str().to_owned(), wanted.kind.as_str().to_owned());
    differ("message TTL", ttl(known), ttl(wanted));
    differ("dead-letter exchange", exchange(known), exchange(wanted));
    differ("dead-letter routing key", key(known), key(wanted));
    let single = |queue: &Queue| queue.single_active_consumer.to_string();
    differ("single active consumer", single(known), single(wanted));
    let arguments = |queue: &Queue| {
        let shown: Vec<_> = queue.arguments.iter().map(|(name, value)| format!("{name} = {value}")).collect();
        if shown.is_empty() { "none".to_owned() } else { shown.join(", ") }
    };
    differ("other arguments", arguments(known), arguments(wanted));
}

fn or_none(name: Option<impl Display>) -> String {
    name.map_or("none".to_owned(), |name| format!("\"{name}\""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::{BindingKey, DeadLetterTarget, DeliveryLimit, ExchangeKind};

    fn shop() -> Topology {
        let (exchange, queue) = (ExchangeName::new("shop").unwrap(), QueueName::new("orders").unwrap());
        Topology::default()
            .exchange(exchange.clone(), ExchangeKind::Topic)
            .queue(Queue::quorum(queue.clone()))
            .bind(exchange, queue, BindingKey::new("order.#").unwrap())
    }

    fn declared() -> Catalog {
        let mut catalog = Catalog::default();
        let lacking = catalog.lacks(&shop()).unwrap();
        catalog.add(lacking.added, [QueueId(1)]);
        catalog
    }

    #[test]
    fn what_is_there_is_not_added_again() {
        assert_eq!(declared().lacks(&shop()).unwrap(), Lacking::default());
    }

    #[test]
    fn a_policy_may_change_and_stays_when_nothing_is_said_of_it() {
        let mut catalog = declared();
        let mut wanted = shop();
        let limited = QueuePolicy { delivery_limit: Some(DeliveryLimit::Times(3)), ..QueuePolicy::default() };
        wanted.queues[0].policy = limited.clone();
        let lacking = catalog.lacks(&wanted).unwrap();
        assert_eq!(lacking.added, Topology::default());
        assert_eq!(lacking.queue_policies, [(wanted.queues[0].name.clone(), limited)]);
        catalog.change(lacking.exchange_policies, &lacking.queue_policies);
        assert_eq!(catalog.lacks(&wanted).unwrap(), Lacking::default());
        assert_eq!(catalog.lacks(&shop()).unwrap(), Lacking::default());
    }

    #[test]
    fn every_difference_is_named() {
        let mut other = shop();
        other.exchanges[0].kind = ExchangeKind::Fanout;
        other.queues[0].message_ttl = Some(Duration::from_secs(5));
        other.queues[0].dead_letter =
            Some(DeadLetterTarget { exchange: ExchangeName::default_exchange(), routing_key: None });
        other.queues[0].single_active_consumer = true;
        let error = declared().lacks(&other).unwrap_err();
        assert_eq!(error.kind, BrokerErrorKind::Mismatch);
        for part in [
            "\"shop\" exists with type topic, not fanout",
            "message TTL none, not 5s",
            "dead-letter exchange none, not \"\"",
            "single active consumer false, not true",
        ] {
            assert!(error.message.contains(part), "{error}");
        }
    }

    #[test]
    fn a_binding_needs_both_ends() {
        let mut nowhere = shop();
        nowhere.bindings[0].queue = QueueName::new("none").unwrap();
        assert_eq!(declared().lacks(&nowhere).unwrap_err().kind, BrokerErrorKind::NotFound);
        let mut nowhere = shop();
        nowhere.bindings[0].exchange = ExchangeName::new("none").unwrap();
        assert_eq!(declared().lacks(&nowhere).unwrap_err().kind, BrokerErrorKind::NotFound);
    }

    #[test]
    fn routes_are_worked_out_anew_after_a_declaration() {
        let mut catalog = declared();
        let (shop, key) = (ExchangeName::new("shop").unwrap(), RoutingKey::new("cart.emptied").unwrap());
        assert_eq!(catalog.route(&shop, &key).unwrap().len(), 0);
        let queue = QueueName::new("carts").unwrap();
        let more = Topology::default().queue(Queue::quorum(queue.clone())).bind(
            shop.clone(),
            queue,
            BindingKey::new("cart.*").unwrap(),
        );
        let lacking = catalog.lacks(&more).unwrap();
        catalog.add(lacking.added, [QueueId(2)]);
        assert_eq!(*catalog.route(&shop, &key).unwrap(), [QueueId(2)]);
        assert!(catalog.route(&ExchangeName::new("none").unwrap(), &key).is_none());
    }
}
