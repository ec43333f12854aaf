//! Keeping the books: opening them, and changing what entries are made by.
//!
//! Each of these locks the books, so none can slip between the steps of a batch that is being posted.

use std::collections::HashSet;

use postrider::envelope::TenantId;

use crate::account::{Account, AccountChange, AccountCode, AccountType};
use crate::books::{Books, Change, Head};
use crate::chart::{Book, Chart, DayRate};
use crate::error::LedgerError;
use crate::ledger::Ledger;
use crate::period::YEARS;
use crate::refusal::Refusal;
use crate::rules::Rules;

/// The most digits of a rate after the point: more than anybody publishes, and few enough for any amount to be multiplied with exactly.
const RATE_DIGITS: u32 = 18;

impl<B: Books> Ledger<B> {
    /// Opens the books of a tenant with these accounts and rules. False if it has some already; they are left as they are.
    pub async fn open_books(
        &self,
        book: &Book,
        accounts: &[Account],
        rules: &str,
    ) -> Result<bool, LedgerError> {
        Rules::parse_new(1, rules).map_err(|error| LedgerError::Invalid(error.to_string()))?;
        once_each(accounts.iter().map(|account| format!("the account {}", account.code)))?;
        let (now, tenant) = (self.clock.now(), &book.tenant);
        let retained = accounts.iter().find(|account| Some(&account.code) == book.retained_account.as_ref());
        if let Some(retained) = retained {
            is_equity(retained)?;
        }
        let mut tx = self.books.begin().await?;
        if !self.books.open(&mut tx, book, now).await? {
            return Ok(false);
        }
        self.books.change(&mut tx, tenant, &Change::Accounts(accounts.to_vec())).await?;
        if !rules.trim().is_empty() {
            let change = Change::Rules { version: 1, document: rules.to_owned(), at: now };
            self.books.change(&mut tx, tenant, &change).await?;
        }
        self.end(tx).await?;
        Ok(true)
    }

    /// Changes settings. The base currency is fixed.
    pub async fn set_book(&self, book: &Book) -> Result<(), LedgerError> {
        self.change_book(&book.tenant, |_| book.clone()).await.map(|_| ())
    }

    /// Changes settings by what they are, and returns what they are then. Nobody's change is lost when two do so at once.
    pub async fn change_book(
        &self,
        tenant: &TenantId,
        change: impl FnOnce(Book) -> Book,
    ) -> Result<Book, LedgerError> {
        let (mut tx, _, chart) = self.locked(tenant).await?;
        let book = change(chart.book.clone());
        if chart.book.base_currency != book.base_currency {
            let text =
                format!("the base currency is {} for good: amounts are kept in it", chart.book.base_currency);
            return Err(LedgerError::Invalid(text));
        }
        for account in [&book.rounding_account, &book.retained_account].into_iter().flatten() {
            chart.account(account)?;
        }
        // Books that have another one from before can still change all else.
        if let Some(retained) = &book.retained_account
            && chart.book.retained_account.as_ref() != Some(retained)
        {
            takes_results(&chart, retained)?;
        }
        self.books.change(&mut tx, tenant, &Change::Settings(book.clone())).await?;
        self.end(tx).await?;
        Ok(book)
    }

    /// Adds accounts, or makes those that are there these. What an account is stays.
    pub async fn set_accounts(&self, tenant: &TenantId, accounts: &[Account]) -> Result<(), LedgerError> {
        self.put_accounts(tenant, |_| Ok(accounts.to_vec())).await.map(|_| ())
    }

    /// Adds accounts, renames them, opens and closes them for entries, and returns what they are then. What a change does not name stays: whoever
    /// renames one need not know what it else is.
    pub async fn change_accounts(
        &self,
        tenant: &TenantId,
        changes: Vec<AccountChange>,
    ) -> Result<Vec<Account>, LedgerError> {
        let made = |chart: &Chart, change: AccountChange| {
            let (code, there) = (change.code.clone(), chart.accounts.get(&change.code));
            change
                .made(there)
                .ok_or_else(|| LedgerError::Invalid(format!("the account {code} is new: say its type")))
        };
        self.put_accounts(tenant, |chart| changes.into_iter().map(|change| made(chart, change)).collect())
            .await
    }

    async fn put_accounts(
        &self,
        tenant: &TenantId,
        accounts: impl FnOnce(&Chart) -> Result<Vec<Account>, LedgerError>,
    ) -> Result<Vec<Account>, LedgerError> {
        let (mut tx, _, chart) = self.locked(tenant).await?;
        let accounts = accounts(&chart)?;
        once_each(accounts.iter().map(|account| format!("the account {}", account.code)))?;
        for account in &accounts {
            let Some(there) = chart.accounts.get(&account.code) else { continue };
            if (there.kind, there.currency, there.normal_side())
                != (account.kind, account.currency, account.normal_side())
            {
                let text = format!(
                    "account {} is there with another type, side or currency, which entries rely on; open a new account",
                    account.code
                );
                return Err(LedgerError::Invalid(text));
            }
        }
        self.books.change(&mut tx, tenant, &Change::Accounts(accounts.clone())).await?;
        self.end(tx).await?;
        Ok(accounts)
    }

    /// Makes these the rules from now on, and returns their version. The same document again is the same version.
    pub async fn set_rules(&self, tenant: &TenantId, document: &str) -> Result<u32, LedgerError> {
        let (mut tx, _, chart) = self.locked(tenant).await?;
        if chart.rules.version() > 0 && chart.rules.document() == document {
            return Ok(chart.rules.version());
        }
        let version = chart.rules.version() + 1;
        Rules::parse_new(version, document).map_err(|error| LedgerError::Invalid(error.to_string()))?;
        let change = Change::Rules { version, document: document.to_owned(), at: self.clock.now() };
        self.books.change(&mut tx, tenant, &change).await?;
        self.end(tx).await?;
        Ok(version)
    }

    /// Adds rates, or mends those of the same day. Entries that used the old ones keep them.
    pub async fn set_rates(&self, tenant: &TenantId, rates: &[DayRate]) -> Result<(), LedgerError> {
        if let Some(bad) = rates.iter().find(|rate| rate.rate.is_zero() || rate.rate.is_negative()) {
            let text = format!("the rate of {} on {} is not more than zero", bad.quote, bad.day);
            return Err(LedgerError::Invalid(text));
        }
        if let Some(odd) = rates.iter().find(|rate| !YEARS.contains(&rate.day.year())) {
            let (first, last) = (YEARS.start(), YEARS.end());
            let text = format!(
                "the rate of {} is of {}, and books have the years {first} to {last}",
                odd.quote, odd.day
            );
            return Err(LedgerError::Invalid(text));
        }
        let named =
            |rate: &DayRate| format!("the rate of {} on {} by {:?}", rate.quote, rate.day, rate.source);
        once_each(rates.iter().map(named))?;
        if let Some(odd) = rates.iter().find(|rate| rate.rate.scale() > RATE_DIGITS) {
            let text = format!(
                "the rate of {} on {} has {} digits after the point, and may have {RATE_DIGITS}",
                odd.quote,
                odd.day,
                odd.rate.scale()
            );
            return Err(LedgerError::Invalid(text));
        }
        let (mut tx, _, chart) = self.locked(tenant).await?;
        let base = chart.book.base_currency;
        if rates.iter().any(|rate| rate.quote == base) {
            let text = format!("{base} is what the books are kept in; rates are for other currencies");
            return Err(LedgerError::Invalid(text));
        }
        self.books.change(&mut tx, tenant, &Change::Rates(rates.to_vec())).await?;
        Ok(self.end(tx).await?)
    }

    /// A transaction that has the books locked, and what entries are made by. That is a row for every account: who only posts asks for
    /// [`Self::lock_books`], because others wait meanwhile.
    pub(crate) async fn locked(&self, tenant: &TenantId) -> Result<(B::Tx, Head, Chart), LedgerError> {
        let (mut tx, head) = self.lock_books(tenant).await?;
        let chart = self.books.chart(&mut tx, tenant).await?;
        Ok((tx, head, chart))
    }

    /// A transaction that has the books locked.
    pub(crate) async fn lock_books(&self, tenant: &TenantId) -> Result<(B::Tx, Head), LedgerError> {
        let mut tx = self.books.begin().await?;
        let head = self.books.lock(&mut tx, tenant).await?;
        let head = head.ok_or_else(|| Refusal::UnknownTenant(tenant.to_string()))?;
        Ok((tx, head))
    }
}

/// Refuses a list in which something stands twice: the one would take the place of the other, and nobody says which.
fn once_each(names: impl Iterator<Item = String>) -> Result<(), LedgerError> {
    let mut seen = HashSet::new();
    for name in names {
        if let Some(twice) = seen.replace(name) {
            return Err(LedgerError::Invalid(format!("{twice} stands twice in the list")));
        }
    }
    Ok(())
}

/// Refuses an account for retained earnings that cannot be it.
pub(crate) fn takes_results(chart: &Chart, retained: &AccountCode) -> Result<(), LedgerError> {
    is_equity(&chart.account(retained)?.account(retained))
}

/// The result of a year is the owners': on an account of another type it would be a result again, or something that is owed or had.
fn is_equity(retained: &Account) -> Result<(), LedgerError> {
    if retained.kind == AccountType::Equity {
        return Ok(());
    }
    let (code, kind) = (&retained.code, retained.kind.as_str());
    let text = format!("retained earnings are kept on an equity account, and {code} is of the type {kind}");
    Err(LedgerError::Invalid(text))
}
