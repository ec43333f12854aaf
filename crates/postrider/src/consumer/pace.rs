//! How many deliveries are handled at the same time: more while the queue is backed up and it helps, fewer when each
//! takes longer, the store is contended, or there is not so much to do. Pure: it is told what happened and answers with a number.

use std::time::Duration;

/// How many deliveries are handled at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Concurrency {
    /// At least, and to begin with.
    pub min: usize,
    /// At most.
    pub max: usize,
}

impl Default for Concurrency {
    fn default() -> Self {
        Self { min: 10, max: 50 }
    }
}

impl Concurrency {
    /// Always so many.
    pub fn fixed(count: usize) -> Self {
        Self { min: count, max: count }
    }
}

/// How long is looked at before each change.
const WINDOW: Duration = Duration::from_secs(1);
/// An attempt that takes so many times what it usually takes waits for something.
const SLOW: f64 = 2.0;
/// How much of the way to a higher latency the usual one goes in a window: a slow drift is no congestion.
const DRIFT: f64 = 0.1;

/// What happened since the last look.
#[derive(Debug, Default, Clone, Copy)]
struct Seen {
    attempts: u32,
    /// All attempts together.
    took: Duration,
    /// A delivery had to wait for its turn.
    backed_up: bool,
    /// Attempts that another transaction was in the way of.
    contended: u32,
    /// The most that were in hand at the same time.
    busiest: usize,
}

/// The controller of one consumer.
#[derive(Debug)]
pub(super) struct Pace {
    bounds: Concurrency,
    limit: usize,
    seen: Seen,
    since: Duration,
    /// What an attempt usually takes, in seconds.
    usual: Option<f64>,
}

impl Pace {
    pub(super) fn new(bounds: Concurrency, now: Duration) -> Self {
        let min = bounds.min.max(1);
        let bounds = Concurrency { min, max: bounds.max.max(min) };
        Self { bounds, limit: min, seen: Seen::default(), since: now, usual: None }
    }

    /// How many may be handled at the same time now.
    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// A delivery waits for its turn.
    pub(super) fn backed_up(&mut self) {
        self.seen.backed_up = true;
    }

    /// Another transaction was in the way of an attempt.
    pub(super) fn contended(&mut self) {
        self.seen.contended += 1;
    }

    /// An attempt ended, while so many were in hand. After a second of them the limit may change.
    pub(super) fn attempted(&mut self, took: Duration, in_hand: usize, now: Duration) {
        self.seen.attempts += 1;
        self.seen.took += took;
        self.passed(in_hand, now);
    }

    /// Time passes, with so many in hand. Without attempts there is nobody else to say so.
    pub(super) fn passed(&mut self, in_hand: usize, now: Duration) {
        self.seen.busiest = self.seen.busiest.max(in_hand);
        if now.saturating_sub(self.since) >= WINDOW {
            self.look();
            self.since = now;
            self.seen = Seen::default();
        }
    }

    fn look(&mut self) {
        let Seen { attempts, took, backed_up, contended, busiest } = self.seen;
        let slow = attempts > 0 && self.is_slow(took.as_secs_f64() / f64::from(attempts));
        // A few collisions among many attempts are the way of the world.
        let congested = slow || contended > attempts / 10;
        // So much is not needed. Half of it is left free, so that a steady load does not go up and down.
        let idle = !backed_up && busiest < self.limit / 2;
        self.limit = if congested || idle {
            (self.limit * 3 / 4).max(self.bounds.min)
        } else if backed_up {
            (self.limit + (self.limit / 5).max(1)).min(self.bounds.max)
        } else {
            self.limit
        };
    }

    fn is_slow(&mut self, latency: f64) -> bool {
        let usual = *self.usual.get_or_insert(latency);
        // Down at once, up slowly: what is fast today is what can be had.
        self.usual = Some(if latency < usual { latency } else { usual + (latency - usual) * DRIFT });
        latency > usual * SLOW
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A second of attempts, each taking so many milliseconds; the limit afterwards.
    fn second(pace: &mut Pace, millis: u64, backed_up: bool, contended: u32) -> usize {
        let start = pace.since;
        for _ in 0..contended {
            pace.contended();
        }
        if backed_up {
            pace.backed_up();
        }
        for nth in 1..=20 {
            pace.attempted(Duration::from_millis(millis), pace.limit(), start + WINDOW * nth / 20);
        }
        pace.limit()
    }

    fn pace() -> Pace {
        Pace::new(Concurrency::default(), Duration::ZERO)
    }

    #[test]
    fn it_grows_while_the_queue_is_backed_up_and_latency_holds() {
        let mut pace = pace();
        assert_eq!(pace.limit(), 10);
        assert_eq!(second(&mut pace, 20, false, 0), 10, "nobody waits: no more are needed");
        let grown: Vec<_> = (0..12).map(|_| second(&mut pace, 20, true, 0)).collect();
        assert!(grown.is_sorted() && grown[0] == 12, "{grown:?}");
        assert_eq!(grown.last(), Some(&50), "never above its limit");
    }

    #[test]
    fn it_shrinks_when_latency_or_contention_rises_but_not_below_its_least() {
        let mut pace = pace();
        for _ in 0..12 {
            second(&mut pace, 20, true, 0);
        }
        assert_eq!(second(&mut pace, 100, true, 0), 37, "each takes five times as long");
        assert_eq!(second(&mut pace, 20, true, 10), 27, "every second one was in another's way");
        assert_eq!(second(&mut pace, 20, true, 1), 32, "a single collision is nothing");
        for _ in 0..20 {
            second(&mut pace, 20, true, 20);
        }
        assert_eq!(pace.limit(), 10);
    }

    #[test]
    fn a_handler_that_became_slower_for_good_is_the_new_usual() {
        let mut pace = pace();
        second(&mut pace, 20, true, 0);
        let limits: Vec<_> = (0..60).map(|_| second(&mut pace, 60, true, 0)).collect();
        assert_eq!(limits[0], 10);
        assert_eq!(limits.last(), Some(&50), "{limits:?}");
    }

    #[test]
    fn it_goes_back_when_there_is_less_to_do() {
        let mut pace = pace();
        for _ in 0..12 {
            second(&mut pace, 20, true, 0);
        }
        let now = pace.since;
        pace.attempted(Duration::from_millis(20), 26, now + WINDOW);
        assert_eq!(pace.limit(), 50, "more than half of it is in use");
        pace.attempted(Duration::from_millis(20), 24, now + WINDOW * 2);
        assert_eq!(pace.limit(), 37);
        pace.passed(37, now + WINDOW * 3);
        assert_eq!(pace.limit(), 37, "slow ones are under way, though none has ended");
        let mut quiet = |nth| {
            pace.passed(0, now + WINDOW * nth);
            pace.limit()
        };
        assert_eq!((4..10).map(&mut quiet).collect::<Vec<_>>(), [27, 20, 15, 11, 10, 10]);
        assert_eq!(second(&mut pace, 20, true, 0), 12, "and silence is not taken for speed");
    }

    #[test]
    fn a_fixed_number_stays() {
        let mut pace = Pace::new(Concurrency::fixed(4), Duration::ZERO);
        for (millis, contended) in [(20, 0), (500, 0), (20, 20)] {
            assert_eq!(second(&mut pace, millis, true, contended), 4);
        }
        assert_eq!(Pace::new(Concurrency::fixed(0), Duration::ZERO).limit(), 1, "at least one");
    }
}
