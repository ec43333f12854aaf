//! How fast an operation may go: chunks small enough that the rate is smooth, and the wait between them.

use std::time::Duration;

/// The most items of a chunk: one transaction's worth.
const LARGEST: usize = 500;
/// With a rate, so many chunks a second.
const CHUNKS_A_SECOND: f64 = 4.0;

/// The first chunk has no more than this: nobody knows yet how much its items are.
const FIRST: usize = 32;
/// After a chunk that took less than this the next may be larger,
const QUICK: Duration = Duration::from_secs(1);
/// and after one that took longer than this it has to be smaller: at some size it would take longer than a statement may, every time.
const SLOW: Duration = Duration::from_secs(5);

/// How many items the next chunk has, after one of so many that took so long, whether it was committed or not.
pub(super) fn next_chunk(items: usize, took: Duration, committed: bool) -> usize {
    if took > SLOW {
        (items / if committed { 2 } else { 4 }).max(1)
    } else if committed && took < QUICK {
        items.saturating_mul(2)
    } else {
        items
    }
}

/// Items a second, at most.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace(Option<f64>);

impl Pace {
    /// No rate is no limit, and neither is one that is no number above zero.
    pub(super) fn new(rate: Option<f64>) -> Self {
        Self(rate.filter(|rate| *rate > 0.0 && rate.is_finite()))
    }

    /// How many items to take at first.
    pub(super) fn first_chunk(self) -> usize {
        self.chunk().min(FIRST)
    }

    /// How many items to take at once.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "clamped to 1..=500"
    )]
    pub(super) fn chunk(self) -> usize {
        self.0.map_or(LARGEST, |rate| (rate / CHUNKS_A_SECOND).ceil().clamp(1.0, LARGEST as f64) as usize)
    }

    /// How long so many items take, at least.
    #[expect(clippy::cast_precision_loss, reason = "a chunk has at most 500 items")]
    pub(super) fn takes(self, items: u64) -> Duration {
        self.0.map_or(Duration::ZERO, |rate| Duration::from_secs_f64((items as f64 / rate).min(3600.0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_kept_by_small_chunks() {
        let pace = Pace::new(Some(100.0));
        assert_eq!((pace.chunk(), pace.takes(25)), (25, Duration::from_millis(250)));
        let slow = Pace::new(Some(0.5));
        assert_eq!((slow.chunk(), slow.takes(1)), (1, Duration::from_secs(2)));
    }

    #[test]
    fn chunks_grow_while_they_are_quick_and_shrink_when_they_are_slow() {
        assert_eq!(Pace::new(None).first_chunk(), 32);
        assert_eq!(Pace::new(Some(8.0)).first_chunk(), 2);
        let seconds = Duration::from_secs;
        assert_eq!(next_chunk(32, Duration::from_millis(20), true), 64);
        assert_eq!((next_chunk(64, seconds(3), true), next_chunk(64, seconds(8), true)), (64, 32));
        assert_eq!((next_chunk(64, seconds(30), false), next_chunk(1, seconds(30), false)), (16, 1));
        // A store that is away says so at once, and that is no fault of the chunk.
        assert_eq!(next_chunk(64, Duration::from_millis(5), false), 64);
    }

    #[test]
    fn without_a_rate_there_is_no_wait() {
        for rate in [None, Some(0.0), Some(-1.0), Some(f64::NAN), Some(f64::INFINITY)] {
            assert_eq!((Pace::new(rate).chunk(), Pace::new(rate).takes(500)), (LARGEST, Duration::ZERO));
        }
    }
}
