//! Seals against the periods and the accounts they tell of, and against what came after them: a period that is closed takes no entry, so
//! none of its days has one that is newer than its seal.
//!
//! What a seal stands for, the trial balance up to its period, cannot change behind it: the entries up to it are in the chain. So it
//! is enough to look at what came later. Of the tables beside the chain a seal says what a period is from then on, and by a hash what
//! the accounts are that had entries by then: their types, sides and currencies are for good.

use std::collections::{BTreeSet, HashMap};

use serde::Deserialize;

use super::Problem;
use super::tally::Tally;
use crate::account::{Account, AccountCode};
use crate::chain::{day, days};
use crate::closing::accounts_text;
use crate::correcting::hash_of;
use crate::period::{Period, PeriodState};
use crate::stored::EntryRow;

/// What entries say of periods.
#[derive(Default)]
pub(super) struct Seals {
    /// The newest seal of a period, by its name.
    newest: HashMap<String, Seal>,
    /// The newest one that closed it.
    closed: HashMap<String, u64>,
    /// The newest one that tells of accounts, and what it tells.
    accounts: Option<(u64, String)>,
    /// The newest one that names the base currency, and which.
    base: Option<(u64, String)>,
    /// Up to which entry there were checkpoints when the newest one was made.
    signed: u64,
    /// The newest entry of each day.
    of_day: HashMap<i32, u64>,
}

/// A seal, by the number of its entry.
struct Seal {
    number: u64,
    says: Says,
}

/// The metadata of a seal. At first only closing wrote one, and it said neither the state nor what the accounts and the base currency are.
#[derive(Deserialize)]
struct Says {
    period: String,
    #[serde(default)]
    starts_on: String,
    #[serde(default)]
    ends_on: String,
    state: Option<String>,
    accounts: Option<String>,
    base_currency: Option<String>,
    signed_to: Option<String>,
}

impl Seals {
    /// Takes a seal in. One that names no period is none that a ledger wrote.
    pub(super) fn seal(&mut self, number: u64, entry: &EntryRow<'_>) {
        let Ok(mut says) = serde_json::from_str::<Says>(entry.metadata) else { return };
        if says.state.as_deref().is_none_or(|state| state == PeriodState::Closed.as_str()) {
            self.closed.insert(says.period.clone(), number);
        }
        if let Some(accounts) = says.accounts.take() {
            self.accounts = Some((number, accounts));
        }
        let signed = says.signed_to.as_deref().and_then(|number| number.parse::<u64>().ok());
        self.signed = self.signed.max(signed.unwrap_or(0));
        if let Some(base) = says.base_currency.take() {
            self.base = Some((number, base));
        }
        self.newest.insert(says.period.clone(), Seal { number, says });
    }

    /// Takes any other entry in.
    pub(super) fn entry(&mut self, number: u64, entry: &EntryRow<'_>) {
        self.of_day.insert(entry.effective_on, number);
    }

    /// The newest seal that names the base currency, and which.
    pub(super) fn base(&self) -> Option<(u64, &str)> {
        self.base.as_ref().map(|(number, base)| (*number, base.as_str()))
    }

    /// Up to which entry there were checkpoints when the newest seal was made; 0 where none says so.
    pub(super) fn signed(&self) -> u64 {
        self.signed
    }

    /// Takes in what another run saw.
    pub(super) fn add(&mut self, other: Self) {
        for (period, seal) in other.newest {
            if self.newest.get(&period).is_none_or(|known| known.number < seal.number) {
                self.newest.insert(period, seal);
            }
        }
        for (period, number) in other.closed {
            let newest = self.closed.entry(period).or_default();
            *newest = number.max(*newest);
        }
        self.accounts = self.accounts.take().max(other.accounts);
        self.base = self.base.take().max(other.base);
        self.signed = self.signed.max(other.signed);
        for (day, number) in other.of_day {
            let newest = self.of_day.entry(day).or_default();
            *newest = number.max(*newest);
        }
    }

    /// Names periods that are not what their seals say, and entries behind the seal of a closed one.
    pub(super) fn check(&self, periods: &[Period], problems: &mut Vec<Problem>) {
        for period in periods {
            self.check_period(period, problems);
            self.check_days(period, problems);
        }
        let is_gone = |name: &str| periods.iter().all(|period| period.name != name);
        for (name, seal) in self.newest.iter().filter(|(name, _)| is_gone(name)) {
            let text = format!("the period {name} is gone; entry {} tells of it", seal.number);
            problems.push(Problem::new("period_changed", Some(seal.number), text));
        }
    }

    /// A seal that says no state is from when opening a period again wrote none: there is nothing to compare then.
    fn check_period(&self, period: &Period, problems: &mut Vec<Problem>) {
        let Period { name, starts_on, ends_on, state } = period;
        let Some(Seal { number, says }) = self.newest.get(name) else {
            if *state != PeriodState::Open {
                let text = format!("the period {name} is {}, and no entry seals it", state.as_str());
                problems.push(Problem::new("period_changed", None, text));
            }
            return;
        };
        let Some(said) = &says.state else { return };
        let is = format!("{}, from {starts_on} to {ends_on}", state.as_str());
        let should = format!("{said}, from {} to {}", says.starts_on, says.ends_on);
        if is != should {
            let text = format!("the period {name} is {is}; by its seal in entry {number} it is {should}");
            problems.push(Problem::new("period_changed", Some(*number), text));
        }
    }

    /// The newest entry of every day that has one behind the seal of its period.
    fn check_days(&self, period: &Period, problems: &mut Vec<Problem>) {
        let Some(seal) = self.closed.get(&period.name).filter(|_| is_closed(period)) else { return };
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

    /// Names accounts with entries that are gone, and says whether all that had entries by the newest seal are what they were then.
    /// Returns that seal; nothing where none tells of accounts.
    pub(super) fn check_accounts(
        &self,
        accounts: &HashMap<AccountCode, Account>,
        tally: &Tally,
        problems: &mut Vec<Problem>,
    ) -> Option<u64> {
        let used: BTreeSet<&str> = tally.iter().map(|(account, ..)| account).collect();
        for account in used.iter().filter(|account| !accounts.contains_key(**account)) {
            let text = format!("the account {account} is gone; there are entries on it");
            problems.push(Problem::new("accounts_changed", None, text));
        }
        let (seal, said) = self.accounts.as_ref()?;
        let sealed = tally.iter().filter(|(_, _, held)| held.first.is_some_and(|first| first < *seal));
        let sealed: BTreeSet<&str> = sealed.map(|(account, ..)| account).collect();
        let sealed = sealed.into_iter().filter_map(|account| accounts.get(account));
        if hash_of(&accounts_text(sealed)).to_string() != *said {
            let text = format!(
                "the type, the normal side or the currency of an account was changed since the seal in entry {seal}, or one is gone"
            );
            problems.push(Problem::new("accounts_changed", Some(*seal), text));
        }
        Some(*seal)
    }
}

fn is_closed(period: &Period) -> bool {
    matches!(period.state, PeriodState::Closed | PeriodState::Locked)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sealed(says: &[&str]) -> Seals {
        let mut seals = Seals::default();
        for (number, metadata) in (1..).zip(says.iter().copied()) {
            let entry = EntryRow {
                number: 0,
                kind: 8,
                effective_on: 0,
                posted_at: 0,
                source_event: "",
                payload_hash: &[],
                rule: "",
                description: "",
                metadata,
                refers_to: None,
                hash: &[],
            };
            seals.seal(number, &entry);
        }
        seals
    }

    fn found(seals: &Seals, state: PeriodState) -> Vec<Option<u64>> {
        let mut problems = Vec::new();
        seals.check(&[Period::named("2026-03", state).unwrap()], &mut problems);
        assert!(problems.iter().all(|problem| problem.code == "period_changed"), "{problems:?}");
        problems.iter().map(|problem| problem.entry).collect()
    }

    /// A period that was closed and opened again before openings were recorded raises no alarm.
    #[test]
    fn seals_that_say_no_state_are_compared_with_none() {
        let old = r#"{"ends_on":"2026-03-31","period":"2026-03","starts_on":"2026-03-01"}"#;
        for state in [PeriodState::Open, PeriodState::Closing, PeriodState::Closed, PeriodState::Locked] {
            assert!(found(&sealed(&[old]), state).is_empty(), "{state:?}");
        }
        let none = sealed(&[]);
        assert!(found(&none, PeriodState::Open).is_empty());
        for state in [PeriodState::Closing, PeriodState::Closed, PeriodState::Locked] {
            assert_eq!(found(&none, state), [None], "{state:?}: whoever made it so wrote a seal");
        }
    }

    #[test]
    fn the_newest_seal_counts_from_whatever_run_it_is() {
        let seal = |state: &str| {
            format!(
                r#"{{"ends_on":"2026-03-31","period":"2026-03","starts_on":"2026-03-01","state":"{state}"}}"#
            )
        };
        let (closed, open) = (seal("closed"), seal("open"));
        let mut seals = sealed(&[&closed, &open]);
        seals.add(sealed(&[&closed]));
        assert!(found(&seals, PeriodState::Open).is_empty());
        assert_eq!(found(&seals, PeriodState::Closed), [Some(2)]);
        seals.add(sealed(&[&closed, &open, &seal("closed").replace("03-31", "03-30")]));
        assert_eq!(found(&seals, PeriodState::Closed), [Some(3)], "its days are others");
        assert_eq!(seals.closed["2026-03"], 3);
    }
}
