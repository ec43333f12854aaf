//! One consumer's account, drawn up again and again: whether it holds, something is missing, or something moves.
//!
//! A draw looks at one place after the other, so an event that moves meanwhile may be in none of them. One that is lost is in none of
//! them each time, and nothing about the account changes; where anything changes, nobody can tell the two apart.

use std::time::Duration;

use postrider::audit::Account;

/// An account that stays the same for so long, and does not hold, does not hold: RabbitMQ's statistics, which tell what is with
/// consumers, are late by less.
const PATIENCE: Duration = Duration::from_secs(12);
/// One that changed meanwhile is given as long once more, and no longer.
const AT_MOST: Duration = Duration::from_secs(24);

/// What the draws came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Finding {
    /// Everything was found in one draw.
    Holds,
    /// The same events were missing in every draw.
    Missing,
    /// Something was missing in every draw, and not the same.
    Moving {
        /// In every draw at least so many.
        at_least: u64,
    },
}

/// The draws of one consumer's account.
#[derive(Debug)]
pub(super) struct Watch {
    last: Account,
    /// Since when every draw was like the last.
    same_since: Duration,
    /// When the last was drawn up.
    at: Duration,
    /// The least that was missing in any draw.
    least: u64,
}

impl Watch {
    /// The first draw, so long after the beginning.
    pub(super) fn new(account: Account, at: Duration) -> Self {
        Self { least: account.unaccounted, last: account, same_since: at, at }
    }

    /// One more draw.
    pub(super) fn again(&mut self, account: Account, at: Duration) {
        if account != self.last {
            self.same_since = at;
        }
        self.least = self.least.min(account.unaccounted);
        (self.last, self.at) = (account, at);
    }

    /// What is known by now; nothing while another draw may tell more.
    pub(super) fn finding(&self, now: Duration) -> Option<Finding> {
        if self.last.holds() {
            Some(Finding::Holds)
        } else if self.at.saturating_sub(self.same_since) >= PATIENCE {
            Some(Finding::Missing)
        } else if now >= AT_MOST {
            Some(Finding::Moving { at_least: self.least })
        } else {
            None
        }
    }

    /// The last draw.
    pub(super) fn into_account(self) -> Account {
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use postrider::EventId;

    /// Ten events were committed; these were found nowhere.
    fn missing(ids: &[&str], waiting: u64) -> Account {
        let unaccounted = ids.len() as u64;
        Account {
            name: "billing".to_owned(),
            committed: 10,
            applied: 10 - waiting - unaccounted,
            waiting,
            dead: 0,
            unaccounted,
            unaccounted_ids: ids.iter().map(|id| EventId::new(*id).unwrap()).collect(),
        }
    }

    /// Draws four times a second, until something is found.
    fn found(draw: impl Fn(u64) -> Account) -> (Finding, u64) {
        let at = |number: u64| Duration::from_millis(250 * number);
        let mut watch = Watch::new(draw(0), at(0));
        for number in 1..1000 {
            if let Some(finding) = watch.finding(at(number)) {
                return (finding, number);
            }
            watch.again(draw(number), at(number));
        }
        panic!("nothing was found");
    }

    #[test]
    fn what_was_found_once_holds_whatever_moves_later() {
        let draws = |number| if number == 3 { missing(&[], 4) } else { missing(&["a"], 3) };
        assert_eq!(found(draws).0, Finding::Holds);
    }

    #[test]
    fn the_same_events_are_missing_all_the_while() {
        let (finding, draws) = found(|_| missing(&["a", "b"], 1));
        assert_eq!(finding, Finding::Missing);
        assert!(draws <= 50, "it took {draws} draws");
        // Late statistics at the beginning only make it take longer.
        let late = |number: u64| if number < 8 { missing(&["a"], 2) } else { missing(&["a", "b"], 1) };
        assert_eq!(found(late).0, Finding::Missing);
    }

    #[test]
    fn what_moves_is_not_called_lost() {
        let cycling = |number: u64| match number % 3 {
            0 => missing(&["a", "b"], 5),
            1 => missing(&["b"], 6),
            _ => missing(&["a", "c"], 5),
        };
        assert_eq!(found(cycling).0, Finding::Moving { at_least: 1 });
        // As many each time, and not the same ones: a consumer has one in hand, and nobody tells of it.
        let in_hand =
            |number: u64| if number.is_multiple_of(2) { missing(&["a"], 1) } else { missing(&["b"], 1) };
        assert_eq!(found(in_hand).0, Finding::Moving { at_least: 1 });
    }
}
