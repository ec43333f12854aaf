//! A cache in front of the store, with a time limit around every call: late is the same as absent.
//!
//! Looks are made in batches before deliveries are handled, notes are written in batches after they are settled, by a task of
//! their own that nobody waits for. A note that is lost costs a trip to the store later.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::cache::{Cache, CacheError, CacheKey, Entry};
use super::outage::Outage;
use super::record::{Stamp, Status};
use super::room::{CacheHealth, Room};
use super::seen::Seen;
use crate::clock::Clock;
use crate::envelope::{PayloadHash, TenantId};

/// Notes that may wait to be written; more are dropped.
const WAITING: usize = 10_000;
/// Notes written at once.
const BATCH: usize = 500;
/// One note alone costs two processes a round trip. Nobody waits for it: a duplicate that comes sooner asks the store.
const MOMENT: Duration = Duration::from_millis(5);

/// How long to wait for a cache, and when to leave it alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcceleratorConfig {
    /// A look that takes longer is given up, and the store is asked.
    pub limit: Duration,
    /// After so many failures in a row the cache is left alone.
    pub failures: u32,
    /// It is looked at again after this long, doubled each time.
    pub pause: Duration,
    /// But at least this often.
    pub max_pause: Duration,
    /// A new connection may take this long. Nobody waits for it but whoever looks whether the cache is back.
    pub connect_limit: Duration,
    /// How long an event is said to be in hand.
    pub lease: Duration,
    /// Longer answers stay in the store alone.
    pub max_response: usize,
}

impl Default for AcceleratorConfig {
    fn default() -> Self {
        Self {
            limit: Duration::from_millis(50),
            failures: 3,
            pause: Duration::from_secs(1),
            max_pause: Duration::from_secs(30),
            connect_limit: Duration::from_secs(2),
            lease: Duration::from_secs(30),
            max_response: 16 * 1024,
        }
    }
}

/// An event at the door: what is looked up, and what is noted of it later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sighting {
    key: CacheKey,
    hash: PayloadHash,
    stamp: Arc<Stamp>,
}

/// A cache in front of the store. Cheap to clone; clones share the connection and what is known of its health.
#[derive(Clone)]
pub struct Accelerator {
    shared: Arc<Shared>,
    notes: mpsc::Sender<Entry>,
    space: Arc<str>,
}

struct Shared {
    cache: Arc<dyn Cache>,
    clock: Clock,
    config: AcceleratorConfig,
    owner: String,
    outage: Mutex<Outage>,
    room: Mutex<Room>,
}

impl Accelerator {
    /// Connects. A cache that is away is looked for from time to time; nobody waits for it.
    pub async fn start(cache: Arc<dyn Cache>, clock: Clock, config: AcceleratorConfig) -> Self {
        let outage = Mutex::new(Outage::new(&config));
        let owner = format!("{}/{}", crate::host::name(), std::process::id());
        let shared = Arc::new(Shared { cache, clock, config, owner, outage, room: Mutex::default() });
        metrics::gauge!("postrider_dedup_degraded").set(0.0);
        if let Err(error) = shared.probe().await {
            for _ in 0..shared.config.failures.max(1) {
                shared.failed(&error);
            }
        }
        let (notes, to_write) = mpsc::channel(WAITING);
        tokio::spawn(write_in_batches(Arc::downgrade(&shared), to_write));
        Self { shared, notes, space: Arc::from("") }
    }

    /// The same cache, for the keys of one consumer.
    #[must_use]
    pub fn space(&self, name: &str) -> Self {
        Self { space: Arc::from(name), ..self.clone() }
    }

    /// Whether the cache is left alone for now. Everything works without it, at the speed of the store.
    pub fn is_degraded(&self) -> bool {
        self.shared.outage().is_open()
    }

    /// Whether the cache can be used now. It is asked: where nobody consumes, nobody else notices that it is gone.
    pub async fn health(&self) -> CacheHealth {
        let Shared { cache, config, clock, .. } = &*self.shared;
        let answers = !self.is_degraded()
            && self.shared.asked(config.connect_limit, cache.first_sight(&[])).await.is_some();
        if !answers {
            return CacheHealth::Away;
        }
        if self.shared.room().is_full(clock.monotonic()) { CacheHealth::Full } else { CacheHealth::Ok }
    }

    /// What all that is looked up now has in common. Without a lineage nothing that is found can be believed.
    pub fn stamp(&self, lineage: impl Into<String>) -> Arc<Stamp> {
        let Shared { clock, config, owner, .. } = &*self.shared;
        Arc::new(Stamp::new(clock.now(), config.lease, owner, lineage.into()))
    }

    /// An event to be looked up.
    pub fn sighting(
        &self,
        tenant: Option<TenantId>,
        id: impl Into<String>,
        hash: PayloadHash,
        stamp: &Arc<Stamp>,
    ) -> Sighting {
        let key = CacheKey { space: self.space.clone(), tenant, id: id.into() };
        Sighting { key, hash, stamp: stamp.clone() }
    }

    /// Looks all of them up in one round trip, and notes that those that are new are in hand. Takes no longer than the limit;
    /// whatever goes wrong is [`Seen::Unknown`].
    pub async fn look(&self, sightings: &[Sighting]) -> Vec<Seen> {
        let shared = &self.shared;
        let nothing = || vec![Seen::Unknown; sightings.len()];
        if sightings.is_empty() || self.is_degraded() {
            return nothing();
        }
        let entries: Vec<_> =
            sightings.iter().map(|sighting| sighting.entry(Status::Processing, None)).collect();
        let start = shared.clock.monotonic();
        let looked = shared.limited(shared.config.limit, shared.cache.first_sight(&entries)).await;
        metrics::histogram!("postrider_dedup_look_seconds").record(shared.clock.since(start).as_secs_f64());
        let Some(found) = looked.filter(|found| found.len() == sightings.len()) else { return nothing() };
        let seen = sightings.iter().zip(&found);
        let seen: Vec<_> =
            seen.map(|(sighting, found)| Seen::of(found, sighting.hash, sighting.stamp.lineage())).collect();
        let mut counts = BTreeMap::<_, u64>::new();
        for seen in &seen {
            *counts.entry(seen.as_str()).or_default() += 1;
        }
        for (seen, count) in counts {
            metrics::counter!("postrider_dedup_seen_total", "seen" => seen).increment(count);
        }
        seen
    }

    /// Notes what became of an event, later and without waiting. An answer that is no text or too long is not kept here, and
    /// then neither is the note: a duplicate gets the first answer or asks the store for it.
    pub fn note(&self, sighting: &Sighting, status: Status, response: Option<&Bytes>) {
        if self.is_degraded() {
            return;
        }
        let response = match response.map(|bytes| std::str::from_utf8(bytes)) {
            None => None,
            Some(Ok(text)) if text.len() <= self.shared.config.max_response => Some(text),
            Some(_) => return,
        };
        if self.notes.try_send(sighting.entry(status, response)).is_err() {
            metrics::counter!("postrider_dedup_lost_notes_total").increment(1);
        }
    }
}

impl Sighting {
    fn entry(&self, status: Status, response: Option<&str>) -> Entry {
        Entry { key: self.key.clone(), value: self.stamp.record(status, self.hash, response) }
    }
}

impl Shared {
    fn outage(&self) -> MutexGuard<'_, Outage> {
        self.outage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn room(&self) -> MutexGuard<'_, Room> {
        self.room.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A look or notes, with a limit; nothing if it failed or took too long. Notes may take longer than a look: those that were late for
    /// one do not make up for looks that were.
    async fn limited<T>(
        self: &Arc<Self>,
        limit: Duration,
        call: impl Future<Output = Result<T, CacheError>>,
    ) -> Option<T> {
        let start = self.clock.monotonic();
        let answer = self.asked(limit, call).await?;
        if self.clock.since(start) <= self.config.limit {
            self.outage().answered(&self.config);
        }
        Some(answer)
    }

    /// A call with a limit; nothing if it failed or took too long.
    async fn asked<T>(
        self: &Arc<Self>,
        limit: Duration,
        call: impl Future<Output = Result<T, CacheError>>,
    ) -> Option<T> {
        let failed = match timeout(limit, call).await {
            Ok(Ok(answer)) => {
                self.room().note(self.cache.refused(), self.clock.monotonic());
                return Some(answer);
            }
            Ok(Err(error)) => error,
            Err(_) => late(limit),
        };
        self.failed(&failed);
        None
    }

    /// Counts a failure. At the one that is too many it says so, once, and somebody starts to look for the cache.
    fn failed(self: &Arc<Self>, error: &CacheError) {
        metrics::counter!("postrider_dedup_failures_total").increment(1);
        if !self.outage().failed(&self.config) {
            return;
        }
        tracing::warn!(%error, "degraded: Redis is left alone, and every duplicate asks the database; nothing is lost or repeated");
        metrics::gauge!("postrider_dedup_degraded").set(1.0);
        tokio::spawn(look_for_it(Arc::downgrade(self), self.clock.clone()));
    }

    /// A new connection, and on it an answer as quick as a look has to be.
    async fn probe(&self) -> Result<(), CacheError> {
        let limit = self.config.connect_limit;
        timeout(limit, self.cache.connect()).await.map_err(|_| late(limit))??;
        let limit = self.config.limit;
        timeout(limit, self.cache.first_sight(&[])).await.map_err(|_| late(limit))??;
        Ok(())
    }
}

fn late(limit: Duration) -> CacheError {
    CacheError { message: format!("no answer within {} ms", limit.as_millis()), source: None }
}

/// Until the cache is back, or nobody needs it any more.
async fn look_for_it(shared: Weak<Shared>, clock: Clock) {
    loop {
        let Some(pause) = shared.upgrade().map(|shared| shared.outage().next_pause(&shared.config)) else {
            return;
        };
        clock.sleep(pause).await;
        let Some(shared) = shared.upgrade() else { return };
        match shared.probe().await {
            Ok(()) => {
                shared.outage().over();
                metrics::gauge!("postrider_dedup_degraded").set(0.0);
                tracing::info!("Redis answers again; duplicates are known without the database");
                return;
            }
            Err(error) => tracing::debug!(%error, "Redis is still left alone"),
        }
    }
}

/// Writes whatever gathers in a moment in one go, until nobody can send any more.
async fn write_in_batches(shared: Weak<Shared>, mut notes: mpsc::Receiver<Entry>) {
    let mut batch = Vec::new();
    while notes.recv_many(&mut batch, BATCH).await > 0 {
        let Some(shared) = shared.upgrade() else { return };
        if batch.len() < BATCH {
            shared.clock.sleep(MOMENT).await;
            batch.extend(std::iter::from_fn(|| notes.try_recv().ok()).take(BATCH - batch.len()));
        }
        if !shared.outage().is_open() {
            shared.limited(shared.config.connect_limit, shared.cache.replace(&batch)).await;
        }
        batch.clear();
    }
}

impl std::fmt::Debug for Accelerator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Accelerator")
            .field("space", &self.space)
            .field("degraded", &self.is_degraded())
            .finish_non_exhaustive()
    }
}
