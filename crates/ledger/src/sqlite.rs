//! The books on SQLite: the same contract on one file. The file has one writer, so a transaction that writes has the books locked.

mod account_lines;
mod changing;
mod posting;
mod reading;
mod scanning;
mod totals;

use jiff::Timestamp;
use jiff::civil::Date;
use postrider::EventId;
use postrider::envelope::TenantId;
use postrider::sqlite::{Sqlite, SqliteTx};
use postrider::store::StoreError;

use crate::account::{Account, AccountCode};
use crate::books::{
    AccountLines, Balance, Books, Bounds, Change, Days, Head, Known, Page, Referred, Results, RulesVersion,
};
use crate::chain::Hash;
use crate::chart::{Book, Chart};
use crate::checkpoint::Checkpoint;
use crate::dated::Span;
use crate::entry::Sealed;
use crate::statement::Place;
use crate::stored::{EntryRow, LineRow};

/// A connection that only reads.
type Reader = sqlx::pool::PoolConnection<sqlx::Sqlite>;

async fn reader(store: &Sqlite) -> Result<Reader, StoreError> {
    store.readers().acquire().await.map_err(|cause| store.error(cause))
}

/// The same for several statements, which all see one moment.
async fn one_moment(store: &Sqlite) -> Result<sqlx::Transaction<'static, sqlx::Sqlite>, StoreError> {
    store.readers().begin().await.map_err(|cause| store.error(cause))
}

impl Books for Sqlite {
    async fn lock(&self, tx: &mut SqliteTx, tenant: &TenantId) -> Result<Option<Head>, StoreError> {
        reading::head(self, tx.connection().await?, tenant).await
    }

    async fn chart(&self, tx: &mut SqliteTx, tenant: &TenantId) -> Result<Chart, StoreError> {
        reading::chart(self, tx.connection().await?, tenant).await
    }

    async fn known(
        &self,
        tx: &mut SqliteTx,
        tenant: &TenantId,
        events: &[EventId],
    ) -> Result<Vec<Known>, StoreError> {
        posting::known(self, tx.connection().await?, tenant, events).await
    }

    async fn posted(&self, tenant: &TenantId, events: &[EventId]) -> Result<Vec<Known>, StoreError> {
        posting::known(self, &mut *reader(self).await?, tenant, events).await
    }

    async fn referred(
        &self,
        tx: &mut SqliteTx,
        tenant: &TenantId,
        numbers: &[u64],
    ) -> Result<Vec<Referred>, StoreError> {
        reading::referred(self, tx.connection().await?, tenant, numbers).await
    }

    async fn write(&self, tx: &mut SqliteTx, tenant: &TenantId, page: &Page) -> Result<(), StoreError> {
        posting::write(self, tx.connection().await?, tenant, page).await
    }

    async fn open(&self, tx: &mut SqliteTx, book: &Book, at: Timestamp) -> Result<bool, StoreError> {
        changing::open(self, tx.connection().await?, book, at).await
    }

    async fn change(&self, tx: &mut SqliteTx, tenant: &TenantId, change: &Change) -> Result<(), StoreError> {
        changing::change(self, tx.connection().await?, tenant, change).await
    }

    async fn keep_checkpoint(
        &self,
        tx: &mut SqliteTx,
        tenant: &TenantId,
        checkpoint: &Checkpoint,
    ) -> Result<bool, StoreError> {
        changing::keep_checkpoint(self, tx.connection().await?, tenant, checkpoint).await
    }

    async fn tenants(&self) -> Result<Vec<TenantId>, StoreError> {
        reading::tenants(self).await
    }

    async fn traces(&self) -> Result<Vec<TenantId>, StoreError> {
        reading::traces(self).await
    }

    async fn head(&self, tenant: &TenantId) -> Result<Option<Head>, StoreError> {
        reading::head(self, &mut *reader(self).await?, tenant).await
    }

    async fn read_chart(&self, tenant: &TenantId) -> Result<Option<Chart>, StoreError> {
        let mut reader = one_moment(self).await?;
        match reading::head(self, &mut reader, tenant).await? {
            None => Ok(None),
            Some(_) => reading::chart(self, &mut reader, tenant).await.map(Some),
        }
    }

    async fn book(&self, tenant: &TenantId) -> Result<Option<Book>, StoreError> {
        reading::book(self, &mut *reader(self).await?, tenant).await
    }

    async fn account(&self, tenant: &TenantId, code: &AccountCode) -> Result<Option<Account>, StoreError> {
        reading::account(self, &mut *reader(self).await?, tenant, code).await
    }

    async fn entries(&self, tenant: &TenantId, after: u64, limit: usize) -> Result<Vec<Sealed>, StoreError> {
        reading::entries(self, &mut *reader(self).await?, tenant, after, limit).await
    }

    async fn scan(
        &self,
        tenant: &TenantId,
        after: u64,
        last: u64,
        show: impl FnMut(&EntryRow<'_>, &[LineRow<'_>]) + Send,
    ) -> Result<(), StoreError> {
        scanning::scan(self, &mut *reader(self).await?, tenant, after, last, show).await
    }

    async fn bounds(&self, tenant: &TenantId) -> Result<Option<Bounds>, StoreError> {
        scanning::bounds(self, &mut *reader(self).await?, tenant).await
    }

    async fn hashes(&self, tenant: &TenantId, first: u64, last: u64) -> Result<Vec<Hash>, StoreError> {
        reading::hashes(self, &mut *reader(self).await?, tenant, first, last).await
    }

    async fn lines_of(
        &self,
        tenant: &TenantId,
        account: &AccountCode,
        before: Option<&Place>,
        limit: usize,
    ) -> Result<AccountLines, StoreError> {
        account_lines::lines_of(self, &mut *reader(self).await?, tenant, account, before, limit).await
    }

    async fn lines_on(
        &self,
        tenant: &TenantId,
        account: &AccountCode,
        of: &Span,
        limit: usize,
    ) -> Result<AccountLines, StoreError> {
        account_lines::lines_on(self, &mut *one_moment(self).await?, tenant, account, of, limit).await
    }

    async fn balances(&self, tenant: &TenantId) -> Result<Vec<Balance>, StoreError> {
        totals::balances(self, &mut *reader(self).await?, tenant).await
    }

    async fn movements(
        &self,
        tenant: &TenantId,
        from: Option<Date>,
        to: Option<Date>,
    ) -> Result<Vec<Balance>, StoreError> {
        totals::movements(self, &mut *reader(self).await?, tenant, from, to).await
    }

    async fn movements_in(
        &self,
        tx: &mut SqliteTx,
        tenant: &TenantId,
        from: Option<Date>,
        to: Option<Date>,
    ) -> Result<Vec<Balance>, StoreError> {
        totals::movements(self, tx.connection().await?, tenant, from, to).await
    }

    async fn days(&self, tenant: &TenantId, which: &Days) -> Result<Vec<(Date, Balance)>, StoreError> {
        totals::by_day(self, &mut *reader(self).await?, tenant, which).await
    }

    async fn results(
        &self,
        tenant: &TenantId,
        from: Option<Date>,
        to: Option<Date>,
    ) -> Result<Results, StoreError> {
        let mut reader = one_moment(self).await?;
        let movements = totals::movements(self, &mut reader, tenant, from, to).await?;
        let closings = totals::closings(self, &mut reader, tenant, from, to).await?;
        Ok(Results { movements, closings })
    }

    async fn posted_since_closing(
        &self,
        tx: &mut SqliteTx,
        tenant: &TenantId,
        day: Date,
    ) -> Result<Option<(u64, Vec<Balance>)>, StoreError> {
        totals::posted_since_closing(self, tx.connection().await?, tenant, day).await
    }

    async fn rules_versions(&self, tenant: &TenantId) -> Result<Vec<RulesVersion>, StoreError> {
        reading::rules_versions(self, &mut *reader(self).await?, tenant).await
    }

    async fn checkpoints(&self, tenant: &TenantId) -> Result<Vec<Checkpoint>, StoreError> {
        reading::checkpoints(self, &mut *reader(self).await?, tenant).await
    }
}
