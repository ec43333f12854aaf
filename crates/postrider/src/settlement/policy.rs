//! When to retry and when to give up, as data: a ladder of delays, how often, and what differs by kind of failure.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::handler::{Failure, FailureKind};

/// When to retry and when to give up.
///
/// Every delay is a wait queue of its own, so a policy may only ask for delays that it lists: [`Self::tiers`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetryPolicy {
    /// How often a failed delivery is tried again: 10 retries mean 11 calls of the handler.
    pub max_retries: u32,
    /// The delay before each retry; the last one repeats.
    pub delays: Vec<Duration>,
    /// Spreads retries over neighbouring tiers: 20 gives every delay a tier 20 % shorter and one 20 % longer, and each
    /// retry takes one of the three. 0 is none.
    #[serde(default)]
    pub jitter_percent: u8,
    /// What differs for some failures; the first that matches counts.
    #[serde(default)]
    pub overrides: Vec<RetryOverride>,
    /// More tiers, for events that are deferred or asked for a delay of their own: they wait in steps of the nearest one.
    #[serde(default)]
    pub defer: Vec<Duration>,
}

/// What differs for some failures.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetryOverride {
    /// For which.
    pub on: FailureMatch,
    /// Whether they may pass, whatever the handler said.
    pub treat: Option<Treat>,
    /// Another number of retries.
    pub max_retries: Option<u32>,
    /// Other delays.
    pub delays: Option<Vec<Duration>>,
}

/// Which failures.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureMatch {
    /// Those of this class, such as `timeout` and `panic`, which are our own words for these two.
    Class(String),
    /// Those with a status from the first to the last, both included.
    Status(u16, u16),
}

/// Whether a failure may pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Treat {
    /// It may: try again.
    Transient,
    /// It will not: straight to the dead letters.
    Permanent,
}

/// What the policy says of one failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rule<'a> {
    pub(super) treat: Option<Treat>,
    pub(super) max_retries: u32,
    delays: &'a [Duration],
    jitter_percent: u8,
}

impl Default for RetryPolicy {
    /// Ten retries, five seconds apart.
    fn default() -> Self {
        Self::fixed(10, Duration::from_secs(5))
    }
}

impl RetryPolicy {
    /// The same delay before every retry.
    pub fn fixed(max_retries: u32, delay: Duration) -> Self {
        Self::ladder(max_retries, [delay])
    }

    /// These delays, one after the other; the last one repeats.
    pub fn ladder(max_retries: u32, delays: impl IntoIterator<Item = Duration>) -> Self {
        let delays = delays.into_iter().collect();
        Self { max_retries, delays, jitter_percent: 0, overrides: Vec::new(), defer: Vec::new() }
    }

    /// `steps` delays, the first `base`, each `factor` times the one before and none above `max`.
    pub fn exponential(max_retries: u32, base: Duration, factor: f64, max: Duration, steps: u32) -> Self {
        let step = |exponent: u32| {
            let millis = base.as_secs_f64() * 1000.0 * factor.max(1.0).powf(f64::from(exponent));
            // Whole milliseconds: that is what a queue's TTL can say.
            let millis = millis.round().min(max.as_secs_f64() * 1000.0);
            Duration::try_from_secs_f64(millis / 1000.0).unwrap_or(max).min(max)
        };
        let mut delays: Vec<_> = (0..steps.max(1)).map(step).map(whole_millis).collect();
        delays.dedup();
        Self::ladder(max_retries, delays)
    }

    /// The event-bus seed's own table: five seconds, ten retries, for every status that is no success. By itself a 4xx that
    /// says nothing of later goes straight to the dead letters.
    pub fn event_bus() -> Self {
        let any_4xx = FailureMatch::Status(400, 499);
        let policy = Self::default();
        policy.overriding(RetryOverride { treat: Some(Treat::Transient), ..RetryOverride::on(any_4xx) })
    }

    /// How long the retries of one event can take, all waits together.
    pub fn longest(&self) -> Duration {
        let wait = |max_retries: u32, delays: &[Duration]| {
            let last = delays.last().copied().unwrap_or_default();
            let listed = delays.iter().take(max_retries as usize).sum::<Duration>();
            let repeats = max_retries.saturating_sub(u32::try_from(delays.len()).unwrap_or(u32::MAX));
            listed.saturating_add(last.saturating_mul(repeats))
        };
        let usual = wait(self.max_retries, &self.delays);
        let others = self.overrides.iter().map(|other| {
            wait(
                other.max_retries.unwrap_or(self.max_retries),
                other.delays.as_deref().unwrap_or(&self.delays),
            )
        });
        let longest = others.fold(usual, Duration::max);
        longest.saturating_add(longest.saturating_mul(u32::from(self.jitter_percent)) / 100)
    }

    /// With retries spread by so many percent.
    #[must_use]
    pub fn jitter(mut self, percent: u8) -> Self {
        self.jitter_percent = percent.min(90);
        self
    }

    /// With an exception for some failures.
    #[must_use]
    pub fn overriding(mut self, exception: RetryOverride) -> Self {
        self.overrides.push(exception);
        self
    }

    /// Every delay that can be asked for, the shortest first: one wait queue each.
    pub fn tiers(&self) -> Vec<Duration> {
        let others = self.overrides.iter().filter_map(|other| other.delays.as_ref()).flatten();
        let mut tiers: Vec<_> =
            self.delays.iter().chain(others).flat_map(|delay| spread(*delay, self.jitter_percent)).collect();
        tiers.extend(&self.defer);
        tiers.sort_unstable();
        tiers.dedup();
        tiers
    }

    /// What it says of this failure.
    pub(super) fn rule(&self, failure: &Failure) -> Rule<'_> {
        let found = self.overrides.iter().find(|other| other.on.matches(failure));
        let delays = found.and_then(|other| other.delays.as_deref());
        Rule {
            treat: found.and_then(|other| other.treat),
            max_retries: found.and_then(|other| other.max_retries).unwrap_or(self.max_retries),
            delays: delays.unwrap_or(&self.delays),
            jitter_percent: self.jitter_percent,
        }
    }
}

impl RetryOverride {
    /// An exception for these, which says nothing yet.
    pub fn on(on: FailureMatch) -> Self {
        Self { on, treat: None, max_retries: None, delays: None }
    }
}

impl FailureMatch {
    fn matches(&self, failure: &Failure) -> bool {
        match self {
            Self::Class(class) => failure.class.as_ref() == Some(class),
            Self::Status(from, to) => failure.status.is_some_and(|status| (*from..=*to).contains(&status)),
        }
    }
}

impl Rule<'_> {
    /// Whether trying again can help. Nobody overrides that it is too early.
    pub(super) fn kind(&self, said: FailureKind) -> FailureKind {
        match (said, self.treat) {
            (FailureKind::Deferred { .. }, _) | (_, None) => said,
            (_, Some(Treat::Transient)) => FailureKind::Transient,
            (_, Some(Treat::Permanent)) => FailureKind::Permanent,
        }
    }

    /// The delay after the given attempt (counted from 1) has failed. `draw`, from 0 up to 1, picks one of three tiers
    /// where there is jitter.
    pub(super) fn delay_after(&self, attempt: u32, draw: f64) -> Duration {
        let step = usize::try_from(attempt.saturating_sub(1)).unwrap_or(usize::MAX);
        let delay = self.delays.get(step).or(self.delays.last()).copied().unwrap_or(Duration::ZERO);
        let [shorter, middle, longer] = spread(delay, self.jitter_percent);
        if draw < 1.0 / 3.0 {
            shorter
        } else if draw < 2.0 / 3.0 {
            middle
        } else {
            longer
        }
    }
}

/// A delay and its two neighbours, all the same without jitter.
fn spread(delay: Duration, percent: u8) -> [Duration; 3] {
    let part = delay.saturating_mul(u32::from(percent.min(90))) / 100;
    [whole_millis(delay.saturating_sub(part)), delay, whole_millis(delay.saturating_add(part))]
}

fn whole_millis(delay: Duration) -> Duration {
    Duration::from_millis(u64::try_from(delay.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(delays: &[Duration]) -> Vec<f64> {
        delays.iter().map(Duration::as_secs_f64).collect()
    }

    #[test]
    fn an_exponential_ladder_is_written_out() {
        let policy = RetryPolicy::exponential(10, Duration::from_secs(1), 3.0, Duration::from_mins(1), 6);
        assert_eq!(seconds(&policy.delays), [1.0, 3.0, 9.0, 27.0, 60.0]);
        assert_eq!(policy.tiers(), policy.delays);
    }

    #[test]
    fn jitter_adds_the_neighbours_of_every_tier() {
        let policy = RetryPolicy::ladder(3, [5, 60].map(Duration::from_secs)).jitter(20);
        assert_eq!(seconds(&policy.tiers()), [4.0, 5.0, 6.0, 48.0, 60.0, 72.0]);
        let rule = policy.rule(&Failure::transient("busy"));
        let picked = [0.0, 0.5, 0.99].map(|draw| rule.delay_after(2, draw));
        assert_eq!(seconds(&picked), [48.0, 60.0, 72.0]);
    }

    #[test]
    fn the_first_exception_that_matches_counts() {
        let slow = RetryOverride {
            max_retries: Some(3),
            delays: Some(vec![Duration::from_mins(1)]),
            ..RetryOverride::on(FailureMatch::Class("timeout".to_owned()))
        };
        let policy = RetryPolicy::event_bus().overriding(slow);
        let rule = policy.rule(&Failure::transient("late").class("timeout"));
        assert_eq!((rule.max_retries, rule.delay_after(1, 0.5)), (3, Duration::from_mins(1)));
        let rule = policy.rule(&Failure::permanent("gone").status(404));
        assert_eq!((rule.kind(FailureKind::Permanent), rule.max_retries), (FailureKind::Transient, 10));
        assert_eq!(seconds(&policy.tiers()), [5.0, 60.0]);
    }
}
