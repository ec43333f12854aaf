//! How fast an operation may go: chunks small enough that the rate is smooth, and the wait between them.

use std::time::Duration;

/// The most items of a chunk: one transaction's worth.
const LARGEST: usize = 500;
/// With a rate, so many chunks a second.
const CHUNKS_A_SECOND: f64 = 4.0;

/// Items a second, at most.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace(Option<f64>);

impl Pace {
    /// No rate is no limit, and neither is one that is no number above zero.
    pub(super) fn new(rate: Option<f64>) -> Self {
        Self(rate.filter(|rate| *rate > 0.0 && rate.is_finite()))
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
    fn without_a_rate_there_is_no_wait() {
        for rate in [None, Some(0.0), Some(-1.0), Some(f64::NAN), Some(f64::INFINITY)] {
            assert_eq!((Pace::new(rate).chunk(), Pace::new(rate).takes(500)), (LARGEST, Duration::ZERO));
        }
    }
}
