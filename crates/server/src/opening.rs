//! Opening the books of a tenant: what the command line and the API have in common.

use postrider::envelope::TenantId;
use postrider_ledger::account::{Account, AccountCode};
use postrider_ledger::books::Books;
use postrider_ledger::chart::Book;
use postrider_ledger::money::Currency;
use postrider_ledger::refusal::Refusal;
use postrider_ledger::rules::ready;
use postrider_ledger::{Ledger, LedgerError};
use serde::Deserialize;

use crate::exit::usage;

/// Whose exchange rates count, where nobody is named.
pub(crate) const RATE_SOURCE: &str = "manual";

/// How books begin. Without accounts and rules they begin with the ready ones: orders, salaries, invoices.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Opening {
    /// The currency that everything is also kept in, for good.
    pub(crate) base_currency: Currency,
    #[serde(default)]
    pub(crate) accounts: Option<Vec<Account>>,
    /// A TOML document.
    #[serde(default)]
    pub(crate) rules: Option<String>,
    /// Takes what rounding leaves over; the ready chart has one.
    #[serde(default)]
    pub(crate) rounding_account: Option<AccountCode>,
    /// Takes a year's result; the ready chart has one.
    #[serde(default)]
    pub(crate) retained_account: Option<AccountCode>,
    #[serde(default)]
    pub(crate) rate_source: Option<String>,
}

/// Books as they would be opened.
pub(crate) struct DrawnUp {
    pub(crate) book: Book,
    pub(crate) accounts: Vec<Account>,
    pub(crate) rules: String,
    /// Accounts of the settings that the chart does not have: entries that need them will be refused.
    pub(crate) absent: Vec<AccountCode>,
}

impl Opening {
    pub(crate) fn draw_up(self, tenant: TenantId) -> anyhow::Result<DrawnUp> {
        let accounts = match self.accounts {
            Some(accounts) => accounts,
            None => read_chart(ready::CHART)?,
        };
        let mut book = Book::new(tenant, self.base_currency);
        book.rate_source = self.rate_source.unwrap_or_else(|| RATE_SOURCE.to_owned());
        let mut absent = Vec::new();
        for (given, ready, setting) in [
            (self.rounding_account, "rounding", &mut book.rounding_account),
            (self.retained_account, "retained-earnings", &mut book.retained_account),
        ] {
            let account = given.map_or_else(|| AccountCode::new(ready), Ok)?;
            if accounts.iter().any(|there| there.code == account) {
                *setting = Some(account);
            } else {
                absent.push(account);
            }
        }
        let rules = self.rules.unwrap_or_else(|| ready::RULES.to_owned());
        Ok(DrawnUp { book, accounts, rules, absent })
    }
}

/// What became of it.
pub(crate) enum Opened {
    /// They are open.
    Now,
    /// The tenant has books already; they are left as they are.
    Before(Book),
    /// The tenant has books already, and in another base currency, which is for good.
    Otherwise(String),
}

impl DrawnUp {
    pub(crate) async fn open<B: Books>(&self, ledger: &Ledger<B>) -> Result<Opened, LedgerError> {
        if ledger.open_books(&self.book, &self.accounts, &self.rules).await? {
            return Ok(Opened::Now);
        }
        let Book { tenant, base_currency: asked, .. } = &self.book;
        let there = ledger.books().read_chart(tenant).await?;
        let kept = there.ok_or_else(|| Refusal::UnknownTenant(tenant.to_string()))?.book;
        if kept.base_currency == *asked {
            return Ok(Opened::Before(kept));
        }
        Ok(Opened::Otherwise(format!(
            "{tenant} keeps books in {} already, not in {asked}",
            kept.base_currency
        )))
    }
}

/// Accounts in TOML, or the JSON of a list.
pub(crate) fn read_chart(text: &str) -> anyhow::Result<Vec<Account>> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Chart {
        #[serde(default)]
        account: Vec<Account>,
    }
    if text.trim_start().starts_with('[') && !text.trim_start().starts_with("[[") {
        return serde_json::from_str(text).map_err(|error| usage(error.to_string()));
    }
    let chart: Chart = toml::from_str(text).map_err(|error| usage(error.to_string()))?;
    Ok(chart.account)
}
