//! What lines add up to.

use std::collections::HashMap;

use crate::books::Sums;

/// An account and a currency, as lines name them.
pub(super) type Key = (String, String);

/// Sums by account and currency. Asking for those of an account that is known allocates nothing.
#[derive(Default)]
pub(super) struct Tally {
    places: HashMap<String, usize>,
    /// Of each account, one for every currency it has lines in.
    sums: Vec<Vec<(String, Sums)>>,
}

impl Tally {
    pub(super) fn of(&mut self, account: &str, currency: &str) -> &mut Sums {
        let place = self.places.get(account).copied().unwrap_or_else(|| {
            self.places.insert(account.to_owned(), self.sums.len());
            self.sums.push(Vec::with_capacity(1));
            self.sums.len() - 1
        });
        let of_account = &mut self.sums[place];
        let known = of_account.iter().position(|(known, _)| known == currency).unwrap_or_else(|| {
            of_account.push((currency.to_owned(), Sums::default()));
            of_account.len() - 1
        });
        &mut of_account[known].1
    }

    pub(super) fn get(&self, (account, currency): &Key) -> Option<&Sums> {
        let of_account = self.sums.get(*self.places.get(account)?)?;
        of_account.iter().find(|(known, _)| known == currency).map(|(_, sums)| sums)
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = Key> {
        self.places.iter().flat_map(|(account, place)| {
            self.sums[*place].iter().map(|(currency, _)| (account.clone(), currency.clone()))
        })
    }
}

impl IntoIterator for Tally {
    type Item = (Key, Sums);
    type IntoIter = std::vec::IntoIter<Self::Item>;

    fn into_iter(mut self) -> Self::IntoIter {
        let mut all = Vec::with_capacity(self.sums.len());
        for (account, place) in self.places {
            for (currency, sums) in std::mem::take(&mut self.sums[place]) {
                all.push(((account.clone(), currency), sums));
            }
        }
        all.into_iter()
    }
}
