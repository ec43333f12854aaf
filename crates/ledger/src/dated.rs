//! Books by the day: totals of every account, and the statement of one account from a day to another.
//!
//! What an account held before the first day is added up from the totals that are kept by day. Movements come in the order of their days, whenever they were posted.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

use jiff::civil::Date;
use postrider::envelope::TenantId;
use serde::{Serialize, Serializer};

use crate::account::AccountCode;
use crate::books::{AccountLines, Books, Days};
use crate::error::LedgerError;
use crate::ledger::Ledger;
use crate::money::Currency;
use crate::report::{self, Row};
use crate::statement::{Movement, NoPlace, Place};

/// What happened to an account on a day, in one currency: what was debited, credited, and by how much it grew.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DayRow {
    /// The day.
    pub day: Date,
    /// The account; its balance is what the day made of it.
    #[serde(flatten)]
    pub row: Row,
}

/// Which days of an account, and after which place.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Span {
    /// From this day; from the first when absent.
    pub from: Option<Date>,
    /// To this day; to the last when absent.
    pub to: Option<Date>,
    /// Where the page before ended.
    pub after: Option<Later>,
}

/// A place in a dated statement. As text `2026-03-05/41.2,EUR:1500`: what comes after line 2 of entry 41, which counts for that day.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Later {
    pub(crate) day: Date,
    pub(crate) at: Place,
}

impl Display for Later {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.day, self.at)
    }
}

impl Serialize for Later {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl FromStr for Later {
    type Err = NoPlace;

    fn from_str(text: &str) -> Result<Self, NoPlace> {
        let (day, at) = text.split_once('/').ok_or(NoPlace)?;
        Ok(Self { day: day.parse().map_err(|_| NoPlace)?, at: at.parse()? })
    }
}

/// A place in the totals by day. As text `2026-03-05/EUR/receivable`: what comes after that row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AfterDay {
    pub(crate) day: Date,
    pub(crate) account: AccountCode,
    pub(crate) currency: Currency,
}

impl Display for AfterDay {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.day, self.currency, self.account)
    }
}

impl FromStr for AfterDay {
    type Err = NoPlace;

    fn from_str(text: &str) -> Result<Self, NoPlace> {
        let mut parts = text.splitn(3, '/');
        let mut part = || parts.next().ok_or(NoPlace);
        Ok(Self {
            day: part()?.parse().map_err(|_| NoPlace)?,
            currency: Currency::new(part()?).map_err(|_| NoPlace)?,
            account: AccountCode::new(part()?).map_err(|_| NoPlace)?,
        })
    }
}

/// Totals by day, or a page of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DayPage {
    /// By day, account and currency.
    pub rows: Vec<DayRow>,
    /// The place to ask for more with; nothing on the last page.
    pub next: Option<AfterDay>,
}

/// What an account held in one currency.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Held {
    /// Which currency.
    pub currency: Currency,
    /// How much, on the side on which the account grows.
    pub balance: String,
}

/// The statement of an account over some days, or a page of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DatedStatement {
    /// What it held before the first of these movements.
    pub opening: Vec<Held>,
    /// The movements by day, each with what the account holds after it.
    pub movements: Vec<Movement>,
    /// What it held after the last of them.
    pub closing: Vec<Held>,
    /// The place to ask for more with; nothing on the last page.
    pub next: Option<Later>,
}

impl<B: Books> Ledger<B> {
    /// What happened to accounts day by day.
    pub async fn daily(&self, tenant: &TenantId, which: &Days) -> Result<DayPage, LedgerError> {
        let limit = which.limit.unwrap_or(usize::MAX);
        // One more says whether there are later ones.
        let ask = Days { limit: which.limit.map(|limit| limit.saturating_add(1)), ..which.clone() };
        let mut kept = self.books.days(tenant, &ask).await?;
        // After the totals, so that it has every account of theirs.
        let chart = self.read_chart(tenant).await?;
        let has_more = kept.len() > limit;
        kept.truncate(limit);
        let next = kept.last().filter(|_| has_more).map(|(day, last)| AfterDay {
            day: *day,
            account: last.account.clone(),
            currency: last.currency,
        });
        let shown = |(day, balance)| Some(DayRow { day, row: report::row(&chart, &balance)? });
        Ok(DayPage { rows: kept.into_iter().filter_map(shown).collect(), next })
    }

    /// The movements of an account on the days of a span, with what it held before and after.
    pub async fn dated_statement(
        &self,
        tenant: &TenantId,
        account: &AccountCode,
        of: &Span,
        limit: usize,
    ) -> Result<DatedStatement, LedgerError> {
        let there = self.read_account(tenant, account).await?;
        let sign = there.normal_side().sign();
        // One more says whether there are later ones.
        let AccountLines { mut lines, held } =
            self.books.lines_on(tenant, account, of, limit.saturating_add(1)).await?;
        let mut held = of.after.as_ref().map_or(held, |later| later.at.held.clone());
        let opening = shown(&held, sign);
        let has_more = lines.len() > limit;
        lines.truncate(limit);
        let last = lines.last().map(|line| (line.effective_on, line.entry, line.line));
        let movements = lines.into_iter().map(|line| {
            let after = held.entry(line.currency).or_default();
            *after = after.saturating_add(line.change());
            let after = *after;
            Movement::of(line, after, sign)
        });
        let movements = movements.collect();
        let closing = shown(&held, sign);
        let next = last.filter(|_| has_more);
        let next = next.map(|(day, entry, line)| Later { day, at: Place { entry, line, held } });
        Ok(DatedStatement { opening, movements, closing, next })
    }
}

fn shown(held: &BTreeMap<Currency, i64>, sign: i128) -> Vec<Held> {
    let one = |(currency, held): (&Currency, &i64)| Held {
        currency: *currency,
        balance: currency.show(sign * i128::from(*held)),
    };
    held.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_survives_the_way_to_a_caller_and_back() {
        let held =
            [("EUR", 1500), ("USD", -3)].map(|(code, held)| (Currency::new(code).unwrap(), held)).into();
        let place = Later { day: jiff::civil::date(2026, 3, 5), at: Place { entry: 41, line: 2, held } };
        assert_eq!(place.to_string(), "2026-03-05/41.2,EUR:1500,USD:-3");
        assert_eq!(place.to_string().parse::<Later>().unwrap(), place);
        for bad in ["", "41.2", "2026-03-05", "2026-03-05/41", "2026-02-30/41.2", "2026-03-05/41.2,EUR"] {
            assert!(bad.parse::<Later>().is_err(), "{bad}");
        }
        let row = AfterDay {
            day: jiff::civil::date(2026, 3, 5),
            account: AccountCode::new("receivable:a/b").unwrap(),
            currency: Currency::new("EUR").unwrap(),
        };
        assert_eq!(row.to_string(), "2026-03-05/EUR/receivable:a/b");
        assert_eq!(row.to_string().parse::<AfterDay>().unwrap(), row);
        for bad in
            ["", "2026-03-05", "2026-03-05/EUR", "2026-03-05/EUR/", "2026-02-30/EUR/bank", "today/EUR/bank"]
        {
            assert!(bad.parse::<AfterDay>().is_err(), "{bad}");
        }
    }
}
