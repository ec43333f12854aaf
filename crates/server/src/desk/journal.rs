//! The books of the ledger, as people read them.

use async_trait::async_trait;
use postrider::EventId;
use postrider::envelope::TenantId;
use postrider::store::{AppliedIn, AppliedStep, Registrations, StoreError, StoreErrorKind, Trace};
use postrider_ledger::LedgerError;
use postrider_ledger::books::Books;
use postrider_ledger::chart::Chart;
use postrider_ledger::entry::Sealed;
use postrider_ledger::refusal::Refusal;
use postrider_ledger::report::TrialBalance;
use postrider_ledger::verify::{Scope, Verification};

use super::{Answer, StoreDesk};
use crate::wiring::WholeStore;

#[async_trait]
pub(crate) trait Journal {
    /// Who keeps books.
    async fn book_keepers(&self) -> Answer<Vec<TenantId>>;
    /// Accounts, periods and the head.
    async fn chart(&self, tenant: &TenantId) -> Answer<Chart>;
    /// Entries after a number, and the number of the last one there is.
    async fn entries(&self, tenant: &TenantId, after: u64, limit: usize) -> Answer<(Vec<Sealed>, u64)>;
    /// Debits and credits of every account, now.
    async fn trial_balance(&self, tenant: &TenantId) -> Answer<TrialBalance>;
    /// Whether all of it is as it was written.
    async fn verify(&self, tenant: &TenantId) -> Answer<Verification>;
}

#[async_trait]
impl<S: WholeStore> Journal for StoreDesk<S> {
    async fn book_keepers(&self) -> Answer<Vec<TenantId>> {
        Ok(self.ledger.books().tenants().await?)
    }

    async fn chart(&self, tenant: &TenantId) -> Answer<Chart> {
        let chart = self.ledger.books().read_chart(tenant).await?;
        chart.ok_or_else(|| unknown(tenant).into())
    }

    async fn entries(&self, tenant: &TenantId, after: u64, limit: usize) -> Answer<(Vec<Sealed>, u64)> {
        let head = self.ledger.books().head(tenant).await?.ok_or_else(|| unknown(tenant))?;
        Ok((self.ledger.books().entries(tenant, after, limit).await?, head.number))
    }

    async fn trial_balance(&self, tenant: &TenantId) -> Answer<TrialBalance> {
        Ok(self.ledger.trial_balance(tenant, None).await?)
    }

    async fn verify(&self, tenant: &TenantId) -> Answer<Verification> {
        let scope = Scope { side_by_side: 1, ..Scope::default() };
        let found = self.ledger.verify(tenant, scope).await?;
        found.ok_or_else(|| unknown(tenant).into())
    }
}

/// Adds to what is known of an event that it is an entry, for the consumer that keeps books: it has no mark in an inbox. Says whose entry
/// it is. Of one that came from elsewhere nothing else tells whose it is, so all books are asked; a role that may not read them finds
/// nothing.
pub(crate) async fn add_entry<S: Books + Registrations>(
    store: &S,
    tenant: Option<TenantId>,
    from_elsewhere: bool,
    id: &EventId,
    trace: &mut Trace,
) -> Result<Option<TenantId>, StoreError> {
    match find_entry(store, tenant, from_elsewhere, id, trace).await {
        Err(error) if error.kind == StoreErrorKind::Denied => Ok(None),
        found => found,
    }
}

async fn find_entry<S: Books + Registrations>(
    store: &S,
    tenant: Option<TenantId>,
    from_elsewhere: bool,
    id: &EventId,
    trace: &mut Trace,
) -> Result<Option<TenantId>, StoreError> {
    let mut keepers: Vec<TenantId> = tenant.into_iter().collect();
    if from_elsewhere {
        keepers.extend(store.tenants().await?);
    }
    for tenant in keepers {
        let Some(known) = store.posted(&tenant, std::slice::from_ref(id)).await?.pop() else { continue };
        let entries = store.entries(&tenant, known.receipt.entry - 1, 1).await?;
        // Books that are only ever filled from files have no consumer.
        let registered = store.registrations().await?;
        let keeper = registered.into_iter().find(|one| one.applied_in == AppliedIn::Books);
        let consumer = keeper.map_or_else(|| "ledger".to_owned(), |keeper| keeper.name.to_string());
        let applied = |entry: &Sealed| AppliedStep { consumer: consumer.clone(), at: entry.posted_at };
        trace.applied.extend(entries.iter().map(applied));
        return Ok(Some(tenant));
    }
    Ok(None)
}

fn unknown(tenant: &TenantId) -> LedgerError {
    Refusal::UnknownTenant(tenant.to_string()).into()
}
