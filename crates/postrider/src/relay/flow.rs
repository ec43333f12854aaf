//! What a relay has in hand, and what of it may go out now: no two events of one ordering key are in flight together.
//!
//! Why one at a time: if the second of two were confirmed and the first refused, no repair could put them in order again.
//! Pure: it is told what was claimed and what the broker said, and never waits.

use std::collections::{BTreeMap, HashMap, VecDeque};

use crate::envelope::OrderingKey;
use crate::store::OutboxRow;

/// From so many waiting rows on, no more of a key are claimed until most of them are gone: one hot key must not fill the
/// memory and shut out the others.
const CROWD: usize = 256;

/// Rows in hand, from their claim to their settlement.
#[derive(Default)]
pub(super) struct Flow {
    /// May go out now.
    ready: VecDeque<OutboxRow>,
    /// One entry for every key with a row that is ready or in flight: the rows behind it, in their order.
    queues: HashMap<OrderingKey, VecDeque<OutboxRow>>,
    /// Every position that is not settled yet, with its size.
    in_hand: HashMap<i64, usize>,
    bytes: usize,
    /// Keys whose head failed, until claims know it from the store: the last claim that may not.
    blocked: HashMap<OrderingKey, u64>,
    /// Keys of which no more is claimed for now, with the position after which some of them were left out.
    crowded: HashMap<OrderingKey, i64>,
    /// Rows with keys that were read ahead. An earlier one of their key may have been committed behind what was read by then, so
    /// they wait for a look that begins before it.
    unsure: BTreeMap<i64, OutboxRow>,
}

impl Flow {
    /// Takes the rows of claim number `claim`, but for those it has and those whose key was blocked meanwhile. All that can still
    /// appear is after `low`.
    pub(super) fn take(&mut self, claim: u64, low: i64, rows: Vec<OutboxRow>) {
        self.blocked.retain(|_, last| *last >= claim);
        for row in rows {
            let position = row.row.position;
            if !self.admit(&row) {
                continue;
            }
            let Some(key) = row.envelope.ordering_key.clone() else {
                self.ready.push_back(row);
                continue;
            };
            if let Some(queue) = self.queues.get_mut(&key) {
                let place = queue.partition_point(|other| other.row.position < position);
                queue.insert(place, row);
                if queue.len() >= CROWD {
                    self.forget_unsure(&key);
                    let after = low.min(position);
                    let last = self.crowded.entry(key).or_insert(after);
                    *last = after.max(*last);
                }
            } else {
                self.queues.insert(key, VecDeque::new());
                self.ready.push_back(row);
            }
        }
    }

    /// Takes rows that were read ahead: those with a key wait for [`Flow::take_sure`].
    pub(super) fn take_unsure(&mut self, claim: u64, low: i64, rows: Vec<OutboxRow>) {
        let (keyed, free): (Vec<_>, Vec<_>) =
            rows.into_iter().partition(|row| row.envelope.ordering_key.is_some());
        self.take(claim, low, free);
        for row in keyed {
            if self.admit(&row) {
                self.unsure.insert(row.row.position, row);
            }
        }
    }

    /// Takes the rows of a look that began at the low-water mark and saw everything up to `up_to`, and with them, in their places,
    /// those that waited for it.
    pub(super) fn take_sure(&mut self, claim: u64, low: i64, up_to: i64, mut rows: Vec<OutboxRow>) {
        let later = self.unsure.split_off(&up_to.saturating_add(1));
        let sure = std::mem::replace(&mut self.unsure, later);
        if !sure.is_empty() {
            for position in sure.keys() {
                self.forget(*position);
            }
            rows.extend(sure.into_values());
            rows.sort_by_key(|row| row.row.position);
        }
        self.take(claim, low, rows);
    }

    /// Takes it in hand, unless it is, or its key is blocked.
    fn admit(&mut self, row: &OutboxRow) -> bool {
        let position = row.row.position;
        let blocked = row.envelope.ordering_key.as_ref().is_some_and(|key| self.blocked.contains_key(key));
        if blocked || self.in_hand.contains_key(&position) {
            return false;
        }
        let size = row.envelope.payload.bytes().len();
        self.in_hand.insert(position, size);
        self.bytes += size;
        true
    }

    /// The rows that go out together now, so many at most.
    pub(super) fn next(&mut self, limit: usize) -> Vec<OutboxRow> {
        let count = self.ready.len().min(limit);
        self.ready.drain(..count).collect()
    }

    /// The row was confirmed, though not marked yet: the next of its key may go. Says after which position rows of the key
    /// were left out of claims, if no more need be.
    pub(super) fn confirmed(&mut self, row: &OutboxRow) -> Option<i64> {
        let key = row.envelope.ordering_key.as_ref()?;
        let queue = self.queues.get_mut(key)?;
        let next = queue.pop_front();
        let left = queue.len();
        match next {
            Some(next) => self.ready.push_back(next),
            None => {
                self.queues.remove(key);
            }
        }
        if left < CROWD / 4 { self.crowded.remove(key) } else { None }
    }

    /// The row failed by its own fault: what waits behind it is let go, until the store hands it out again.
    pub(super) fn failed(&mut self, row: &OutboxRow) {
        let Some(key) = row.envelope.ordering_key.clone() else { return };
        for behind in self.queues.remove(&key).unwrap_or_default() {
            self.forget(behind.row.position);
        }
        self.crowded.remove(&key);
        self.forget_unsure(&key);
        self.blocked.insert(key, u64::MAX);
    }

    /// Nobody knows what became of these: they go out again, before anything else.
    pub(super) fn unknown(&mut self, rows: Vec<OutboxRow>) {
        for row in rows.into_iter().rev() {
            self.ready.push_front(row);
        }
    }

    /// These were in flight and are let go.
    pub(super) fn drop_flying(&mut self, rows: Vec<OutboxRow>) {
        for row in rows {
            self.forget(row.row.position);
            if let Some(key) = &row.envelope.ordering_key {
                for behind in self.queues.remove(key).unwrap_or_default() {
                    self.forget(behind.row.position);
                }
                self.crowded.remove(key);
                self.forget_unsure(key);
            }
        }
    }

    /// The store has recorded what became of a row: `failed` is its key, if it failed, and `claim` the last claim that was asked
    /// for before. The mark of an earlier row of the key says nothing of the failure behind it, so it unblocks nobody.
    pub(super) fn settled(&mut self, position: i64, failed: Option<&OrderingKey>, claim: u64) {
        self.forget(position);
        if let Some(last) = failed.and_then(|key| self.blocked.get_mut(key)) {
            *last = claim;
        }
    }

    /// Lets go of what waits in slots that are lost. What is in flight stays until it is answered.
    pub(super) fn let_go(&mut self, lost: impl Fn(Option<i16>) -> bool) {
        let (gone, kept): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.ready).into_iter().partition(|row| lost(row.slot));
        self.ready = kept.into();
        for row in gone {
            self.forget(row.row.position);
            if let Some(key) = &row.envelope.ordering_key {
                self.crowded.remove(key);
                for behind in self.queues.remove(key).unwrap_or_default() {
                    self.forget(behind.row.position);
                }
            }
        }
        // Behind a head that is in flight.
        let mut forgotten = Vec::new();
        for (key, queue) in &mut self.queues {
            if queue.front().is_some_and(|row| lost(row.slot)) {
                forgotten.extend(queue.drain(..).map(|row| row.row.position));
                self.crowded.remove(key);
            }
        }
        forgotten.extend(self.unsure.extract_if(.., |_, row| lost(row.slot)).map(|(position, _)| position));
        for position in forgotten {
            self.forget(position);
        }
    }

    /// Rows that are not settled yet.
    pub(super) fn len(&self) -> usize {
        self.in_hand.len()
    }

    /// How many of them wait for a look from the low-water mark.
    pub(super) fn unsure(&self) -> usize {
        self.unsure.len()
    }

    /// The bytes of their payloads.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether something may go out now.
    pub(super) fn is_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// What a claim leaves out.
    pub(super) fn positions(&self) -> Vec<i64> {
        self.in_hand.keys().copied().collect()
    }

    /// Keys that a claim leaves out.
    pub(super) fn crowded(&self) -> Vec<OrderingKey> {
        self.crowded.keys().cloned().collect()
    }

    /// Whether claims leave this key out.
    pub(super) fn is_crowded(&self, key: &OrderingKey) -> bool {
        self.crowded.contains_key(key)
    }

    /// Whether the head of this key failed, and the store may not know it yet.
    pub(super) fn is_blocked(&self, key: &OrderingKey) -> bool {
        self.blocked.contains_key(key)
    }

    fn forget_unsure(&mut self, key: &OrderingKey) {
        let of_key = |_: &i64, row: &mut OutboxRow| row.envelope.ordering_key.as_ref() == Some(key);
        let gone: Vec<_> = self.unsure.extract_if(.., of_key).map(|(position, _)| position).collect();
        for position in gone {
            self.forget(position);
        }
    }

    fn forget(&mut self, position: i64) {
        if let Some(size) = self.in_hand.remove(&position) {
            self.bytes -= size;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::relay::tests::{keyed, row};

    fn positions(rows: &[OutboxRow]) -> Vec<i64> {
        rows.iter().map(|row| row.row.position).collect()
    }

    fn flow(rows: Vec<OutboxRow>) -> Flow {
        let mut flow = Flow::default();
        flow.take(1, i64::MAX, rows);
        flow
    }

    #[test]
    fn one_of_each_key_at_a_time_and_the_free_ones_at_once() {
        let mut flow = flow(vec![keyed(1, "a"), row(2), keyed(3, "a"), keyed(4, "b"), row(5)]);
        let first = flow.next(10);
        assert_eq!(positions(&first), [1, 2, 4, 5]);
        assert!(flow.next(10).is_empty());
        flow.confirmed(&first[0]);
        assert_eq!(positions(&flow.next(10)), [3]);
        assert_eq!(flow.len(), 5, "in hand until they are settled");
    }

    #[test]
    fn a_failed_row_holds_back_its_key_alone_until_claims_know_it() {
        let mut flow = flow(vec![keyed(1, "a"), keyed(2, "a"), keyed(3, "b"), keyed(4, "b")]);
        let first = flow.next(10);
        flow.failed(&first[0]);
        flow.confirmed(&first[1]);
        assert_eq!(positions(&flow.next(10)), [4]);
        // A claim that was asked before the failure was recorded still has the rows behind it.
        flow.settled(1, first[0].envelope.ordering_key.as_ref(), 2);
        flow.take(2, i64::MAX, vec![keyed(2, "a")]);
        assert!(flow.next(10).is_empty());
        // One that was asked later has only what may go: the head itself, when its time has come.
        flow.take(3, i64::MAX, vec![keyed(1, "a")]);
        assert_eq!(positions(&flow.next(10)), [1]);
    }

    #[test]
    fn the_mark_of_an_earlier_row_does_not_unblock_a_key() {
        let mut flow = flow(vec![keyed(1, "a"), keyed(2, "a"), keyed(3, "a")]);
        let first = flow.next(10);
        flow.confirmed(&first[0]);
        let second = flow.next(10);
        flow.failed(&second[0]);
        // Only the first is marked, so the store does not know yet that the second failed.
        flow.settled(1, None, 1);
        flow.take(2, i64::MAX, vec![keyed(3, "a")]);
        assert!(flow.next(10).is_empty());
    }

    #[test]
    fn what_is_in_hand_is_not_taken_twice() {
        let mut flow = flow(vec![keyed(1, "a"), row(2)]);
        flow.take(2, i64::MAX, vec![keyed(1, "a"), row(2), row(3)]);
        assert_eq!(positions(&flow.next(10)), [1, 2, 3]);
    }

    #[test]
    fn what_nobody_knows_goes_again_first() {
        let mut flow = flow(vec![row(1), row(2), row(3)]);
        let sent = flow.next(2);
        flow.unknown(sent);
        assert_eq!(positions(&flow.next(10)), [1, 2, 3]);
    }

    #[test]
    fn a_row_that_comes_late_goes_in_its_place() {
        let mut flow = flow(vec![keyed(1, "a"), keyed(5, "a")]);
        flow.take(2, i64::MAX, vec![keyed(3, "a")]);
        let mut order = Vec::new();
        while let Some(row) = flow.next(1).pop() {
            order.push(row.row.position);
            flow.confirmed(&row);
        }
        assert_eq!(order, [1, 3, 5]);
    }

    #[test]
    fn a_row_that_was_read_ahead_waits_for_one_that_was_committed_behind_it() {
        let mut flow = flow(vec![keyed(1, "a"), row(9)]);
        let sent = flow.next(10);
        flow.confirmed(&sent[0]);
        flow.take_unsure(2, 5, vec![keyed(12, "a"), row(13)]);
        assert_eq!(positions(&flow.next(10)), [13]);
        // The look saw what was committed behind, and not yet as far as the row that waits.
        flow.take_sure(3, 5, 8, vec![keyed(8, "a")]);
        let first = flow.next(10);
        assert_eq!(positions(&first), [8]);
        flow.take_sure(4, 8, i64::MAX, Vec::new());
        assert!(flow.next(10).is_empty());
        flow.confirmed(&first[0]);
        assert_eq!(positions(&flow.next(10)), [12]);
    }

    #[test]
    fn a_row_that_was_read_ahead_goes_with_the_head_that_failed() {
        let mut flow = flow(vec![keyed(1, "a")]);
        let first = flow.next(1);
        flow.take_unsure(2, 0, vec![keyed(2, "a"), keyed(3, "b")]);
        flow.failed(&first[0]);
        flow.take_sure(3, 0, i64::MAX, Vec::new());
        assert_eq!(positions(&flow.next(10)), [3]);
    }

    #[test]
    fn what_a_crowded_key_left_out_is_read_again_from_where_it_could_still_appear() {
        let rows: Vec<_> = (1..=300).map(|position| keyed(position, "hot")).collect();
        let mut flow = Flow::default();
        flow.take(1, 17, rows);
        let again =
            std::iter::from_fn(|| flow.next(1).pop().map(|row| flow.confirmed(&row))).flatten().next();
        assert_eq!(again, Some(17));
    }

    #[test]
    fn a_crowded_key_is_left_out_of_claims_until_most_of_it_is_gone() {
        let rows: Vec<_> = (1..=300).map(|position| keyed(position, "hot")).collect();
        let mut flow = flow(rows);
        assert_eq!(flow.crowded().len(), 1);
        let mut again = None;
        let mut sent = 0;
        while again.is_none() {
            let row = flow.next(1).pop().unwrap();
            sent += 1;
            again = flow.confirmed(&row);
        }
        assert_eq!(again, Some(300), "claims go on after the last one in hand");
        assert!((230..=240).contains(&sent), "{sent}");
        assert!(flow.crowded().is_empty());
    }

    #[test]
    fn rows_of_lost_slots_are_let_go_unless_they_are_in_flight() {
        let mut flow = flow(vec![keyed(1, "a"), keyed(2, "a"), row(3)]);
        let flying = flow.next(1);
        flow.let_go(|_| true);
        assert_eq!(flow.len(), 1);
        assert!(!flow.is_ready());
        // It comes back to us: the head in flight is not doubled, and its followers wait for it.
        flow.take(2, i64::MAX, vec![keyed(1, "a"), keyed(2, "a")]);
        assert!(flow.next(10).is_empty());
        flow.confirmed(&flying[0]);
        assert_eq!(positions(&flow.next(10)), [2]);
    }
}
