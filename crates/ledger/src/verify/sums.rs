//! Balances and totals by day against what the lines add up to.

use std::collections::{BTreeMap, BTreeSet};

use jiff::civil::Date;

use super::Problem;
use super::tally::{Held, Key, Tally};
use crate::books::{Balance, Sums};
use crate::chain;

/// Names every balance, and every day of every account, that is not what its lines add up to.
pub(super) fn compare(tally: &Tally, kept: &[Balance], days: &[(Date, Balance)]) -> Vec<Problem> {
    let key = |balance: &Balance| (balance.account.to_string(), balance.currency.to_string());
    let kept: BTreeMap<Key, Sums> = kept.iter().map(|balance| (key(balance), balance.sums)).collect();
    let mut kept_days: BTreeMap<Key, BTreeMap<i32, Sums>> = BTreeMap::new();
    for (day, balance) in days {
        kept_days.entry(key(balance)).or_default().insert(chain::days(*day), balance.sums);
    }
    let of_lines: BTreeMap<Key, &Held> = tally
        .iter()
        .map(|(account, currency, held)| ((account.to_owned(), currency.to_owned()), held))
        .collect();
    let keys: BTreeSet<&Key> = kept.keys().chain(kept_days.keys()).chain(of_lines.keys()).collect();
    let (mut problems, nothing) = (Vec::new(), Held::default());
    for key in keys {
        let (account, currency) = key;
        let held = of_lines.get(key).copied().unwrap_or(&nothing);
        let Some(total) = held.total().filter(|_| !held.overflowed) else {
            let text = format!("the lines of {account} in {currency} add up to more than it can hold");
            problems.push(Problem::new("amount_differs", None, text));
            continue;
        };
        let mut differ = |what: &str, is: Sums, should: Sums| {
            if is != should {
                let text = format!(
                    "the {what} of {account} in {currency} is {is}; its lines add up to {should} (minor units)"
                );
                problems.push(Problem::new("balance_differs", None, text));
            }
        };
        differ("balance", kept.get(key).copied().unwrap_or_default(), total);
        let mut by_lines: BTreeMap<i32, Sums> = held.days().collect();
        for (day, is) in kept_days.get(key).into_iter().flatten() {
            differ(&named(*day), *is, by_lines.remove(day).unwrap_or_default());
        }
        for (day, should) in by_lines {
            differ(&named(day), Sums::default(), should);
        }
    }
    problems
}

fn named(day: i32) -> String {
    chain::day(day).map_or_else(|| format!("total of day {day}"), |day| format!("total of {day}"))
}
