//! What lines add up to, by account and currency, and by day.

use std::collections::{BTreeMap, HashMap};

use crate::books::Sums;

/// An account and a currency, as lines name them.
pub(super) type Key = (String, String);

/// Sums by account and currency. Asking for those of an account that is known allocates nothing.
#[derive(Default)]
pub(super) struct Tally {
    places: HashMap<String, usize>,
    /// Of each account, one for every currency it has lines in.
    held: Vec<Vec<(String, Held)>>,
}

/// What the lines of one account in one currency add up to.
#[derive(Default)]
pub(super) struct Held {
    /// What is promised.
    pub(super) pending: Sums,
    /// The day of the newest line, which nearly always is that of the next one too.
    day: i32,
    of_day: Sums,
    /// What was posted on other days.
    days: BTreeMap<i32, Sums>,
    /// The first entry that posted something.
    pub(super) first: Option<u64>,
    /// Lines that were taken for base amounts as they are, without a rate.
    pub(super) plain: u64,
    /// Lines that a rate made another amount of.
    pub(super) converted: u64,
    /// Whether a sum left its range.
    pub(super) overflowed: bool,
}

impl Held {
    /// Adds what was posted for a day, counted from 1970.
    pub(super) fn post(&mut self, day: i32, sums: &Sums) {
        if day != self.day {
            let before = std::mem::replace(&mut self.of_day, self.days.remove(&day).unwrap_or_default());
            self.days.insert(self.day, before);
            self.day = day;
        }
        match self.of_day.plus(sums) {
            Some(sum) => self.of_day = sum,
            None => self.overflowed = true,
        }
    }

    /// Adds what is promised.
    pub(super) fn promise(&mut self, sums: &Sums) {
        match self.pending.plus(sums) {
            Some(sum) => self.pending = sum,
            None => self.overflowed = true,
        }
    }

    /// Adds all of another one.
    pub(super) fn add(&mut self, other: &Self) {
        for (day, sums) in other.days() {
            self.post(day, &sums);
        }
        self.promise(&other.pending);
        self.first = self.first.into_iter().chain(other.first).min();
        self.plain += other.plain;
        self.converted += other.converted;
        self.overflowed |= other.overflowed;
    }

    /// What was posted, day by day.
    pub(super) fn days(&self) -> impl Iterator<Item = (i32, Sums)> {
        let others = self.days.iter().map(|(day, sums)| (*day, *sums));
        others.chain([(self.day, self.of_day)]).filter(|(_, sums)| *sums != Sums::default())
    }

    /// All of it together; nothing when a sum leaves its range.
    pub(super) fn total(&self) -> Option<Sums> {
        self.days().try_fold(self.pending, |total, (_, sums)| total.plus(&sums))
    }
}

impl Tally {
    pub(super) fn of(&mut self, account: &str, currency: &str) -> &mut Held {
        let place = self.places.get(account).copied().unwrap_or_else(|| {
            self.places.insert(account.to_owned(), self.held.len());
            self.held.push(Vec::with_capacity(1));
            self.held.len() - 1
        });
        let of_account = &mut self.held[place];
        let known = of_account.iter().position(|(known, _)| known == currency).unwrap_or_else(|| {
            of_account.push((currency.to_owned(), Held::default()));
            of_account.len() - 1
        });
        &mut of_account[known].1
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &str, &Held)> {
        self.places.iter().flat_map(|(account, place)| {
            self.held[*place].iter().map(|(currency, held)| (account.as_str(), currency.as_str(), held))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_kept_day_by_day_in_whatever_order_the_days_come() {
        let debit = |debits| Sums { debits, ..Sums::default() };
        let mut held = Held::default();
        for (day, amount) in [(5, 1), (7, 2), (5, 4), (0, 8), (7, 16)] {
            held.post(day, &debit(amount));
        }
        let mut days: Vec<_> = held.days().map(|(day, sums)| (day, sums.debits)).collect();
        days.sort_unstable();
        assert_eq!(days, [(0, 8), (5, 5), (7, 18)]);
        let mut other = Held::default();
        other.post(7, &debit(1));
        (held.first, other.first) = (Some(3), None);
        other.add(&held);
        assert_eq!((other.total().unwrap().debits, other.first), (32, Some(3)));
        (held, other.first) = (Held::default(), Some(3));
        held.first = Some(2);
        other.add(&held);
        assert_eq!((other.total().unwrap().debits, other.first), (32, Some(2)));
        other.post(7, &debit(i64::MAX));
        assert!(other.overflowed);
    }
}
