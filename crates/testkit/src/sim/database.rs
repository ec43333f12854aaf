//! The simulated database: tables as plain data. What is committed stays; what is not was never there.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use postrider::envelope::{EventId, OrderingKey, PayloadHash};
use postrider::progress::{Change, Counts, Status};
use postrider::store::{
    Ask, DeadLetter, HeldEvent, OutboxRow, OutboxStatus, PublishResult, RelayId, RowId, RowResult,
    StoreError, StoreErrorKind, Wanted,
};
use postrider::topology::ConsumerName;

use super::operation::Plan;
use super::slots::Slots;

/// Items of the one job.
pub(super) const JOB_ITEMS: u32 = 8;

/// A row of the outbox.
#[expect(clippy::struct_field_names, reason = "a row, and what is known of it")]
pub(super) struct Row {
    pub(super) row: OutboxRow,
    pub(super) status: OutboxStatus,
    /// Its own time, if it has one.
    pub(super) due_at: Option<Timestamp>,
    /// By whom it was taken, where rows are shared out one by one.
    taken: Option<(RelayId, Duration)>,
}

/// An effect: a row of a table without a unique key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Effect {
    pub(super) consumer: String,
    pub(super) event: EventId,
    pub(super) key: Option<OrderingKey>,
    pub(super) number: u64,
}

/// A held event.
pub(super) struct HeldRow {
    pub(super) consumer: ConsumerName,
    pub(super) event: HeldEvent,
    pub(super) due_at: Duration,
    pub(super) lease: Option<(String, Duration)>,
}

/// What a transaction will have written.
pub(super) enum Write {
    Mark(ConsumerName, EventId, PayloadHash),
    Answer(ConsumerName, EventId, Bytes),
    Effect(Effect),
    Append(i64, Box<OutboxRow>, Option<Timestamp>),
    LetGo(ConsumerName, EventId),
    /// An item of the job is done; and the event that tells of the job's end, should this be the last.
    Item(EventId, Box<OutboxRow>),
    /// Items are taken off the operation's list by this runner.
    Take(String, Vec<String>),
}

impl fmt::Display for Write {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mark(consumer, event, _) => write!(f, "inbox {consumer}/{event}"),
            Self::Answer(consumer, event, _) => write!(f, "answer {consumer}/{event}"),
            Self::Effect(Effect { consumer, event, .. }) => write!(f, "effect {consumer}/{event}"),
            Self::Append(position, row, _) => write!(f, "append {} at {position}", row.envelope.id),
            Self::LetGo(consumer, event) => write!(f, "let go {consumer}/{event}"),
            Self::Item(event, _) => write!(f, "item {event}"),
            Self::Take(runner, items) => write!(f, "{runner} takes {}", items.join(" ")),
        }
    }
}

/// The one job: its numbers, by the real rules, and its items.
pub(super) struct Job {
    pub(super) counts: Counts,
    pub(super) items: BTreeSet<EventId>,
}

impl Default for Job {
    fn default() -> Self {
        let total = Change::SetTotal(JOB_ITEMS.into());
        let known =
            Counts::NEW.try_change(&total).and_then(|counts| counts.try_change(&Change::EndDiscovery));
        Self { counts: known.unwrap_or(Counts::NEW), items: BTreeSet::new() }
    }
}

#[derive(Default)]
pub(super) struct Database {
    pub(super) rows: BTreeMap<i64, Row>,
    ids: BTreeSet<EventId>,
    position: i64,
    transactions: u64,
    /// Transactions that have appended and not ended, with their processes.
    writing: BTreeMap<u64, usize>,
    pub(super) slots: Slots,
    /// Rows without a time of their own, in the order of their commits.
    pub(super) log: Vec<OutboxRow>,
    /// The last position that was ever handed out.
    pub(super) polled_to: i64,
    pub(super) inbox: BTreeMap<(ConsumerName, EventId), (PayloadHash, Option<Bytes>)>,
    pub(super) effects: Vec<Effect>,
    pub(super) held: Vec<HeldRow>,
    pub(super) crashes: BTreeMap<(ConsumerName, String), u32>,
    pub(super) letters: BTreeMap<String, DeadLetter>,
    pub(super) job: Job,
    pub(super) plan: Plan,
}

impl Database {
    pub(super) fn begin(&mut self) -> u64 {
        self.transactions += 1;
        self.transactions
    }

    /// Gives out a position; the transaction writes from now on.
    pub(super) fn next_position(&mut self, tx: u64, process: usize) -> i64 {
        self.writing.insert(tx, process);
        self.position += 1;
        self.position
    }

    pub(super) fn ended(&mut self, tx: u64) {
        self.writing.remove(&tx);
    }

    /// The connections of a dead process are closed, and its transactions rolled back.
    pub(super) fn forget_process(&mut self, process: usize) {
        self.writing.retain(|_, of| *of != process);
    }

    pub(super) fn horizon(&self) -> (i64, Vec<String>) {
        (self.position, self.writing.keys().map(u64::to_string).collect())
    }

    /// All of it or nothing. New rows of the outbox have this status.
    pub(super) fn commit(
        &mut self,
        tx: u64,
        writes: Vec<Write>,
        now: Timestamp,
        status: OutboxStatus,
    ) -> Result<(), StoreError> {
        self.ended(tx);
        let counts = self.counted(&writes)?;
        for write in &writes {
            match write {
                Write::Mark(consumer, event, _)
                    if self.inbox.contains_key(&(consumer.clone(), event.clone())) =>
                {
                    let text = "another transaction marked the same event";
                    return Err(StoreError::new(StoreErrorKind::Contended, text));
                }
                Write::Take(runner, items) => self.plan.may_take(runner, items)?,
                Write::Append(_, row, _) if self.ids.contains(&row.envelope.id) => {
                    return Err(StoreError::new(
                        StoreErrorKind::Duplicate,
                        "this event was committed before",
                    ));
                }
                _ => {}
            }
        }
        for write in writes {
            match write {
                Write::Mark(consumer, event, hash) => {
                    self.inbox.insert((consumer, event), (hash, None));
                }
                Write::Answer(consumer, event, answer) => {
                    if let Some((_, kept)) = self.inbox.get_mut(&(consumer, event)) {
                        *kept = Some(answer);
                    }
                }
                Write::Effect(effect) => self.effects.push(effect),
                Write::Append(position, row, due_at) => {
                    let mut row = *row;
                    row.row.created_at = now;
                    self.ids.insert(row.envelope.id.clone());
                    if due_at.is_none() && status == OutboxStatus::Pending {
                        self.tell(&row);
                    }
                    self.rows.insert(position, Row { row, status, due_at, taken: None });
                }
                Write::Item(event, completed) => {
                    let is_new = self.job.items.insert(event);
                    if is_new && counts.status == Status::Done {
                        self.append(*completed, now);
                    }
                }
                Write::Take(_, items) => self.plan.take(items.len()),
                Write::LetGo(consumer, event) => {
                    self.held.retain(|held| held.consumer != consumer || held.event.event_id != event);
                }
            }
        }
        self.job.counts = counts;
        Ok(())
    }

    /// What the items among the writes make of the job.
    fn counted(&self, writes: &[Write]) -> Result<Counts, StoreError> {
        let is_new =
            |write: &&Write| matches!(write, Write::Item(event, _) if !self.job.items.contains(event));
        let new = writes.iter().filter(is_new).count() as u64;
        let text = |kind| format!("the job refuses an item: {kind:?}");
        let refused = |kind| StoreError::new(StoreErrorKind::Invalid, text(kind));
        self.job.counts.try_marks(new, 0).map_err(refused)
    }

    /// Writes a row that the database makes itself.
    pub(super) fn append(&mut self, mut row: OutboxRow, now: Timestamp) {
        self.position += 1;
        row.row = RowId { position: self.position, created_at: now };
        if self.ids.insert(row.envelope.id.clone()) {
            let status = OutboxStatus::Pending;
            self.tell(&row);
            self.rows.insert(self.position, Row { row, status, due_at: None, taken: None });
        }
    }

    /// Writes it to the log, which does not tell slots.
    fn tell(&mut self, row: &OutboxRow) {
        self.log.push(OutboxRow { slot: None, ..row.clone() });
    }

    /// The keys that stand still behind a failed or dead row.
    pub(super) fn failing_keys(&self) -> Vec<OrderingKey> {
        let failing = |row: &&Row| matches!(row.status, OutboxStatus::Failed | OutboxStatus::Dead);
        let keys = self.rows.values().filter(failing).filter_map(|row| row.row.envelope.ordering_key.clone());
        keys.collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Rows of the relay's slots that are due.
    pub(super) fn claim(&self, relay: &RelayId, ask: &Ask, now: Timestamp) -> Vec<OutboxRow> {
        let held = self.slots.held_by(relay);
        let held: Vec<_> = match &ask.held {
            Some(known) => held.into_iter().filter(|lease| known.contains(lease)).collect(),
            None => held,
        };
        let ours = |row: &OutboxRow| held.iter().any(|lease| row.slot == Some(lease.slot));
        let due = self.due(ask, now).filter(|row| ours(row));
        due.take(ask.limit).cloned().collect()
    }

    /// Rows one by one, to whoever comes first: the flaw.
    pub(super) fn claim_rows(
        &mut self,
        relay: &RelayId,
        ask: &Ask,
        at: (Duration, Timestamp),
    ) -> Vec<OutboxRow> {
        let (now, time) = at;
        let free = |position: i64| {
            let taken = &self.rows.get(&position).map(|row| &row.taken);
            !matches!(taken, Some(Some((_, until))) if *until > now)
        };
        let due = self.due(ask, time).filter(|row| free(row.row.position));
        let mut claimed: Vec<_> = due.take(1).cloned().collect();
        for row in &mut claimed {
            row.slot = None;
            if let Some(kept) = self.rows.get_mut(&row.row.position) {
                kept.taken = Some((relay.clone(), now + Duration::from_secs(10)));
            }
        }
        claimed
    }

    fn due<'a>(&'a self, ask: &'a Ask, now: Timestamp) -> impl Iterator<Item = &'a OutboxRow> {
        let mut parked = BTreeSet::new();
        self.rows.values().filter_map(move |Row { row, status, due_at, .. }| {
            let key = row.envelope.ordering_key.as_ref();
            let behind = key.is_some_and(|key| parked.contains(key));
            if matches!(status, OutboxStatus::Failed | OutboxStatus::Dead) {
                parked.extend(key);
            }
            let wanted = match ask.wanted {
                Wanted::New { after, .. } => due_at.is_none() && row.row.position > after,
                Wanted::Timed => due_at.is_some(),
                Wanted::All => true,
            };
            let open = matches!(status, OutboxStatus::Pending | OutboxStatus::Failed);
            let left_out =
                ask.in_hand.contains(&row.row.position) || key.is_some_and(|key| ask.without.contains(key));
            let due = due_at.is_none_or(|at| at <= now);
            (open && wanted && due && !behind && !left_out).then_some(row)
        })
    }

    /// Records what became of rows whose slot is still the relay's.
    pub(super) fn settle(
        &mut self,
        relay: &RelayId,
        results: Vec<RowResult>,
        fenced: bool,
        now: Timestamp,
    ) -> usize {
        let held = self.slots.held_by(relay);
        let mut recorded = 0;
        for RowResult { row: id, result, .. } in results {
            let Some(row) = self.rows.get_mut(&id.position) else { continue };
            let ours = held.iter().any(|lease| row.row.slot == Some(lease.slot));
            let open = matches!(row.status, OutboxStatus::Pending | OutboxStatus::Failed);
            // Told of before.
            let waits = row.status == OutboxStatus::Failed && row.due_at.is_some_and(|at| at > now);
            let again = waits && result != PublishResult::Published;
            if !open || again || fenced && !ours {
                continue;
            }
            recorded += 1;
            match result {
                PublishResult::Published => row.status = OutboxStatus::Published,
                PublishResult::Failed { retry_after, .. } => {
                    let retry_at = retry_after.and_then(|delay| now.checked_add(delay).ok());
                    row.row.attempts += 1;
                    row.status =
                        if retry_after.is_some() { OutboxStatus::Failed } else { OutboxStatus::Dead };
                    row.due_at = retry_at.or(row.due_at);
                }
                PublishResult::Postponed { retry_after, .. } => {
                    row.row.attempts = row.row.attempts.max(1);
                    row.status = OutboxStatus::Failed;
                    row.due_at = now.checked_add(retry_after).ok().or(row.due_at);
                }
            }
        }
        recorded
    }

    /// Whether everything that is committed was published, and nothing waits.
    pub(super) fn is_drained(&self) -> bool {
        let open = |row: &Row| matches!(row.status, OutboxStatus::Pending | OutboxStatus::Failed);
        self.plan.items.is_empty() && self.held.is_empty() && !self.rows.values().any(open)
    }

    pub(super) fn knows(&self, event: &EventId) -> bool {
        self.ids.contains(event)
    }
}
