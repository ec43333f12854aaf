//! Seals against what came after them: a period that is closed takes no entry, so none of its days has one that is newer than its seal.
//!
//! What a seal stands for, the trial balance up to its period, cannot change behind it: the entries up to it are in the chain. So it
//! is enough to look at what came later.

use std::collections::{BTreeMap, HashMap};

use super::Problem;
use crate::chain::{day, days};
use crate::period::{Period, PeriodState};
use crate::stored::EntryRow;

/// What entries say of periods.
#[derive(Default)]
pub(super) struct Seals {
    /// The newest seal of a period, by its name.
    newest: HashMap<String, u64>,
    /// The newest entry of each day.
    of_day: HashMap<i32, u64>,
}

impl Seals {
    /// Takes a seal in. One that names no period is none that a ledger wrote.
    pub(super) fn seal(&mut self, number: u64, entry: &EntryRow<'_>) {
        let named = serde_json::from_str::<BTreeMap<String, String>>(entry.metadata).ok();
        if let Some(period) = named.and_then(|mut named| named.remove("period")) {
            self.newest.insert(period, number);
        }
    }

    /// Takes any other entry in.
    pub(super) fn entry(&mut self, number: u64, entry: &EntryRow<'_>) {
        self.of_day.insert(entry.effective_on, number);
    }

    /// Takes in what another run saw.
    pub(super) fn add(&mut self, other: Self) {
        for (period, number) in other.newest {
            let newest = self.newest.entry(period).or_default();
            *newest = number.max(*newest);
        }
        for (day, number) in other.of_day {
            let newest = self.of_day.entry(day).or_default();
            *newest = number.max(*newest);
        }
    }

    /// Names the newest entry of every day that has one behind the seal of its period.
    pub(super) fn check(&self, periods: &[Period], problems: &mut Vec<Problem>) {
        let closed = |period: &&Period| matches!(period.state, PeriodState::Closed | PeriodState::Locked);
        for period in periods.iter().filter(closed) {
            let Some(seal) = self.newest.get(&period.name) else { continue };
            let within = days(period.starts_on)..=days(period.ends_on);
            let behind = self.of_day.iter().filter(|(day, number)| within.contains(day) && *number > seal);
            for (on, number) in behind {
                let on = day(*on).map_or_else(String::new, |on| on.to_string());
                let text = format!(
                    "entry {number} is of {on}, in the period {}, which is {} since its seal in entry {seal}",
                    period.name,
                    period.state.as_str()
                );
                problems.push(Problem::new("sealed_period_changed", Some(*number), text));
            }
        }
    }
}
