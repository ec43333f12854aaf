//! Last step before the database: every entry gets its number and its place in the chain, and the batch is added up, one change
//! per account.

use std::collections::BTreeMap;

use jiff::Timestamp;
use jiff::civil::Date;
use postrider::envelope::TenantId;

use crate::account::{AccountCode, Side};
use crate::books::{Balance, Head, Page, Receipt, Sums};
use crate::chain::{self, Hash};
use crate::entry::{Balanced, Effect, Line, Sealed};
use crate::money::Currency;
use crate::refusal::Refusal;

type Key = (AccountCode, Currency);

/// Seals entries one after the other.
pub struct Sealer {
    tenant: TenantId,
    now: Timestamp,
    head: Head,
    entries: Vec<Sealed>,
    /// What is not posted for a day: promises.
    changes: BTreeMap<Key, Sums>,
    /// What is posted, which is a change of its account, too.
    days: BTreeMap<(Key, Date), Sums>,
    /// More than any sum of this batch.
    moved: i128,
}

impl Sealer {
    /// Goes on from the head of the chain, with room for so many entries.
    pub fn new(tenant: TenantId, head: Head, now: Timestamp, entries: usize) -> Self {
        Self {
            tenant,
            now,
            head,
            entries: Vec::with_capacity(entries),
            changes: BTreeMap::new(),
            days: BTreeMap::new(),
            moved: 0,
        }
    }

    /// The number that the next entry will have.
    pub fn next_number(&self) -> u64 {
        self.head.number + 1
    }

    /// Whether all sums stay within 64 bits with this entry.
    pub fn has_room(&mut self, balanced: &Balanced) -> Result<(), Refusal> {
        let largest = balanced.lines.iter().map(|line| i128::from(line.amount.max(line.base_amount)));
        let moved = self.moved + largest.sum::<i128>();
        if moved > i128::from(i64::MAX) {
            return Err(Refusal::BalanceOverflow);
        }
        self.moved = moved;
        Ok(())
    }

    /// Seals an entry. `released` are promised lines that end with it.
    pub fn seal(&mut self, balanced: Balanced, released: Option<&[Line]>) -> Receipt {
        let Balanced { draft, lines } = balanced;
        let metadata = serde_json::to_string(&draft.metadata).unwrap_or_else(|_| "{}".to_owned());
        let mut entry = Sealed {
            tenant: self.tenant.clone(),
            number: self.next_number(),
            posted_at: self.now,
            kind: draft.kind,
            effective_on: draft.effective_on,
            source: draft.source,
            description: draft.description.into(),
            metadata: metadata.into(),
            refers_to: draft.refers_to,
            lines,
            hash: Hash::ZERO,
        };
        entry.hash = chain::hash(&self.head.hash, &entry);
        (self.head.number, self.head.hash) = (entry.number, entry.hash);
        self.add_up(&entry, released.unwrap_or_default());
        let receipt = Receipt { entry: entry.number, hash: entry.hash };
        self.entries.push(entry);
        receipt
    }

    /// What is to be written.
    pub fn into_page(mut self) -> Page {
        for ((key, _), sums) in &self.days {
            add(self.changes.entry(key.clone()).or_default(), sums);
        }
        let balance = |(account, currency), sums| Balance { account, currency, sums };
        Page {
            entries: self.entries,
            changes: self.changes.into_iter().map(|(key, sums)| balance(key, sums)).collect(),
            days: self.days.into_iter().map(|((key, day), sums)| (day, balance(key, sums))).collect(),
            opened: Vec::new(),
        }
    }

    fn add_up(&mut self, entry: &Sealed, released: &[Line]) {
        for line in &entry.lines {
            let sums = effect(line.side, line.amount, line.base_amount, entry.kind.effect());
            let key = (line.account.clone(), line.currency);
            let sum = if entry.kind.effect() == Effect::Post {
                self.days.entry((key, entry.effective_on)).or_default()
            } else {
                self.changes.entry(key).or_default()
            };
            add(sum, &sums);
        }
        for line in released {
            let promised = effect(line.side, line.amount, line.base_amount, Effect::Promise);
            let ended = Sums {
                pending_debits: -promised.pending_debits,
                pending_credits: -promised.pending_credits,
                ..Sums::default()
            };
            add(self.changes.entry((line.account.clone(), line.currency)).or_default(), &ended);
        }
    }
}

/// What one line does to the balance of its account.
pub fn effect(side: Side, amount: i64, base_amount: i64, effect: Effect) -> Sums {
    let nothing = Sums::default();
    match (effect, side) {
        (Effect::Post, Side::Debit) => Sums { debits: amount, base_debits: base_amount, ..nothing },
        (Effect::Post, Side::Credit) => Sums { credits: amount, base_credits: base_amount, ..nothing },
        (Effect::Promise, Side::Debit) => Sums { pending_debits: amount, ..nothing },
        (Effect::Promise, Side::Credit) => Sums { pending_credits: amount, ..nothing },
        (Effect::None, _) => nothing,
    }
}

/// [`Sealer::has_room`] was asked before, so no sum leaves its range here.
fn add(sums: &mut Sums, more: &Sums) {
    *sums = sums.plus(more).unwrap_or(*sums);
}
