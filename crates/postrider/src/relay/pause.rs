//! Pauses while the broker or the store is away.

use std::time::Duration;

/// How long to pause in an outage: from a tenth of a second to five.
#[derive(Default)]
pub(super) struct Pause {
    on: bool,
    times: u32,
}

impl Pause {
    /// Begins one, unless one is on already.
    pub(super) fn begin(&mut self) -> Option<Duration> {
        if self.on {
            return None;
        }
        self.on = true;
        let pause = Duration::from_millis(100 << self.times.min(6)).min(Duration::from_secs(5));
        self.times += 1;
        Some(pause)
    }

    pub(super) fn is_on(&self) -> bool {
        self.on
    }

    pub(super) fn end(&mut self) {
        self.on = false;
    }

    /// The next one is short again.
    pub(super) fn reset(&mut self) {
        self.times = 0;
    }
}
