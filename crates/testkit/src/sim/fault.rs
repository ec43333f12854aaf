//! What goes wrong, and at which step: a plan drawn from the seed before anything begins, so that single faults can be left
//! out and everything else stays as it was.

use super::random::Random;

/// A fault at a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Planned {
    /// At this step.
    pub at: u64,
    /// This happens.
    pub fault: Fault,
}

/// What goes wrong. Times are in milliseconds of the simulated clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The process whose call is next dies: before the call takes effect, or after it and before the reply.
    Crash {
        /// After it took effect.
        done: bool,
    },
    /// The call that is next never reaches its server.
    LoseRequest,
    /// It does, and its reply is lost.
    LoseReply,
    /// It is on its way for so long.
    Stall(u64),
    /// A process stands still; the broker may notice and take its deliveries back.
    Pause {
        /// Which.
        process: usize,
        /// For so long.
        millis: u64,
        /// The broker closes its connection meanwhile.
        noticed: bool,
    },
    /// The connection of a process to the broker is cut: what is unsettled is delivered again.
    Cut {
        /// Whose.
        process: usize,
    },
    /// A message in some queue is there twice.
    Duplicate,
    /// The broker answers nobody.
    BrokerAway(u64),
    /// The database answers nobody.
    StoreAway(u64),
    /// The cache loses everything.
    CacheFlushed,
    /// The cache answers nobody.
    CacheAway(u64),
    /// The bindings of a queue are gone.
    Unbound(u64),
    /// The time of day of a process jumps, forward or back, by up to an hour.
    Jump {
        /// Whose.
        process: usize,
        /// By so much.
        millis: i64,
    },
}

/// Processes that can be stopped: those after the client.
const STOPPABLE: u64 = 4;

impl Fault {
    /// A fault as it comes. Those of single calls are the most frequent, because they can hit every await point.
    fn draw(random: &mut Random) -> Self {
        let process = usize::try_from(1 + random.below(STOPPABLE)).unwrap_or(1);
        match random.below(24) {
            0..=6 => Self::Crash { done: random.one_in(2) },
            7..=8 => Self::LoseRequest,
            9..=11 => Self::LoseReply,
            12 => Self::Stall(100 + random.below(15_000)),
            13..=14 => {
                Self::Pause { process, millis: 1_000 + random.below(20_000), noticed: random.one_in(2) }
            }
            15..=16 => Self::Cut { process },
            17 => Self::Duplicate,
            // Some for longer than a message that is refused is tried.
            18 => {
                let millis = 100 + random.below(5_000);
                Self::BrokerAway(if millis.is_multiple_of(3) { 4 * millis } else { millis })
            }
            19 => Self::StoreAway(100 + random.below(5_000)),
            20 => Self::CacheFlushed,
            21 => Self::CacheAway(100 + random.below(5_000)),
            22 => Self::Unbound(100 + random.below(3_000)),
            _ => {
                let millis = i64::try_from(random.below(7_200_000)).unwrap_or(0) - 3_600_000;
                Self::Jump { process, millis }
            }
        }
    }
}

/// A plan: a few faults, over as many steps as an undisturbed run takes.
pub(super) fn plan(seed: u64) -> Vec<Planned> {
    const STEPS: u64 = 350;
    let mut random = Random::new(seed ^ 0xFA17_FA17_FA17_FA17);
    let count = 1 + random.below(8);
    let mut plan: Vec<_> =
        (0..count).map(|_| Planned { at: random.below(STEPS), fault: Fault::draw(&mut random) }).collect();
    plan.sort_by_key(|planned| planned.at);
    plan
}
