//! What leaves a queue without a consumer's word: what is due, and what is too much. Pure, as the queue itself.
//!
//! As on RabbitMQ, what is delivered and unsettled does not count towards a queue's limits, and consumers are handed what they
//! may have first.

use super::{EXPIRING, Entry, Load, QueueState, SETTLING, Settling, Taken, is_due};
use crate::topology::Overflow;

/// Who would have to wait for so much longer than his queue lets anybody, in microseconds, came before the clock was set back.
const SET_BACK: i64 = 1_000_000;

impl QueueState {
    /// Times to come are times of day, because a file outlives the process. When the clock is set back by an hour, nobody waits for an
    /// hour more: the wait begins anew. Nor does anybody leave before his time, which without a dead-letter target would be his end.
    fn wait_anew(&mut self, now: i64) {
        let Some(ttl) = self.settings.message_ttl else { return };
        let latest = now.saturating_add(i64::try_from(ttl.as_micros()).unwrap_or(i64::MAX));
        // Who came before stands before who came after.
        for entry in self.ready.values_mut() {
            match &mut entry.expires_at {
                Some(at) if at.saturating_sub(latest) > SET_BACK => *at = latest,
                _ => return,
            }
        }
    }

    /// Takes what is due, in order, at most `max` of them.
    pub(in crate::embedded) fn take_due(&mut self, now: i64, max: usize) -> Vec<Entry> {
        self.wait_anew(now);
        let due: Vec<_> = self
            .ready
            .values()
            .take_while(|entry| is_due(entry, now))
            .take(max)
            .map(|entry| entry.seq)
            .collect();
        self.take_leaving(due)
    }

    fn take_leaving(&mut self, seqs: Vec<i64>) -> Vec<Entry> {
        let mut taken = Vec::with_capacity(seqs.len());
        for seq in seqs {
            if let Some(entry) = self.take_ready(seq) {
                taken.push(entry.clone());
                self.taken.insert(seq, Taken { owner: EXPIRING, entry });
            }
        }
        taken
    }

    /// What leaves without a consumer's word goes to the dead letters, or is gone where there is no target.
    pub(in crate::embedded) fn leaving(&self, entries: Vec<Entry>) -> Settling {
        match self.settings.effective_dead_letter() {
            Some(_) => Settling { done: Vec::new(), rejected: entries },
            None => Settling { done: entries, rejected: Vec::new() },
        }
    }

    /// When the first message is due, as far as the window shows.
    pub(in crate::embedded) fn next_due(&self) -> Option<i64> {
        self.settings.message_ttl?;
        self.ready.values().next().and_then(|entry| entry.expires_at)
    }

    /// Whether something is on its way out of it: settled, due or too much, and not where it goes yet.
    pub(in crate::embedded) fn is_moving(&self) -> bool {
        self.taken.values().any(|taken| [EXPIRING, SETTLING].contains(&taken.owner))
    }

    /// Whether it would refuse one more message, beside those that are on their way to it.
    pub(in crate::embedded) fn refuses(&self, on_their_way: Load) -> bool {
        let load = self.ready_load().with(on_their_way);
        let full = |most: Option<u64>, has: u64| most.is_some_and(|most| has >= most);
        let is_full = full(self.settings.max_length(), load.messages)
            || full(self.settings.max_length_bytes(), load.bytes);
        is_full && self.settings.overflow() == Overflow::RejectPublish
    }

    /// Whether messages have to be pushed out now; whoever asks must do it.
    pub(in crate::embedded) fn start_pushing_out(&mut self) -> bool {
        let start = !self.pushing_out && !self.ready.is_empty() && self.has_too_much(self.ready_load());
        self.pushing_out |= start;
        start
    }

    /// Takes the oldest of what is too much, at most `max` of them. With nothing to take, pushing out is over.
    pub(in crate::embedded) fn take_surplus(&mut self, max: usize) -> Option<Settling> {
        let mut load = self.ready_load();
        let mut oldest = Vec::new();
        for entry in self.ready.values().take(max) {
            if !self.has_too_much(load) {
                break;
            }
            load.take(&entry.content);
            oldest.push(entry.seq);
        }
        self.pushing_out = !oldest.is_empty();
        self.pushing_out.then(|| {
            let taken = self.take_leaving(oldest);
            self.leaving(taken)
        })
    }

    /// Whether so much is more than may be ready. A queue that refuses may have got more from elsewhere (dead letters are never
    /// refused), and keeps them.
    fn has_too_much(&self, load: Load) -> bool {
        let over = |most: Option<u64>, has: u64| most.is_some_and(|most| has > most);
        let is_over = over(self.settings.max_length(), load.messages)
            || over(self.settings.max_length_bytes(), load.bytes);
        is_over && self.settings.overflow() == Overflow::DropHead
    }

    /// How much waits to be delivered, here and in the tables.
    fn ready_load(&self) -> Load {
        self.unread.with(self.ready_load)
    }
}
