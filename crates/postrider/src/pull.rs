//! Pull: workers that cannot be called ask for deliveries, lease them, and say what became of each.
//!
//! To the consumer this is a handler that takes its time: retries, dead letters and the inbox are the consumer's. A delivery
//! is offered until a worker leases it; the worker settles it by the lease's token, or the lease runs out and it is offered
//! again, as the same attempt, like after a crash. Leases live in the process that gave them: if that dies, the broker
//! delivers again. What a worker says counts in every process. One that did not give the lease leaves word for the desk that did
//! ([`PullWord`]), which alone knows whether the lease still runs. An ack counts even if that desk is gone: it is a mark in the
//! inbox, and who has the delivery finds the mark before it offers it again ([`Applied`]).

mod token;
mod word;

pub use token::{LeaseKey, LeaseToken};
pub use word::{PullWord, Said};

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, oneshot, watch};
use tokio_util::sync::CancellationToken;

use self::token::hex;
use crate::clock::Clock;
use crate::consumer::{BreakerConfig, Concurrency, ConsumerConfig};
use crate::handler::{Failure, Incoming, OutsideHandler};
use crate::store::{Admission, Arrival, Inbox};
use crate::topology::ConsumerName;

/// A delivery whose lease ran out so often has failed an attempt.
const MOST_EXPIRED: u32 = 3;

/// A delivery that nobody leased for so long goes back to wait, and others have its place.
const LONGEST_OFFER: Duration = Duration::from_mins(10);

/// A lease can be extended to so long in all.
const LONGEST_LEASE: Duration = Duration::from_mins(30);

/// So many deliveries of a queue are in hand at the same time, offered and leased.
const MOST_IN_HAND: u16 = 256;

/// Where a queue's deliveries meet its workers.
pub struct PullDesk {
    /// What its tokens begin with: no two desks have the same.
    name: String,
    /// What they are signed with.
    key: LeaseKey,
    clock: Clock,
    offers: Mutex<VecDeque<Offer>>,
    leases: Mutex<HashMap<String, Lease>>,
    news: Notify,
    numbers: AtomicU64,
}

/// The desk, as its consumer's handler.
pub struct PullHandler {
    desk: Arc<PullDesk>,
    applied: Arc<dyn Applied>,
}

/// Whoever knows whether an event was applied, without its type.
pub trait Applied: Send + Sync + 'static {
    /// Whether it was. Who cannot be asked now says no: then the delivery is offered once more.
    fn is_applied<'a>(&'a self, event: &'a Incoming) -> BoxFuture<'a, bool>;
}

/// An inbox knows.
impl<S: Inbox> Applied for (S, ConsumerName) {
    fn is_applied<'a>(&'a self, event: &'a Incoming) -> BoxFuture<'a, bool> {
        Box::pin(async move {
            let (store, inbox) = self;
            let (event_id, tenant) = (event.envelope.id.clone(), event.envelope.tenant.group.clone());
            let arrival = Arrival { event_id, tenant, payload_hash: event.hash() };
            let found = store.look(inbox, &[arrival]).await;
            found.is_ok_and(|found| matches!(found.as_slice(), [Admission::Duplicate(_)]))
        })
    }
}

/// A delivery that waits for a worker.
struct Offer {
    number: u64,
    event: Incoming,
    taken: oneshot::Sender<Taken>,
}

/// What the handler is told when a worker has it.
struct Taken {
    token: String,
    until: watch::Receiver<u64>,
    verdict: oneshot::Receiver<Verdict>,
}

struct Lease {
    began: Duration,
    until: watch::Sender<u64>,
    verdict: oneshot::Sender<Verdict>,
}

/// A delivery in a worker's hand.
#[derive(Debug, Clone)]
pub struct Leased {
    /// What settles it.
    pub token: String,
    /// The event.
    pub event: Incoming,
}

/// What a worker says of a delivery.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It is done.
    Ack,
    /// It failed, in a way that may pass.
    Retry {
        /// Why.
        reason: String,
        /// Not before this much time.
        after: Option<Duration>,
    },
    /// It will never succeed.
    Reject {
        /// Why.
        reason: String,
    },
}

/// The lease is not there: it ran out, was settled before, or another desk gave it. The delivery comes again unless it was
/// settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("this lease is over: it ran out, was settled before, or was given by another desk")]
pub struct LeaseOver;

impl PullDesk {
    /// A desk at which nobody is yet, whose leases no other desk believes.
    pub fn new(clock: Clock) -> Arc<Self> {
        let key = LeaseKey::fresh(&clock);
        Self::with_key(clock, key)
    }

    /// A desk whose leases count wherever this key is known.
    pub fn with_key(clock: Clock, key: LeaseKey) -> Arc<Self> {
        Arc::new(Self {
            name: hex(&clock.secret()[..8]),
            key,
            clock,
            offers: Mutex::default(),
            leases: Mutex::default(),
            news: Notify::new(),
            numbers: AtomicU64::new(0),
        })
    }

    /// How a consumer works whose handler is a desk: workers, not the handler, say how fast.
    pub fn consumer_config() -> ConsumerConfig {
        let most = usize::from(MOST_IN_HAND);
        ConsumerConfig {
            prefetch: MOST_IN_HAND,
            concurrency: Concurrency { min: most, max: most },
            handler_limit: LONGEST_OFFER + LONGEST_LEASE * (MOST_EXPIRED + 1),
            // A worker that fails says so for each delivery; others may do better.
            breaker: BreakerConfig { failures: 0, ..BreakerConfig::default() },
            // What comes again was given back when nobody asked any more; it kills nobody, and must not be handled alone.
            max_crashes: 0,
            ..ConsumerConfig::default()
        }
    }

    /// Leases deliveries: as many as there are, at most `max`, as soon as there is one. None when there was none within `wait`.
    pub async fn lease(&self, max: usize, lease: Duration, wait: Duration) -> Vec<Leased> {
        let deadline = self.clock.monotonic() + wait;
        loop {
            let news = self.news.notified();
            let leased = self.take(max, lease);
            let left = deadline.saturating_sub(self.clock.monotonic());
            if !leased.is_empty() || left.is_zero() {
                return leased;
            }
            tokio::select! {
                () = news => {}
                () = self.clock.sleep(left) => {}
            }
        }
    }

    fn take(&self, max: usize, lease: Duration) -> Vec<Leased> {
        let (mut leased, now) = (Vec::new(), self.clock.monotonic());
        while leased.len() < max {
            let Some(Offer { event, taken, .. }) = lock(&self.offers).pop_front() else { break };
            let token = LeaseToken::write(&self.name, &self.key, self.clock.secret(), &event);
            let (until, ends) = watch::channel(millis(now + lease.min(LONGEST_LEASE)));
            let (verdict, told) = oneshot::channel();
            let handed = Taken { token: token.clone(), until: ends, verdict: told };
            lock(&self.leases).insert(token.clone(), Lease { began: now, until, verdict });
            if taken.send(handed).is_err() {
                // Its handler gave up just now, and the delivery is the broker's.
                lock(&self.leases).remove(&token);
                continue;
            }
            leased.push(Leased { token, event });
        }
        // Somebody else may wait for what is left.
        if !lock(&self.offers).is_empty() {
            self.news.notify_one();
        }
        leased
    }

    /// Settles a delivery, once. What it means for the delivery is the consumer's decision.
    pub fn settle(&self, token: &str, verdict: Verdict) -> Result<(), LeaseOver> {
        let lease = lock(&self.leases).remove(token).ok_or(LeaseOver)?;
        lease.verdict.send(verdict).map_err(|_| LeaseOver)
    }

    /// The event of a lease that another desk with the same key gave, of another process or before a restart. Nothing if it was this
    /// one, which alone knows what became of it.
    pub fn of_another(&self, token: &str) -> Option<LeaseToken> {
        LeaseToken::read(token, &self.key).filter(|token| !token.is_of(&self.name))
    }

    /// Lets a lease run for this long from now on, longer or shorter than it would have, within the longest time a lease may have.
    pub fn extend(&self, token: &str, lease: Duration) -> Result<Duration, LeaseOver> {
        let leases = lock(&self.leases);
        let found = leases.get(token).filter(|found| !found.verdict.is_closed()).ok_or(LeaseOver)?;
        let now = self.clock.monotonic();
        let until = (now + lease).min(found.began + LONGEST_LEASE);
        found.until.send_replace(millis(until));
        Ok(until.saturating_sub(now))
    }

    /// What its tokens name it by.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How many deliveries workers have in hand.
    pub fn leased(&self) -> usize {
        lock(&self.leases).len()
    }

    /// Offers a delivery. Taken back when what it returns is dropped.
    fn offer(&self, event: &Incoming) -> (Offered<'_>, oneshot::Receiver<Taken>) {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let (taken, told) = oneshot::channel();
        lock(&self.offers).push_back(Offer { number, event: event.clone(), taken });
        self.news.notify_one();
        (Offered { desk: self, number }, told)
    }

    /// What a worker said within the lease.
    async fn verdict(&self, mut taken: Taken) -> Option<Verdict> {
        loop {
            let until = *taken.until.borrow_and_update();
            let left = until.saturating_sub(millis(self.clock.monotonic()));
            if left == 0 {
                lock(&self.leases).remove(&taken.token);
                // It may have been settled at this very moment.
                return taken.verdict.try_recv().ok();
            }
            tokio::select! {
                biased;
                said = &mut taken.verdict => return said.ok(),
                _changed = taken.until.changed() => {}
                () = self.clock.sleep(Duration::from_millis(left)) => {}
            }
        }
    }
}

impl PullHandler {
    /// The handler of a consumer. Before a delivery is offered again, `applied` is asked about it: for one, the store and the name of the
    /// consumer's inbox.
    pub fn new(desk: Arc<PullDesk>, applied: impl Applied) -> Self {
        Self { desk, applied: Arc::new(applied) }
    }
}

impl OutsideHandler for PullHandler {
    async fn handle(&self, event: &Incoming, stop: &CancellationToken) -> Option<Result<(), Failure>> {
        let desk = &self.desk;
        for _ in 0..MOST_EXPIRED {
            let (_offered, taken) = desk.offer(event);
            let taken = tokio::select! {
                () = stop.cancelled() => return None,
                taken = taken => taken.ok()?,
                () = desk.clock.sleep(LONGEST_OFFER) => return Some(Err(Failure::deferred(desk.clock.now()))),
            };
            let verdict = tokio::select! {
                () = stop.cancelled() => return None,
                verdict = desk.verdict(taken) => verdict,
            };
            match verdict {
                Some(Verdict::Ack) => return Some(Ok(())),
                Some(Verdict::Retry { reason, after }) => {
                    let failure = Failure::transient(reason).class("worker");
                    return Some(Err(Failure { retry_after: after, ..failure }));
                }
                Some(Verdict::Reject { reason }) => {
                    return Some(Err(Failure::permanent(reason).class("worker")));
                }
                // Acked in another process meanwhile.
                None if self.applied.is_applied(event).await => return Some(Ok(())),
                None => {
                    tracing::warn!(consumer = %event.consumer, event_id = %event.envelope.id,
                        "a worker's lease ran out; the delivery is offered again");
                }
            }
        }
        let failure = format_args!("workers leased it {MOST_EXPIRED} times and never settled it");
        Some(Err(Failure::transient(failure).class("lease_expired")))
    }
}

/// An offer, taken back when it is dropped.
struct Offered<'a> {
    desk: &'a PullDesk,
    number: u64,
}

impl Drop for Offered<'_> {
    fn drop(&mut self) {
        lock(&self.desk.offers).retain(|offer| offer.number != self.number);
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// What is behind it is whole even if somebody panicked.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
