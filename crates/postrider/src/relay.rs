//! Outbox to broker: claim, publish, wait for the confirm, mark. Never the other way round.
//!
//! A crash between confirm and mark publishes an event again, with the same id, and every inbox knows it. An outage of
//! the broker pauses the relay and costs no event an attempt: only failures of the message itself count.

mod backoff;
mod both;
mod flow;
mod handover;
mod housekeeper;
mod outgoing;
mod pause;
mod pump;
mod reading;

pub use backoff::Backoff;
pub(crate) use housekeeper::Housekeeper;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use self::pump::Pump;
use crate::broker::Broker;
use crate::clock::Clock;
use crate::envelope::WireFormat;
use crate::migration::{Copier, Course, Latencies};
use crate::store::{Outbox, RelayId};
use crate::topology::{ExchangeName, KeyTemplate};

/// How a relay works.
#[derive(Debug, Clone)]
pub struct RelayConfig {
    /// The exchange of rows that name none.
    pub exchange: ExchangeName,
    /// How events are written where `formats` says nothing else.
    pub format: WireFormat,
    /// How the events of an exchange are written.
    pub formats: BTreeMap<ExchangeName, WireFormat>,
    /// Events that are published together, at most.
    pub batch_size: usize,
    /// Batches that are on their way at the same time.
    pub lanes: u16,
    /// Look again after this long, however quiet it is.
    pub poll_interval: Duration,
    /// How long others wait for a relay that is gone.
    pub lease: Duration,
    /// Failures of one message until it is dead.
    pub max_attempts: u32,
    /// When to try a failed message again.
    pub backoff: Backoff,
    /// How rows are found.
    pub mode: RelayMode,
    /// A stream for which the database keeps more of its log than this is given up, and rows are polled for a while.
    pub max_lag_bytes: u64,
    /// How rows are routed that name no key; by their type, without it.
    pub routing_key: Option<KeyTemplate>,
    /// So much later than the new bus an old one may answer while events go to both; then its copies are made later, also those that
    /// may have arrived.
    pub legacy_patience: Duration,
}

/// How a relay finds rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RelayMode {
    /// Streams where the database allows it, else polls.
    #[default]
    Auto,
    /// Looks for them in the table.
    Poll,
    /// Streams, and says as a warning what is missing while it cannot; meanwhile it polls.
    Cdc,
}

impl Default for RelayConfig {
    fn default() -> Self {
        Self {
            exchange: ExchangeName::default_exchange(),
            format: WireFormat::default(),
            formats: BTreeMap::new(),
            batch_size: 500,
            lanes: 4,
            poll_interval: Duration::from_secs(1),
            lease: Duration::from_secs(10),
            max_attempts: 10,
            backoff: Backoff::default(),
            mode: RelayMode::default(),
            max_lag_bytes: 1 << 30,
            routing_key: None,
            legacy_patience: Duration::from_secs(1),
        }
    }
}

/// One relay. Several may run on the same outbox.
pub struct Relay<S> {
    store: S,
    broker: Arc<dyn Broker>,
    clock: Clock,
    config: Arc<RelayConfig>,
    id: RelayId,
    status: Arc<RelayStatus>,
}

/// What a relay is doing, for health and dashboards.
#[derive(Debug, Default)]
pub struct RelayStatus {
    published: AtomicU64,
    failed: AtomicU64,
    paused: AtomicBool,
    streaming: AtomicBool,
    switches: AtomicU64,
    course: Mutex<Option<Course>>,
    latencies: Latencies,
}

impl RelayStatus {
    /// Events confirmed and marked since the start.
    pub fn published(&self) -> u64 {
        self.published.load(Ordering::Relaxed)
    }

    /// Failures of messages since the start.
    pub fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// Whether rows come by a stream now; else it polls.
    pub fn is_streaming(&self) -> bool {
        self.streaming.load(Ordering::Relaxed)
    }

    /// How often it began or ended to stream since the start.
    pub fn switches(&self) -> u64 {
        self.switches.load(Ordering::Relaxed)
    }

    /// The migration that it obeys, if one runs.
    pub fn course(&self) -> Option<Course> {
        self.course.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How long publishes take while a migration runs.
    pub fn latencies(&self) -> &Latencies {
        &self.latencies
    }

    fn set_course(&self, course: Option<Course>) {
        *self.course.lock().unwrap_or_else(PoisonError::into_inner) = course;
    }

    fn set_streaming(&self, streams: bool) {
        if self.streaming.swap(streams, Ordering::Relaxed) != streams {
            self.switches.fetch_add(1, Ordering::Relaxed);
            metrics::counter!("postrider_relay_switches_total", "to" => if streams { "cdc" } else { "poll" })
                .increment(1);
        }
        metrics::gauge!("postrider_relay_streaming").set(if streams { 1.0 } else { 0.0 });
    }

    /// Whether it waits for the broker or the store to come back.
    pub fn is_paused(&self) -> bool {
        self.paused.load(Ordering::Relaxed)
    }
}

impl<S: Outbox> Relay<S> {
    /// A relay with a new id.
    pub fn new(store: S, broker: Arc<dyn Broker>, clock: Clock, config: RelayConfig) -> Self {
        let id = RelayId::of_process(&clock);
        Self { store, broker, clock, config: Arc::new(config), id, status: Arc::default() }
    }

    /// A view of what it is doing.
    pub fn status(&self) -> Arc<RelayStatus> {
        self.status.clone()
    }

    /// Works until told to stop, then finishes what is in flight and gives its slots back.
    pub async fn run(self, stop: CancellationToken) {
        let (store, id, status) = (self.store.clone(), self.id.clone(), self.status.clone());
        let copier = Copier {
            store: store.clone(),
            broker: self.broker.clone(),
            clock: self.clock.clone(),
            config: self.config.clone(),
            relay: id.clone(),
            status: status.clone(),
        };
        tokio::join!(Pump::new(self).run(stop.clone()), copier.run(stop));
        status.set_streaming(false);
        if let Err(error) = store.release(&id).await {
            tracing::warn!(%error, "the relay's slots were not given back; others take them when the lease ends");
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::clock::Clock;
    use crate::envelope::Event;
    use crate::store::{OutboxRow, RowId};

    /// A row without a key.
    pub(super) fn row(position: i64) -> OutboxRow {
        of(position, Event::new("order.changed").unwrap())
    }

    /// A row that keeps its order with others.
    pub(super) fn keyed(position: i64, aggregate: &str) -> OutboxRow {
        of(position, Event::new("order.changed").unwrap().aggregate_id(aggregate).unwrap())
    }

    fn of(position: i64, event: Event) -> OutboxRow {
        let (clock, _) = Clock::manual(jiff::Timestamp::UNIX_EPOCH);
        OutboxRow {
            row: RowId { position, created_at: jiff::Timestamp::UNIX_EPOCH },
            slot: Some(0),
            envelope: event.into_envelope(&clock),
            exchange: None,
            routing_key: None,
            target_queue: None,
            attempts: 0,
            verbatim: None,
            dead_letter: None,
        }
    }
}
