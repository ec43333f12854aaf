//! The rate limit of a consumer: a bucket of tokens, refilled steadily.

use std::time::Duration;

use super::{Consumer, lock};
use crate::store::ConsumerStore;

/// Lets so many through each second, and up to a tenth of a second's worth at once after a pause.
#[derive(Debug)]
pub(super) struct Throttle {
    /// Tokens a second.
    rate: f64,
    burst: f64,
    tokens: f64,
    at: Duration,
}

impl Throttle {
    pub(super) fn new(rate: f64, now: Duration) -> Self {
        let burst = (rate / 10.0).max(1.0);
        Self { rate, burst, tokens: burst, at: now }
    }

    /// Takes a token, or says how long until there is one.
    pub(super) fn take(&mut self, now: Duration) -> Result<(), Duration> {
        let passed = now.saturating_sub(self.at);
        self.tokens = (self.tokens + passed.as_secs_f64() * self.rate).min(self.burst);
        self.at = now;
        if self.tokens >= 1.0 {
            self.tokens -= 1.0;
            return Ok(());
        }
        let wait = (1.0 - self.tokens) / self.rate;
        // Rounded up, so that who waited finds a token.
        Err(Duration::try_from_secs_f64(wait + 1e-6).unwrap_or(Duration::MAX))
    }
}

impl<S: ConsumerStore> Consumer<S> {
    /// Waits until the rate limit lets one more begin.
    pub(super) async fn keep_to_the_rate(&self) {
        let Some(throttle) = &self.throttle else { return };
        loop {
            let taken = lock(throttle).take(self.clock.monotonic());
            let Err(wait) = taken else { return };
            self.clock.sleep(wait).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_than_the_rate_goes_through_in_the_long_run() {
        for rate in [0.5, 3.0, 250.0] {
            let mut throttle = Throttle::new(rate, Duration::ZERO);
            let (mut now, mut through) = (Duration::ZERO, 0.0);
            while now < Duration::from_mins(1) {
                match throttle.take(now) {
                    Ok(()) => through += 1.0,
                    Err(wait) => now += wait,
                }
            }
            let expected = rate * 60.0;
            assert!((through - expected).abs() <= expected * 0.05 + 1.0, "{through} at {rate} a second");
        }
    }

    #[test]
    fn a_pause_earns_no_more_than_a_small_burst() {
        let mut throttle = Throttle::new(100.0, Duration::ZERO);
        let hour = Duration::from_hours(1);
        let through = (0..1000).take_while(|_| throttle.take(hour).is_ok()).count();
        assert_eq!(through, 10);
    }
}
