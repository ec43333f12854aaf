//! The books as a consumer's effects: which committed events are entries. The ledger marks nothing in the inbox, so its account asks here.

use std::collections::{BTreeMap, HashSet};

use async_trait::async_trait;
use postrider::EventId;
use postrider::audit::Effects;
use postrider::envelope::TenantId;
use postrider::store::{CommittedEvent, StoreError};

use crate::books::Books;

/// What the ledger has applied.
///
/// An event that is posted, by whatever way, is an entry of its tenant under its own id, and every other one becomes a dead letter: there
/// is nothing that the ledger acks without an entry.
pub struct Entries<'a, B> {
    books: &'a B,
    tenant: Option<&'a TenantId>,
}

impl<'a, B: Books> Entries<'a, B> {
    /// Those of these books. Events that name nobody are this tenant's, as the intake has it.
    pub fn new(books: &'a B, tenant: Option<&'a TenantId>) -> Self {
        Self { books, tenant }
    }
}

#[async_trait]
impl<B: Books> Effects for Entries<'_, B> {
    async fn applied(&self, events: &[CommittedEvent]) -> Result<Vec<bool>, StoreError> {
        let mut by_tenant: BTreeMap<&TenantId, Vec<EventId>> = BTreeMap::new();
        for event in events {
            // Whoever has no tenant at all was refused.
            if let Some(tenant) = event.tenant.as_ref().or(self.tenant) {
                by_tenant.entry(tenant).or_default().push(event.id.clone());
            }
        }
        let mut entries = HashSet::new();
        for (tenant, events) in by_tenant {
            entries.extend(self.books.posted(tenant, &events).await?.into_iter().map(|known| known.event));
        }
        Ok(events.iter().map(|event| entries.contains(&event.id)).collect())
    }
}
