//! Bindings that no subscription wants any more are taken away, so that a queue that nobody pushes from does not fill for ever.
//!
//! What a queue was bound by is in its consumer's registration, which is changed only after the broker has unbound it: a crash
//! before that, or a broker that is away, leaves it to the next look. New keys are bound before old ones are taken away, so that
//! an event that both want is not missed. What is in a queue stays there.

use std::collections::{BTreeMap, BTreeSet};

use postrider::broker::Broker;
use postrider::push::Source;
use postrider::store::{MadeIn, Registration};
use postrider::topology::{Binding, ConsumerName, ServiceQueue, Topology};

use crate::config::{Config, Pushed};
use crate::wiring::WholeStore;

/// Registrations are looked at when subscriptions came or went, and every so many looks at those.
const LOOKS: u32 = 5;

/// What the queues of this process's subscriptions are bound by.
#[derive(Default)]
pub(super) struct Bound {
    /// By the configuration that this process began with, which its topology is made of: which queues are subscriptions' own.
    own: BTreeSet<String>,
    /// What those of the configuration want now.
    wanted: BTreeMap<String, Vec<String>>,
    /// Taken out of the configuration while this process ran.
    left: BTreeSet<ConsumerName>,
    /// The subscriptions there were at the last look, and how many looks ago that was.
    seen: Option<(BTreeSet<ConsumerName>, u32)>,
    /// Those of other configurations that were spoken of.
    told: BTreeSet<ConsumerName>,
}

impl Bound {
    /// As a process begins.
    pub(super) fn of(config: &Config) -> Self {
        let wanted = keys_of(&config.push);
        Self { own: wanted.keys().cloned().collect(), wanted, ..Self::default() }
    }

    /// Takes up another configuration.
    pub(super) fn reload(&mut self, before: &[Pushed], now: &[Pushed]) {
        for Pushed { subscription, .. } in before {
            self.left.insert(subscription.name.clone());
        }
        for Pushed { subscription, .. } in now {
            self.left.remove(&subscription.name);
        }
        self.wanted = keys_of(now);
    }

    /// A topology as it is to be now: that of the configuration has what its subscriptions wanted when this process began.
    pub(super) fn current(&self, mut topology: Topology, service: &ServiceQueue) -> Topology {
        topology.bindings.retain(|binding| {
            let queue = binding.queue.as_str();
            let wanted =
                self.wanted.get(queue).is_some_and(|keys| keys.iter().any(|key| key == binding.key.as_str()));
            !self.own.contains(queue) || wanted || service.bindings.contains(binding)
        });
        topology
    }

    /// Unbinds the queues of subscriptions that are gone, and writes down that no more events are meant for them.
    pub(super) async fn unbind_gone<S: WholeStore>(
        &mut self,
        store: &S,
        broker: &dyn Broker,
        names: &BTreeSet<ConsumerName>,
    ) -> anyhow::Result<()> {
        if let Some((seen, looks)) = &mut self.seen {
            *looks += 1;
            if seen == names && !looks.is_multiple_of(LOOKS) {
                return Ok(());
            }
        }
        for gone in store.registrations().await? {
            if gone.push.is_none() || names.contains(&gone.name) {
                continue;
            }
            let own = gone.service.name().as_str() == gone.name.as_str();
            if gone.push == Some(MadeIn::Store) && !own {
                self.forget(store, &gone.name).await?;
                continue;
            }
            if gone.service.bindings.is_empty() {
                continue;
            }
            if gone.push == Some(MadeIn::Configuration) && !self.left.contains(&gone.name) {
                self.tell(&gone.name);
                continue;
            }
            // Made anew since this look began, and perhaps answered already: its queue is bound, and stays so.
            if is_back(store, &gone.name).await? {
                continue;
            }
            broker.unbind(&gone.service.bindings).await?;
            tracing::info!(consumer = %gone.name, "its subscription is gone: its queue is unbound, and keeps what is in it");
            // Made anew in this moment, it is begun at the next look, which binds its queue again.
            if !is_back(store, &gone.name).await? {
                store.register(vec![gone.unbound()]).await?;
            }
        }
        self.seen = Some((names.clone(), 0));
        Ok(())
    }

    /// Its queue was one of the configuration, and others take from it: no event is meant for this one any more.
    async fn forget<S: WholeStore>(&self, store: &S, name: &ConsumerName) -> anyhow::Result<()> {
        let is_back = is_back(store, name).await?;
        if !is_back && store.unregister(name, "postrider", "its push subscription was removed").await? {
            tracing::info!(consumer = %name, "its subscription is gone: it is forgotten, and its queue is left as it is");
        }
        Ok(())
    }

    /// Another process may have it in its configuration, so only a person can say that it is gone.
    fn tell(&mut self, name: &ConsumerName) {
        if self.told.insert(name.clone()) {
            tracing::warn!(
                "the queue {name} belongs to a [[push]] that is not in this configuration, and goes on filling; if no other process \
                 has it either, `postrider push rm {name}` unbinds it"
            );
        }
    }
}

/// Whether there is a subscription of this name again.
async fn is_back<S: WholeStore>(store: &S, name: &ConsumerName) -> anyhow::Result<bool> {
    Ok(store.subscriptions().await?.iter().any(|stored| stored.subscription.name == *name))
}

/// Unbinds what a subscription's own queue was bound by before, and is not any more, once what it is bound by now is.
pub(super) async fn take_away_old<S: WholeStore>(
    store: &S,
    broker: &dyn Broker,
    name: &ConsumerName,
    now: &Topology,
) -> anyhow::Result<()> {
    let before = store.registrations().await?.into_iter().find(|before| before.name == *name);
    let old = before.map(|before| old_bindings(&before, now)).unwrap_or_default();
    if old.is_empty() {
        return Ok(());
    }
    broker.declare(now).await?;
    broker.unbind(&old).await?;
    let keys: Vec<_> = old.iter().map(|binding| binding.key.as_str()).collect();
    tracing::info!(consumer = %name, keys = %keys.join(", "), "its queue is not bound by these keys any more");
    Ok(())
}

/// Only of a queue of its own: other queues' bindings are those of the configuration.
fn old_bindings(before: &Registration, now: &Topology) -> Vec<Binding> {
    if before.push.is_none() {
        return Vec::new();
    }
    let old = before.service.bindings.iter().filter(|binding| !now.bindings.contains(binding));
    old.cloned().collect()
}

fn keys_of(pushed: &[Pushed]) -> BTreeMap<String, Vec<String>> {
    let own = pushed.iter().filter_map(|Pushed { subscription, .. }| match &subscription.source {
        Source::Keys { keys, .. } => Some((subscription.name.to_string(), keys.clone())),
        Source::Queue(_) => None,
    });
    own.collect()
}
