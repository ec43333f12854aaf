//! The rate limit: a bucket of requests for each caller, filled at a steady rate.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Buckets beyond this are thrown away, the full ones first: a full bucket says nothing.
const MOST: usize = 10_000;

/// Whose bucket it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Whose {
    /// A token's, wherever it comes from.
    Token(uuid::Uuid),
    /// An address's, without a token.
    Peer(IpAddr),
}

/// The buckets of everybody.
#[derive(Default)]
pub(super) struct Pace {
    buckets: Mutex<HashMap<Whose, Bucket>>,
}

#[derive(Debug, Clone, Copy)]
struct Bucket {
    left: f64,
    at: Duration,
}

impl Pace {
    /// Takes one request out of a bucket, or says how long to wait for it. So many a second on the average, twice as many at once; 0
    /// is no limit.
    pub(super) fn take(&self, whose: Whose, now: Duration, per_second: u32) -> Result<(), Duration> {
        if per_second == 0 {
            return Ok(());
        }
        let per_second = f64::from(per_second);
        let most = per_second * 2.0;
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.len() >= MOST && !buckets.contains_key(&whose) {
            let full = |bucket: &Bucket| bucket.filled(now, per_second) >= most;
            buckets.retain(|_, bucket| !full(bucket));
            if buckets.len() >= MOST {
                buckets.clear();
            }
        }
        let bucket = buckets.entry(whose).or_insert(Bucket { left: most, at: now });
        let left = bucket.filled(now, per_second).min(most);
        *bucket = Bucket { left, at: now };
        if left < 1.0 {
            return Err(Duration::from_secs_f64((1.0 - left) / per_second));
        }
        bucket.left -= 1.0;
        Ok(())
    }
}

impl Bucket {
    fn filled(&self, now: Duration, per_second: f64) -> f64 {
        self.left + now.saturating_sub(self.at).as_secs_f64() * per_second
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_empties_and_fills_again_and_is_nobody_elses() {
        let pace = Pace::default();
        let (one, other) = (Whose::Token(uuid::Uuid::nil()), Whose::Peer([127, 0, 0, 1].into()));
        let start = Duration::from_secs(5);
        assert_eq!((0..30).filter(|_| pace.take(one, start, 10).is_ok()).count(), 20);
        let wait = pace.take(one, start, 10).unwrap_err();
        assert!(wait > Duration::ZERO && wait <= Duration::from_millis(100), "{wait:?}");
        assert!(pace.take(other, start, 10).is_ok());
        assert!(pace.take(one, start + Duration::from_millis(101), 10).is_ok());
        assert!((0..99).all(|_| pace.take(one, start, 0).is_ok()), "no limit");
    }
}
