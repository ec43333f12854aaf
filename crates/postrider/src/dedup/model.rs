//! Models of what is done once, in small steps: every order of steps, with crashes, a cache that forgets or is away, notes that come
//! late or never, commits whose outcome is unknown, and failovers that lose commits.
//!
//! What is decided is decided by the real code; the stores and the cache are simulated. Schedules are drawn from a seed, which
//! a failure prints. At the end of each the dust is let settle, and a checker looks. Beside the real rules each model plays
//! others that are wrong: the checker has to see it.
//!
//! `consumers.rs` plays the inbox with a cache in front, `claims.rs` the claims on effects outside the database.

mod claims;
mod consumers;

use std::collections::{BTreeMap, HashSet};

use crate::envelope::{Payload, PayloadHash};

/// Draws numbers, and remembers what happened because of them.
struct Draw {
    state: u64,
    trace: u64,
}

impl Draw {
    fn new(seed: u64) -> Self {
        Self { state: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15), trace: 0xCBF2_9CE4_8422_2325 }
    }

    /// A number below `n` (xorshift).
    fn below(&mut self, n: usize) -> usize {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        usize::try_from((self.state >> 16) % n as u64).unwrap()
    }

    /// Something happened: two schedules are the same if the same happened to the same in the same order (FNV-1a).
    fn happened(&mut self, what: usize) {
        self.trace = (self.trace ^ what as u64).wrapping_mul(0x0100_0000_01B3);
    }
}

/// What came of many schedules.
#[derive(Debug, Default)]
struct Explored {
    /// How many were different.
    distinct: usize,
    /// What was wrong, each with the first schedule that shows it.
    wrongs: BTreeMap<String, u64>,
}

impl Explored {
    /// Plays schedules from seeds 1 on.
    fn by(schedules: u64, mut play: impl FnMut(&mut Draw) -> Result<(), String>) -> Self {
        let (mut traces, mut wrongs) = (HashSet::new(), BTreeMap::new());
        for seed in 1..=schedules {
            let mut draw = Draw::new(seed);
            if let Err(wrong) = play(&mut draw) {
                wrongs.entry(wrong).or_insert(seed);
            }
            traces.insert(draw.trace);
        }
        Self { distinct: traces.len(), wrongs }
    }

    fn saw(&self, wrong: &str) -> bool {
        self.wrongs.keys().any(|seen| seen.contains(wrong))
    }

    /// Nothing was wrong, in so many different schedules at least.
    fn assert_all_is_well(&self, enough: usize) {
        let Self { distinct, wrongs } = self;
        assert!(wrongs.is_empty(), "what was wrong, and in which schedule first: {wrongs:?}");
        assert!(*distinct >= enough, "only {distinct} schedules were different");
    }
}

fn hashes() -> [PayloadHash; 2] {
    ["{\"amount\":1}", "{\"amount\":2}"].map(|text| Payload::new("application/json", text).hash())
}
