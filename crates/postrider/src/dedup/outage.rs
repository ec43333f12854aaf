//! When to leave a cache alone, and when to look whether it is back. Pure.

use std::time::Duration;

use super::accelerator::AcceleratorConfig;

/// Failures in a row, and the pauses between the looks at a cache that is left alone.
#[derive(Debug)]
pub(super) struct Outage {
    failures: u32,
    open: bool,
    /// It answers again, but nothing was asked of it since: the next failure is one too many.
    on_trial: bool,
    pause: Duration,
}

impl Outage {
    pub(super) fn new(config: &AcceleratorConfig) -> Self {
        Self { failures: 0, open: false, on_trial: false, pause: config.pause }
    }

    /// Whether the cache is left alone.
    pub(super) fn is_open(&self) -> bool {
        self.open
    }

    /// It did not answer in time. Says whether it is left alone from now on.
    pub(super) fn failed(&mut self, config: &AcceleratorConfig) -> bool {
        self.failures = self.failures.saturating_add(1);
        let most = if self.on_trial { 1 } else { config.failures.max(1) };
        let opens = !self.open && self.failures >= most;
        self.open |= opens;
        opens
    }

    /// It did in time what it is there for. An answer that was still under way when it was given up proves nothing.
    pub(super) fn answered(&mut self, config: &AcceleratorConfig) {
        if !self.open {
            *self = Self::new(config);
        }
    }

    /// How long to wait before the next look: longer each time.
    pub(super) fn next_pause(&mut self, config: &AcceleratorConfig) -> Duration {
        let pause = self.pause;
        self.pause = (self.pause * 2).min(config.max_pause);
        pause
    }

    /// It answers again. Some answer and refuse all the same, as a replica refuses to write: whoever fails at once is left alone for
    /// longer than before.
    pub(super) fn over(&mut self) {
        *self = Self { failures: 0, open: false, on_trial: true, pause: self.pause };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_opens_after_failures_in_a_row_and_closes_when_it_is_over() {
        let config = AcceleratorConfig::default();
        let mut outage = Outage::new(&config);
        assert!(!outage.failed(&config) && !outage.failed(&config));
        outage.answered(&config);
        assert!(!outage.failed(&config) && !outage.failed(&config) && outage.failed(&config));
        assert!(!outage.failed(&config), "it opens once");
        outage.answered(&config);
        assert!(outage.is_open(), "a late answer does not close it");
        let pauses: Vec<_> = (0..7).map(|_| outage.next_pause(&config).as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30]);
        outage.over();
        assert!(!outage.is_open());
        outage.answered(&config);
        assert!(!outage.failed(&config), "all is as it was");
        assert_eq!(outage.next_pause(&config), config.pause);
    }

    #[test]
    fn one_that_answers_and_does_nothing_is_left_alone_for_longer_each_time() {
        let config = AcceleratorConfig::default();
        let mut outage = Outage::new(&config);
        while !outage.failed(&config) {}
        let mut pauses = Vec::new();
        for _ in 0..4 {
            pauses.push(outage.next_pause(&config).as_secs());
            outage.over();
            assert!(outage.failed(&config), "the first failure is enough");
        }
        assert_eq!(pauses, [1, 2, 4, 8]);
    }
}
