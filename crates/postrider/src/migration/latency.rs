//! How long publishes take: the slowest of each hundred, over the last of them.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::LatencyRule;

/// So many of the last publishes count.
const WINDOW: usize = 1024;
/// Fewer than this say nothing.
const FEWEST: usize = 20;

/// The last publishes of both paths. Recorded only while a migration runs.
#[derive(Debug, Default)]
pub struct Latencies {
    new: Mutex<Ring>,
    legacy: Mutex<Ring>,
}

/// 99 of 100 publishes are faster, in milliseconds; absent where too few were made.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct P99 {
    /// To the new bus.
    pub new: Option<f64>,
    /// Copies to the old one.
    pub legacy: Option<f64>,
}

#[derive(Debug, Default)]
struct Ring {
    micros: Vec<u64>,
    next: usize,
}

impl Latencies {
    /// Notes how long a batch took on either path.
    pub(crate) fn note(&self, new: Duration, legacy: Option<Duration>) {
        lock(&self.new).push(new);
        if let Some(legacy) = legacy {
            lock(&self.legacy).push(legacy);
        }
    }

    /// How long they took.
    pub fn p99(&self) -> P99 {
        P99 { new: lock(&self.new).p99(), legacy: lock(&self.legacy).p99() }
    }

    /// Forgets what was.
    pub(crate) fn clear(&self) {
        *lock(&self.new) = Ring::default();
        *lock(&self.legacy) = Ring::default();
    }
}

impl P99 {
    /// What to say of it, if anything: the worse path, and whether it is beyond the limit.
    pub(crate) fn judge(&self, rule: &LatencyRule) -> Option<(&'static str, f64, bool)> {
        let paths = [("new", self.new), ("legacy", self.legacy)];
        let (path, ms) = paths
            .into_iter()
            .filter_map(|(path, ms)| Some((path, ms?)))
            .max_by(|(_, one), (_, other)| one.total_cmp(other))?;
        let above = |limit: u64| {
            Duration::try_from_secs_f64(ms / 1000.0).is_ok_and(|ms| ms > Duration::from_millis(limit))
        };
        above(rule.warn_ms.min(rule.limit_ms)).then(|| (path, ms, above(rule.limit_ms)))
    }
}

impl Ring {
    fn push(&mut self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        if self.micros.len() < WINDOW {
            self.micros.push(micros);
        } else {
            self.micros[self.next] = micros;
            self.next = (self.next + 1) % WINDOW;
        }
    }

    fn p99(&self) -> Option<f64> {
        if self.micros.len() < FEWEST {
            return None;
        }
        let mut sorted = self.micros.clone();
        let at = (sorted.len() * 99).div_ceil(100) - 1;
        let (_, micros, _) = sorted.select_nth_unstable(at);
        Some(Duration::from_micros(*micros).as_secs_f64() * 1000.0)
    }
}

fn lock(ring: &Mutex<Ring>) -> std::sync::MutexGuard<'_, Ring> {
    ring.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_publishes_say_nothing_and_old_ones_are_forgotten() {
        let latencies = Latencies::default();
        for _ in 0..FEWEST - 1 {
            latencies.note(Duration::from_secs(1), None);
        }
        assert_eq!(latencies.p99(), P99::default());
        for _ in 0..2 * WINDOW {
            latencies.note(Duration::from_millis(3), Some(Duration::from_millis(70)));
        }
        assert_eq!(latencies.p99(), P99 { new: Some(3.0), legacy: Some(70.0) });
    }

    #[test]
    fn one_in_a_hundred_may_be_slow() {
        let latencies = Latencies::default();
        for number in 0..1000 {
            latencies.note(Duration::from_millis(if number % 100 == 0 { 500 } else { 10 }), None);
        }
        assert_eq!(latencies.p99().new, Some(10.0));
    }

    #[test]
    fn the_slower_path_is_judged() {
        let rule = LatencyRule::default();
        let p99 = |new, legacy| P99 { new: Some(new), legacy: Some(legacy) };
        assert_eq!(p99(10.0, 49.0).judge(&rule), None);
        assert_eq!(p99(10.0, 60.0).judge(&rule), Some(("legacy", 60.0, false)));
        assert_eq!(p99(101.0, 60.0).judge(&rule), Some(("new", 101.0, true)));
    }
}
