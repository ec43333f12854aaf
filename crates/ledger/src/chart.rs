//! What entries are made by: a tenant's settings, accounts, rules, rates and periods, as of one version of its books.

use std::collections::{BTreeMap, HashMap};

use jiff::ToSpan as _;
use jiff::civil::Date;
use postrider::envelope::TenantId;
use serde::{Deserialize, Serialize};

use crate::account::{Account, AccountCode};
use crate::decimal::Decimal;
use crate::entry::Rate;
use crate::money::Currency;
use crate::period::{BackDated, Period};
use crate::refusal::Refusal;
use crate::rules::Rules;

/// A rate of an earlier day is good for this long: weekends and holidays have none.
const RATE_DAYS: i32 = 7;

/// The settings of a tenant's books.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Book {
    /// Whose.
    pub tenant: TenantId,
    /// The currency that everything is also kept in. Fixed when the books are opened.
    pub base_currency: Currency,
    /// Takes what rounding leaves over.
    pub rounding_account: Option<AccountCode>,
    /// Takes the year's result.
    pub retained_account: Option<AccountCode>,
    /// Whose rates count.
    pub rate_source: String,
    /// What becomes of back-dated events.
    pub back_dated: BackDated,
    /// The most entries the tenant may have.
    pub max_entries: Option<u64>,
}

impl Book {
    /// Books with the default settings.
    pub fn new(tenant: TenantId, base_currency: Currency) -> Self {
        Self {
            tenant,
            base_currency,
            rounding_account: None,
            retained_account: None,
            rate_source: String::new(),
            back_dated: BackDated::Refuse,
            max_entries: None,
        }
    }
}

/// A rate of a day: one unit of `quote` is worth `rate` of `base`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DayRate {
    /// Whose rate it is.
    pub source: String,
    /// The currency it is expressed in.
    pub base: Currency,
    /// The currency it is for.
    pub quote: Currency,
    /// The day.
    pub day: Date,
    /// The rate.
    pub rate: Decimal,
}

/// Everything the pipeline asks about a tenant.
#[derive(Debug, Clone)]
pub struct Chart {
    /// Settings.
    pub book: Book,
    /// Accounts by code.
    pub accounts: HashMap<AccountCode, Account>,
    /// The newest rules.
    pub rules: Rules,
    /// Periods in the order of their days.
    pub periods: Vec<Period>,
    rates: HashMap<Currency, BTreeMap<Date, Decimal>>,
}

impl Chart {
    /// From what a store has. Of the rates, those of the book's source into its base currency count.
    pub fn new(
        book: Book,
        accounts: Vec<Account>,
        rules: Rules,
        mut periods: Vec<Period>,
        rates: Vec<DayRate>,
    ) -> Self {
        let mut by_currency: HashMap<Currency, BTreeMap<Date, Decimal>> = HashMap::new();
        for rate in rates {
            if rate.base == book.base_currency && rate.source == book.rate_source {
                by_currency.entry(rate.quote).or_default().insert(rate.day, rate.rate);
            }
        }
        periods.sort_by_key(|period| period.starts_on);
        let accounts = accounts.into_iter().map(|account| (account.code.clone(), account)).collect();
        Self { book, accounts, rules, periods, rates: by_currency }
    }

    /// An account, or the one that would be opened below its parent.
    pub fn account(&self, code: &AccountCode) -> Result<Found<'_>, Refusal> {
        if let Some(account) = self.accounts.get(code) {
            return if account.active {
                Ok(Found::There(account))
            } else {
                Err(Refusal::InactiveAccount(code.clone()))
            };
        }
        let unknown = || Refusal::UnknownAccount(code.clone());
        let parent = code.parent().and_then(|parent| self.accounts.get(parent)).ok_or_else(unknown)?;
        if !parent.opens_children {
            return Err(unknown());
        }
        if !parent.active {
            return Err(Refusal::InactiveAccount(parent.code.clone()));
        }
        Ok(Found::ChildOf(parent))
    }

    /// The rates that count, by currency and day.
    pub fn rates(&self) -> Vec<DayRate> {
        let (source, base) = (&self.book.rate_source, self.book.base_currency);
        let of = |quote: Currency, (day, rate): (&Date, &Decimal)| DayRate {
            source: source.clone(),
            base,
            quote,
            day: *day,
            rate: *rate,
        };
        let all = self.rates.iter().flat_map(|(quote, days)| days.iter().map(|day| of(*quote, day)));
        let mut all: Vec<DayRate> = all.collect();
        all.sort_by_key(|rate| (rate.quote, rate.day));
        all
    }

    /// The newest rate into the base currency of that day, or of the week before it.
    pub fn rate(&self, from: Currency, on: Date) -> Result<(Decimal, Rate), Refusal> {
        let missing = || Refusal::MissingRate { from, to: self.book.base_currency, day: on };
        let oldest = on.checked_sub(RATE_DAYS.days()).map_err(|_| missing())?;
        let days = self.rates.get(&from).ok_or_else(missing)?;
        let (day, rate) = days.range(oldest..=on).next_back().ok_or_else(missing)?;
        Ok((*rate, Rate::new(*rate, &self.book.rate_source, *day)))
    }
}

/// An account that an entry may use.
#[derive(Clone, Copy)]
pub enum Found<'a> {
    /// It is in the chart.
    There(&'a Account),
    /// It is opened below this one by its first entry.
    ChildOf(&'a Account),
}

impl Found<'_> {
    /// The one currency it takes; any when absent.
    pub fn currency(&self) -> Option<Currency> {
        let (Self::There(account) | Self::ChildOf(account)) = self;
        account.currency
    }

    /// The account, as it is or as it is opened under this code.
    pub fn account(&self, code: &AccountCode) -> Account {
        match self {
            Self::There(account) => Account::clone(account),
            Self::ChildOf(parent) => parent.child(code.clone()),
        }
    }
}
