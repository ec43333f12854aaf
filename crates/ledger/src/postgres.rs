//! The books on PostgreSQL.
//!
//! Every transaction first names its tenant (`postrider.tenant`, for this transaction alone), and row-level security shows it
//! that tenant's rows and no others.

mod account_lines;
mod changing;
mod posting;
mod reading;
mod scanning;
mod totals;

use jiff::Timestamp;
use jiff::civil::{Date, date};
use postrider::EventId;
use postrider::Store as _;
use postrider::envelope::TenantId;
use postrider::postgres::{Postgres, PostgresTx};
use postrider::store::StoreError;

use crate::account::{Account, AccountCode};
use crate::books::{
    AccountLines, Balance, Books, Bounds, Change, Days, Head, Known, Page, Referred, Results, RulesVersion,
};
use crate::chain::{Hash, days};
use crate::chart::{Book, Chart};
use crate::checkpoint::Checkpoint;
use crate::dated::Span;
use crate::entry::Sealed;
use crate::statement::Place;
use crate::stored::{EntryRow, LineRow};

/// Names the tenant of a transaction. The other settings keep plans that were made on empty tables from reading whole ones.
const SCOPE: &str = "SELECT set_config('postrider.tenant', $1, true), set_config('enable_seqscan', 'off', true), \
     set_config('jit', 'off', true)";

async fn scope(store: &Postgres, tx: &mut PostgresTx, tenant: &TenantId) -> Result<(), StoreError> {
    let named = sqlx::query(SCOPE).bind(tenant.as_str()).execute(tx.connection()).await;
    named.map(|_| ()).map_err(|cause| store.error("naming the tenant", cause))
}

/// A transaction to read in, with one tenant's rows.
async fn reading(store: &Postgres, tenant: &TenantId) -> Result<PostgresTx, StoreError> {
    let mut tx = store.begin().await?;
    scope(store, &mut tx, tenant).await?;
    Ok(tx)
}

/// The same for several statements, which all see one moment.
async fn one_moment(store: &Postgres, tenant: &TenantId) -> Result<PostgresTx, StoreError> {
    let mut tx = store.begin().await?;
    let set = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ";
    let set = sqlx::query(set).execute(tx.connection()).await;
    set.map_err(|cause| store.error("beginning to read", cause))?;
    scope(store, &mut tx, tenant).await?;
    Ok(tx)
}

/// The day that somebody asks about, since 1970-01-01. PostgreSQL has none before 4713 BC, and no books have one before this.
fn asked(day: Date) -> i32 {
    days(day.max(date(-4000, 1, 1)))
}

impl Books for Postgres {
    async fn lock(&self, tx: &mut PostgresTx, tenant: &TenantId) -> Result<Option<Head>, StoreError> {
        scope(self, tx, tenant).await?;
        posting::lock(self, tx.connection(), tenant).await
    }

    async fn chart(&self, tx: &mut PostgresTx, tenant: &TenantId) -> Result<Chart, StoreError> {
        reading::chart(self, tx.connection(), tenant).await
    }

    async fn known(
        &self,
        tx: &mut PostgresTx,
        tenant: &TenantId,
        events: &[EventId],
    ) -> Result<Vec<Known>, StoreError> {
        posting::known(self, tx.connection(), tenant, events).await
    }

    async fn posted(&self, tenant: &TenantId, events: &[EventId]) -> Result<Vec<Known>, StoreError> {
        let mut tx = reading(self, tenant).await?;
        posting::known(self, tx.connection(), tenant, events).await
    }

    async fn referred(
        &self,
        tx: &mut PostgresTx,
        tenant: &TenantId,
        numbers: &[u64],
    ) -> Result<Vec<Referred>, StoreError> {
        reading::referred(self, tx.connection(), tenant, numbers).await
    }

    async fn write(&self, tx: &mut PostgresTx, tenant: &TenantId, page: &Page) -> Result<(), StoreError> {
        posting::write(self, tx.connection(), tenant, page).await
    }

    async fn open(&self, tx: &mut PostgresTx, book: &Book, at: Timestamp) -> Result<bool, StoreError> {
        scope(self, tx, &book.tenant).await?;
        changing::open(self, tx.connection(), book, at).await
    }

    async fn change(
        &self,
        tx: &mut PostgresTx,
        tenant: &TenantId,
        change: &Change,
    ) -> Result<(), StoreError> {
        changing::change(self, tx.connection(), tenant, change).await
    }

    async fn keep_checkpoint(
        &self,
        tx: &mut PostgresTx,
        tenant: &TenantId,
        checkpoint: &Checkpoint,
    ) -> Result<bool, StoreError> {
        changing::keep_checkpoint(self, tx.connection(), tenant, checkpoint).await
    }

    async fn tenants(&self) -> Result<Vec<TenantId>, StoreError> {
        reading::tenants(self).await
    }

    async fn traces(&self) -> Result<Vec<TenantId>, StoreError> {
        reading::traces(self).await
    }

    async fn head(&self, tenant: &TenantId) -> Result<Option<Head>, StoreError> {
        let mut tx = reading(self, tenant).await?;
        reading::head(self, tx.connection(), tenant).await
    }

    async fn read_chart(&self, tenant: &TenantId) -> Result<Option<Chart>, StoreError> {
        let mut tx = one_moment(self, tenant).await?;
        match reading::head(self, tx.connection(), tenant).await? {
            None => Ok(None),
            Some(_) => reading::chart(self, tx.connection(), tenant).await.map(Some),
        }
    }

    async fn book(&self, tenant: &TenantId) -> Result<Option<Book>, StoreError> {
        let mut tx = reading(self, tenant).await?;
        reading::book(self, tx.connection(), tenant).await
    }

    async fn account(&self, tenant: &TenantId, code: &AccountCode) -> Result<Option<Account>, StoreError> {
        let mut tx = reading(self, tenant).await?;
        reading::account(self, tx.connection(), tenant, code).await
    }

    async fn entries(&self, tenant: &TenantId, after: u64, limit: usize) -> Result<Vec<Sealed>, StoreError> {
        let mut tx = reading(self, tenant).await?;
        reading::entries(self, tx.connection(), tenant, after, limit).await
    }

    async fn scan(
        &self,
        tenant: &TenantId,
        after: u64,
        last: u64,
        show: impl FnMut(&EntryRow<'_>, &[LineRow<'_>]) + Send,
    ) -> Result<(), StoreError> {
        let mut tx = reading(self, tenant).await?;
        scanning::scan(self, tx.connection(), tenant, after, last, show).await
    }

    async fn bounds(&self, tenant: &TenantId) -> Result<Option<Bounds>, StoreError> {
        let mut tx = reading(self, tenant).await?;
        scanning::bounds(self, tx.connection(), tenant).await
    }

    async fn hashes(&self, tenant: &TenantId, first: u64, last: u64) -> Result<Vec<Hash>, StoreError> {
        let mut tx = reading(self, tenant).await?;
        reading::hashes(self, tx.connection(), tenant, first, last).await
    }

    async fn lines_of(
        &self,
        tenant: &TenantId,
        account: &AccountCode,
        before: Option<&Place>,
        limit: usize,
    ) -> Result<AccountLines, StoreError> {
        let mut tx = reading(self, tenant).await?;
        account_lines::lines_of(self, tx.connection(), tenant, account, before, limit).await
    }

    async fn lines_on(
        &self,
        tenant: &TenantId,
        account: &AccountCode,
        of: &Span,
        limit: usize,
    ) -> Result<AccountLines, StoreError> {
        let mut tx = one_moment(self, tenant).await?;
        account_lines::lines_on(self, tx.connection(), tenant, account, of, limit).await
    }

    async fn balances(&self, tenant: &TenantId) -> Result<Vec<Balance>, StoreError> {
        let mut tx = reading(self, tenant).await?;
        totals::balances(self, tx.connection(), tenant).await
    }

    async fn movements(
        &self,
        tenant: &TenantId,
        from: Option<Date>,
        to: Option<Date>,
    ) -> Result<Vec<Balance>, StoreError> {
        let mut tx = reading(self, tenant).await?;
        totals::movements(self, tx.connection(), tenant, from, to).await
    }

    async fn movements_in(
        &self,
        tx: &mut PostgresTx,
        tenant: &TenantId,
        from: Option<Date>,
        to: Option<Date>,
    ) -> Result<Vec<Balance>, StoreError> {
        totals::movements(self, tx.connection(), tenant, from, to).await
    }

    async fn days(&self, tenant: &TenantId, which: &Days) -> Result<Vec<(Date, Balance)>, StoreError> {
        let mut tx = reading(self, tenant).await?;
        totals::by_day(self, tx.connection(), tenant, which).await
    }

    async fn results(
        &self,
        tenant: &TenantId,
        from: Option<Date>,
        to: Option<Date>,
    ) -> Result<Results, StoreError> {
        let mut tx = one_moment(self, tenant).await?;
        let movements = totals::movements(self, tx.connection(), tenant, from, to).await?;
        let closings = totals::closings(self, tx.connection(), tenant, from, to).await?;
        Ok(Results { movements, closings })
    }

    async fn posted_since_closing(
        &self,
        tx: &mut PostgresTx,
        tenant: &TenantId,
        day: Date,
    ) -> Result<Option<(u64, Vec<Balance>)>, StoreError> {
        totals::posted_since_closing(self, tx.connection(), tenant, day).await
    }

    async fn rules_versions(&self, tenant: &TenantId) -> Result<Vec<RulesVersion>, StoreError> {
        let mut tx = reading(self, tenant).await?;
        reading::rules_versions(self, tx.connection(), tenant).await
    }

    async fn checkpoints(&self, tenant: &TenantId) -> Result<Vec<Checkpoint>, StoreError> {
        let mut tx = reading(self, tenant).await?;
        reading::checkpoints(self, tx.connection(), tenant).await
    }
}
