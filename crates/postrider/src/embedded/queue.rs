//! One queue in memory: what is ready, who has what, and whose turn it is. Pure: no I/O, no clock.
//!
//! The tables are the authority on which messages the queue has. Here is only a window on its head, and which messages
//! are delivered and unsettled; a crash forgets that, and they are delivered again.

mod leaving;
mod load;

pub(super) use load::Load;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use tokio::sync::Notify;

use crate::broker::{Message, Verdict};
use crate::topology::{DeliveryLimit, ExchangeName, Queue, QueueKind, RoutingKey};

/// The window holds at most so many messages,
const WINDOW_LEN: usize = 4096;
/// and no more once it holds so many bytes.
const WINDOW_BYTES: usize = 8 << 20;
/// With fewer left, more are read.
const WINDOW_LOW: usize = 256;
/// The owner of what is being settled; subscriptions have other numbers.
const SETTLING: u64 = 0;
/// The owner of what is being expired or pushed out.
const EXPIRING: u64 = u64::MAX;

/// A message at its place in a queue.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    /// Its place; places are handed out in the order of commits.
    pub(super) seq: i64,
    /// Its row in the table of messages.
    pub(super) row: i64,
    /// Whether other places may lead to the same row.
    pub(super) shared: bool,
    /// In microseconds since 1970.
    pub(super) expires_at: Option<i64>,
    /// Whether it may have been delivered before.
    pub(super) redelivered: bool,
    /// How often it came back from consumers that were lost, on a quorum queue.
    pub(super) returned: u32,
    pub(super) content: Arc<Content>,
}

/// A message and how it came.
#[derive(Debug)]
pub(super) struct Content {
    pub(super) message: Message,
    pub(super) exchange: ExchangeName,
    pub(super) routing_key: RoutingKey,
}

/// One queue.
pub(super) struct QueueState {
    pub(super) settings: Queue,
    /// The place that was handed out last.
    pub(super) last: i64,
    /// Everything up to here was there when the file was opened, so it may have been delivered.
    pub(super) found: i64,
    /// The window: ready to be delivered, in order.
    ready: BTreeMap<i64, Entry>,
    ready_bytes: usize,
    /// What its limits are about, of the window.
    ready_load: Load,
    /// Delivered and unsettled, or being settled or expired.
    taken: HashMap<i64, Taken>,
    /// Those that nothing could be done with: no delivery, and their dead-letter target reaches no queue.
    pub(super) stranded: BTreeSet<i64>,
    /// Up to here every message of the queue is in the window, taken, stranded or gone.
    pub(super) read_to: i64,
    /// There may be more in the tables.
    pub(super) more: bool,
    /// Somebody is reading more.
    pub(super) reading: bool,
    /// How much more there is in the tables, as far as is known.
    pub(super) unread: Load,
    /// Everything up to here was counted in the tables, whether or not it was told yet.
    counted_to: i64,
    /// Somebody is pushing out what is too much.
    pushing_out: bool,
    consumers: Vec<Consumer>,
    /// Whose turn it is.
    turn: usize,
}

struct Taken {
    owner: u64,
    entry: Entry,
}

struct Consumer {
    number: u64,
    prefetch: usize,
    unsettled: usize,
    /// Delivered, and not yet fetched by `next`.
    arrived: VecDeque<i64>,
    wake: Arc<Notify>,
}

/// What a batch of verdicts asks of the tables.
#[derive(Default)]
pub(super) struct Settling {
    /// To be deleted.
    pub(super) done: Vec<Entry>,
    /// To be dead-lettered.
    pub(super) rejected: Vec<Entry>,
}

impl Settling {
    pub(super) fn is_empty(&self) -> bool {
        self.done.is_empty() && self.rejected.is_empty()
    }

    pub(super) fn seqs(&self) -> Vec<i64> {
        self.done.iter().chain(&self.rejected).map(|entry| entry.seq).collect()
    }
}

impl QueueState {
    /// A queue whose messages, up to the place `last`, are all in the tables.
    pub(super) fn new(settings: Queue, last: i64) -> Self {
        Self {
            settings,
            last,
            found: last,
            ready: BTreeMap::new(),
            ready_bytes: 0,
            ready_load: Load::default(),
            taken: HashMap::new(),
            stranded: BTreeSet::new(),
            read_to: 0,
            more: last > 0,
            reading: false,
            unread: Load::default(),
            counted_to: 0,
            pushing_out: false,
            consumers: Vec::new(),
            turn: 0,
        }
    }

    /// Whether somebody consumes it.
    pub(super) fn is_consumed(&self) -> bool {
        !self.consumers.is_empty()
    }

    /// Wakes everybody who waits for something of it, to find that it is gone.
    pub(super) fn wake_all(&self) {
        self.consumers.iter().for_each(|consumer| consumer.wake.notify_one());
    }

    /// Hands out what is ready to consumers that may have more, in turn.
    pub(super) fn deliver(&mut self, now: i64) {
        let mut from = i64::MIN;
        while let Some(turn) = self.next_in_turn() {
            let mut ready = self.ready.range(from..).map(|(_, entry)| entry);
            let Some(seq) = ready.find(|entry| !is_due(entry, now)).map(|entry| entry.seq) else { return };
            from = seq + 1;
            let Some(entry) = self.take_ready(seq) else { return };
            let consumer = &mut self.consumers[turn];
            consumer.unsettled += 1;
            consumer.arrived.push_back(seq);
            if consumer.arrived.len() == 1 {
                consumer.wake.notify_one();
            }
            self.taken.insert(seq, Taken { owner: consumer.number, entry });
            self.turn = turn + 1;
        }
    }

    fn next_in_turn(&self) -> Option<usize> {
        let may_have_more = |consumer: &Consumer| consumer.unsettled < consumer.prefetch;
        if self.settings.single_active_consumer {
            return self.consumers.first().filter(|active| may_have_more(active)).map(|_| 0);
        }
        let all = self.consumers.len();
        (0..all).map(|step| (self.turn + step) % all).find(|turn| may_have_more(&self.consumers[*turn]))
    }

    /// Whether more should be read from the tables now; whoever asks must do it.
    pub(super) fn start_reading(&mut self) -> bool {
        let start = self.wants_window() && self.more && !self.reading && self.has_room(WINDOW_LOW);
        if start {
            self.reading = true;
            self.more = false;
        }
        start
    }

    /// Nobody looks at the window of a queue that nobody consumes and nothing leaves by itself.
    fn wants_window(&self) -> bool {
        let by_itself = self.settings.message_ttl.is_some() || self.settings.is_limited();
        by_itself || !self.consumers.is_empty()
    }

    fn has_room(&self, len: usize) -> bool {
        self.ready.len() < len && self.ready_bytes < WINDOW_BYTES
    }

    /// A message was committed at the place after `previous`. It goes into the window if nothing is missing before it.
    pub(super) fn committed(&mut self, entry: Entry, previous: i64) {
        if entry.seq <= self.read_to {
            return;
        }
        let counted = entry.seq <= self.counted_to;
        if self.wants_window() && previous == self.read_to && self.has_room(WINDOW_LEN) {
            if counted {
                self.unread.take(&entry.content);
            }
            self.read_to = entry.seq;
            self.put_ready(entry);
        } else {
            self.more = true;
            if !counted {
                self.unread.add(&entry.content);
            }
        }
    }

    /// A message was read from the tables, or could not be understood.
    pub(super) fn was_read(&mut self, seq: i64, entry: Option<Entry>) {
        if seq <= self.read_to {
            return;
        }
        self.read_to = seq;
        if let Some(mut entry) = entry {
            self.unread.take(&entry.content);
            entry.redelivered = seq <= self.found;
            self.put_ready(entry);
        } else {
            self.unread.take_one();
            self.stranded.insert(seq);
        }
    }

    /// A stranded message was read again, to be tried again.
    pub(super) fn try_again(&mut self, mut entry: Entry) {
        if self.stranded.remove(&entry.seq) {
            entry.redelivered = true;
            self.put_ready(entry);
        }
    }

    /// How many are delivered and unsettled.
    pub(super) fn unsettled(&self) -> usize {
        self.taken.values().filter(|taken| taken.owner != EXPIRING).count()
    }

    /// A new consumer, last in turn.
    pub(super) fn join(&mut self, number: u64, prefetch: usize, wake: Arc<Notify>) {
        self.consumers.push(Consumer { number, prefetch, unsettled: 0, arrived: VecDeque::new(), wake });
    }

    /// A consumer may have so many unsettled from now on.
    pub(super) fn allow(&mut self, number: u64, prefetch: usize) {
        let of_it = |consumer: &&mut Consumer| consumer.number == number;
        if let Some(consumer) = self.consumers.iter_mut().find(of_it) {
            consumer.prefetch = prefetch;
        }
    }

    /// A consumer is gone: what it had goes back to its place. What has come back too often is to be dead-lettered.
    pub(super) fn leave(&mut self, number: u64) -> Settling {
        self.consumers.retain(|consumer| consumer.number != number);
        let limit = self.delivery_limit();
        let counted = u32::from(self.settings.kind == QueueKind::Quorum);
        let (mut back, mut settling) = (Vec::new(), Settling::default());
        for (seq, taken) in self.taken.iter_mut().filter(|(_, taken)| taken.owner == number) {
            taken.entry.returned = taken.entry.returned.saturating_add(counted);
            if limit.is_some_and(|limit| taken.entry.returned > limit) {
                taken.owner = SETTLING;
                settling.rejected.push(taken.entry.clone());
            } else {
                back.push(*seq);
            }
        }
        settling.rejected.sort_unstable_by_key(|entry| entry.seq);
        self.give_back(&back);
        settling
    }

    /// How often a message may come back; for ever where there is nowhere else for it to go.
    fn delivery_limit(&self) -> Option<u32> {
        self.settings.effective_dead_letter()?;
        match self.settings.policy.delivery_limit {
            Some(DeliveryLimit::Times(times)) if self.settings.kind == QueueKind::Quorum => Some(times),
            _ => None,
        }
    }

    /// Every consumer is gone.
    pub(super) fn leave_all(&mut self) {
        let numbers: Vec<_> = self.consumers.iter().map(|consumer| consumer.number).collect();
        for number in numbers {
            self.consumers
                .iter()
                .filter(|consumer| consumer.number == number)
                .for_each(|c| c.wake.notify_one());
            // The broker is being closed: what came back too often is tried again when it is opened.
            let undone = self.leave(number);
            self.give_back(&undone.seqs());
        }
    }

    /// What a consumer was delivered and has not fetched yet, at most `max`.
    pub(super) fn fetch(&mut self, number: u64, max: usize) -> Vec<Entry> {
        let Some(consumer) = self.consumers.iter_mut().find(|consumer| consumer.number == number) else {
            return Vec::new();
        };
        let many = max.max(1).min(consumer.arrived.len());
        let fetched = consumer.arrived.drain(..many);
        fetched.filter_map(|seq| self.taken.get(&seq).map(|taken| taken.entry.clone())).collect()
    }

    /// Takes verdicts from a consumer. Those on what it does not have are void. What is returned stays taken until it is
    /// carried out ([`Self::settled`]) or was not ([`Self::give_back`]).
    pub(super) fn settle(
        &mut self,
        number: u64,
        verdicts: impl IntoIterator<Item = (i64, Verdict)>,
    ) -> Settling {
        let mut settling = Settling::default();
        let Some(consumer) = self.consumers.iter_mut().find(|consumer| consumer.number == number) else {
            return settling;
        };
        let mut requeued = Vec::new();
        for (seq, verdict) in verdicts {
            let Some(taken) = self.taken.get_mut(&seq).filter(|taken| taken.owner == number) else {
                continue;
            };
            taken.owner = SETTLING;
            consumer.unsettled -= 1;
            match verdict {
                Verdict::Requeue => requeued.push(seq),
                Verdict::Reject if self.settings.effective_dead_letter().is_some() => {
                    settling.rejected.push(taken.entry.clone());
                }
                Verdict::Ack | Verdict::Reject => settling.done.push(taken.entry.clone()),
            }
        }
        self.give_back(&requeued);
        settling
    }

    /// These are gone from the tables.
    pub(super) fn settled(&mut self, seqs: &[i64]) {
        for seq in seqs {
            self.taken.remove(seq);
        }
    }

    /// These go back to their places, and may have been delivered.
    pub(super) fn give_back(&mut self, seqs: &[i64]) {
        for seq in seqs {
            if let Some(Taken { mut entry, .. }) = self.taken.remove(seq) {
                entry.redelivered = true;
                self.put_ready(entry);
            }
        }
    }

    /// These stay in the queue and are not delivered.
    pub(super) fn strand(&mut self, seqs: &[i64]) {
        for seq in seqs {
            self.taken.remove(seq);
            self.stranded.insert(*seq);
        }
    }

    fn put_ready(&mut self, entry: Entry) {
        self.ready_bytes += weigh(&entry);
        self.ready_load.add(&entry.content);
        self.ready.insert(entry.seq, entry);
    }

    fn take_ready(&mut self, seq: i64) -> Option<Entry> {
        let entry = self.ready.remove(&seq)?;
        self.ready_bytes -= weigh(&entry);
        self.ready_load.take(&entry.content);
        Some(entry)
    }
}

fn is_due(entry: &Entry, now: i64) -> bool {
    entry.expires_at.is_some_and(|at| at <= now)
}

/// How much memory an entry takes, more or less.
fn weigh(entry: &Entry) -> usize {
    let message = &entry.content.message;
    256 + message.body.len() + message.headers.len() * 64
}

#[cfg(test)]
mod tests;
