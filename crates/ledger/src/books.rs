//! The port to the books: what the ledger asks of a database.
//!
//! Two implementations keep this contract and pass one suite: `postgres` and `sqlite`. What has to be atomic takes the
//! caller's transaction. Everything that changes a tenant's books first locks them ([`Books::lock`]), so that there is one
//! writer a tenant at a time, however many processes there are; what is read after the lock holds until the commit.

mod sums;

pub use sums::{Balance, Days, Sums};

use std::collections::BTreeMap;
use std::future::Future;

use jiff::Timestamp;
use jiff::civil::Date;
use postrider::envelope::{PayloadHash, TenantId};
use postrider::store::StoreError;
use postrider::{EventId, Outbox};
use serde::Serialize;

use crate::account::{Account, AccountCode, Side};
use crate::chain::Hash;
use crate::chart::{Book, Chart, DayRate};
use crate::checkpoint::Checkpoint;
use crate::dated::Span;
use crate::entry::Sealed;
use crate::money::Currency;
use crate::period::Period;
use crate::statement::Place;
use crate::stored::{EntryRow, LineRow};

/// The books of all tenants in one database.
pub trait Books: Outbox {
    /// Locks a tenant's books until the transaction ends, and says where its chain stands. Nothing if it has none.
    fn lock(
        &self,
        tx: &mut Self::Tx,
        tenant: &TenantId,
    ) -> impl Future<Output = Result<Option<Head>, StoreError>> + Send;

    /// What entries are made by, as of now. Call it with the books locked.
    fn chart(
        &self,
        tx: &mut Self::Tx,
        tenant: &TenantId,
    ) -> impl Future<Output = Result<Chart, StoreError>> + Send;

    /// Which of these events are in the books already.
    fn known(
        &self,
        tx: &mut Self::Tx,
        tenant: &TenantId,
        events: &[EventId],
    ) -> impl Future<Output = Result<Vec<Known>, StoreError>> + Send;

    /// Which of these events are in the books, for who only looks.
    fn posted(
        &self,
        tenant: &TenantId,
        events: &[EventId],
    ) -> impl Future<Output = Result<Vec<Known>, StoreError>> + Send;

    /// The entries with these numbers, and by which entry each was reversed, settled or voided.
    fn referred(
        &self,
        tx: &mut Self::Tx,
        tenant: &TenantId,
        numbers: &[u64],
    ) -> impl Future<Output = Result<Vec<Referred>, StoreError>> + Send;

    /// Writes sealed entries and what follows from them, in a few statements however many there are. A unique key says
    /// no if an event is in the books already; then nothing of the transaction may be committed.
    fn write(
        &self,
        tx: &mut Self::Tx,
        tenant: &TenantId,
        page: &Page,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Opens books. False if the tenant has some already; they are left as they are.
    fn open(
        &self,
        tx: &mut Self::Tx,
        book: &Book,
        at: Timestamp,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Changes what entries are made by, and gives the books a new version. Call it with the books locked.
    fn change(
        &self,
        tx: &mut Self::Tx,
        tenant: &TenantId,
        change: &Change,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Keeps a checkpoint. False if there is one of its entries already; then it is not kept. Call it with the books locked.
    fn keep_checkpoint(
        &self,
        tx: &mut Self::Tx,
        tenant: &TenantId,
        checkpoint: &Checkpoint,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Who keeps books here.
    fn tenants(&self) -> impl Future<Output = Result<Vec<TenantId>, StoreError>> + Send;

    /// Who keeps books here, and who has something left of them: for who verifies them all. On PostgreSQL a role that row-level security
    /// holds back sees no more than [`Books::tenants`].
    fn traces(&self) -> impl Future<Output = Result<Vec<TenantId>, StoreError>> + Send;

    /// Where a tenant's chain stands.
    fn head(&self, tenant: &TenantId) -> impl Future<Output = Result<Option<Head>, StoreError>> + Send;

    /// What entries are made by, to be read.
    fn read_chart(&self, tenant: &TenantId)
    -> impl Future<Output = Result<Option<Chart>, StoreError>> + Send;

    /// The settings of a tenant's books: one row, where [`Books::read_chart`] reads every account.
    fn book(&self, tenant: &TenantId) -> impl Future<Output = Result<Option<Book>, StoreError>> + Send;

    /// One account of a tenant's.
    fn account(
        &self,
        tenant: &TenantId,
        code: &AccountCode,
    ) -> impl Future<Output = Result<Option<Account>, StoreError>> + Send;

    /// The next entries after a number, in order.
    fn entries(
        &self,
        tenant: &TenantId,
        after: u64,
        limit: usize,
    ) -> impl Future<Output = Result<Vec<Sealed>, StoreError>> + Send;

    /// Shows every entry after a number up to another with its lines, in order, as the columns are: to who verifies them. What
    /// is missing is left out, and seen by the numbers.
    fn scan(
        &self,
        tenant: &TenantId,
        after: u64,
        last: u64,
        show: impl FnMut(&EntryRow<'_>, &[LineRow<'_>]) + Send,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Where a tenant's chain ends, and the numbers that entries and lines are stored under, all in the same moment.
    fn bounds(&self, tenant: &TenantId) -> impl Future<Output = Result<Option<Bounds>, StoreError>> + Send;

    /// The stored hashes of a run of entries, in order.
    fn hashes(
        &self,
        tenant: &TenantId,
        first: u64,
        last: u64,
    ) -> impl Future<Output = Result<Vec<Hash>, StoreError>> + Send;

    /// The newest lines of an account that were posted, or those before a place.
    fn lines_of(
        &self,
        tenant: &TenantId,
        account: &AccountCode,
        before: Option<&Place>,
        limit: usize,
    ) -> impl Future<Output = Result<AccountLines, StoreError>> + Send;

    /// The lines of an account that were posted for the days of a range, by day, entry and line; those after a place, if one is given, or else
    /// with what the account held before the first day. All of the same moment.
    fn lines_on(
        &self,
        tenant: &TenantId,
        account: &AccountCode,
        of: &Span,
        limit: usize,
    ) -> impl Future<Output = Result<AccountLines, StoreError>> + Send;

    /// Every balance as it is kept, by account and currency.
    fn balances(&self, tenant: &TenantId) -> impl Future<Output = Result<Vec<Balance>, StoreError>> + Send;

    /// What was posted on the days of a range, added up from the totals by day. Pending amounts are left out.
    fn movements(
        &self,
        tenant: &TenantId,
        from: Option<Date>,
        to: Option<Date>,
    ) -> impl Future<Output = Result<Vec<Balance>, StoreError>> + Send;

    /// The same in a transaction that has the books locked.
    fn movements_in(
        &self,
        tx: &mut Self::Tx,
        tenant: &TenantId,
        from: Option<Date>,
        to: Option<Date>,
    ) -> impl Future<Output = Result<Vec<Balance>, StoreError>> + Send;

    /// Totals by day as they are kept, by day, account and currency: all, or those that are asked for.
    fn days(
        &self,
        tenant: &TenantId,
        which: &Days,
    ) -> impl Future<Output = Result<Vec<(Date, Balance)>, StoreError>> + Send;

    /// What was posted on the days of a range, and how much of it by the closings of years, and reversals of them. Both of the same moment.
    fn results(
        &self,
        tenant: &TenantId,
        from: Option<Date>,
        to: Option<Date>,
    ) -> impl Future<Output = Result<Results, StoreError>> + Send;

    /// The newest closing for a later day than this one that was not reversed, and what was posted after it for the days up to this one.
    /// Nothing where there is no such closing. Call it with the books locked.
    fn posted_since_closing(
        &self,
        tx: &mut Self::Tx,
        tenant: &TenantId,
        day: Date,
    ) -> impl Future<Output = Result<Option<(u64, Vec<Balance>)>, StoreError>> + Send;

    /// Every version of the rules, oldest first.
    fn rules_versions(
        &self,
        tenant: &TenantId,
    ) -> impl Future<Output = Result<Vec<RulesVersion>, StoreError>> + Send;

    /// All checkpoints, oldest first.
    fn checkpoints(
        &self,
        tenant: &TenantId,
    ) -> impl Future<Output = Result<Vec<Checkpoint>, StoreError>> + Send;
}

/// A line of an account, with what its statement tells of the entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccountLine {
    /// Which entry.
    pub entry: u64,
    /// Which line of it.
    pub line: u16,
    /// The day it counts for.
    pub effective_on: Date,
    /// For people.
    pub description: String,
    /// Which side.
    pub side: Side,
    /// Minor units.
    pub amount: i64,
    /// Of what.
    pub currency: Currency,
}

impl AccountLine {
    /// By how much debits less credits grow with it.
    pub(crate) fn change(&self) -> i64 {
        match self.side {
            Side::Debit => self.amount,
            Side::Credit => -self.amount,
        }
    }
}

/// Lines of an account, and what it held in the same moment: after the first line where the newest comes first, before it where the order is
/// that of days.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AccountLines {
    /// The lines.
    pub lines: Vec<AccountLine>,
    /// Debits less credits, in minor units. May be empty where nobody needs it.
    pub held: BTreeMap<Currency, i64>,
}

/// What was posted on some days.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Results {
    /// All of it.
    pub movements: Vec<Balance>,
    /// What the closings of years posted, and reversals of them.
    pub closings: Vec<Balance>,
}

/// The rules as they were for a while. Entries name the version that made them: `order completed@3`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RulesVersion {
    /// From 1.
    pub version: u32,
    /// From when on it counted.
    pub since: Timestamp,
    /// TOML.
    pub document: String,
}

/// Where a tenant's chain stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// The number of the newest entry; 0 before the first.
    pub number: u64,
    /// Its hash.
    pub hash: Hash,
    /// The version of what entries are made by.
    pub version: u64,
}

/// The numbers that entries and lines are stored under, whatever the chain says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// The newest entry by the head of the chain.
    pub head: i64,
    /// The lowest and the highest number of an entry; nothing where there is none.
    pub entries: Option<(i64, i64)>,
    /// The same of the entries that lines name.
    pub lines: Option<(i64, i64)>,
}

/// An event that is in the books.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known {
    /// Which event.
    pub event: EventId,
    /// What it said.
    pub payload_hash: PayloadHash,
    /// Which entry it is.
    pub receipt: Receipt,
}

/// What one gets for an event that was posted, the first time and every time after.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Receipt {
    /// The number of the entry.
    #[serde(serialize_with = "as_text")]
    pub entry: u64,
    /// Its hash.
    pub hash: Hash,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks for it")]
pub(crate) fn as_text<S: serde::Serializer>(number: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(number)
}

#[allow(clippy::ref_option, reason = "serde asks for it")]
pub(crate) fn as_maybe_text<S: serde::Serializer>(
    number: &Option<u64>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match number {
        Some(number) => serializer.collect_str(number),
        None => serializer.serialize_none(),
    }
}

/// An entry that another one wants to reverse, settle or void.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Referred {
    /// The entry.
    pub entry: Sealed,
    /// What did so before.
    pub by: Option<u64>,
}

/// What a batch writes.
#[derive(Debug, Clone, Default)]
pub struct Page {
    /// The entries, in the order of their numbers.
    pub entries: Vec<Sealed>,
    /// What they add to the balances, one row per account and currency, sorted.
    pub changes: Vec<Balance>,
    /// What they add to the totals by day, sorted.
    pub days: Vec<(Date, Balance)>,
    /// Accounts that are opened by these entries.
    pub opened: Vec<Account>,
}

/// A change of what entries are made by.
#[derive(Debug, Clone)]
pub enum Change {
    /// The settings; the base currency stays.
    Settings(Book),
    /// Adds accounts, or changes those with the same code.
    Accounts(Vec<Account>),
    /// The next version of the rules.
    Rules {
        /// Its number.
        version: u32,
        /// The document.
        document: String,
        /// When.
        at: Timestamp,
    },
    /// Adds rates, or changes those of the same day and source.
    Rates(Vec<DayRate>),
    /// Adds a period, or changes the state of the one with its name.
    Period(Period),
}
