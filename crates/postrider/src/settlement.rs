//! The runtime's decision about a delivery: a pure function of the outcome, the attempt and the policy.

mod policy;

pub use policy::{FailureMatch, RetryOverride, RetryPolicy, Treat};

use std::time::Duration;

use jiff::Timestamp;

use crate::handler::{Failure, FailureKind};

/// What became of one attempt.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// The effects are committed.
    Applied,
    /// The inbox knew the event: its effects were committed before.
    Duplicate,
    /// The inbox knew the id with another payload.
    Conflict,
    /// The message is not an event.
    Malformed(String),
    /// The consumer has no handler for this type of event.
    NoHandler,
    /// It is not due yet; the handler was not called.
    Early {
        /// Not before this time.
        until: Timestamp,
    },
    /// Handling it began so many times and never ended: each time the process died. The handler was not called again.
    Crashed {
        /// How often.
        times: u32,
    },
    /// The handler failed, panicked or took too long; nothing of it is committed.
    Failed(Failure),
}

/// What is done with the delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Settlement {
    /// It is done with.
    Ack,
    /// It waits and comes again as the next attempt.
    Retry {
        /// How long it waits, at least.
        delay: Duration,
    },
    /// It waits and comes again as the same attempt.
    Defer {
        /// How long it waits; longer waits are done in several steps.
        delay: Duration,
    },
    /// It becomes a dead letter.
    DeadLetter {
        /// Why.
        reason: DeadReason,
    },
}

/// Why a delivery became a dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DeadReason {
    /// It cannot be read as an event.
    Malformed,
    /// Nobody handles its type here.
    NoHandler,
    /// Its id was seen with another payload.
    Conflict,
    /// The handler said that it will never succeed.
    Rejected,
    /// It failed as often as the policy allows.
    RetriesExhausted,
    /// The process died under it, time and again.
    Crashed,
    /// It had to wait, and no broker can carry it to where it would: its headers leave no room for ours.
    Unfit,
    /// No queue wanted it.
    Unroutable,
    /// The broker or another consumer dead-lettered it.
    Foreign,
}

impl DeadReason {
    /// The word for it, in headers, tables, metrics and on pages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::NoHandler => "no_handler",
            Self::Conflict => "conflict",
            Self::Rejected => "rejected",
            Self::RetriesExhausted => "retries_exhausted",
            Self::Crashed => "crashed",
            Self::Unfit => "unfit",
            Self::Unroutable => "unroutable",
            Self::Foreign => "foreign",
        }
    }
}

/// Decides. `attempt` counts from 1; `draw`, from 0 up to 1, picks the tier where the policy has jitter.
pub fn decide(
    outcome: &Outcome,
    attempt: u32,
    policy: &RetryPolicy,
    now: Timestamp,
    draw: f64,
) -> Settlement {
    let dead = |reason| Settlement::DeadLetter { reason };
    match outcome {
        Outcome::Applied | Outcome::Duplicate => Settlement::Ack,
        Outcome::Conflict => dead(DeadReason::Conflict),
        Outcome::Malformed(_) => dead(DeadReason::Malformed),
        Outcome::NoHandler => dead(DeadReason::NoHandler),
        Outcome::Crashed { .. } => dead(DeadReason::Crashed),
        Outcome::Early { until } => Settlement::Defer { delay: until_then(now, *until) },
        Outcome::Failed(failure) => {
            let rule = policy.rule(failure);
            match rule.kind(failure.kind) {
                FailureKind::Permanent => dead(DeadReason::Rejected),
                FailureKind::Deferred { until } => Settlement::Defer { delay: until_then(now, until) },
                FailureKind::Transient if attempt > rule.max_retries => dead(DeadReason::RetriesExhausted),
                FailureKind::Transient => {
                    let delay = rule.delay_after(attempt, draw);
                    Settlement::Retry { delay: failure.retry_after.map_or(delay, |asked| asked.max(delay)) }
                }
            }
        }
    }
}

fn until_then(now: Timestamp, until: Timestamp) -> Duration {
    Duration::try_from(until.duration_since(now)).unwrap_or(Duration::ZERO)
}

#[cfg(test)]
mod tests;
