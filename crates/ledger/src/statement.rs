//! The statement of an account, read from its end: what it holds now is known, and every movement says what it held before.
//! So a page costs the same however long the account's history is.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

use jiff::civil::Date;
use postrider::envelope::TenantId;
use serde::Serialize;

use crate::account::{AccountCode, Side};
use crate::books::{AccountLine, AccountLines, Books};
use crate::error::LedgerError;
use crate::ledger::Ledger;
use crate::money::Currency;

/// One line of an account's statement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Movement {
    /// The entry.
    pub entry: String,
    /// The day it counts for.
    pub effective_on: Date,
    /// For people.
    pub description: String,
    /// Which side.
    pub side: Side,
    /// How much.
    pub amount: String,
    /// Of what.
    pub currency: Currency,
    /// What the account holds after it in this currency, in the order of posting.
    pub balance: String,
}

impl Movement {
    /// Of a line, after which the account held so much (debits less credits); `sign` is that of the side on which it grows.
    pub(crate) fn of(line: AccountLine, after: i64, sign: i128) -> Self {
        Self {
            entry: line.entry.to_string(),
            effective_on: line.effective_on,
            description: line.description,
            side: line.side,
            amount: line.currency.show(line.amount.into()),
            currency: line.currency,
            balance: line.currency.show(sign * i128::from(after)),
        }
    }
}

/// A page of movements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Movements {
    /// The oldest first.
    pub movements: Vec<Movement>,
    /// Where the page before this one ends; nothing if there is none.
    pub earlier: Option<Place>,
}

/// A line of an account's history, and what it held there (debits less credits, in minor units). As text `41.2,EUR:1500`: line 2 of
/// entry 41. It is for whoever was given it to come back with: what is before it in the order of posting, or, with its day
/// ([`Later`](crate::dated::Later)), what is after it in the order of days.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    pub(crate) entry: u64,
    pub(crate) line: u16,
    pub(crate) held: BTreeMap<Currency, i64>,
}

impl Display for Place {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.entry, self.line)?;
        self.held.iter().try_for_each(|(currency, held)| write!(f, ",{currency}:{held}"))
    }
}

/// No place that a statement has given.
#[derive(Debug, thiserror::Error)]
#[error("no place in a statement; take the one that the page after it has given")]
pub struct NoPlace;

impl FromStr for Place {
    type Err = NoPlace;

    fn from_str(text: &str) -> Result<Self, NoPlace> {
        let mut parts = text.split(',');
        let (entry, line) = parts.next().and_then(|place| place.split_once('.')).ok_or(NoPlace)?;
        let held = |part: &str| {
            let (currency, held) = part.split_once(':')?;
            Some((Currency::new(currency).ok()?, held.parse().ok()?))
        };
        Ok(Self {
            entry: entry.parse().map_err(|_| NoPlace)?,
            line: line.parse().map_err(|_| NoPlace)?,
            held: parts.map(held).collect::<Option<_>>().ok_or(NoPlace)?,
        })
    }
}

impl<B: Books> Ledger<B> {
    /// The newest movements of an account, or those before a place, with what it holds after each.
    pub async fn statement(
        &self,
        tenant: &TenantId,
        account: &AccountCode,
        before: Option<&Place>,
        limit: usize,
    ) -> Result<Movements, LedgerError> {
        let there = self.read_account(tenant, account).await?;
        // One more says whether there are earlier ones.
        let found = self.books.lines_of(tenant, account, before, limit.saturating_add(1)).await?;
        let held = before.map(|place| place.held.clone());
        Ok(told(found, held, there.normal_side().sign(), limit))
    }
}

/// Walks back from what is held: `sign` is that of the side on which the account grows. Pure.
fn told(found: AccountLines, held: Option<BTreeMap<Currency, i64>>, sign: i128, limit: usize) -> Movements {
    let AccountLines { lines, held: now } = found;
    let mut held = held.unwrap_or(now);
    let has_earlier = lines.len() > limit;
    let mut movements = Vec::with_capacity(lines.len().min(limit));
    let mut oldest = None;
    for line in lines.into_iter().take(limit) {
        let after = held.entry(line.currency).or_default();
        let change = line.change();
        oldest = Some((line.entry, line.line));
        movements.push(Movement::of(line, *after, sign));
        *after = after.saturating_sub(change);
    }
    movements.reverse();
    let earlier = oldest.filter(|_| has_earlier).map(|(entry, line)| Place { entry, line, held });
    Movements { movements, earlier }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_survives_the_way_to_a_caller_and_back() {
        let held = [("EUR", 1500), ("USD", -3)]
            .map(|(currency, held)| (Currency::new(currency).unwrap(), held))
            .into();
        let place = Place { entry: 41, line: 2, held };
        assert_eq!(place.to_string(), "41.2,EUR:1500,USD:-3");
        assert_eq!(place.to_string().parse::<Place>().unwrap(), place);
        for bad in ["", "41", "41.2,EUR", "41.2,EUR:x", "-1.2", "41.70000", "41.2,euro:1"] {
            assert!(bad.parse::<Place>().is_err(), "{bad}");
        }
    }
}
