//! The queues that workers pull from: each has a consumer here while somebody asks, and none when nobody does.

mod elsewhere;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use postrider::Clock;
use postrider::broker::Broker;
use postrider::consumer::ConsumerStatus;
use postrider::dedup::Accelerator;
use postrider::pull::{LeaseKey, PullDesk, PullHandler, Said};
use postrider::registry::Registry;
use postrider::runtime::{Running, Runtime, StartError};
use postrider::store::StoreError;
use postrider::topology::{ConsumerName, QueueName, ServiceQueue, Topology};
use serde::Serialize;
use tokio::sync::{Mutex, OnceCell};
use tokio_util::sync::CancellationToken;

use crate::at_work::AtWork;
use crate::config::{Config, Live, takes_from};
use crate::old_buses;
use crate::wiring::WholeStore;

/// A queue that nobody asked for deliveries of for so long is left alone.
const IDLE: Duration = Duration::from_mins(1);

/// The desks of this process.
pub(crate) struct PullDesks<S: WholeStore> {
    store: S,
    broker: Arc<dyn Broker>,
    accelerator: Option<Accelerator>,
    /// As it was at the start; `live` has what a reload changes.
    config: Arc<Config>,
    live: Live,
    clock: Clock,
    at_work: Arc<AtWork>,
    open: Mutex<HashMap<QueueName, Open<S>>>,
    /// What leases are signed with, once it was asked for.
    key: OnceCell<LeaseKey>,
    stop: CancellationToken,
}

/// Of which leases it counted, and which were over: what these had comes again, unless it was settled before.
#[derive(Default, Serialize)]
pub(crate) struct Told {
    pub(crate) settled: Vec<String>,
    pub(crate) over: Vec<String>,
}

impl Told {
    fn put(&mut self, lease: String, counted: bool) {
        if counted { &mut self.settled } else { &mut self.over }.push(lease);
    }
}

struct Open<S> {
    desk: Arc<PullDesk>,
    running: Running<S>,
    asked: Duration,
}

impl<S: WholeStore> Open<S> {
    /// How the consumer of this desk stands: one, unless it could not be started.
    fn standing(&self) -> Option<Arc<ConsumerStatus>> {
        self.running.consumers().first().map(|consumer| consumer.status.clone())
    }
}

impl<S: WholeStore> PullDesks<S> {
    /// None is open yet. Until `stop` idle ones are closed and other processes heard; then all of them are closed.
    pub(crate) fn new(
        store: S,
        broker: Arc<dyn Broker>,
        accelerator: Option<Accelerator>,
        live: Live,
        clock: Clock,
        at_work: Arc<AtWork>,
        stop: CancellationToken,
    ) -> Arc<Self> {
        let config = live.now();
        let (open, key, stopped) = (Mutex::default(), OnceCell::new(), stop.clone());
        let desks =
            Self { store, broker, accelerator, config, live, clock, at_work, open, key, stop: stopped };
        let desks = Arc::new(desks);
        tokio::spawn(desks.clone().listen(stop.clone()));
        tokio::spawn(desks.clone().close_idle(stop));
        desks
    }

    /// The desk of a queue, opened if it is not, and how its consumer stands. Nothing if the configuration has no such queue.
    pub(crate) async fn desk(
        &self,
        queue: &QueueName,
    ) -> Result<Option<(Arc<PullDesk>, Option<Arc<ConsumerStatus>>)>, StartError> {
        let layout = &self.config.own.layout;
        let Some(service) = layout.services.iter().find(|service| service.name() == queue) else {
            return Ok(None);
        };
        let mut open = self.open.lock().await;
        let now = self.clock.monotonic();
        if let Some(open) = open.get_mut(queue) {
            open.asked = now;
            return Ok(Some((open.desk.clone(), open.standing())));
        }
        let Some(consumer) = self.consumer_of(service) else { return Ok(None) };
        let standings = self.store.migrations_of_buses().await?;
        if old_buses::is_removed(queue, &standings) {
            return Ok(None);
        }
        let topology = old_buses::without_removed(&layout.topology, &standings);
        let desk = PullDesk::with_key(self.clock.clone(), self.key().await?.clone());
        let running = self.consume(consumer, service, topology, desk.clone()).await?;
        self.at_work.note_consumers(running.consumers());
        let opened = Open { desk: desk.clone(), running, asked: now };
        let standing = opened.standing();
        open.insert(queue.clone(), opened);
        Ok(Some((desk, standing)))
    }

    /// Who takes from this queue already, if somebody does: workers would get a part of its events, and he the rest.
    pub(crate) async fn taken_by(&self, queue: &QueueName) -> Result<Option<String>, StoreError> {
        if self.config.settings.ledger.queue == queue.as_str() {
            return Ok(Some("the ledger (ledger.queue)".to_owned()));
        }
        let (configured, stored) = (self.live.now(), self.store.subscriptions().await?);
        let configured = configured.push.iter().map(|pushed| &pushed.subscription);
        let mut all = configured.chain(stored.iter().map(|stored| &stored.subscription));
        let found = all.find(|subscription| takes_from(subscription) == queue.as_str());
        Ok(found.map(|subscription| format!("the push subscription {}", subscription.name)))
    }

    /// How long a worker may wait: well within the time of a request.
    pub(crate) fn longest_wait(&self) -> Duration {
        self.config.settings.http.request_timeout() * 2 / 3
    }

    /// Returns when the process stops: nothing more is given out then.
    pub(crate) async fn stopped(&self) {
        self.stop.cancelled().await;
    }

    /// What time is told by.
    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// The desk of a queue if it is open: a lease of one that is not is over.
    pub(crate) async fn open(&self, queue: &QueueName) -> Option<Arc<PullDesk>> {
        self.open.lock().await.get(queue).map(|open| open.desk.clone())
    }

    /// Says something of leases, whichever process gave them.
    pub(crate) async fn say(
        &self,
        queue: &QueueName,
        leases: Vec<String>,
        said: &Said,
    ) -> Result<Told, StoreError> {
        let (desk, mut told, mut others) = (self.open(queue).await, Told::default(), Vec::new());
        let layout = &self.config.own.layout;
        let service = layout.services.iter().find(|service| service.name() == queue);
        let Some(consumer) = service.and_then(|service| self.consumer_of(service)) else {
            return Ok(Told { over: leases, ..told });
        };
        let mut named = HashSet::new();
        for lease in leases {
            if !named.insert(lease.clone()) {
                continue;
            }
            if desk.as_ref().is_some_and(|desk| desk.hear(&lease, said)) {
                told.settled.push(lease);
            } else if let Some(token) = self.of_another(queue, &consumer, &lease).await? {
                others.push((lease, token));
            } else {
                told.over.push(lease);
            }
        }
        if !others.is_empty() {
            let elsewhere = self.say_elsewhere(&consumer, others, said).await?;
            told.settled.extend(elsewhere.settled);
            told.over.extend(elsewhere.over);
        }
        Ok(told)
    }

    async fn consume(
        &self,
        consumer: ConsumerName,
        service: &ServiceQueue,
        topology: Topology,
        desk: Arc<PullDesk>,
    ) -> Result<Running<S>, StartError> {
        // What a consumer that shares its inbox applied, is applied.
        let config = self.config.pull_consumer(&consumer, PullDesk::consumer_config());
        let inbox = config.inbox.as_ref().unwrap_or(&consumer);
        let applied = (self.store.clone(), inbox.clone());
        let handlers = Registry::new().on_outside("#", PullHandler::new(desk, applied));
        let mut runtime = Runtime::new(self.store.clone(), self.broker.clone(), self.clock.clone());
        if let Some(accelerator) = &self.accelerator {
            runtime = runtime.accelerator(accelerator.clone());
        }
        runtime
            .relay(None)
            .events_from(self.config.own.layout.exchange.clone())
            .topology(topology)
            .consumer_with(consumer, service.clone(), handlers, config)
            .leave_dead_letters()
            .leave_inbox()
            .start()
            .await
    }

    /// The consumer that the configuration names for this queue, else one named like it.
    fn consumer_of(&self, service: &ServiceQueue) -> Option<ConsumerName> {
        let named = self.config.own.consumers.iter().find(|other| other.service.name() == service.name());
        let own = named.map(|registration| registration.name.clone());
        own.or_else(|| service.consumer_name().ok())
    }

    async fn close_idle(self: Arc<Self>, stop: CancellationToken) {
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                () = self.clock.sleep(IDLE / 4) => {}
            }
            let now = self.clock.monotonic();
            let queues: Vec<_> = self.open.lock().await.keys().cloned().collect();
            let mut pushed = HashSet::new();
            for queue in queues {
                if matches!(self.taken_by(&queue).await, Ok(Some(_))) {
                    pushed.insert(queue);
                }
            }
            let mut open = self.open.lock().await;
            // Who asked last may wait still, and would wait for nothing.
            let idle = IDLE.max(self.longest_wait());
            let wanted = |queue: &QueueName, open: &Open<S>| {
                now.saturating_sub(open.asked) < idle && !pushed.contains(queue)
            };
            // What is not leased goes back to its queue.
            open.retain(|queue, open| open.desk.leased() > 0 || wanted(queue, open));
        }
        let closing: Vec<_> = self.open.lock().await.drain().collect();
        for (_, open) in closing {
            open.running.finish(Duration::from_secs(1)).await;
        }
    }
}
