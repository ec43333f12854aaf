//! The runtime's decision about a delivery: a pure function of the outcome, the attempt and the policy.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::handler::{Failure, FailureKind};

/// When to retry and when to give up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetryPolicy {
    /// How often a failed delivery is tried again: 10 retries mean 11 calls of the handler.
    pub max_retries: u32,
    /// The delay before each retry; the last one repeats.
    pub delays: Vec<Duration>,
}

impl Default for RetryPolicy {
    /// Ten retries, five seconds apart.
    fn default() -> Self {
        Self { max_retries: 10, delays: vec![Duration::from_secs(5)] }
    }
}

impl RetryPolicy {
    /// The delay after the given attempt (counted from 1) has failed.
    pub fn delay_after(&self, attempt: u32) -> Duration {
        let step = usize::try_from(attempt.saturating_sub(1)).unwrap_or(usize::MAX);
        self.delays.get(step).or(self.delays.last()).copied().unwrap_or(Duration::ZERO)
    }
}

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
            Self::Unroutable => "unroutable",
            Self::Foreign => "foreign",
        }
    }
}

/// Decides. `attempt` counts from 1.
pub fn decide(outcome: &Outcome, attempt: u32, policy: &RetryPolicy, now: Timestamp) -> Settlement {
    let dead = |reason| Settlement::DeadLetter { reason };
    match outcome {
        Outcome::Applied | Outcome::Duplicate => Settlement::Ack,
        Outcome::Conflict => dead(DeadReason::Conflict),
        Outcome::Malformed(_) => dead(DeadReason::Malformed),
        Outcome::NoHandler => dead(DeadReason::NoHandler),
        Outcome::Failed(failure) => match failure.kind {
            FailureKind::Permanent => dead(DeadReason::Rejected),
            FailureKind::Deferred { until } => Settlement::Defer { delay: until_then(now, until) },
            FailureKind::Transient if attempt > policy.max_retries => dead(DeadReason::RetriesExhausted),
            FailureKind::Transient => {
                let delay = policy.delay_after(attempt);
                Settlement::Retry { delay: failure.retry_after.map_or(delay, |asked| asked.max(delay)) }
            }
        },
    }
}

fn until_then(now: Timestamp, until: Timestamp) -> Duration {
    Duration::try_from(until.duration_since(now)).unwrap_or(Duration::ZERO)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settle(outcome: &Outcome, attempt: u32) -> Settlement {
        decide(outcome, attempt, &RetryPolicy::default(), Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn ten_retries_mean_eleven_attempts() {
        let failed = Outcome::Failed(Failure::transient("smtp down"));
        for attempt in 1..=10 {
            assert_eq!(settle(&failed, attempt), Settlement::Retry { delay: Duration::from_secs(5) });
        }
        assert_eq!(settle(&failed, 11), Settlement::DeadLetter { reason: DeadReason::RetriesExhausted });
    }

    #[test]
    fn what_can_never_succeed_is_not_retried() {
        for (outcome, reason) in [
            (Outcome::Failed(Failure::permanent("no such account")), DeadReason::Rejected),
            (Outcome::Conflict, DeadReason::Conflict),
            (Outcome::Malformed("truncated".into()), DeadReason::Malformed),
            (Outcome::NoHandler, DeadReason::NoHandler),
        ] {
            assert_eq!(settle(&outcome, 1), Settlement::DeadLetter { reason });
        }
    }

    #[test]
    fn a_receiver_may_ask_for_more_time_but_not_for_less() {
        let asked = |secs| Outcome::Failed(Failure::transient("busy").retry_after(Duration::from_secs(secs)));
        assert_eq!(settle(&asked(60), 1), Settlement::Retry { delay: Duration::from_mins(1) });
        assert_eq!(settle(&asked(1), 1), Settlement::Retry { delay: Duration::from_secs(5) });
    }

    #[test]
    fn a_deferred_event_is_the_same_attempt_later() {
        let until = Timestamp::from_second(90).unwrap();
        let early = Outcome::Failed(Failure::deferred(until));
        assert_eq!(settle(&early, 11), Settlement::Defer { delay: Duration::from_secs(90) });
        let late = decide(&early, 1, &RetryPolicy::default(), Timestamp::from_second(100).unwrap());
        assert_eq!(late, Settlement::Defer { delay: Duration::ZERO });
    }
}
