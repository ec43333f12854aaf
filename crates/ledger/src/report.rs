//! What people read of all accounts: trial balance, balance sheet, income statement.
//!
//! Sums are read before the chart: accounts are opened by entries and never go, so that every account of the sums is in the chart.

use std::collections::BTreeMap;

use jiff::civil::Date;
use postrider::envelope::TenantId;
use serde::Serialize;

use crate::account::{Account, AccountCode, AccountType};
use crate::books::{Balance, Books, Results, Sums};
use crate::chart::Chart;
use crate::error::LedgerError;
use crate::ledger::Ledger;
use crate::money::Currency;
use crate::refusal::Refusal;

/// One account in one currency, in minor units and as people write it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Row {
    /// Which account.
    pub account: AccountCode,
    /// What it is.
    #[serde(rename = "type")]
    pub kind: AccountType,
    /// Which currency.
    pub currency: Currency,
    /// Debits.
    pub debits: String,
    /// Credits.
    pub credits: String,
    /// What is left, on the side on which the account grows.
    pub balance: String,
    /// The same in the base currency.
    pub base_balance: String,
    /// Debits and credits that are promised. Only as of now: of other days it is not kept.
    #[serde(flatten)]
    pub pending: Option<Pending>,
}

/// What is promised in one account and currency: pended, and neither settled nor voided.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Pending {
    /// Debits.
    pub pending_debits: String,
    /// Credits.
    pub pending_credits: String,
}

/// Debits and credits of every account.
#[derive(Debug, Clone, Serialize)]
pub struct TrialBalance {
    /// Whose.
    pub tenant: TenantId,
    /// At the end of which day; now, when absent.
    pub as_of: Option<Date>,
    /// The base currency.
    pub base_currency: Currency,
    /// The accounts.
    pub rows: Vec<Row>,
    /// The sums by currency: debits and credits are equal in each.
    pub totals: Vec<Total>,
}

/// All debits and credits in one currency.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Total {
    /// Which currency; the base currency of all lines when absent.
    pub currency: Option<Currency>,
    /// Debits.
    pub debits: String,
    /// Credits.
    pub credits: String,
    /// Whether they are equal.
    pub balanced: bool,
}

/// Sums by type, in the base currency.
#[derive(Debug, Clone, Serialize)]
pub struct Statement {
    /// Whose.
    pub tenant: TenantId,
    /// From which day; from the first, when absent.
    pub from: Option<Date>,
    /// To which day; to now, when absent.
    pub to: Option<Date>,
    /// The base currency.
    pub base_currency: Currency,
    /// The accounts, with balances in base.
    pub rows: Vec<Row>,
    /// The sums that the statement ends in.
    pub sums: BTreeMap<&'static str, String>,
    /// Whether assets are what liabilities, equity and the result add up to. Always true of an income statement.
    pub balanced: bool,
}

impl<B: Books> Ledger<B> {
    /// Debits and credits of every account, at the end of a day or now.
    pub async fn trial_balance(
        &self,
        tenant: &TenantId,
        as_of: Option<Date>,
    ) -> Result<TrialBalance, LedgerError> {
        // What is posted and what is promised are of the same moment, so that nothing shows as both.
        let balances = match as_of {
            None => self
                .books
                .balances(tenant)
                .await?
                .into_iter()
                .filter(|kept| kept.sums != Sums::default())
                .collect(),
            Some(_) => self.books.movements(tenant, None, as_of).await?,
        };
        let chart = self.read_chart(tenant).await?;
        let base = chart.book.base_currency;
        let totals = totals(&balances, base);
        let mut rows = rows(&chart, &balances, |_| true);
        if as_of.is_none() {
            show_promised(&mut rows, &balances);
        }
        Ok(TrialBalance { tenant: tenant.clone(), as_of, base_currency: base, rows, totals })
    }

    /// What one has, owes and owns at the end of a day.
    pub async fn balance_sheet(
        &self,
        tenant: &TenantId,
        as_of: Option<Date>,
    ) -> Result<Statement, LedgerError> {
        let balances = self.books.movements(tenant, None, as_of).await?;
        let chart = self.read_chart(tenant).await?;
        let sum = |kind| base_sum(&chart, &balances, kind);
        let (assets, liabilities, equity) =
            (sum(AccountType::Asset), -sum(AccountType::Liability), -sum(AccountType::Equity));
        let result = -sum(AccountType::Income) - sum(AccountType::Expense);
        let base = chart.book.base_currency;
        let sums = [("assets", assets), ("liabilities", liabilities), ("equity", equity), ("result", result)];
        Ok(Statement {
            tenant: tenant.clone(),
            from: None,
            to: as_of,
            base_currency: base,
            rows: rows(&chart, &balances, |kind| !matches!(kind, AccountType::Income | AccountType::Expense)),
            sums: sums.map(|(name, sum)| (name, base.show(sum))).into(),
            balanced: assets == liabilities + equity + result,
        })
    }

    /// What was earned and spent from one day to another, before closing: the entries that carry a year's result to retained earnings
    /// are left out, and what they carried is a sum of its own.
    pub async fn income_statement(
        &self,
        tenant: &TenantId,
        from: Option<Date>,
        to: Option<Date>,
    ) -> Result<Statement, LedgerError> {
        let Results { movements, closings } = self.books.results(tenant, from, to).await?;
        let balances = without(movements, &closings);
        let chart = self.read_chart(tenant).await?;
        let carried = base_sum(&chart, &closings, AccountType::Income)
            + base_sum(&chart, &closings, AccountType::Expense);
        let income = -base_sum(&chart, &balances, AccountType::Income);
        let expenses = base_sum(&chart, &balances, AccountType::Expense);
        let base = chart.book.base_currency;
        let sums =
            [("income", income), ("expenses", expenses), ("result", income - expenses), ("carried", carried)];
        Ok(Statement {
            tenant: tenant.clone(),
            from,
            to,
            base_currency: base,
            rows: rows(&chart, &balances, |kind| matches!(kind, AccountType::Income | AccountType::Expense)),
            sums: sums.map(|(name, sum)| (name, base.show(sum))).into(),
            balanced: true,
        })
    }

    /// One account, without reading all the others.
    pub(crate) async fn read_account(
        &self,
        tenant: &TenantId,
        code: &AccountCode,
    ) -> Result<Account, LedgerError> {
        if let Some(account) = self.books.account(tenant, code).await? {
            return Ok(account);
        }
        self.books.book(tenant).await?.ok_or_else(|| Refusal::UnknownTenant(tenant.to_string()))?;
        Err(Refusal::UnknownAccount(code.clone()).into())
    }

    pub(crate) async fn read_chart(&self, tenant: &TenantId) -> Result<Chart, LedgerError> {
        let chart = self.books.read_chart(tenant).await?;
        chart.ok_or_else(|| Refusal::UnknownTenant(tenant.to_string()).into())
    }
}

/// The balances less what closings made of them.
fn without(mut balances: Vec<Balance>, closings: &[Balance]) -> Vec<Balance> {
    let closed: BTreeMap<(&AccountCode, Currency), &Sums> =
        closings.iter().map(|closing| ((&closing.account, closing.currency), &closing.sums)).collect();
    for balance in &mut balances {
        if let Some(left) = closed
            .get(&(&balance.account, balance.currency))
            .and_then(|closing| balance.sums.without(closing))
        {
            balance.sums = left;
        }
    }
    balances
}

fn show_promised(rows: &mut [Row], promised: &[Balance]) {
    let sums: BTreeMap<(&AccountCode, Currency), &Sums> =
        promised.iter().map(|balance| ((&balance.account, balance.currency), &balance.sums)).collect();
    for row in rows {
        let of = sums.get(&(&row.account, row.currency)).copied().copied().unwrap_or_default();
        row.pending = Some(Pending {
            pending_debits: row.currency.show(of.pending_debits.into()),
            pending_credits: row.currency.show(of.pending_credits.into()),
        });
    }
}

/// One account as people read it; nothing if the chart does not have it.
pub(crate) fn row(chart: &Chart, Balance { account, currency, sums }: &Balance) -> Option<Row> {
    let (there, base) = (chart.accounts.get(account)?, chart.book.base_currency);
    let sign = there.normal_side().sign();
    Some(Row {
        account: account.clone(),
        kind: there.kind,
        currency: *currency,
        debits: currency.show(sums.debits.into()),
        credits: currency.show(sums.credits.into()),
        balance: currency.show(sign * net(sums.debits, sums.credits)),
        base_balance: base.show(sign * net(sums.base_debits, sums.base_credits)),
        pending: None,
    })
}

fn rows(chart: &Chart, balances: &[Balance], wanted: impl Fn(AccountType) -> bool) -> Vec<Row> {
    let mut rows: Vec<Row> = balances.iter().filter_map(|balance| row(chart, balance)).collect();
    rows.retain(|row| wanted(row.kind));
    rows.sort_by(|left, right| {
        (left.kind, &left.account, left.currency).cmp(&(right.kind, &right.account, right.currency))
    });
    rows
}

fn totals(balances: &[Balance], base: Currency) -> Vec<Total> {
    let mut sums: BTreeMap<Option<Currency>, (i128, i128)> = BTreeMap::new();
    let posted = balances.iter().filter(|balance| is_posted(&balance.sums));
    for Balance { currency, sums: Sums { debits, credits, base_debits, base_credits, .. }, .. } in posted {
        for (key, debits, credits) in
            [(Some(*currency), *debits, *credits), (None, *base_debits, *base_credits)]
        {
            let (all_debits, all_credits) = sums.entry(key).or_default();
            *all_debits += i128::from(debits);
            *all_credits += i128::from(credits);
        }
    }
    let total = |(currency, (debits, credits)): (Option<Currency>, (i128, i128))| {
        let shown = currency.unwrap_or(base);
        Total {
            currency,
            debits: shown.show(debits),
            credits: shown.show(credits),
            balanced: debits == credits,
        }
    };
    sums.into_iter().map(total).collect()
}

/// Whether there is more than promises.
fn is_posted(sums: &Sums) -> bool {
    Sums { pending_debits: 0, pending_credits: 0, ..*sums } != Sums::default()
}

fn base_sum(chart: &Chart, balances: &[Balance], kind: AccountType) -> i128 {
    let of_kind =
        |balance: &&Balance| chart.accounts.get(&balance.account).is_some_and(|there| there.kind == kind);
    balances
        .iter()
        .filter(of_kind)
        .map(|balance| net(balance.sums.base_debits, balance.sums.base_credits))
        .sum()
}

fn net(debits: i64, credits: i64) -> i128 {
    i128::from(debits) - i128::from(credits)
}
