//! Books by the day: totals of every account, and the statement of one account from a day to another.
//!
//! What an account held before the first day is added up from the totals that are kept by day. Movements come in the order of their days, whenever they were posted.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

use jiff::civil::Date;
use postrider::envelope::TenantId;
use serde::{Serialize, Serializer};

use crate::account::{AccountCode, Side};
use crate::books::{Books, Days};
use crate::error::LedgerError;
use crate::ledger::Ledger;
use crate::money::Currency;
use crate::refusal::Refusal;
use crate::report::{self, Row};
use crate::statement::{Movement, NoPlace};

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

/// A place in a dated statement, and what the account held there (debits less credits, in minor units). As text
/// `2026-03-05/41.2,EUR:1500`: what comes after line 2 of entry 41. It is for whoever was given it to come back with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Later {
    pub(crate) day: Date,
    pub(crate) entry: u64,
    pub(crate) line: u16,
    held: BTreeMap<Currency, i64>,
}

impl Display for Later {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}.{}", self.day, self.entry, self.line)?;
        self.held.iter().try_for_each(|(currency, held)| write!(f, ",{currency}:{held}"))
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
        let (day, rest) = text.split_once('/').ok_or(NoPlace)?;
        let mut parts = rest.split(',');
        let (entry, line) = parts.next().and_then(|place| place.split_once('.')).ok_or(NoPlace)?;
        let held = |part: &str| {
            let (currency, held) = part.split_once(':')?;
            Some((Currency::new(currency).ok()?, held.parse().ok()?))
        };
        Ok(Self {
            day: day.parse().map_err(|_| NoPlace)?,
            entry: entry.parse().map_err(|_| NoPlace)?,
            line: line.parse().map_err(|_| NoPlace)?,
            held: parts.map(held).collect::<Option<_>>().ok_or(NoPlace)?,
        })
    }
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
    /// What happened to accounts day by day, by day and account.
    pub async fn daily(&self, tenant: &TenantId, which: &Days) -> Result<Vec<DayRow>, LedgerError> {
        let chart = self.read_chart(tenant).await?;
        let kept = self.books.days(tenant, which).await?;
        let shown = |(day, balance)| Some(DayRow { day, row: report::row(&chart, &balance)? });
        let mut rows: Vec<DayRow> = kept.into_iter().filter_map(shown).collect();
        // They came by account.
        rows.sort_by_key(|row| row.day);
        Ok(rows)
    }

    /// The movements of an account on the days of a span, with what it held before and after.
    pub async fn dated_statement(
        &self,
        tenant: &TenantId,
        account: &AccountCode,
        of: &Span,
        limit: usize,
    ) -> Result<DatedStatement, LedgerError> {
        let chart = self.read_chart(tenant).await?;
        let there = chart.accounts.get(account).ok_or_else(|| Refusal::UnknownAccount(account.clone()))?;
        let sign = there.normal_side().sign();
        let mut held = match (&of.after, of.from) {
            (Some(place), _) => place.held.clone(),
            (None, Some(from)) => self.held_before(tenant, account, from).await?,
            (None, None) => BTreeMap::new(),
        };
        let opening = shown(&held, sign);
        // One more says whether there are later ones.
        let mut lines = self.books.lines_on(tenant, account, of, limit.saturating_add(1)).await?;
        let has_more = lines.len() > limit;
        lines.truncate(limit);
        let last = lines.last().map(|line| (line.effective_on, line.entry, line.line));
        let movements = lines.into_iter().map(|line| {
            let after = held.entry(line.currency).or_default();
            *after = match line.side {
                Side::Debit => after.saturating_add(line.amount),
                Side::Credit => after.saturating_sub(line.amount),
            };
            Movement {
                entry: line.entry.to_string(),
                effective_on: line.effective_on,
                description: line.description,
                side: line.side,
                amount: line.currency.show(line.amount.into()),
                currency: line.currency,
                balance: line.currency.show(sign * i128::from(*after)),
            }
        });
        let movements = movements.collect();
        let closing = shown(&held, sign);
        let next = last.filter(|_| has_more).map(|(day, entry, line)| Later { day, entry, line, held });
        Ok(DatedStatement { opening, movements, closing, next })
    }

    /// What an account held at the end of the day before, from the totals by day.
    async fn held_before(
        &self,
        tenant: &TenantId,
        account: &AccountCode,
        day: Date,
    ) -> Result<BTreeMap<Currency, i64>, LedgerError> {
        let Ok(before) = day.yesterday() else { return Ok(BTreeMap::new()) };
        let which = Days { account: Some(account.clone()), from: None, to: Some(before) };
        let mut held: BTreeMap<Currency, i64> = BTreeMap::new();
        for (_, total) in self.books.days(tenant, &which).await? {
            if total.account == *account {
                let so_far = held.entry(total.currency).or_default();
                *so_far = so_far.saturating_add(total.sums.debits).saturating_sub(total.sums.credits);
            }
        }
        Ok(held)
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
        let place = Later { day: jiff::civil::date(2026, 3, 5), entry: 41, line: 2, held };
        assert_eq!(place.to_string(), "2026-03-05/41.2,EUR:1500,USD:-3");
        assert_eq!(place.to_string().parse::<Later>().unwrap(), place);
        for bad in ["", "41.2", "2026-03-05", "2026-03-05/41", "2026-02-30/41.2", "2026-03-05/41.2,EUR"] {
            assert!(bad.parse::<Later>().is_err(), "{bad}");
        }
    }
}
