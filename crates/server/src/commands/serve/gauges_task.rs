//! The gauges that nobody else has at hand, read now and then while somebody can scrape them: what waits for each consumer, dead
//! letters, clocks, and whether the servers answer.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use postrider::Clock;
use postrider::broker::{Broker, BrokerErrorKind};
use postrider::store::{Registration, StoreFigures, StreamState};
use postrider::topology::{ConsumerName, QueueName, ServiceQueue};
use tokio_util::sync::CancellationToken;

use crate::commands::Context;
use crate::outboxes::{self, OpenOutbox};
use crate::wiring::WholeStore;

/// How often they are read.
const EVERY: Duration = Duration::from_secs(15);

/// Starts to read them, until `stop`. A server that does not answer leaves its gauges as they were, but for the one that says so.
pub(super) fn start<S: WholeStore>(
    store: &S,
    broker: &Arc<dyn Broker>,
    context: &Context,
    stop: &CancellationToken,
) {
    // What cannot be opened was refused when the relays were started.
    let outboxes = outboxes::open(store, &context.config, &context.clock).unwrap_or_default();
    metrics::gauge!("postrider_build_info", "version" => env!("CARGO_PKG_VERSION")).set(1.0);
    let gauges = Gauges {
        store: store.clone(),
        broker: broker.clone(),
        clock: context.clock.clone(),
        configured: context.config.own.consumers.clone(),
        outboxes,
        with_letters: BTreeSet::new(),
        with_lag: BTreeMap::new(),
    };
    tokio::spawn(stop.clone().run_until_cancelled_owned(gauges.run()));
}

#[expect(clippy::cast_precision_loss, reason = "gauges are floats")]
fn show_lag(outbox: &str, stream: Option<&StreamState>) {
    let lag = stream.map_or(0, |stream| stream.lag_bytes);
    metrics::gauge!("postrider_outbox_stream_lag_bytes", "outbox" => outbox.to_owned()).set(lag as f64);
}

struct Gauges<S> {
    store: S,
    broker: Arc<dyn Broker>,
    clock: Clock,
    configured: Vec<Registration>,
    outboxes: Vec<OpenOutbox<S>>,
    /// Queues that may have dead letters: they are shown as 0 before they have some, so that an alert sees the first ones come, and when
    /// they have none any more.
    with_letters: BTreeSet<String>,
    /// Consumers that are shown, and their queues: those that are gone have nothing before them.
    with_lag: BTreeMap<ConsumerName, QueueName>,
}

impl<S: WholeStore> Gauges<S> {
    async fn run(mut self) {
        loop {
            let store = self.read_store().await;
            up("store", store);
            let broker = self.broker.ping().await.is_ok();
            up("broker", broker);
            if store && broker {
                self.read_queues().await;
            }
            self.clock.sleep(EVERY).await;
        }
    }

    /// Whether the store answered.
    async fn read_store(&mut self) -> bool {
        let before = self.clock.now();
        let Ok(facts) = self.store.facts().await else { return false };
        let apart = before.duration_since(facts.now).max(facts.now.duration_since(self.clock.now()));
        metrics::gauge!("postrider_clock_skew_seconds").set(apart.as_secs_f64().max(0.0));
        // The relay reads these too, where it runs; it may run elsewhere, in a process that nobody can scrape.
        for outbox in &self.outboxes {
            if let (Ok(backlog), Ok(facts)) = (outbox.store.backlog().await, outbox.store.facts().await) {
                backlog.show(&outbox.choice.label, facts.now);
            }
            if let Ok(stream) = outbox.store.stream_state().await {
                show_lag(&outbox.choice.label, stream.as_ref());
            }
        }
        match self.store.figures().await {
            Ok(figures) => self.show(figures),
            Err(error) => tracing::debug!(%error, "figures were not read"),
        }
        true
    }

    fn show(&mut self, figures: StoreFigures) {
        let open: BTreeMap<_, _> = figures.open_letters.into_iter().collect();
        self.with_letters.extend(open.keys().cloned());
        // Each is set once: a scrape in between would see none, and then so many more than none.
        for queue in &self.with_letters {
            let open = open.get(queue).copied().unwrap_or(0);
            metrics::gauge!("postrider_dead_letters_open", "queue" => queue.clone()).set(float(open));
        }
        metrics::gauge!("postrider_operations_unfinished").set(float(figures.operations));
        metrics::gauge!("postrider_schema_version").set(f64::from(figures.schema));
    }

    /// What waits for each consumer, and for none that is gone.
    async fn read_queues(&mut self) {
        let Ok(mut consumers) = self.store.registrations().await else { return };
        let known: BTreeSet<_> = consumers.iter().map(|consumer| consumer.name.clone()).collect();
        consumers.extend(self.configured.iter().filter(|other| !known.contains(&other.name)).cloned());
        let shown = std::mem::take(&mut self.with_lag);
        let here = consumers.iter().map(|one| (one.name.clone(), one.service.name().clone()));
        self.with_lag = here.collect();
        // First, because others may take from the same queue.
        for (consumer, queue) in shown.iter().filter(|(name, _)| !self.with_lag.contains_key(*name)) {
            show_queue(consumer, queue, 0, 0);
        }
        for consumer in consumers {
            self.with_letters.insert(consumer.service.name().to_string());
            self.read_queue(&consumer.name, &consumer.service).await;
        }
    }

    async fn read_queue(&self, consumer: &ConsumerName, service: &ServiceQueue) {
        let ready = match self.broker.depth(service.name()).await {
            Ok(ready) => ready,
            // In a queue that is not there nothing waits.
            Err(error) if error.kind == BrokerErrorKind::NotFound => 0,
            Err(_) => return,
        };
        let mut waiting = 0;
        for wait in &service.wait_queues {
            waiting += self.broker.depth(&wait.name).await.unwrap_or(0);
        }
        show_queue(consumer, service.name(), ready, waiting);
    }
}

fn show_queue(consumer: &ConsumerName, queue: &QueueName, ready: u64, waiting: u64) {
    let (consumer, queue) = (consumer.to_string(), queue.to_string());
    metrics::gauge!("postrider_queue_ready_messages", "queue" => queue.clone()).set(float(ready));
    metrics::gauge!("postrider_queue_waiting_messages", "queue" => queue).set(float(waiting));
    metrics::gauge!("postrider_consumer_lag_messages", "consumer" => consumer).set(float(ready + waiting));
}

fn up(part: &'static str, is_up: bool) {
    metrics::gauge!("postrider_up", "part" => part).set(if is_up { 1.0 } else { 0.0 });
}

#[expect(clippy::cast_precision_loss, reason = "gauges are floats")]
fn float(count: u64) -> f64 {
    count as f64
}
