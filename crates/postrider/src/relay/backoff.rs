//! When to try a failed message again.

use std::time::Duration;

/// `min(2^attempts × base, max)`, up to a fifth of it at random sooner, so that what failed together is not tried
/// together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backoff {
    /// Doubled with every failure.
    pub base: Duration,
    /// Never longer than this.
    pub max: Duration,
}

impl Default for Backoff {
    /// Five seconds, at most fifteen minutes.
    fn default() -> Self {
        Self { base: Duration::from_secs(5), max: Duration::from_mins(15) }
    }
}

impl Backoff {
    /// The delay after this many failures; `random` is from 0 to 1.
    pub fn delay(&self, attempts: u32, random: f64) -> Duration {
        let doubled = 2_u32.checked_pow(attempts).and_then(|factor| self.base.checked_mul(factor));
        let longest = doubled.map_or(self.max, |delay| delay.min(self.max));
        longest.mul_f64(1.0 - 0.2 * random.clamp(0.0, 1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_up_to_the_limit() {
        let backoff = Backoff::default();
        let seconds: Vec<_> = (1..=9).map(|attempts| backoff.delay(attempts, 0.0).as_secs()).collect();
        assert_eq!(seconds, [10, 20, 40, 80, 160, 320, 640, 900, 900]);
        assert_eq!(backoff.delay(u32::MAX, 0.0), backoff.max);
    }

    #[test]
    fn jitter_takes_at_most_a_fifth() {
        let backoff = Backoff::default();
        assert_eq!(backoff.delay(1, 1.0), Duration::from_secs(8));
    }
}
