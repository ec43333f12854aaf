//! Outbox to broker: claim, publish, wait for the confirm, mark. Never the other way round.
//!
//! A crash between confirm and mark publishes an event again, with the same id, and every inbox knows it. An outage of
//! the broker pauses the relay and costs no event an attempt: only failures of the message itself count.

mod backoff;
mod wave;

pub use backoff::Backoff;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use tokio_util::sync::CancellationToken;

use self::wave::Waves;
use crate::broker::{Broker, Outgoing, Published};
use crate::clock::Clock;
use crate::envelope::{WireFormat, wire};
use crate::store::{Lane, Outbox, OutboxRow, PublishResult, RelayId, RowResult, StoreError};
use crate::topology::{ExchangeName, RoutingKey};

/// Failures until the replay of a dead letter is given up.
const REPLAY_ATTEMPTS: u32 = 3;

/// How a relay works.
#[derive(Debug, Clone)]
pub struct RelayConfig {
    /// The exchange of rows that name none.
    pub exchange: ExchangeName,
    /// How events are written where `formats` says nothing else.
    pub format: WireFormat,
    /// How the events of an exchange are written.
    pub formats: BTreeMap<ExchangeName, WireFormat>,
    /// Rows a lane takes at a time.
    pub batch_size: usize,
    /// Lanes that work side by side: while one waits for confirms, another claims.
    pub lanes: u16,
    /// Look again after this long, however quiet it is.
    pub poll_interval: Duration,
    /// How long others wait for a relay that is gone.
    pub lease: Duration,
    /// Failures of one message until it is dead.
    pub max_attempts: u32,
    /// When to try a failed message again.
    pub backoff: Backoff,
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
        }
    }
}

/// One relay. Several may run on the same outbox.
pub struct Relay<S> {
    store: S,
    broker: Arc<dyn Broker>,
    clock: Clock,
    config: RelayConfig,
    id: RelayId,
    status: Arc<RelayStatus>,
    /// Until when, on the monotonic clock in microseconds, the slots are surely ours.
    leased_until: AtomicU64,
}

/// What a relay is doing, for health and dashboards.
#[derive(Debug, Default)]
pub struct RelayStatus {
    published: AtomicU64,
    failed: AtomicU64,
    paused: AtomicBool,
}

impl RelayStatus {
    /// Events confirmed since the start.
    pub fn published(&self) -> u64 {
        self.published.load(Ordering::Relaxed)
    }

    /// Failures of messages since the start.
    pub fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// Whether it waits for the broker or the store to come back.
    pub fn is_paused(&self) -> bool {
        self.paused.load(Ordering::Relaxed)
    }
}

/// Why a pass ended early. Nothing is lost: the rows stay claimable.
#[derive(Debug, thiserror::Error)]
enum Outage {
    #[error("the store failed: {0}")]
    Store(#[from] StoreError),
    #[error("the broker could not take messages: {0}")]
    Broker(String),
}

impl<S: Outbox> Relay<S> {
    /// A relay with a new id.
    pub fn new(store: S, broker: Arc<dyn Broker>, clock: Clock, config: RelayConfig) -> Self {
        let id = RelayId::of_process(&clock);
        Self { store, broker, clock, config, id, status: Arc::default(), leased_until: AtomicU64::new(0) }
    }

    /// A view of what it is doing.
    pub fn status(&self) -> Arc<RelayStatus> {
        self.status.clone()
    }

    /// Works until told to stop, then finishes what is in flight and gives its slots back.
    pub async fn run(self, stop: CancellationToken) {
        let lanes = (0..self.config.lanes.max(1)).map(|index| {
            let lane = Lane { index, count: self.config.lanes.max(1) };
            self.run_lane(lane, &stop)
        });
        tokio::join!(join_all(lanes), self.keep_lease(&stop));
        if let Err(error) = self.store.release(&self.id).await {
            tracing::warn!(%error, "the relay's slots were not given back; others take them when the lease ends");
        }
    }

    async fn keep_lease(&self, stop: &CancellationToken) {
        while !stop.is_cancelled() {
            let until = self.clock.monotonic() + self.config.lease;
            match self.store.lease(&self.id, self.config.lease).await {
                Ok(_) => self.leased_until.store(micros(until), Ordering::Relaxed),
                Err(error) => self.note(Err(Outage::Store(error).to_string())),
            }
            tokio::select! {
                () = stop.cancelled() => {}
                () = self.clock.sleep(self.config.lease / 4) => {}
            }
        }
    }

    async fn run_lane(&self, lane: Lane, stop: &CancellationToken) {
        // Every clone of a store remembers for itself what news it has heard, so that no lane misses another's.
        let store = self.store.clone();
        let mut pause = Pause::default();
        while !stop.is_cancelled() {
            let wait = match self.pass(&store, lane).await {
                Ok(0) => None,
                Ok(_) => {
                    pause = Pause::default();
                    self.note(Ok(()));
                    continue;
                }
                Err(outage) => {
                    self.note(Err(outage.to_string()));
                    Some(pause.next())
                }
            };
            tokio::select! {
                () = stop.cancelled() => {}
                () = self.idle(&store, wait) => {}
            }
        }
    }

    async fn idle(&self, store: &S, pause: Option<Duration>) {
        match pause {
            Some(pause) => self.clock.sleep(pause).await,
            None => store.wait(self.config.poll_interval).await,
        }
    }

    /// Claims a batch, publishes it wave by wave, and records what became of it. Returns how many rows were settled.
    async fn pass(&self, store: &S, lane: Lane) -> Result<usize, Outage> {
        let rows = store.claim(&self.id, lane, self.config.batch_size).await?;
        let mut waves = Waves::new(rows);
        let mut results = Vec::new();
        let mut outage = None;
        // A relay that was paused beyond its lease stops here: another may have taken over.
        while self.is_leased()
            && let Some(wave) = waves.next()
        {
            let started = self.clock.monotonic();
            let answers = self.broker.publish(wave.iter().map(|row| self.outgoing(row)).collect()).await;
            let took = self.clock.since(started);
            metrics::histogram!("event_publish_duration_seconds").record(took.as_secs_f64());
            for (row, answer) in wave.into_iter().zip(answers) {
                match self.judge(&row, answer) {
                    Ok(result) => {
                        if result.result != PublishResult::Published {
                            waves.block(&row);
                        }
                        results.push(result);
                    }
                    Err(unknown) => {
                        waves.block(&row);
                        outage.get_or_insert(unknown);
                    }
                }
            }
            if outage.is_some() {
                break;
            }
        }
        let settled = self.settle(results).await?;
        outage.map_or(Ok(settled), |unknown| Err(Outage::Broker(unknown)))
    }

    async fn settle(&self, results: Vec<RowResult>) -> Result<usize, StoreError> {
        if results.is_empty() {
            return Ok(0);
        }
        let count = results.len();
        let published = results.iter().filter(|result| result.result == PublishResult::Published).count();
        let recorded = self.store.settle(&self.id, results).await?;
        if recorded < count {
            tracing::info!(
                lost = count - recorded,
                "another relay took over some rows meanwhile; they may be published twice, and take effect once"
            );
        }
        self.status.published.fetch_add(published as u64, Ordering::Relaxed);
        metrics::counter!("postrider_relay_published_total").increment(published as u64);
        Ok(count)
    }

    fn is_leased(&self) -> bool {
        micros(self.clock.monotonic()) < self.leased_until.load(Ordering::Relaxed)
    }

    /// What the answer means for the row; an error when it says nothing about the message itself.
    fn judge(&self, row: &OutboxRow, answer: Published) -> Result<RowResult, String> {
        let error = match answer {
            Published::Confirmed => return Ok(RowResult { row: row.row, result: PublishResult::Published }),
            Published::Unknown(why) => return Err(why),
            Published::Returned(why) | Published::Refused(why) => why,
        };
        let attempts = row.attempts + 1;
        let most = match row.dead_letter {
            // Its letter is opened again, where people look; there is no need to try for an hour.
            Some(_) => self.config.max_attempts.min(REPLAY_ATTEMPTS),
            None => self.config.max_attempts,
        };
        let retry_at = (attempts < most).then(|| {
            let delay = self.config.backoff.delay(attempts, self.clock.random());
            self.clock.now().saturating_add(delay).unwrap_or(jiff::Timestamp::MAX)
        });
        let dead = retry_at.is_none();
        tracing::warn!(event_id = %row.envelope.id, attempts, dead, %error, "publishing an event failed");
        self.status.failed.fetch_add(1, Ordering::Relaxed);
        metrics::counter!("postrider_relay_failed_total").increment(1);
        Ok(RowResult { row: row.row, result: PublishResult::Failed { error, retry_at } })
    }

    fn outgoing(&self, row: &OutboxRow) -> Outgoing {
        if let (Some(message), Some(queue)) = (&row.verbatim, &row.target_queue) {
            return Outgoing::to_queue(queue, message.clone());
        }
        let exchange = row.exchange.as_ref().unwrap_or(&self.config.exchange);
        let format = self.config.formats.get(exchange).copied().unwrap_or(self.config.format);
        let message = wire::encode(&row.envelope, format, row.attempts);
        if let Some(queue) = &row.target_queue {
            return Outgoing::to_queue(queue, message);
        }
        Outgoing {
            exchange: exchange.clone(),
            routing_key: row
                .routing_key
                .clone()
                .unwrap_or_else(|| RoutingKey::from(&row.envelope.event_type)),
            message,
        }
    }

    /// Says once that it pauses, and once that it goes on.
    fn note(&self, state: Result<(), String>) {
        let was_paused = self.status.paused.swap(state.is_err(), Ordering::Relaxed);
        match state {
            Err(reason) if !was_paused => {
                tracing::warn!(relay = %self.id, %reason, "the relay pauses; nothing is lost, it goes on by itself");
            }
            Ok(()) if was_paused => tracing::info!(relay = %self.id, "the relay goes on"),
            _ => {}
        }
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// How long to pause in an outage: from a tenth of a second to five.
#[derive(Default)]
struct Pause(u32);

impl Pause {
    fn next(&mut self) -> Duration {
        let pause = Duration::from_millis(100 << self.0.min(6)).min(Duration::from_secs(5));
        self.0 += 1;
        pause
    }
}
