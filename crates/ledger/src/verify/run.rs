//! One run of entries, checked by itself.

use std::collections::HashMap;

use postrider::envelope::TenantId;

use super::Problem;
use super::seals::Seals;
use super::tally::{Key, Tally};
use crate::account::Side;
use crate::books::{Books, Sums};
use crate::chain::{Hash, hash_columns};
use crate::entry::{Effect, EntryKind};
use crate::pipeline::sealing::effect;
use crate::stored::{EntryRow, LineRow};

/// What a run came to.
#[derive(Default)]
pub(super) struct RunResult {
    pub(super) entries: u64,
    pub(super) tally: Tally,
    pub(super) seals: Seals,
    /// The last entry that was read.
    pub(super) last: Option<(u64, Hash)>,
    pub(super) problems: Vec<Problem>,
    /// Whether there are entries that could not be read: what the others add up to says nothing then.
    pub(super) is_unread: bool,
    promised: HashMap<u64, Vec<(Key, Sums)>>,
    ended: Vec<u64>,
}

impl RunResult {
    pub(super) fn add(&mut self, other: Self) {
        self.entries += other.entries;
        for (account, currency, held) in other.tally.iter() {
            self.tally.of(account, currency).add(held);
        }
        self.seals.add(other.seals);
        self.last = self.last.max(other.last);
        self.problems.extend(other.problems);
        self.is_unread |= other.is_unread;
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
            for ((account, currency), promised) in lines {
                let ended = Sums {
                    pending_debits: -promised.pending_debits,
                    pending_credits: -promised.pending_credits,
                    ..Sums::default()
                };
                self.tally.of(account, currency).promise(&ended);
            }
        }
    }

    fn missing(&mut self, from: u64, to: u64) {
        let text = format!("the entries from {from} to {to} are missing");
        self.problems.push(Problem::new("entries_missing", Some(from), text));
    }
}

/// Checks the entries after `start` up to `last`, against the stored hash of `start`.
pub(super) async fn check<B: Books>(books: &B, tenant: &TenantId, start: u64, last: u64) -> RunResult {
    let mut run = Run { tenant, at: start, before: None, bytes: Vec::new(), result: RunResult::default() };
    let unreadable = |error: &dyn std::fmt::Display| Problem::new("unreadable", None, error.to_string());
    match if start == 0 { Ok(vec![Hash::ZERO]) } else { books.hashes(tenant, start, start).await } {
        Ok(hashes) => run.before = hashes.first().copied(),
        Err(error) => run.result.problems.push(unreadable(&error)),
    }
    let scanned = books.scan(tenant, start, last, |entry, lines| run.take(entry, lines)).await;
    match scanned {
        Err(error) => {
            run.result.problems.push(unreadable(&error));
            run.result.is_unread = true;
        }
        Ok(()) if run.at < last => run.result.missing(run.at + 1, last),
        Ok(()) => {}
    }
    run.result
}

/// On the way from one entry to the next.
struct Run<'a> {
    tenant: &'a TenantId,
    /// The number of the newest entry that was seen.
    at: u64,
    /// Its stored hash; none where it is missing.
    before: Option<Hash>,
    bytes: Vec<u8>,
    result: RunResult,
}

impl Run<'_> {
    fn take(&mut self, entry: &EntryRow<'_>, lines: &[LineRow<'_>]) {
        let number = entry.number.unsigned_abs();
        if number != self.at + 1 {
            self.result.missing(self.at + 1, number - 1);
            self.before = None;
        }
        let stored = Hash::from_bytes(entry.hash);
        if let Some(before) = &self.before
            && Some(hash_columns(&mut self.bytes, before, self.tenant.as_str(), entry, lines)) != stored
        {
            let text = format!(
                "entry {number} (event {}) does not have the hash that is stored for it: it, one of its lines, its hash or the \
                 hash of entry {} was changed",
                entry.source_event, self.at
            );
            self.result.problems.push(Problem::new("hash_differs", Some(number), text));
        }
        (self.at, self.before) = (number, stored);
        self.result.entries += 1;
        self.result.last = stored.map(|hash| (number, hash)).or(self.result.last);
        self.check_places(number, lines);
        self.check_nothings(number, entry, lines);
        self.balance(number, entry, lines);
        self.add_up(number, entry, lines);
    }

    /// The hash tells the order of the lines, but not the numbers that they have in it.
    fn check_places(&mut self, number: u64, lines: &[LineRow<'_>]) {
        if let Some((place, line)) = (1..).zip(lines).find(|(place, line)| line.line != *place) {
            let text = format!("line {place} of entry {number} has the number {}", line.line);
            self.result.problems.push(Problem::new("lines_renumbered", Some(number), text));
        }
    }

    /// No reference has the hash of 0, and no rate that of an empty one. The ledger writes the former, and a rate with its source.
    fn check_nothings(&mut self, number: u64, entry: &EntryRow<'_>, lines: &[LineRow<'_>]) {
        let is_odd =
            |line: &LineRow<'_>| line.rate.is_none() != line.rate_source.is_none() || line.rate == Some("");
        if entry.refers_to == Some(0) || lines.iter().any(is_odd) {
            let text = format!(
                "entry {number} has 0 for a reference, or a line with an empty rate, or with a rate or a source of one alone"
            );
            self.result.problems.push(Problem::new("hash_differs", Some(number), text));
        }
    }

    /// Whether debits equal credits, in every currency and in base.
    fn balance(&mut self, number: u64, entry: &EntryRow<'_>, lines: &[LineRow<'_>]) {
        let sign = |line: &LineRow<'_>| Side::from_number(line.side).map_or(0, Side::sign);
        let base: i128 = lines.iter().map(|line| sign(line) * i128::from(line.base_amount)).sum();
        let of = |currency: &str| -> i128 {
            let same = lines.iter().filter(|line| line.currency == currency);
            same.map(|line| sign(line) * i128::from(line.amount)).sum()
        };
        // Most entries have one currency: it is added up once.
        let first = lines.first().map_or("", |line| line.currency);
        let differs =
            of(first) != 0 || lines.iter().any(|line| line.currency != first && of(line.currency) != 0);
        if base != 0 || differs {
            let text = format!("the debits and credits of entry {number} differ");
            self.result.problems.push(Problem::new("unbalanced", Some(number), text));
        }
        let is_seal = EntryKind::from_number(entry.kind) == Some(EntryKind::Seal);
        if !is_seal && lines.len() < 2 {
            let text = format!("entry {number} has {} lines", lines.len());
            self.result.problems.push(Problem::new("lines_missing", Some(number), text));
        }
    }

    fn add_up(&mut self, number: u64, entry: &EntryRow<'_>, lines: &[LineRow<'_>]) {
        // What no ledger writes has another hash, and was named already.
        let Some(kind) = EntryKind::from_number(entry.kind) else { return };
        let sums = |line: &LineRow<'_>, of: Effect| {
            Side::from_number(line.side).map(|side| effect(side, line.amount, line.base_amount, of))
        };
        for line in lines {
            let held = self.result.tally.of(line.account, line.currency);
            // What the pipeline converts. Closings, openings and reversals bring base amounts of their own.
            if matches!(kind, EntryKind::Posted | EntryKind::Pending | EntryKind::Settlement)
                && line.amount > 0
            {
                match line.rate {
                    None if line.amount == line.base_amount => held.plain += 1,
                    Some(_) if line.amount != line.base_amount => held.converted += 1,
                    _ => {}
                }
            }
            match (kind.effect(), sums(line, kind.effect())) {
                (Effect::Post, Some(sums)) => {
                    held.first.get_or_insert(number);
                    held.post(entry.effective_on, &sums);
                }
                (Effect::Promise, Some(sums)) => held.promise(&sums),
                _ => {}
            }
        }
        match kind {
            EntryKind::Seal => self.result.seals.seal(number, entry),
            _ => self.result.seals.entry(number, entry),
        }
        match kind {
            EntryKind::Settlement | EntryKind::Void => {
                self.result.ended.extend(entry.refers_to.and_then(|number| u64::try_from(number).ok()));
            }
            EntryKind::Pending => {
                let key = |line: &LineRow<'_>| (line.account.to_owned(), line.currency.to_owned());
                let promises =
                    lines.iter().filter_map(|line| Some((key(line), sums(line, Effect::Promise)?)));
                self.result.promised.insert(number, promises.collect());
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of all of these the hash is that of no reference and no rate.
    #[test]
    fn what_is_hashed_like_nothing_is_named() {
        let entry = |refers_to| EntryRow {
            number: 1,
            kind: 1,
            effective_on: 0,
            posted_at: 0,
            source_event: "o-1",
            payload_hash: &[],
            rule: "",
            description: "",
            metadata: "{}",
            refers_to,
            hash: &[],
        };
        let line = |rate, rate_source| LineRow {
            line: 1,
            account: "bank",
            side: 1,
            amount: 1,
            currency: "EUR",
            base_amount: 1,
            rate,
            rate_source,
        };
        let tenant = TenantId::new("acme").unwrap();
        let odd = |refers_to, rate, source| {
            let result = RunResult::default();
            let mut run = Run { tenant: &tenant, at: 0, before: None, bytes: Vec::new(), result };
            run.check_nothings(1, &entry(refers_to), &[line(rate, source)]);
            !run.result.problems.is_empty()
        };
        assert!(!odd(None, None, None) && !odd(Some(1), Some("0.9"), Some("ecb")));
        assert!(!odd(None, Some("0.9"), Some("")), "an import may bring a rate that is nobody's");
        assert!(odd(Some(0), None, None));
        for (rate, source) in [(Some(""), None), (None, Some("")), (Some(""), Some(""))] {
            assert!(odd(None, rate, source), "{rate:?} {source:?}");
        }
    }
}
