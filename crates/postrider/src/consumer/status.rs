//! What a consumer is doing, for health, dashboards and the consumer itself.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use tokio::sync::watch;

use super::breaker::BreakerState;
use crate::broker::Subscribed;
use crate::store::Pause;

/// What a consumer is doing.
#[derive(Debug)]
pub struct ConsumerStatus {
    pub(super) in_flight: AtomicUsize,
    pub(super) concurrency: AtomicUsize,
    pub(super) applied: AtomicU64,
    pub(super) duplicates: AtomicU64,
    pub(super) retried: AtomicU64,
    pub(super) deferred: AtomicU64,
    pub(super) held: AtomicU64,
    pub(super) dead: AtomicU64,
    standing: watch::Sender<Standing>,
    /// Those that it has opened.
    subscriptions: Mutex<Vec<Subscribed>>,
}

/// A subscription of a consumer, for as long as it is open.
#[must_use = "a subscription that is not kept is closed"]
#[derive(Debug)]
pub struct Opened {
    by: Arc<ConsumerStatus>,
    which: Subscribed,
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.by.subscriptions().retain(|one| !one.is_of(&self.which));
    }
}

/// Whether it works, and if not, why.
#[derive(Debug, Clone)]
struct Standing {
    pause: Option<Pause>,
    breaker: BreakerState,
}

impl Standing {
    fn is_held_up(&self) -> bool {
        self.pause.is_some() || matches!(self.breaker, BreakerState::Open(_))
    }
}

/// Whether a consumer works.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ConsumerState {
    /// It works.
    Running,
    /// Somebody paused it.
    Paused(Pause),
    /// Its breaker is open, or half open: its handler failed for everything, or its store was away.
    Tripped(BreakerState),
}

impl Default for ConsumerStatus {
    fn default() -> Self {
        let zero = AtomicU64::default;
        Self {
            in_flight: AtomicUsize::default(),
            concurrency: AtomicUsize::default(),
            applied: zero(),
            duplicates: zero(),
            retried: zero(),
            deferred: zero(),
            held: zero(),
            dead: zero(),
            standing: watch::Sender::new(Standing { pause: None, breaker: BreakerState::Closed }),
            subscriptions: Mutex::default(),
        }
    }
}

impl ConsumerStatus {
    /// Whether it works.
    pub fn state(&self) -> ConsumerState {
        let standing = self.standing.borrow();
        match (&standing.pause, standing.breaker) {
            (Some(pause), _) => ConsumerState::Paused(pause.clone()),
            (None, BreakerState::Closed) => ConsumerState::Running,
            (None, breaker) => ConsumerState::Tripped(breaker),
        }
    }

    /// Whether the broker hands deliveries out to it at the moment. Not while it is paused or tripped, nor while the connection is lost
    /// or its queue is gone.
    pub fn is_subscribed(&self) -> bool {
        self.subscriptions().iter().any(Subscribed::is)
    }

    /// Notes that it has opened a subscription, until what is returned is dropped.
    pub fn note_subscription(self: &Arc<Self>, opened: Subscribed) -> Opened {
        self.subscriptions().push(opened.clone());
        Opened { by: self.clone(), which: opened }
    }

    fn subscriptions(&self) -> MutexGuard<'_, Vec<Subscribed>> {
        self.subscriptions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Deliveries being handled now.
    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// One more delivery is being handled, until what is returned is dropped.
    pub fn begin(self: &Arc<Self>) -> InHand {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        InHand(self.clone())
    }

    /// Deliveries that may be handled at the same time now.
    pub fn concurrency(&self) -> usize {
        self.concurrency.load(Ordering::Relaxed)
    }

    /// Events applied since the start.
    pub fn applied(&self) -> u64 {
        self.applied.load(Ordering::Relaxed)
    }

    /// Deliveries of events that were applied before.
    pub fn duplicates(&self) -> u64 {
        self.duplicates.load(Ordering::Relaxed)
    }

    /// Attempts that failed and are made again later.
    pub fn retried(&self) -> u64 {
        self.retried.load(Ordering::Relaxed)
    }

    /// Deliveries that came too early and wait.
    pub fn deferred(&self) -> u64 {
        self.deferred.load(Ordering::Relaxed)
    }

    /// Deliveries held behind an earlier event of their key.
    pub fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    /// Deliveries dead-lettered since the start.
    pub fn dead(&self) -> u64 {
        self.dead.load(Ordering::Relaxed)
    }

    pub(super) fn pause(&self) -> Option<Pause> {
        self.standing.borrow().pause.clone()
    }

    pub(super) fn breaker(&self) -> BreakerState {
        self.standing.borrow().breaker
    }

    pub(super) fn set_pause(&self, pause: Option<Pause>) {
        self.standing.send_if_modified(|standing| {
            let changed = standing.pause != pause;
            standing.pause = pause;
            changed
        });
    }

    pub(super) fn set_breaker(&self, breaker: BreakerState) {
        self.standing.send_modify(|standing| standing.breaker = breaker);
    }

    /// Returns when it is not paused.
    pub(super) async fn unpaused(&self) {
        self.until(|standing| standing.pause.is_none()).await;
    }

    /// Returns when its breaker is closed.
    pub(super) async fn closed(&self) {
        self.until(|standing| standing.breaker == BreakerState::Closed).await;
    }

    /// Returns when it is paused or its breaker opens.
    pub async fn held_up(&self) {
        self.until(Standing::is_held_up).await;
    }

    /// Returns when it is neither paused nor its breaker open.
    pub async fn free(&self) {
        self.until(|standing| !standing.is_held_up()).await;
    }

    /// Whether it is paused or its breaker is open.
    pub(super) fn is_held_up(&self) -> bool {
        self.standing.borrow().is_held_up()
    }

    async fn until(&self, so: impl FnMut(&Standing) -> bool) {
        let mut standing = self.standing.subscribe();
        // The sender is in our hands, so it cannot be gone.
        let _so = standing.wait_for(so).await.is_ok();
    }
}

/// A delivery that is being handled.
#[derive(Debug)]
pub struct InHand(Arc<ConsumerStatus>);

impl Drop for InHand {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}
