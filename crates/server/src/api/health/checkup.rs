//! Looks at the servers for health, and keeps what it found for a while, so that no number of probes can hurt them.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use postrider::Clock;
use postrider::dedup::CacheHealth;
use postrider::store::{Backlog, StoreErrorKind};
use tokio::sync::Mutex;

use crate::api::idempotency::Once;
use crate::api::{ApiBackend, Backlogs};

/// A load balancer asks often and waits little.
const CHECK_LIMIT: Duration = Duration::from_secs(3);
/// How long an answer is good for whether a server is there.
const PINGS: Duration = Duration::from_secs(1);
/// How long figures are good, which cost more.
const FIGURES: Duration = Duration::from_secs(10);

/// Asks at most once at a time and once in a while; who comes meanwhile gets the same answer.
pub(crate) struct Checkup {
    backend: Arc<dyn ApiBackend>,
    once: Arc<dyn Once>,
    clock: Clock,
    pings: Kept<Pings>,
    figures: Kept<Option<Figures>>,
}

/// Which servers answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pings {
    pub(crate) store: StoreWord,
    pub(crate) broker: bool,
    /// Nothing where there is none.
    pub(crate) redis: Option<CacheHealth>,
}

/// How the store is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StoreWord {
    /// It answers, and has the schema that is needed.
    Ok,
    /// It answers, and has another schema.
    OtherSchema,
    /// It does not answer.
    Unavailable,
}

/// What the outbox and the store's clock say.
#[derive(Debug, Clone)]
pub(crate) struct Figures {
    pub(crate) backlog: Backlog,
    /// How long the oldest event waits that could be published, by the store's clock.
    pub(crate) oldest_pending: Duration,
    /// The same for each outbox; nothing is known of one whose database is away.
    pub(crate) each: Vec<Option<Duration>>,
    /// Whether a relay streams the outbox.
    pub(crate) streamed: bool,
    /// How far this machine's clock and the store's are apart, at least.
    pub(crate) skew: Duration,
}

impl Checkup {
    pub(crate) fn new(backend: Arc<dyn ApiBackend>, once: Arc<dyn Once>, clock: Clock) -> Self {
        Self { backend, once, clock, pings: Kept::for_(PINGS), figures: Kept::for_(FIGURES) }
    }

    /// Which servers answer, as of a moment ago.
    pub(crate) async fn pings(&self) -> Pings {
        self.pings.get(&self.clock, self.ping()).await
    }

    /// What they say, as of a while ago. Nothing where the store does not answer.
    pub(crate) async fn figures(&self) -> Option<Figures> {
        self.figures.get(&self.clock, self.ask()).await
    }

    async fn ping(&self) -> Pings {
        let store = async {
            match tokio::time::timeout(CHECK_LIMIT, self.backend.check_store()).await {
                Ok(Ok(())) => StoreWord::Ok,
                Ok(Err(error)) if error.kind == StoreErrorKind::Schema => StoreWord::OtherSchema,
                _ => StoreWord::Unavailable,
            }
        };
        let broker = async {
            matches!(tokio::time::timeout(CHECK_LIMIT, self.backend.check_broker()).await, Ok(Ok(())))
        };
        let (store, broker, redis) = tokio::join!(store, broker, self.once.cache_health());
        Pings { store, broker, redis }
    }

    async fn ask(&self) -> Option<Figures> {
        let asking = async {
            let before = self.clock.now();
            let now = self.backend.store_time().await.ok()?;
            let after = self.clock.now();
            let Backlogs { together: backlog, each, streamed } = self.backend.outbox().await.ok()?;
            let waited = |backlog: &Backlog| {
                let waited = backlog.oldest_due.map(|at| now.duration_since(at));
                waited.and_then(|waited| Duration::try_from(waited).ok()).unwrap_or_default()
            };
            // Fair to a slow answer: the store read its clock somewhere between our two readings.
            let apart = before.duration_since(now).max(now.duration_since(after));
            let skew = Duration::try_from(apart).unwrap_or_default();
            let each = each.iter().map(|backlog| backlog.as_ref().map(waited)).collect();
            Some(Figures { oldest_pending: waited(&backlog), each, backlog, streamed, skew })
        };
        tokio::time::timeout(CHECK_LIMIT, asking).await.ok().flatten()
    }
}

/// An answer that is good for a while.
struct Kept<T> {
    good_for: Duration,
    last: Mutex<Option<(Duration, T)>>,
}

impl<T: Clone> Kept<T> {
    fn for_(good_for: Duration) -> Self {
        Self { good_for, last: Mutex::new(None) }
    }

    /// The last answer, or a new one if that is too old. Who hangs up while it is asked for leaves the asking to the next.
    async fn get(&self, clock: &Clock, ask: impl Future<Output = T>) -> T {
        let mut last = self.last.lock().await;
        if let Some((at, answer)) = last.as_ref()
            && clock.since(*at) < self.good_for
        {
            return answer.clone();
        }
        let answer = ask.await;
        *last = Some((clock.monotonic(), answer.clone()));
        answer
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[tokio::test]
    async fn a_storm_of_probes_asks_once() {
        let (clock, hands) = Clock::manual(jiff::Timestamp::UNIX_EPOCH);
        let (kept, asked) = (Kept::for_(PINGS), AtomicU32::new(0));
        let ask = || async {
            tokio::task::yield_now().await;
            asked.fetch_add(1, Ordering::Relaxed)
        };
        let storm = futures_util::future::join_all((0..100).map(|_| kept.get(&clock, ask()))).await;
        assert_eq!((storm, asked.load(Ordering::Relaxed)), (vec![0; 100], 1));
        hands.advance(PINGS);
        assert_eq!(kept.get(&clock, ask()).await, 1);
    }
}
