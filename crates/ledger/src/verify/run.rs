//! One run of entries, checked by itself.

use std::collections::{BTreeMap, HashMap};

use postrider::envelope::TenantId;
use postrider::store::StoreError;

use super::Problem;
use crate::account::AccountCode;
use crate::books::{Books, Sums};
use crate::chain::{self, Hash};
use crate::entry::{Effect, EntryKind, Line, Sealed};
use crate::money::Currency;
use crate::pipeline::sealing::effect;

/// Entries read at a time.
const PAGE: usize = 2_000;

pub(super) type Key = (AccountCode, Currency);

/// What a run came to.
#[derive(Default)]
pub(super) struct RunResult {
    pub(super) entries: u64,
    pub(super) sums: BTreeMap<Key, Sums>,
    /// The last entry that was read.
    pub(super) last: Option<(u64, Hash)>,
    pub(super) problems: Vec<Problem>,
    promised: HashMap<u64, Vec<Line>>,
    ended: Vec<u64>,
}

impl RunResult {
    pub(super) fn add(&mut self, other: Self) {
        self.entries += other.entries;
        for (key, sums) in other.sums {
            add(self.sums.entry(key).or_default(), &sums, &mut self.problems);
        }
        self.last = self.last.max(other.last);
        self.problems.extend(other.problems);
        self.promised.extend(other.promised);
        self.ended.extend(other.ended);
    }

    /// Takes the promises back that were settled or voided.
    pub(super) fn end_promises(&mut self) {
        for number in std::mem::take(&mut self.ended) {
            let Some(lines) = self.promised.get(&number) else {
                let text = format!("entry {number} is settled or voided, but it promised nothing");
                self.problems.push(Problem::new("reference_differs", Some(number), text));
                continue;
            };
            for line in lines {
                let promised = effect(line, Effect::Promise);
                let sums = self.sums.entry((line.account.clone(), line.currency)).or_default();
                sums.pending_debits -= promised.pending_debits;
                sums.pending_credits -= promised.pending_credits;
            }
        }
    }

    fn take(&mut self, entry: Sealed) {
        self.entries += 1;
        self.last = Some((entry.number, entry.hash));
        let effects = entry.kind.effect();
        for line in &entry.lines {
            let sums = effect(line, effects);
            match self.sums.get_mut(&(line.account.clone(), line.currency)) {
                Some(there) => add(there, &sums, &mut self.problems),
                None => drop(self.sums.insert((line.account.clone(), line.currency), sums)),
            }
        }
        match entry.kind {
            EntryKind::Settlement | EntryKind::Void => self.ended.extend(entry.refers_to),
            EntryKind::Pending => drop(self.promised.insert(entry.number, entry.lines)),
            _ => {}
        }
    }
}

fn add(sums: &mut Sums, more: &Sums, problems: &mut Vec<Problem>) {
    match sums.plus(more) {
        Some(sum) => *sums = sum,
        None => problems.push(Problem::new(
            "amount_differs",
            None,
            "the lines of an account add up to more than it can hold",
        )),
    }
}

/// Checks the entries after `start` up to `last`, against the stored hash of `start`.
pub(super) async fn check<B: Books>(books: &B, tenant: &TenantId, start: u64, last: u64) -> RunResult {
    let mut result = RunResult::default();
    let mut before = match hash_of(books, tenant, start).await {
        Ok(hash) => hash,
        Err(error) => {
            result.problems.push(Problem::new("unreadable", Some(start), error.to_string()));
            None
        }
    };
    let mut at = start;
    while at < last {
        let page = usize::try_from(last - at).unwrap_or(PAGE).min(PAGE);
        let entries = match books.entries(tenant, at, page).await {
            Ok(entries) => entries,
            Err(error) => {
                result.problems.push(Problem::new("unreadable", None, error.to_string()));
                return result;
            }
        };
        if entries.is_empty() {
            let text = format!("the entries from {} to {last} are missing", at + 1);
            result.problems.push(Problem::new("entries_missing", Some(at + 1), text));
            return result;
        }
        for entry in entries {
            if entry.number > last {
                if at < last {
                    let text = format!("the entries from {} to {last} are missing", at + 1);
                    result.problems.push(Problem::new("entries_missing", Some(at + 1), text));
                }
                return result;
            }
            if entry.number != at + 1 {
                let text = format!("the entries from {} to {} are missing", at + 1, entry.number - 1);
                result.problems.push(Problem::new("entries_missing", Some(at + 1), text));
                before = None;
            }
            at = entry.number;
            check_entry(before.as_ref(), &entry, &mut result.problems);
            before = Some(entry.hash);
            result.take(entry);
        }
    }
    result
}

fn check_entry(before: Option<&Hash>, entry: &Sealed, problems: &mut Vec<Problem>) {
    let number = entry.number;
    if let Some(before) = before
        && chain::hash(before, entry) != entry.hash
    {
        let text = format!(
            "entry {number} (event {}) does not have the hash that is stored for it: it, one of its lines, its hash or the hash of \
             entry {} was changed",
            entry.source.event,
            number - 1
        );
        problems.push(Problem::new("hash_differs", Some(number), text));
    }
    let mut base = 0_i128;
    let mut sums: Vec<(Currency, i128)> = Vec::with_capacity(2);
    for line in &entry.lines {
        let sign = line.side.sign();
        base += sign * i128::from(line.base_amount);
        match sums.iter_mut().find(|(currency, _)| *currency == line.currency) {
            Some((_, sum)) => *sum += sign * i128::from(line.amount),
            None => sums.push((line.currency, sign * i128::from(line.amount))),
        }
    }
    if base != 0 || sums.iter().any(|(_, sum)| *sum != 0) {
        let text = format!("the debits and credits of entry {number} differ");
        problems.push(Problem::new("unbalanced", Some(number), text));
    }
    if entry.kind != EntryKind::Seal && entry.lines.len() < 2 {
        let text = format!("entry {number} has {} lines", entry.lines.len());
        problems.push(Problem::new("lines_missing", Some(number), text));
    }
}

/// The stored hash of an entry; zeros before the first.
async fn hash_of<B: Books>(books: &B, tenant: &TenantId, number: u64) -> Result<Option<Hash>, StoreError> {
    if number == 0 {
        return Ok(Some(Hash::ZERO));
    }
    let found = books.entries(tenant, number - 1, 1).await?;
    Ok(found.first().filter(|entry| entry.number == number).map(|entry| entry.hash))
}

/// The stored hashes of a run of entries.
pub(crate) async fn hashes<B: Books>(
    books: &B,
    tenant: &TenantId,
    first: u64,
    last: u64,
) -> Result<Vec<Hash>, StoreError> {
    let (mut hashes, mut at) = (Vec::new(), first.saturating_sub(1));
    while at < last {
        let page = usize::try_from(last - at).unwrap_or(PAGE).min(PAGE);
        let entries = books.entries(tenant, at, page).await?;
        let Some(newest) = entries.last() else { break };
        at = newest.number;
        hashes.extend(entries.iter().map(|entry| entry.hash));
    }
    Ok(hashes)
}
