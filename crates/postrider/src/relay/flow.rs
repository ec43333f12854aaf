//! What a relay has in hand, and what of it may go out now: no two events of one ordering key are in flight together.
//!
//! Why one at a time: if the second of two were confirmed and the first refused, no repair could put them in order again.
//! Pure: it is told what was claimed and what the broker said, and never waits.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use crate::envelope::OrderingKey;
use crate::store::OutboxRow;

/// From so many waiting rows on, and at the latest from as many as four batches, no more of a key are claimed until most of
/// them are gone: one hot key must not fill the memory and shut out the others.
const CROWD: usize = 256;

/// Rows in hand, from their claim to their settlement.
pub(super) struct Flow {
    crowd: usize,
    /// May go out now.
    ready: VecDeque<OutboxRow>,
    /// One entry for every key with a row that is ready or in flight: the rows behind it, in their order.
    queues: HashMap<OrderingKey, VecDeque<OutboxRow>>,
    /// Every position that is not settled yet, with its size.
    in_hand: HashMap<i64, usize>,
    bytes: usize,
    /// Keys whose head failed or recovered, until claims know it from the store: the last claim that may not.
    blocked: HashMap<OrderingKey, u64>,
    /// Keys of which no more is claimed for now, with the position after which some of them were left out.
    crowded: HashMap<OrderingKey, i64>,
    /// Rows with keys that were read ahead. An earlier one of their key may have been committed behind what was read by then, so
    /// they wait for a look that begins before it.
    unsure: BTreeMap<i64, OutboxRow>,
}

impl Flow {
    /// Nothing in hand yet, of a relay with batches of this size.
    pub(super) fn new(batch: usize) -> Self {
        Self {
            crowd: batch.saturating_mul(4).clamp(4, CROWD),
            ready: VecDeque::new(),
            queues: HashMap::new(),
            in_hand: HashMap::new(),
            bytes: 0,
            blocked: HashMap::new(),
            crowded: HashMap::new(),
            unsure: BTreeMap::new(),
        }
    }

    /// Takes the rows of claim number `claim`, but for those it has and those whose key was blocked meanwhile. All that can still
    /// appear is after `low`.
    pub(super) fn take(&mut self, claim: u64, low: i64, rows: Vec<OutboxRow>) {
        self.blocked.retain(|_, last| *last >= claim);
        self.put(low, rows, |queue, position| queue.partition_point(|other| other.row.position < position));
    }

    /// Takes the rows of a stream, which are in the order of their commits. Who drew his position first and committed last, because he
    /// waited for the other, comes last.
    pub(super) fn take_streamed(&mut self, low: i64, rows: Vec<OutboxRow>) {
        self.put(low, rows, |queue, _| queue.len());
    }

    fn put(&mut self, low: i64, rows: Vec<OutboxRow>, place: impl Fn(&VecDeque<OutboxRow>, i64) -> usize) {
        let mut crowded: HashMap<OrderingKey, i64> = HashMap::new();
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
                let at = place(queue, position);
                queue.insert(at, row);
                if queue.len() >= self.crowd {
                    let after = low.min(position);
                    let last = crowded.entry(key).or_insert(after);
                    *last = after.max(*last);
                }
            } else {
                self.queues.insert(key, VecDeque::new());
                self.ready.push_back(row);
            }
        }
        for (key, after) in crowded {
            // Where it was crowded before, claims left it out since then, and the low-water mark passed rows of it.
            if !self.crowded.contains_key(&key) {
                self.forget_unsure(&key);
                self.crowded.insert(key, after);
            }
        }
    }

    /// Takes rows that were read ahead: those with a key wait for [`Flow::take_sure`]. A crowded key's are left where they are,
    /// because the next look leaves the key out and says nothing of it.
    pub(super) fn take_unsure(&mut self, claim: u64, low: i64, rows: Vec<OutboxRow>) {
        let (keyed, free): (Vec<_>, Vec<_>) =
            rows.into_iter().partition(|row| row.envelope.ordering_key.is_some());
        self.take(claim, low, free);
        for row in keyed {
            let crowded = row.envelope.ordering_key.as_ref().is_some_and(|key| self.is_crowded(key));
            if !crowded && self.admit(&row) {
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
        if left < self.crowd / 4 { self.crowded.remove(key) } else { None }
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

    /// A row that had failed before was confirmed. The store hands out what waits behind it as soon as its mark is recorded, and to a
    /// claim that began after the first of these: so no claim is believed that was asked for before that is known.
    pub(super) fn recovered(&mut self, row: &OutboxRow) {
        if let Some(key) = row.envelope.ordering_key.clone() {
            self.forget_unsure(&key);
            self.blocked.insert(key, u64::MAX);
        }
    }

    /// Nobody knows what became of these: they go out again, before anything else.
    pub(super) fn unknown(&mut self, rows: Vec<OutboxRow>) {
        for row in rows.into_iter().rev() {
            self.ready.push_front(row);
        }
    }

    /// These were in flight and are let go; `claim` is the last that was asked for.
    pub(super) fn drop_flying(&mut self, rows: Vec<OutboxRow>, claim: u64) {
        for row in rows {
            self.forget(row.row.position);
            if let Some(key) = &row.envelope.ordering_key {
                for behind in self.queues.remove(key).unwrap_or_default() {
                    self.forget(behind.row.position);
                }
                self.crowded.remove(key);
                self.forget_unsure(key);
                self.let_go_of(key, row.slot, claim);
            }
        }
    }

    /// The store has recorded what became of a row: `blocked` is its key, if it failed or had failed before, and `claim` the last
    /// claim that was asked for before. The mark of another row of the key says nothing of that one, so it unblocks nobody.
    pub(super) fn settled(&mut self, position: i64, blocked: Option<&OrderingKey>, claim: u64) {
        self.forget(position);
        if let Some(last) = blocked.and_then(|key| self.blocked.get_mut(key)) {
            *last = claim;
        }
    }

    /// Lets go of what waits in slots that are lost, and of what a stream brought, of which nobody knows the slot. What is in flight
    /// stays until it is answered. `claim` is the last that was asked for.
    pub(super) fn let_go(&mut self, lost: &HashSet<i16>, claim: u64) {
        let lost = |slot: Option<i16>| slot.is_none_or(|slot| lost.contains(&slot));
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
                self.let_go_of(key, row.slot, claim);
            }
        }
        // Behind a head that is in flight.
        let (mut forgotten, mut let_go) = (Vec::new(), Vec::new());
        for (key, queue) in &mut self.queues {
            if let Some(first) = queue.front().filter(|row| lost(row.slot)) {
                let_go.push((key.clone(), first.slot));
                forgotten.extend(queue.drain(..).map(|row| row.row.position));
                self.crowded.remove(key);
            }
        }
        for (key, slot) in let_go {
            self.let_go_of(&key, slot, claim);
        }
        forgotten.extend(self.unsure.extract_if(.., |_, row| lost(row.slot)).map(|(position, _)| position));
        for position in forgotten {
            self.forget(position);
        }
    }

    /// Rows of a key were let go. Where nobody knows its slot it may be ours still, and the claim under way left them out because they
    /// were in hand: what follows them is only taken from a later one.
    fn let_go_of(&mut self, key: &OrderingKey, slot: Option<i16>, claim: u64) {
        if slot.is_none() {
            let last = self.blocked.entry(key.clone()).or_insert(claim);
            *last = claim.max(*last);
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

    /// Whether nothing of this key is taken from the claim of this number: the store may not have known of its head when it answered.
    pub(super) fn is_blocked_for(&self, key: &OrderingKey, claim: u64) -> bool {
        self.blocked.get(key).is_some_and(|last| *last >= claim)
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
mod tests;
