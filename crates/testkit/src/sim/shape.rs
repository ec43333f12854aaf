//! What differs between schedules before anything happens.

use super::flaw::Flaw;
use super::random::Random;

/// How a schedule's relays and consumers work, and what its client writes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    /// The relays stream where they can.
    pub(super) streams: bool,
    /// How many rows a relay sends together.
    pub(super) batch: usize,
    /// The consumers' handlers take several events in one transaction.
    pub(super) batches: bool,
    /// How many events each writer commits, and how many of them in one transaction.
    pub(super) events: u64,
    pub(super) together: u64,
}

impl Shape {
    /// Half of the schedules stream, and in a third handlers take batches. In some, many rows of a key wait for relays that take few at
    /// a time. A flaw is shown in the plainest shape.
    pub(super) fn of(seed: u64, flaw: Option<Flaw>) -> Self {
        let plain = Self { streams: false, batch: 4, batches: false, events: 4, together: 1 };
        if flaw.is_some() {
            return plain;
        }
        let mut random = Random::new(seed ^ 0x5AFE_5AFE_5AFE_5AFE);
        let streams = random.one_in(2);
        let crowded = random.one_in(8);
        let together = 1 + random.below(if crowded { 5 } else { 2 });
        let batches = random.one_in(3);
        if crowded {
            Self { streams, batch: 1, batches, events: 10, together }
        } else {
            Self { streams, batches, together, ..plain }
        }
    }
}
