//! The circuit breaker: a queue is left alone while its handler fails for everything, or its store is away. Pure.
//!
//! Retries are for events that fail. When all of them do, trying on would only use up their retries; so nothing is taken from
//! the queue for a while, then a single event, and if that succeeds, all again.

use std::collections::HashSet;
use std::time::Duration;

use serde::Serialize;

/// When it opens, and for how long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BreakerConfig {
    /// Opens after so many different events in a row failed in a way that may pass; 0 never.
    pub failures: usize,
    /// How long it stays open before a probe, the first time; doubled each time the probe fails.
    pub pause: Duration,
    /// At most so long.
    pub max_pause: Duration,
}

impl Default for BreakerConfig {
    fn default() -> Self {
        Self { failures: 20, pause: Duration::from_secs(5), max_pause: Duration::from_mins(1) }
    }
}

/// Where it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BreakerState {
    /// Everything flows.
    Closed,
    /// Nothing is taken from the queue.
    Open(Cause),
    /// One event is taken, to see.
    HalfOpen,
}

/// Why it is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The handler failed for every event.
    Handler,
    /// The store could not be reached.
    Store,
}

/// One consumer's breaker.
#[derive(Debug)]
pub(super) struct Breaker {
    config: BreakerConfig,
    state: BreakerState,
    /// The events that failed since the last success.
    failed: HashSet<u64>,
    /// When it may be half open.
    until: Duration,
    /// How long the next time.
    pause: Duration,
}

impl Breaker {
    pub(super) fn new(config: BreakerConfig) -> Self {
        let pause = config.pause;
        Self { config, state: BreakerState::Closed, failed: HashSet::new(), until: Duration::ZERO, pause }
    }

    pub(super) fn state(&self) -> BreakerState {
        self.state
    }

    /// Anything that went well shows that it can.
    pub(super) fn succeeded(&mut self) {
        self.failed.clear();
        self.pause = self.config.pause;
        self.state = BreakerState::Closed;
    }

    /// An event failed in a way that may pass. `event` tells events apart: one that fails again and again is its own fault.
    pub(super) fn failed(&mut self, event: u64, now: Duration) {
        if self.config.failures == 0 {
            return;
        }
        self.failed.insert(event);
        let all = self.failed.len() >= self.config.failures;
        if self.state == BreakerState::HalfOpen || (all && self.state == BreakerState::Closed) {
            self.open(Cause::Handler, now);
        }
    }

    /// The handler refused an event for good: that says something of the event, but also that the handler is there.
    pub(super) fn answered(&mut self) {
        if self.state == BreakerState::HalfOpen {
            self.succeeded();
        }
    }

    /// The store could not be reached.
    pub(super) fn store_away(&mut self, now: Duration) {
        if self.state == BreakerState::Closed && self.config.failures > 0 {
            self.open(Cause::Store, now);
        }
    }

    /// How long until it may be half open; at once if it is closed. Half open once the time is over.
    pub(super) fn wait(&mut self, now: Duration) -> Duration {
        let left = self.until.saturating_sub(now);
        match self.state {
            BreakerState::Open(_) if left.is_zero() => {
                self.state = BreakerState::HalfOpen;
                Duration::ZERO
            }
            BreakerState::Open(_) => left,
            BreakerState::Closed | BreakerState::HalfOpen => Duration::ZERO,
        }
    }

    fn open(&mut self, cause: Cause, now: Duration) {
        self.state = BreakerState::Open(cause);
        self.failed.clear();
        self.until = now + self.pause;
        self.pause = (self.pause * 2).min(self.config.max_pause);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Duration = Duration::from_secs(100);

    fn breaker() -> Breaker {
        Breaker::new(BreakerConfig { failures: 3, ..BreakerConfig::default() })
    }

    fn seconds(count: u64) -> Duration {
        START + Duration::from_secs(count)
    }

    #[test]
    fn it_opens_when_everything_fails_and_not_for_one_event_that_does() {
        let mut breaker = breaker();
        for _ in 0..100 {
            breaker.failed(1, START);
        }
        assert_eq!(breaker.state(), BreakerState::Closed);
        breaker.failed(2, START);
        breaker.succeeded();
        breaker.failed(3, START);
        breaker.failed(4, START);
        assert_eq!(breaker.state(), BreakerState::Closed);
        breaker.failed(5, START);
        assert_eq!(breaker.state(), BreakerState::Open(Cause::Handler));
    }

    #[test]
    fn a_probe_decides_and_the_pauses_grow_to_their_limit() {
        let mut breaker = breaker();
        breaker.store_away(START);
        assert_eq!(breaker.state(), BreakerState::Open(Cause::Store));
        assert_eq!(breaker.wait(seconds(2)), Duration::from_secs(3));
        assert_eq!(breaker.wait(seconds(5)), Duration::ZERO);
        assert_eq!(breaker.state(), BreakerState::HalfOpen);
        let mut now = seconds(5);
        for pause in [10, 20, 40, 60, 60] {
            breaker.failed(7, now);
            assert_eq!(breaker.wait(now), Duration::from_secs(pause));
            now += Duration::from_secs(pause);
            assert_eq!(breaker.wait(now), Duration::ZERO);
        }
        breaker.succeeded();
        assert_eq!((breaker.state(), breaker.wait(now)), (BreakerState::Closed, Duration::ZERO));
        breaker.store_away(now);
        assert_eq!(breaker.wait(now), Duration::from_secs(5), "after a success the pauses begin anew");
    }

    #[test]
    fn it_can_be_switched_off() {
        let mut breaker = Breaker::new(BreakerConfig { failures: 0, ..BreakerConfig::default() });
        for event in 0..1000 {
            breaker.failed(event, START);
        }
        breaker.store_away(START);
        assert_eq!(breaker.state(), BreakerState::Closed);
    }
}
