//! Entries that people write: by hand, or about another entry. Nothing is ever changed; a correction is a reversal and a new
//! entry.

use jiff::civil::Date;
use postrider::EventId;
use postrider::envelope::{PayloadHash, TenantId};
use sha2::{Digest as _, Sha256};

use crate::books::{Books, Receipt};
use crate::entry::{Draft, DraftLine, EntryKind, Line, Metadata, Sealed, Source};
use crate::error::LedgerError;
use crate::ledger::Ledger;
use crate::money::Amount;
use crate::pipeline::{Answer, Arrival};
use crate::refusal::Refusal;

/// What people say about an entry of theirs.
#[derive(Debug, Clone, Default)]
pub struct Remark {
    /// The same key again is the same entry; a new one when absent.
    pub key: Option<EventId>,
    /// The day it counts for; that of the entry it is about when absent.
    pub on: Option<Date>,
    /// For people.
    pub description: Option<String>,
    /// More for people and programs.
    pub metadata: Metadata,
}

impl<B: Books> Ledger<B> {
    /// Posts an entry that somebody wrote.
    pub async fn post_draft(&self, tenant: &TenantId, draft: Draft) -> Result<Receipt, LedgerError> {
        let mut answers = self.post(tenant, &[Arrival::Draft(Box::new(draft))]).await?;
        receipt(answers.pop())
    }

    /// Undoes an entry with one that has the sides swapped, at the same base amounts.
    pub async fn reverse(
        &self,
        tenant: &TenantId,
        entry: u64,
        remark: &Remark,
    ) -> Result<Receipt, LedgerError> {
        self.post_about(tenant, entry, EntryKind::Reversal, remark, opposite).await
    }

    /// Posts what a pending entry promised, at the rate of the day it is settled.
    pub async fn settle(
        &self,
        tenant: &TenantId,
        entry: u64,
        remark: &Remark,
    ) -> Result<Receipt, LedgerError> {
        self.post_about(tenant, entry, EntryKind::Settlement, remark, |lines| {
            let posted = lines.iter().filter(|line| line.amount > 0);
            posted.map(|line| DraftLine { base: None, ..repeated(line) }).collect()
        })
        .await
    }

    /// Ends the promise of a pending entry.
    pub async fn void(&self, tenant: &TenantId, entry: u64, remark: &Remark) -> Result<Receipt, LedgerError> {
        self.post_about(tenant, entry, EntryKind::Void, remark, |lines| lines.iter().map(repeated).collect())
            .await
    }

    /// Reverses an entry and posts what it should have been, both or neither.
    pub async fn correct(
        &self,
        tenant: &TenantId,
        entry: u64,
        remark: &Remark,
        right: Draft,
    ) -> Result<(Receipt, Receipt), LedgerError> {
        let (mut tx, head) = self.lock_books(tenant).await?;
        let there = self.books.referred(&mut tx, tenant, &[entry]).await?.pop();
        let there = there.ok_or(Refusal::UnknownEntry(entry))?.entry;
        let reversal = self.about(&there, EntryKind::Reversal, remark, opposite(&there.lines));
        let arrivals = [Arrival::Draft(Box::new(reversal)), Arrival::Draft(Box::new(right))];
        let mut answers = self.post_locked(&mut tx, tenant, head, &arrivals).await?.answers;
        let (posted, reversed) = (receipt(answers.pop())?, receipt(answers.pop())?);
        self.end(tx).await?;
        Ok((reversed, posted))
    }

    /// By which entry an entry was reversed, settled or voided; nothing where it stands.
    pub async fn ended_by(&self, tenant: &TenantId, entry: u64) -> Result<Option<u64>, LedgerError> {
        let (mut tx, _) = self.lock_books(tenant).await?;
        let there = self.books.referred(&mut tx, tenant, &[entry]).await?.pop();
        self.books.rollback(tx).await?;
        Ok(there.and_then(|there| there.by))
    }

    async fn post_about(
        &self,
        tenant: &TenantId,
        entry: u64,
        kind: EntryKind,
        remark: &Remark,
        lines: impl Fn(&[Line]) -> Vec<DraftLine>,
    ) -> Result<Receipt, LedgerError> {
        let (mut tx, head) = self.lock_books(tenant).await?;
        let there = self.books.referred(&mut tx, tenant, &[entry]).await?.pop();
        let there = there.ok_or(Refusal::UnknownEntry(entry))?.entry;
        let draft = self.about(&there, kind, remark, lines(&there.lines));
        let outcome = self.post_locked(&mut tx, tenant, head, &[Arrival::Draft(Box::new(draft))]).await?;
        let posted = receipt(outcome.answers.into_iter().next())?;
        self.end(tx).await?;
        Ok(posted)
    }

    fn about(&self, there: &Sealed, kind: EntryKind, remark: &Remark, lines: Vec<DraftLine>) -> Draft {
        let said = format!("{} of entry {}", kind.as_str(), there.number);
        let description = remark.description.clone().unwrap_or(said);
        let effective_on = remark.on.unwrap_or(there.effective_on);
        let told = format!("{} {} {effective_on} {description}", kind.as_str(), there.number);
        Draft {
            source: self.by_hand(remark.key.clone(), &told),
            kind,
            effective_on,
            description,
            metadata: remark.metadata.clone(),
            refers_to: Some(there.number),
            lines,
        }
    }

    /// Where an entry comes from that somebody wrote: its key, and what was said under it.
    pub fn by_hand(&self, key: Option<EventId>, told: &str) -> Source {
        let event = key.unwrap_or_else(|| EventId::from_uuid(self.clock.new_id()));
        Source { event, payload_hash: hash_of(told), rule: String::new() }
    }
}

/// The hash of a text, where there is no payload.
pub(crate) fn hash_of(text: &str) -> PayloadHash {
    let bytes: [u8; 32] = Sha256::digest(text.as_bytes()).into();
    PayloadHash::from_bytes(&bytes).unwrap_or_else(|| postrider::Payload::empty_object().hash())
}

/// What undoes these lines, at the base amounts that they have.
pub(crate) fn opposite(lines: &[Line]) -> Vec<DraftLine> {
    lines.iter().map(|line| DraftLine { side: line.side.opposite(), ..repeated(line) }).collect()
}

/// The same line again, with the base amount that it had.
fn repeated(line: &Line) -> DraftLine {
    DraftLine {
        account: line.account.clone(),
        side: line.side,
        amount: Amount::held(line.amount).unwrap_or(Amount::NONE),
        currency: line.currency,
        base: Some((line.base_amount, line.rate.clone())),
    }
}

/// What a single arrival came to.
pub(crate) fn receipt(answer: Option<Answer>) -> Result<Receipt, LedgerError> {
    match answer {
        Some(Answer::Posted(receipt) | Answer::Duplicate(receipt)) => Ok(receipt),
        Some(Answer::Refused(refusal)) => Err(refusal.into()),
        None => Err(LedgerError::Invalid("nothing was posted".to_owned())),
    }
}
