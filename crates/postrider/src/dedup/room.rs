//! Whether a cache has room for what is new, as far as it was asked lately.

use std::time::Duration;

/// So long after it refused something a cache counts as full.
const LATELY: Duration = Duration::from_secs(30);

/// How a cache is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheHealth {
    /// It answers, and takes what is new.
    Ok,
    /// It answers, and refused what was new within the last half minute, because it is full. What it knows it still tells.
    Full,
    /// It does not answer, or is left alone for now.
    Away,
}

/// What a cache refused, by its own count.
#[derive(Debug, Default)]
pub(super) struct Room {
    refused: u64,
    last: Option<Duration>,
}

impl Room {
    /// `refused` is how much it has refused so far, `now` a reading of the monotonic clock.
    pub(super) fn note(&mut self, refused: u64, now: Duration) {
        if refused > self.refused {
            (self.refused, self.last) = (refused, Some(now));
        }
    }

    pub(super) fn is_full(&self, now: Duration) -> bool {
        self.last.is_some_and(|last| now.saturating_sub(last) < LATELY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_is_full_for_half_a_minute_after_it_refused_something() {
        let at = Duration::from_secs;
        let mut room = Room::default();
        room.note(0, at(1));
        assert!(!room.is_full(at(1)));
        room.note(3, at(10));
        assert!(room.is_full(at(10)) && room.is_full(at(39)) && !room.is_full(at(40)));
        // What it refused long ago is not news.
        room.note(3, at(100));
        assert!(!room.is_full(at(100)));
        room.note(4, at(101));
        assert!(room.is_full(at(130)));
    }
}
