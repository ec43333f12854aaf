//! Who publishes what while a stream is open: the stream, or the poller beside it. Never both, and nothing neither.
//!
//! Rows up to a position are the poller's: all of them were drawn before that position was looked at, after the stream began.
//! Later rows come by the stream, but for keys that the poller is left with: those behind a failed row, and those of which too
//! many wait. Such a key comes back when a claim has found everything that was let go. A claim may be ahead of the stream; so
//! what claims bring is remembered until the stream has passed the point at which they were asked.
//!
//! Pure: it is told what was claimed and what the stream said.

use std::collections::{HashMap, HashSet, VecDeque};

use crate::envelope::OrderingKey;
use crate::store::{LogPosition, OutboxRow};

/// How the work is divided.
#[derive(Default)]
pub(super) struct Handover {
    /// Rows up to this position are the poller's.
    after: i64,
    /// Positions that claims brought and the stream may bring again.
    claimed: HashSet<i64>,
    /// Those of them of which it is not known yet until when.
    fresh: Vec<i64>,
    /// Once the stream has told of everything before a place in the log, it has told of these.
    until: VecDeque<(LogPosition, Vec<i64>)>,
    /// What the stream brought while a claim was under way, which may bring it too.
    meanwhile: Option<HashSet<i64>>,
    /// Keys that the poller publishes, because their heads failed or are dead. Behind a full queue there may be very many, and nobody goes
    /// through them.
    parked: HashSet<OrderingKey>,
    /// Keys of which what was let go has to be found, and whether something was let go since the last claim was asked for.
    draining: HashMap<OrderingKey, bool>,
}

impl Handover {
    /// Rows after this position come by the stream.
    pub(super) fn new(after: i64) -> Self {
        Self { after, ..Self::default() }
    }

    /// Whether a row that the stream brought is to be published. If not, the poller has it, or will.
    pub(super) fn admits(&mut self, row: &OutboxRow) -> bool {
        let position = row.row.position;
        if position <= self.after || self.claimed.remove(&position) {
            return false;
        }
        if let Some(key) = &row.envelope.ordering_key {
            if self.parked.contains(key) {
                return false;
            }
            if let Some(more) = self.draining.get_mut(key) {
                *more = true;
                return false;
            }
        }
        if let Some(meanwhile) = &mut self.meanwhile {
            meanwhile.insert(position);
        }
        true
    }

    /// The head of a key failed: the rest of it is the poller's until it is published.
    pub(super) fn park(&mut self, key: OrderingKey) {
        self.draining.remove(&key);
        self.parked.insert(key);
    }

    /// Keys whose heads failed before the stream began, or have a new state by now. Says whether some are freed by somebody else: what waited
    /// for them is anywhere in the outbox.
    pub(super) fn see_failing(
        &mut self,
        failing: Vec<OrderingKey>,
        in_doubt: impl Fn(&OrderingKey) -> bool,
    ) -> bool {
        let failing: HashSet<_> = failing.into_iter().collect();
        let freed: Vec<_> = self.parked.extract_if(|key| !failing.contains(key) && !in_doubt(key)).collect();
        let some = !freed.is_empty();
        self.draining.extend(freed.into_iter().map(|key| (key, true)));
        let draining = &self.draining;
        self.parked.extend(failing.into_iter().filter(|key| !draining.contains_key(key)));
        some
    }

    /// Nothing stands in the way of a key any more: what was let go of it is to be found.
    pub(super) fn drain(&mut self, key: OrderingKey) {
        self.parked.remove(&key);
        self.draining.insert(key, true);
    }

    /// Whether a claim has to look for what was let go, of keys that claims do not leave out.
    pub(super) fn wants_claim(&self, left_out: impl Fn(&OrderingKey) -> bool) -> bool {
        self.draining.iter().any(|(key, more)| *more && !left_out(key))
    }

    /// A claim for new rows is asked for.
    pub(super) fn asked(&mut self) {
        self.meanwhile = Some(HashSet::new());
        self.draining.values_mut().for_each(|more| *more = false);
    }

    /// A claim brought rows; what the stream was quicker with is taken out. `complete`: it found everything, but for the keys
    /// it left out.
    pub(super) fn answered(&mut self, rows: &mut Vec<OutboxRow>, complete: bool, without: &[OrderingKey]) {
        if let Some(meanwhile) = self.meanwhile.take() {
            rows.retain(|row| !meanwhile.contains(&row.row.position));
        }
        for row in rows.iter().filter(|row| row.row.position > self.after) {
            self.claimed.insert(row.row.position);
            self.fresh.push(row.row.position);
        }
        if complete {
            self.draining.retain(|key, more| *more || without.contains(key));
        } else {
            self.draining.values_mut().for_each(|more| *more = true);
        }
    }

    /// Positions of which it has to be found out how far the log went when they were claimed.
    pub(super) fn take_fresh(&mut self) -> Vec<i64> {
        std::mem::take(&mut self.fresh)
    }

    /// How far the log went at most; not known if the question was not answered.
    pub(super) fn dated(&mut self, positions: Vec<i64>, log: Option<LogPosition>) {
        match log {
            Some(log) => self.until.push_back((log, positions)),
            None => self.fresh.extend(positions),
        }
    }

    /// The stream has told of everything before this.
    pub(super) fn told_to(&mut self, log: LogPosition) {
        while let Some((until, _)) = self.until.front()
            && *until <= log
            && let Some((_, positions)) = self.until.pop_front()
        {
            for position in positions {
                self.claimed.remove(&position);
            }
        }
    }

    /// Whether there are such positions.
    pub(super) fn has_fresh(&self) -> bool {
        !self.fresh.is_empty()
    }

    /// Whether a key is left to the poller.
    pub(super) fn has_left(&self, key: &OrderingKey) -> bool {
        self.parked.contains(key) || self.draining.contains_key(key)
    }

    /// How much is remembered of claims.
    pub(super) fn remembered(&self) -> usize {
        self.claimed.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::relay::tests::{keyed, row};

    fn key(aggregate: &str) -> OrderingKey {
        keyed(1, aggregate).envelope.ordering_key.unwrap()
    }

    #[test]
    fn rows_after_the_point_are_the_streams_unless_a_claim_had_them() {
        let mut handover = Handover::new(10);
        handover.answered(&mut vec![row(9), row(12)], true, &[]);
        let admitted: Vec<_> = (9..=13).filter(|position| handover.admits(&row(*position))).collect();
        assert_eq!(admitted, [11, 13]);
    }

    #[test]
    fn what_the_stream_brought_while_a_claim_was_under_way_is_not_taken_from_the_claim() {
        let mut handover = Handover::new(0);
        handover.asked();
        assert!(handover.admits(&row(1)));
        let mut rows = vec![row(1), row(2)];
        handover.answered(&mut rows, true, &[]);
        assert_eq!(rows.iter().map(|row| row.row.position).collect::<Vec<_>>(), [2]);
        assert!(!handover.admits(&row(2)), "and the other way round");
    }

    #[test]
    fn what_claims_brought_is_forgotten_when_the_stream_has_passed_it() {
        let mut handover = Handover::new(10);
        handover.answered(&mut vec![row(11), row(12)], true, &[]);
        let fresh = handover.take_fresh();
        handover.dated(fresh, None);
        let fresh = handover.take_fresh();
        assert_eq!(fresh, [11, 12], "asked again when there was no answer");
        handover.dated(fresh, Some(LogPosition(500)));
        handover.told_to(LogPosition(499));
        assert_eq!(handover.remembered(), 2);
        handover.told_to(LogPosition(500));
        assert_eq!(handover.remembered(), 0);
    }

    #[test]
    fn a_parked_key_is_left_to_the_poller_until_all_that_was_let_go_is_found() {
        let mut handover = Handover::new(0);
        handover.park(key("a"));
        assert!(!handover.admits(&keyed(2, "a")));
        assert!(handover.admits(&keyed(3, "b")));
        assert!(!handover.wants_claim(|_| false), "nothing of it can be claimed");
        handover.drain(key("a"));
        assert!(handover.wants_claim(|_| false));
        // A row comes while the claim is under way: the claim may not have seen it.
        handover.asked();
        assert!(!handover.admits(&keyed(4, "a")));
        handover.answered(&mut vec![keyed(2, "a")], true, &[]);
        assert!(handover.wants_claim(|_| false));
        handover.asked();
        handover.answered(&mut vec![keyed(4, "a")], true, &[]);
        assert!(handover.admits(&keyed(5, "a")), "and back");
        assert!(!handover.wants_claim(|_| false));
    }

    #[test]
    fn a_claim_that_was_full_or_left_the_key_out_gives_nothing_back() {
        let mut handover = Handover::new(0);
        handover.drain(key("a"));
        handover.asked();
        handover.answered(&mut vec![row(2)], false, &[]);
        assert!(handover.wants_claim(|_| false));
        handover.asked();
        handover.answered(&mut vec![], true, &[key("a")]);
        assert!(!handover.admits(&keyed(3, "a")));
    }

    #[test]
    fn a_key_that_is_not_failing_any_more_is_drained() {
        let mut handover = Handover::new(0);
        handover.park(key("a"));
        handover.park(key("b"));
        assert!(handover.see_failing(vec![key("c")], |in_doubt| *in_doubt == key("b")));
        assert!(handover.wants_claim(|_| false));
        handover.asked();
        handover.answered(&mut vec![], true, &[]);
        assert!(handover.admits(&keyed(3, "a")));
        assert!(!handover.admits(&keyed(4, "b")));
        assert!(!handover.admits(&keyed(5, "c")));
    }
}
