//! Who takes from which queue. A push subscription that takes from the queue of somebody else would get a part of his events, and
//! nobody would be told: so it is refused, with what to do instead.

use postrider::push::{Source, Subscription};
use postrider::store::Registration;
use postrider::topology::{ConsumerName, QueueName, ServiceQueue, Topology};

use super::Config;

/// Everybody else beside whom a subscription has to stand.
pub(crate) struct Others<'a> {
    /// Every queue that is declared without it.
    pub(crate) declared: &'a Topology,
    /// Those that are consumed.
    pub(crate) services: &'a [ServiceQueue],
    /// Consumers by name, of the configuration or registered by themselves.
    pub(crate) consumers: &'a [Registration],
    /// Other push subscriptions.
    pub(crate) subscriptions: &'a [&'a Subscription],
    /// The ledger's queue, or nothing.
    pub(crate) ledger: &'a str,
}

impl Others<'_> {
    /// Why a subscription cannot stand beside them, if it cannot.
    pub(crate) fn refusal(&self, new: &Subscription) -> Option<String> {
        let refused = match &new.source {
            Source::Queue(queue) => self.sharing(&new.name, queue),
            Source::Keys { .. } => self.overlapping(new),
        };
        refused.or_else(|| self.named_alike(new)).map(|why| format!("{}: {why}", new.name))
    }

    /// Two that take from one queue each get a part of it.
    fn sharing(&self, name: &ConsumerName, queue: &QueueName) -> Option<String> {
        let pushed = self.subscriptions.iter().find(|other| takes_from(other) == queue.as_str());
        if let Some(other) = pushed {
            return Some(format!(
                "the push subscription {} takes from the queue {queue}, and each of them would get a part of its events; give \
                 keys instead, for a queue of its own",
                other.name
            ));
        }
        if queue.as_str() == self.ledger {
            return Some(format!(
                "the ledger takes from the queue {queue} (ledger.queue), and each would get a part of its events; give keys \
                 instead, for a queue of its own"
            ));
        }
        let consumed = |other: &&Registration| other.service.name() == queue && other.name != *name;
        let other = self.consumers.iter().find(consumed)?;
        Some(format!(
            "the consumer {} takes from the queue {queue}, and each of them would get a part of its events; give keys instead, \
             for a queue of its own, or name the subscription {} to put it in that consumer's place",
            other.name, other.name
        ))
    }

    /// A queue of its own, with its wait queues and its dead-letter queue, must not be anybody's.
    fn overlapping(&self, new: &Subscription) -> Option<String> {
        let own = own_queues(new);
        if let Some(queue) = own.iter().find(|queue| self.declared.find_queue(queue).is_some()) {
            let instead = if self.services.iter().any(|service| service.name() == queue) {
                format!(", or give queue = {:?} instead of keys to have what is in it pushed", queue.as_str())
            } else {
                String::new()
            };
            return Some(format!(
                "there is a queue {queue} already, and with keys a subscription has a queue of its own, named like it; choose \
                 another name{instead}"
            ));
        }
        let of_others = self.subscriptions.iter().find_map(|other| {
            let queue = own_queues(other).into_iter().find(|queue| own.contains(queue))?;
            Some(format!("the push subscription {} has a queue {queue}; choose another name", other.name))
        });
        let of_consumer = |other: &Registration| {
            let queue = queues_of(&other.service).find(|queue| own.contains(queue))?.clone();
            Some(format!(
                "the consumer {} has a queue {queue}, and what is in it would be pushed; choose another name",
                other.name
            ))
        };
        of_others.or_else(|| self.consumers.iter().find_map(of_consumer))
    }

    /// Two consumers of one name share an inbox: what one has applied, the other would skip.
    fn named_alike(&self, new: &Subscription) -> Option<String> {
        let from = takes_from(new);
        let named = |other: &&Registration| other.name == new.name;
        let by_name = self.consumers.iter().filter(named).map(|other| other.service.name());
        // A queue that is consumed has a consumer of its name, unless it is given another.
        let given_another =
            |queue: &QueueName| self.consumers.iter().any(|other| other.service.name() == queue);
        let implied = self.services.iter().map(ServiceQueue::name);
        let implied = implied.filter(|queue| queue.as_str() == new.name.as_str() && !given_another(queue));
        let other = by_name.chain(implied).find(|queue| queue.as_str() != from)?;
        Some(format!(
            "a consumer of this name takes from the queue {other}; what one of them has applied the other would skip: choose \
             another name"
        ))
    }
}

impl Config {
    /// Why a push subscription that is not of the configuration cannot stand beside what is, if it cannot.
    pub(crate) fn refusal(
        &self,
        new: &Subscription,
        more: &[Registration],
        stored: &[&Subscription],
    ) -> Option<String> {
        let configured = self.push.iter().map(|pushed| &pushed.subscription);
        let subscriptions: Vec<_> = configured.chain(stored.iter().copied()).collect();
        let consumers = [&self.own.consumers, more].concat();
        let others = Others {
            declared: &self.own.layout.topology,
            services: &self.own.layout.services,
            consumers: &consumers,
            subscriptions: &subscriptions,
            ledger: &self.settings.ledger.queue,
        };
        others.refusal(new)
    }
}

/// The name of the queue that its deliveries come from.
pub(crate) fn takes_from(subscription: &Subscription) -> &str {
    match &subscription.source {
        Source::Queue(queue) => queue.as_str(),
        Source::Keys { .. } => subscription.name.as_str(),
    }
}

/// The queues that are made for it alone.
fn own_queues(subscription: &Subscription) -> Vec<QueueName> {
    let Source::Keys { retry, .. } = &subscription.source else { return Vec::new() };
    // A name that no queue can have was refused before.
    let service = ServiceQueue::new(subscription.name.as_str(), retry.clone());
    service.map(|service| queues_of(&service).cloned().collect()).unwrap_or_default()
}

fn queues_of(service: &ServiceQueue) -> impl Iterator<Item = &QueueName> {
    let waits = service.wait_queues.iter().map(|wait| &wait.name);
    std::iter::once(service.name()).chain(waits).chain(std::iter::once(&service.dead_letter_queue))
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUEUES: &str = "[[queue]]\nname = 'billing'\nbind = ['shop.order.*']\n[[queue]]\nname = 'mail'\nbind = ['shop.mail.*']\n";

    fn push(name: &str, from: &str) -> String {
        format!("[[push]]\nname = '{name}'\nurl = 'https://example.com/{name}'\n{from}\n")
    }

    #[test]
    fn a_subscription_takes_nothing_that_is_somebody_elses() {
        let (keys, billing) = ("keys = ['shop.order.*']", "queue = 'billing'");
        let consumer = "[[consumer]]\nname = 'invoicing'\nqueue = 'billing'\n";
        for (config, told) in [
            (push("billing", keys), "give queue = \"billing\" instead of keys"),
            (push("billing.dlq", keys), "there is a queue billing.dlq already"),
            (push("postrider.events.unroutable", keys), "there is a queue postrider.events.unroutable"),
            (push("erp", keys) + &push("erp.dlq", keys), "there is a queue erp.dlq already"),
            (
                push("a", billing) + &push("b", billing),
                "b: the push subscription a takes from the queue billing",
            ),
            (push("erp", billing) + consumer, "name the subscription invoicing"),
            (push("mail", billing), "a consumer of this name takes from the queue mail"),
            (push("invoicing", keys) + consumer, "a consumer of this name takes from the queue billing"),
            (
                push("erp", billing) + "[ledger]\nqueue = 'billing'\n",
                "the ledger takes from the queue billing",
            ),
        ] {
            let error = Config::of_text(&format!("{QUEUES}{config}")).unwrap_err().to_string();
            assert!(error.contains(told), "{config}: {error}");
        }
    }

    #[test]
    fn a_subscription_may_stand_in_its_consumers_place_and_beside_others() {
        let consumer =
            "[[consumer]]\nname = 'invoicing'\nqueue = 'billing'\n[[consumer]]\nname = 'erp'\nprefetch = 5\n";
        let all = [
            push("invoicing", "queue = 'billing'"),
            push("mail", "queue = 'mail'"),
            push("erp", "keys = ['shop.order.*']"),
            push("crm", "keys = ['shop.order.*']"),
        ];
        let config = Config::of_text(&format!("{QUEUES}{consumer}{}", all.concat())).unwrap();
        let made = |name: &str, from: &str| {
            let text = format!("{QUEUES}{}", push(name, from));
            Config::of_text(&text).unwrap().push.remove(0).subscription
        };
        let new = made("shipping", "keys = ['shop.order.*']");
        assert_eq!(config.refusal(&new, &[], &[]), None);
        // A consumer that registered itself has its queues, too, and so has a subscription of the store.
        let registered = &[Registration { name: new.name.clone(), ..registration("shipping") }];
        let told = config.refusal(&new, registered, &[]).unwrap();
        assert!(told.contains("the consumer shipping has a queue shipping"), "{told}");
        let told = config.refusal(&made("shipping.dlq", "keys = ['a.b']"), &[], &[&new]).unwrap();
        assert!(told.contains("the push subscription shipping has a queue shipping.dlq"), "{told}");
    }

    fn registration(queue: &str) -> Registration {
        let service = ServiceQueue::new(queue, postrider::settlement::RetryPolicy::default()).unwrap();
        let (topology, exchange) = (Topology::default(), "events".parse().unwrap());
        Registration {
            name: service.consumer_name().unwrap(),
            inbox: None,
            applied_in: postrider::store::AppliedIn::Inbox,
            service,
            topology,
            exchange,
            since: None,
            push: None,
        }
    }
}
