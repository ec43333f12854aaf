//! Rules that replay dead letters by schedule.
//!
//! When a rule's turn comes, one process among all takes it, and freezes what the rule's filter matches as an operation, in one
//! transaction: a crash leaves either both or neither. The operation is run like any other.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::operation::{LetterPlan, start_in};
use crate::store::{Backend, LetterFilter, OperationKind, StoreError};

/// Look at the clock at least this often.
const LOOK_EVERY: Duration = Duration::from_mins(1);
const DAY: i64 = 24 * 60 * 60;

/// Replays by schedule what a filter matches.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    /// Its name; the audit log says `rule:NAME`.
    pub name: String,
    /// Which dead letters, and how many of them at a time.
    pub plan: LetterPlan,
    /// When.
    pub schedule: Schedule,
    /// Letters a second, at most.
    pub rate: Option<f64>,
    /// A letter that was replayed so often and died again is left for people.
    pub max_rounds: u32,
}

/// When a rule has its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Schedule {
    /// Every so often, counted from 1970: all processes have the same turns.
    Every(Duration),
    /// Every day, so many seconds after midnight, UTC.
    Daily(u32),
}

impl Schedule {
    /// The last turn that has come.
    pub fn last_turn(self, now: Timestamp) -> Timestamp {
        let (now, every, first) = match self {
            Self::Every(every) => (now.as_second(), i64::try_from(every.as_secs()).unwrap_or(DAY).max(1), 0),
            Self::Daily(second) => (now.as_second(), DAY, i64::from(second)),
        };
        let last = (now - first).div_euclid(every) * every + first;
        Timestamp::from_second(last).unwrap_or(Timestamp::MIN)
    }

    /// The first turn that is yet to come.
    pub fn next_turn(self, now: Timestamp) -> Timestamp {
        let every = match self {
            Self::Every(every) => SignedDuration::try_from(every).unwrap_or(SignedDuration::from_secs(DAY)),
            Self::Daily(_) => SignedDuration::from_secs(DAY),
        };
        let every = every.max(SignedDuration::from_secs(1));
        self.last_turn(now).saturating_add(every).unwrap_or(Timestamp::MAX)
    }
}

impl Rule {
    /// Takes the turn that is due, if nobody has: how many letters it froze, or nothing.
    pub async fn take_turn<S: Backend>(&self, store: &S, clock: &Clock) -> Result<bool, StoreError> {
        let turn = self.schedule.last_turn(clock.now());
        let name = format!("rule:{}", self.name);
        let mut tx = store.begin().await?;
        if !store.take_turn(&mut tx, &name, turn).await? {
            store.rollback(tx).await?;
            return Ok(false);
        }
        let max_replays = Some(self.max_rounds.saturating_sub(1));
        let filter = LetterFilter { max_replays, ..self.plan.filter.clone() };
        let plan = LetterPlan { filter, ..self.plan.clone() };
        let kind = OperationKind::ReplayLetters;
        let started = start_in(store, &mut tx, clock.new_id(), kind, &plan, self.rate, &name, None).await?;
        if let Some(id) = started {
            store.commit(tx).await?;
            tracing::info!(rule = self.name, operation = %id, "a rule replays dead letters");
            return Ok(true);
        }
        // Nothing matches: the operation must not be, but the turn is taken all the same.
        store.rollback(tx).await?;
        let mut tx = store.begin().await?;
        store.take_turn(&mut tx, &name, turn).await?;
        store.commit(tx).await?;
        Ok(false)
    }
}

/// Takes the turns of all rules as they come, until told to stop. A turn that was missed while nobody ran is taken at once.
pub async fn keep_rules<S: Backend>(store: &S, clock: &Clock, rules: &[Rule], stop: &CancellationToken) {
    while !rules.is_empty() && !stop.is_cancelled() {
        for rule in rules {
            if let Err(error) = rule.take_turn(store, clock).await {
                tracing::warn!(rule = rule.name, %error, "a rule could not take its turn; trying again");
            }
        }
        let now = clock.now();
        let next = rules.iter().map(|rule| rule.schedule.next_turn(now)).min().unwrap_or(Timestamp::MAX);
        let wait = Duration::try_from(next.duration_since(now)).unwrap_or(Duration::ZERO).min(LOOK_EVERY);
        tokio::select! {
            () = stop.cancelled() => {}
            () = clock.sleep(wait.max(Duration::from_millis(100))) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn turns_are_the_same_for_everybody() {
        let hourly = Schedule::Every(Duration::from_hours(1));
        assert_eq!(hourly.last_turn(at("2026-11-15T12:34:56Z")), at("2026-11-15T12:00:00Z"));
        assert_eq!(hourly.next_turn(at("2026-11-15T12:00:00Z")), at("2026-11-15T13:00:00Z"));
        let nightly = Schedule::Daily(3 * 3600 + 1800);
        assert_eq!(nightly.last_turn(at("2026-11-15T03:29:59Z")), at("2026-11-14T03:30:00Z"));
        assert_eq!(nightly.next_turn(at("2026-11-15T03:30:00Z")), at("2026-11-16T03:30:00Z"));
    }
}
