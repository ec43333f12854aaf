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
    lines: usize,
    /// What is not posted for a day: promises.
    changes: BTreeMap<Key, Sums>,
    /// What is posted, which is a change of its account, too.
    days: BTreeMap<(Key, Date), Sums>,
    /// No less than any sum of this batch.
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
            lines: 0,
            changes: BTreeMap::new(),
            days: BTreeMap::new(),
            moved: 0,
        }
    }

    /// The number that the next entry will have.
    pub fn next_number(&self) -> u64 {
        self.head.number + 1
    }

    /// How many lines the entries have so far.
    pub fn lines(&self) -> usize {
        self.lines
    }

    /// Whether all sums of this batch stay within 64 bits with this entry.
    pub fn has_room(&mut self, balanced: &Balanced) -> Result<(), Refusal> {
        let largest = balanced.lines.iter().map(|line| i128::from(line.amount.max(line.base_amount)));
        let moved = self.moved + largest.sum::<i128>();
        // What all lines move together is more than what any account gets: only where that is too much are accounts asked one by one.
        if moved > i128::from(i64::MAX) && !self.fits(balanced) {
            return Err(Refusal::BalanceOverflow);
        }
        self.moved = moved;
        Ok(())
    }

    /// Whether the sums of every account stay within 64 bits with this entry. Promises that end are left out: they were added up before.
    fn fits(&self, balanced: &Balanced) -> bool {
        let mut all: BTreeMap<Key, Option<Sums>> = BTreeMap::new();
        let mut count = |key: &Key, more: &Sums| {
            let sums = all.entry(key.clone()).or_insert(Some(Sums::default()));
            *sums = sums.and_then(|sums| sums.plus(more));
        };
        for ((key, _), sums) in &self.days {
            count(key, sums);
        }
        for (key, sums) in &self.changes {
            let promised = Sums {
                pending_debits: sums.pending_debits.max(0),
                pending_credits: sums.pending_credits.max(0),
                ..*sums
            };
            count(key, &promised);
        }
        for line in &balanced.lines {
            let does = balanced.draft.kind.effect();
            count(
                &(line.account.clone(), line.currency),
                &effect(line.side, line.amount, line.base_amount, does),
            );
        }
        all.values().all(Option::is_some)
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
        self.lines += entry.lines.len();
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

#[cfg(test)]
mod tests {
    use jiff::civil::date;
    use postrider::EventId;

    use super::*;
    use crate::correcting::hash_of;
    use crate::entry::{Draft, EntryKind, Metadata, Source};

    fn entry(amount: i64, debit: &str, credit: &str) -> Balanced {
        let line = |account: &str, side| Line {
            account: AccountCode::new(account).unwrap(),
            side,
            amount,
            currency: Currency::new("EUR").unwrap(),
            base_amount: amount,
            rate: None,
        };
        let source = Source {
            event: EventId::new(format!("{amount} from {credit} to {debit}")).unwrap(),
            payload_hash: hash_of(""),
            rule: String::new(),
        };
        let draft = Draft {
            source,
            kind: EntryKind::Opening,
            effective_on: date(2026, 3, 1),
            description: String::new(),
            metadata: Metadata::new(),
            refers_to: None,
            lines: Vec::new(),
        };
        Balanced { draft, lines: vec![line(debit, Side::Debit), line(credit, Side::Credit)] }
    }

    /// What an event is answered must not hang on which others it came with.
    #[test]
    fn a_batch_has_room_as_long_as_every_account_has() {
        let head = Head { number: 0, hash: Hash::ZERO, version: 1 };
        let mut sealer = Sealer::new(TenantId::new("acme").unwrap(), head, Timestamp::UNIX_EPOCH, 4);
        let most = i64::MAX / 2;
        for (debit, credit) in [("a", "b"), ("c", "d"), ("a", "d"), ("b", "a")] {
            let entry = entry(most, debit, credit);
            assert_eq!(sealer.has_room(&entry), Ok(()), "{debit} {credit}");
            sealer.seal(entry, None);
        }
        assert_eq!(sealer.has_room(&entry(most, "a", "c")), Err(Refusal::BalanceOverflow));
        assert_eq!(sealer.has_room(&entry(most, "e", "c")), Ok(()), "what was refused took no room");
        let page = sealer.into_page();
        let debits = page.changes.iter().map(|change| (change.account.as_str(), change.sums.debits));
        let expected = [("a", 2 * most), ("b", most), ("c", most), ("d", 0)];
        assert_eq!(debits.collect::<Vec<_>>(), expected);
    }
}
