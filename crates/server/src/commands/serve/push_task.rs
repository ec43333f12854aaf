//! Push as a task of `serve`: a consumer for every subscription, of the configuration and of the store.
//!
//! Subscriptions that are made, changed or removed meanwhile are taken up within seconds. What is on its way to an endpoint
//! that is removed is finished and settled, and its queue gets no more (`bindings`).

mod bindings;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use postrider::Clock;
use postrider::broker::Broker;
use postrider::consumer::Orders;
use postrider::dedup::Accelerator;
use postrider::push::{Attempts, Push, Source, Subscription, SystemNames};
use postrider::registry::Registry;
use postrider::runtime::{Running, Runtime};
use postrider::store::MadeIn;
use postrider::topology::ConsumerName;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use self::bindings::Bound;
use super::policies::Policies;
use crate::at_work::AtWork;
use crate::commands::Context;
use crate::config::{Config, Live, Pushed};
use crate::old_buses;
use crate::wiring::WholeStore;

/// How often it looks for changes, and stores what came of attempts.
const POLL: Duration = Duration::from_secs(1);

/// What runs, until it is told to stop.
pub(super) struct PushTask(JoinHandle<()>);

impl PushTask {
    /// Starts it.
    pub(super) fn start<S: WholeStore>(
        store: &S,
        broker: &Arc<dyn Broker>,
        accelerator: Option<&Accelerator>,
        context: &Context,
        at_work: &Arc<AtWork>,
        stop: &CancellationToken,
    ) -> Self {
        let config = context.config.clone();
        let drain = config.settings.shutdown.drain();
        let push = Pushing {
            store: store.clone(),
            broker: broker.clone(),
            accelerator: accelerator.cloned(),
            clock: context.clock.clone(),
            policies: Policies::of(context),
            at_work: at_work.clone(),
            live: context.live.clone(),
            bound: Bound::of(&config),
            config,
            endpoints: BTreeMap::new(),
            orders: Arc::default(),
            leaving: Vec::new(),
            trouble: None,
        };
        Self(tokio::spawn(push.run(stop.clone(), drain)))
    }

    /// Waits for what is on its way.
    pub(super) async fn finished(self) {
        let _panicked = self.0.await;
    }
}

struct Pushing<S> {
    store: S,
    broker: Arc<dyn Broker>,
    accelerator: Option<Accelerator>,
    clock: Clock,
    policies: Policies,
    at_work: Arc<AtWork>,
    live: Live,
    /// As it was when the endpoints were taken up.
    config: Config,
    endpoints: BTreeMap<ConsumerName, Endpoint<S>>,
    /// What operators tell all of them.
    orders: Arc<Orders>,
    /// The attempts at those that were ended or begun anew, whose last calls may be under way.
    leaving: Vec<(ConsumerName, Arc<Attempts>)>,
    /// What their queues were bound by.
    bound: Bound,
    /// What was last complained about.
    trouble: Option<String>,
}

/// An endpoint that is called.
struct Endpoint<S> {
    revision: Revision,
    /// As the configuration has it, if it does.
    configured: Option<Pushed>,
    running: Running<S>,
    attempts: Arc<Attempts>,
}

/// Changes with the subscription, when one of its secrets ends, and when it was removed and made anew. One of the configuration is
/// compared itself.
type Revision = Option<(Timestamp, u64, u32)>;

impl<S: WholeStore> Pushing<S> {
    async fn run(mut self, stop: CancellationToken, drain: Duration) {
        // A broker that is away is waited for at every endpoint. Cut off half way, an endpoint is declared and does not run, as after a crash.
        while let Some(taken_up) = stop.run_until_cancelled(self.take_up()).await {
            let told = taken_up.err().map(|error| format!("{error:#}"));
            if let Some(told) = told.as_ref().filter(|told| self.trouble.as_ref() != Some(told)) {
                tracing::warn!("push subscriptions could not be taken up, trying on: {told}");
            }
            self.trouble = told;
            tokio::select! {
                () = stop.cancelled() => break,
                () = self.clock.sleep(POLL) => self.store_attempts().await,
            }
        }
        let finishing = self.endpoints.values().map(|endpoint| endpoint.running.finish(drain));
        futures_util::future::join_all(finishing).await;
        self.store_attempts().await;
    }

    /// Starts what is new, stops what is gone, starts what has changed again.
    async fn take_up(&mut self) -> anyhow::Result<()> {
        self.reload();
        let mut wanted: BTreeMap<ConsumerName, (Revision, Subscription)> = BTreeMap::new();
        for stored in self.store.subscriptions().await? {
            let revision = Some((stored.created_at, stored.version, stored.secrets));
            wanted.insert(stored.subscription.name.clone(), (revision, stored.subscription));
        }
        for pushed in &self.config.push {
            let subscription = pushed.subscription.clone();
            wanted.insert(subscription.name.clone(), (None, subscription));
        }
        self.keep(|name, endpoint| {
            wanted.get(name).is_some_and(|(revision, _)| *revision == endpoint.revision)
        });
        let names: BTreeSet<_> = wanted.keys().cloned().collect();
        let mut failed = None;
        for (name, (revision, subscription)) in wanted {
            if self.endpoints.contains_key(&name) {
                continue;
            }
            // The configuration may have changed since it was made.
            let configured = self.config.push.iter().any(|pushed| pushed.subscription.name == name);
            let refused = if configured { None } else { self.config.refusal(&subscription, &[], &[]) };
            if let Some(why) = refused {
                failed = Some(anyhow::anyhow!("{why}; until then its events wait"));
                continue;
            }
            match self.begin(subscription, revision).await {
                Ok(endpoint) => _ = self.endpoints.insert(name, endpoint),
                Err(error) => failed = Some(error.context(format!("push to {name}"))),
            }
        }
        if let Err(error) = self.bound.unbind_gone(&self.store, &*self.broker, &names).await {
            failed.get_or_insert(error.context("unbinding the queues of removed subscriptions"));
        }
        failed.map_or(Ok(()), Err)
    }

    /// Takes up subscriptions of the configuration as they are now; those that changed begin again, and where requests may go is
    /// asked for all of them anew.
    fn reload(&mut self) {
        let now = self.live.now();
        let same_ways = self.config.allowed == now.allowed;
        self.keep(|name, endpoint| {
            let configured = now.push.iter().find(|pushed| pushed.subscription.name == *name);
            same_ways && endpoint.configured.as_ref() == configured
        });
        self.bound.reload(&self.config.push, &now.push);
        (self.config.push, self.config.allowed) = (now.push.clone(), now.allowed.clone());
    }

    /// Ends the others. An endpoint that is dropped finishes by itself.
    fn keep(&mut self, wanted: impl Fn(&ConsumerName, &Endpoint<S>) -> bool) {
        let leaving = &mut self.leaving;
        self.endpoints.retain(|name, endpoint| {
            let stays = wanted(name, endpoint);
            if !stays {
                leaving.push((name.clone(), endpoint.attempts.clone()));
            }
            stays
        });
    }

    async fn begin(&self, subscription: Subscription, revision: Revision) -> anyhow::Result<Endpoint<S>> {
        let configured = self.config.push.iter().find(|pushed| pushed.subscription.name == subscription.name);
        let secrets = match configured {
            Some(Pushed { secrets, .. }) => secrets.clone(),
            None => self.store.signing_secrets(&subscription.name).await?,
        };
        let (layout, allowed) = (&self.config.own.layout, self.config.allowed.clone());
        subscription.check(&allowed)?;
        let service = subscription.service(&layout.services, &layout.exchange)?;
        let standings = self.store.migrations_of_buses().await?;
        if old_buses::is_removed(service.name(), &standings) {
            anyhow::bail!(
                "the queue {} was removed with the old bus; take this [[push]] out of the configuration",
                service.name()
            );
        }
        let sender = subscription.sender(secrets, allowed, Arc::new(SystemNames), self.clock.clone())?;
        let attempts = Arc::new(Attempts::default());
        let pauses = Arc::new(self.store.clone());
        let push =
            Push::new(sender, subscription.status.clone(), attempts.clone(), pauses, self.clock.clone());
        let topology = self.bound.current(self.config.topology_with(&subscription), &service);
        let topology = old_buses::without_removed(&topology, &standings);
        // Before the consumer registers itself anew: until then its registration has what it was bound by before.
        bindings::take_away_old(&self.store, &*self.broker, &subscription.name, &topology).await?;
        let mut runtime = Runtime::new(self.store.clone(), self.broker.clone(), self.clock.clone())
            .relay(None)
            .events_from(layout.exchange.clone())
            .topology(topology.clone())
            .consumer_with(
                subscription.name.clone(),
                service,
                Registry::new().on_outside("#", push),
                self.config.push_consumer(&subscription),
            )
            .leave_inbox()
            .among_many(&self.orders);
        // The queues of the configuration have their policies and their collector; one of its own has none but these.
        match subscription.source {
            Source::Queue(_) => runtime = runtime.leave_dead_letters(),
            Source::Keys { .. } => {
                runtime =
                    runtime.pushes(if configured.is_some() { MadeIn::Configuration } else { MadeIn::Store });
                self.policies.set(&topology).await;
            }
        }
        if let Some(accelerator) = &self.accelerator {
            runtime = runtime.accelerator(accelerator.clone());
        }
        let running = runtime.start().await?;
        self.at_work.note_consumers(running.consumers());
        tracing::info!(consumer = %subscription.name, url = subscription.shown_url(), "pushing");
        Ok(Endpoint { revision, configured: configured.cloned(), running, attempts })
    }

    /// What cannot be stored now is not worth keeping.
    async fn store_attempts(&mut self) {
        let mut fresh: Vec<_> =
            self.endpoints.iter().map(|(name, endpoint)| (name.clone(), endpoint.attempts.take())).collect();
        self.leaving.retain(|(name, attempts)| {
            // Once it has finished nobody else has them, and this is the last look.
            let finished = Arc::strong_count(attempts) == 1;
            fresh.push((name.clone(), attempts.take()));
            !finished
        });
        for (name, attempts) in fresh {
            if attempts.is_empty() {
                continue;
            }
            if let Err(error) = self.store.record_attempts(&name, attempts).await {
                tracing::debug!(consumer = %name, %error, "attempts could not be stored");
            }
        }
    }
}
