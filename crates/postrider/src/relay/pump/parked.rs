//! Keys that were seen behind a failed or dead head. What waits behind one is passed by claims, and the low-water mark rises over it. A head that
//! the relay itself gets out of the way has the rest read from there on; one that somebody else takes away (changed by hand, deleted) has
//! nobody say so. Then the next new event of the key would overtake all that waited. So a row of such a key is taken only from a claim that
//! began at the beginning.

use std::collections::HashSet;
use std::time::Duration;

use super::{Pump, Step};
use crate::envelope::OrderingKey;
use crate::store::{Outbox, OutboxRow, StoreError, Wanted};

/// How often to look which keys are failing that others parked.
const LOOK: Duration = Duration::from_mins(1);
/// So many keys are remembered. Of others what waits is found within a minute, as all that nobody told of.
const MOST: usize = 100_000;

/// Which keys they are, as far as this relay knows.
#[derive(Default)]
pub(super) struct Parked {
    keys: HashSet<OrderingKey>,
    looked_at: Option<Duration>,
    /// The claim under way began at the first position, so it passes nothing.
    from_start: bool,
}

impl Parked {
    pub(super) fn add(&mut self, key: OrderingKey) {
        if self.keys.len() < MOST {
            self.keys.insert(key);
        }
    }

    pub(super) fn remove(&mut self, key: &OrderingKey) {
        self.keys.remove(key);
    }

    /// A claim for these goes out.
    pub(super) fn asked(&mut self, wanted: &Wanted) {
        self.from_start = !matches!(wanted, Wanted::New { after, since } if *after > 0 || since.is_some());
    }

    /// Slots came: with them keys that another relay parked. Everything is read from the beginning, so what was known is of no use any more.
    pub(super) fn look_again(&mut self) {
        self.keys.clear();
        self.looked_at = None;
    }

    /// Takes out rows that would overtake others of their keys, and says whether there were any. What is `known` to be out of the way, and not
    /// recorded yet, is nobody else's doing.
    fn take_out(&mut self, rows: &mut Vec<OutboxRow>, known: impl Fn(&OrderingKey) -> bool) -> bool {
        if self.keys.is_empty() {
            return false;
        }
        let mut freed = HashSet::new();
        for key in rows.iter().filter_map(|row| row.envelope.ordering_key.as_ref()) {
            if self.keys.contains(key) && !known(key) {
                freed.insert(key.clone());
            }
        }
        // Behind a full queue there may be very many, and nobody goes through them.
        for key in &freed {
            self.keys.remove(key);
        }
        if self.from_start || freed.is_empty() {
            return false;
        }
        rows.retain(|row| row.envelope.ordering_key.as_ref().is_none_or(|key| !freed.contains(key)));
        true
    }
}

impl<S: Outbox> Pump<S> {
    /// Looks now and then which keys others have parked, or the relay before this one. Who streams does so himself.
    pub(super) fn look_at_parked(&mut self) {
        let now = self.now();
        let due = self.parked.looked_at.is_none_or(|at| now >= at + LOOK);
        if !due || self.is_joined() || !self.is_leased() || self.pause.is_on() {
            return;
        }
        self.parked.looked_at = Some(now);
        let store = self.relay.store.clone();
        self.start(async move { Step::Parked(store.failing_keys().await) });
    }

    pub(super) fn seen_parked(&mut self, keys: Result<Vec<OrderingKey>, StoreError>) {
        // Without an answer, the next look finds them.
        for key in keys.unwrap_or_default() {
            self.parked.add(key);
        }
    }

    /// Rows of a claim that have to wait for others of their keys, which are read from the beginning now.
    pub(super) fn take_out_parked(&mut self, rows: &mut Vec<OutboxRow>) {
        let (flow, claim) = (&self.flow, self.claims);
        if self.parked.take_out(rows, |key| flow.is_blocked_for(key, claim)) {
            self.reading.start_over();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::relay::tests::{keyed, row};

    fn key(aggregate: &str) -> OrderingKey {
        keyed(1, aggregate).envelope.ordering_key.unwrap()
    }

    fn positions(rows: &[OutboxRow]) -> Vec<i64> {
        rows.iter().map(|row| row.row.position).collect()
    }

    #[test]
    fn a_key_that_somebody_else_freed_is_read_from_the_beginning_first() {
        let mut parked = Parked::default();
        parked.add(key("a"));
        parked.asked(&Wanted::New { after: 50, since: None });
        let mut rows = vec![keyed(51, "a"), row(52), keyed(53, "b"), keyed(54, "a")];
        assert!(parked.take_out(&mut rows, |_| false));
        assert_eq!(positions(&rows), [52, 53], "the others wait for nobody");
        // All positions of the youngest partitions are not all positions.
        parked.add(key("a"));
        parked.asked(&Wanted::New { after: 0, since: Some(jiff::Timestamp::UNIX_EPOCH) });
        assert!(parked.take_out(&mut vec![keyed(51, "a")], |_| false));
        parked.asked(&Wanted::New { after: 0, since: None });
        let mut rows = vec![keyed(7, "a"), keyed(51, "a")];
        assert!(!parked.take_out(&mut rows, |_| false));
        assert_eq!(positions(&rows), [7, 51]);
    }

    #[test]
    fn a_claim_from_the_beginning_passes_nothing() {
        let mut parked = Parked::default();
        parked.add(key("a"));
        parked.asked(&Wanted::New { after: 0, since: None });
        let mut rows = vec![keyed(7, "a")];
        assert!(!parked.take_out(&mut rows, |_| false));
        parked.asked(&Wanted::New { after: 7, since: None });
        let mut rows = vec![keyed(8, "a")];
        assert!(!parked.take_out(&mut rows, |_| false), "it is parked no more");
    }

    #[test]
    fn what_this_relay_got_out_of_the_way_needs_no_look() {
        let mut parked = Parked::default();
        parked.add(key("a"));
        parked.asked(&Wanted::New { after: 50, since: None });
        let mut rows = vec![keyed(51, "a")];
        assert!(!parked.take_out(&mut rows, |_| true), "its mark is on the way");
        parked.remove(&key("a"));
        assert!(!parked.take_out(&mut rows, |_| false));
        assert_eq!(positions(&rows), [51]);
    }
}
