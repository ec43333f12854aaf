//! Making checkpoints, and proving entries by them.

use postrider::Event;
use postrider::envelope::{Ordering, TenantId};
use serde_json::{Value, json};

use crate::books::Books;
use crate::chain::{self, Hash};
use crate::checkpoint::{Checkpoint, Key, Proof, PublicKey};
use crate::error::LedgerError;
use crate::ledger::Ledger;
use crate::refusal::Refusal;

/// The most entries of one checkpoint.
const MOST: u64 = 100_000;

/// That an entry is in a signed checkpoint.
#[derive(Debug, Clone)]
pub struct Proven {
    /// The hash of the entry as it stands in the books: of one that was changed since, the way leads to no root.
    pub hash: Hash,
    /// The way from it to the root.
    pub proof: Proof,
    /// The checkpoint with that root.
    pub checkpoint: Checkpoint,
    /// Whether one of the keys that are trusted signed it; where none are named anybody's counts, as it does to who verifies.
    pub is_trusted: bool,
}

impl Proven {
    /// Whether the way leads from the entry to the root, and the root is signed by a key that counts.
    pub fn holds(&self, tenant: &TenantId) -> bool {
        let leads = self.proof.root(&self.hash) == self.checkpoint.root;
        leads && self.is_trusted && self.checkpoint.is_signed(tenant)
    }

    /// All that somebody else needs to check it.
    pub fn document(&self, tenant: &TenantId, entry: u64) -> Value {
        let path = self.proof.path.iter().map(|(left, hash)| json!({"left": left, "hash": hash}));
        json!({
            "tenant": tenant.as_str(),
            "entry": entry.to_string(),
            "hash": self.hash,
            "path": path.collect::<Vec<_>>(),
            "checkpoint": self.checkpoint,
            "holds": self.holds(tenant),
        })
    }
}

impl<B: Books> Ledger<B> {
    /// The entries that the next checkpoint would sign, the first and the last; nothing if there are none.
    pub async fn unsigned(&self, tenant: &TenantId) -> Result<Option<(u64, u64)>, LedgerError> {
        let Some(head) = self.books.head(tenant).await? else {
            return Err(Refusal::UnknownTenant(tenant.to_string()).into());
        };
        let first = self.books.checkpoints(tenant).await?.last().map_or(1, |newest| newest.last + 1);
        let last = head.number.min(first + MOST - 1);
        Ok((first <= last).then_some((first, last)))
    }

    /// Signs the entries since the last checkpoint, and tells of it on the journal's exchange. Nothing if there are none, or if another
    /// process signed them meanwhile.
    ///
    /// Entries are read before the books are locked: they stay as they are, nobody posts slower for it, and nobody waits for a second
    /// connection with the books in hand.
    pub async fn checkpoint(&self, tenant: &TenantId, key: &Key) -> Result<Option<Checkpoint>, LedgerError> {
        let Some((first, last)) = self.unsigned(tenant).await? else { return Ok(None) };
        let run = self.books.hashes(tenant, first, last).await?;
        let Some(checkpoint) = Checkpoint::sign(key, tenant, first, &run, self.clock.now()) else {
            return Ok(None);
        };
        let (mut tx, _) = self.lock_books(tenant).await?;
        if !self.books.keep_checkpoint(&mut tx, tenant, &checkpoint).await? {
            self.books.rollback(tx).await?;
            return Ok(None);
        }
        if let Some(exchange) = &self.announce
            && let Some(event) = told(tenant, &checkpoint)
        {
            self.books.append(&mut tx, vec![event.exchange(exchange.clone())]).await?;
        }
        self.books.commit(tx).await?;
        Ok(Some(checkpoint))
    }

    /// The proof that an entry is in a checkpoint; nothing if none has it yet.
    pub async fn prove(&self, tenant: &TenantId, entry: u64) -> Result<Option<Proven>, LedgerError> {
        let all = self.books.checkpoints(tenant).await?;
        let covers = |checkpoint: &Checkpoint| (checkpoint.first..=checkpoint.last).contains(&entry);
        let Some(checkpoint) = all.into_iter().find(covers) else { return Ok(None) };
        let run = self.books.hashes(tenant, checkpoint.first, checkpoint.last).await?;
        let place = usize::try_from(entry - checkpoint.first).unwrap_or(usize::MAX);
        let hash = self.hash_now(tenant, entry).await?;
        let is_trusted = self.trusted.is_empty() || self.trusted.contains(&PublicKey(checkpoint.public_key));
        Ok(Proof::of(&run, place).map(|proof| Proven { hash, proof, checkpoint, is_trusted }))
    }

    /// The hash of an entry as it stands in the books. The one that is stored beside it says nothing of what was changed since.
    async fn hash_now(&self, tenant: &TenantId, entry: u64) -> Result<Hash, LedgerError> {
        let before = entry.saturating_sub(1);
        let there = self.books.entries(tenant, before, 1).await?;
        let there = there.into_iter().find(|there| there.number == entry);
        let there = there.ok_or(Refusal::UnknownEntry(entry))?;
        let before = if before == 0 { Vec::new() } else { self.books.hashes(tenant, before, before).await? };
        Ok(chain::hash(before.first().unwrap_or(&Hash::ZERO), &there))
    }
}

fn told(tenant: &TenantId, checkpoint: &Checkpoint) -> Option<Event> {
    let mut event = Event::new("fis.journal.checkpointed").ok()?.ordering(Ordering::Free);
    event.tenant.group = Some(tenant.clone());
    let mut payload = serde_json::to_value(checkpoint).ok()?;
    payload["tenantId"] = json!(tenant.as_str());
    event.occurred_at(checkpoint.made_at).json(&payload).ok()
}
