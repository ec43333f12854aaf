//! An entry as a store keeps it: the columns, and the way from them to an entry and back. What cannot be read is named, because
//! somebody changed it.

use std::collections::BTreeMap;
use std::fmt::Display;

use jiff::Timestamp;
use postrider::EventId;
use postrider::envelope::{PayloadHash, TenantId};
use postrider::store::{StoreError, StoreErrorKind};

use crate::account::{AccountCode, Side};
use crate::books::{AccountLine, AccountLines};
use crate::chain::{self, Hash};
use crate::entry::{Effect, EntryKind, Line, Rate, Sealed, Source};
use crate::money::{Currency, UnknownCurrency};

/// The columns of an entry, borrowed. Nothing about them is checked.
#[derive(Debug, Clone, Copy)]
pub struct EntryRow<'a> {
    /// Its number.
    pub number: i64,
    /// The number of its kind.
    pub kind: i16,
    /// Days since 1970-01-01.
    pub effective_on: i32,
    /// Microseconds since 1970-01-01T00:00:00Z.
    pub posted_at: i64,
    /// The event it comes from.
    pub source_event: &'a str,
    /// What that said.
    pub payload_hash: &'a [u8],
    /// The rule that made it.
    pub rule: &'a str,
    /// For people.
    pub description: &'a str,
    /// JSON.
    pub metadata: &'a str,
    /// The entry it reverses, settles or voids.
    pub refers_to: Option<i64>,
    /// Its hash.
    pub hash: &'a [u8],
}

/// The columns of a line, borrowed. Nothing about them is checked.
#[derive(Debug, Clone, Copy)]
pub struct LineRow<'a> {
    /// Its place in the entry, from 1.
    pub line: i64,
    /// Which account.
    pub account: &'a str,
    /// The number of its side.
    pub side: i16,
    /// Minor units.
    pub amount: i64,
    /// Of what.
    pub currency: &'a str,
    /// Minor units of the base currency.
    pub base_amount: i64,
    /// The rate between the two.
    pub rate: Option<&'a str>,
    /// Whose rate.
    pub rate_source: Option<&'a str>,
}

impl Sealed {
    /// Its columns.
    pub(crate) fn row(&self) -> EntryRow<'_> {
        EntryRow {
            number: signed(self.number),
            kind: self.kind.number().into(),
            effective_on: chain::days(self.effective_on),
            posted_at: self.posted_at.as_microsecond(),
            source_event: self.source.event.as_str(),
            payload_hash: self.source.payload_hash.as_bytes(),
            rule: &self.source.rule,
            description: &self.description,
            metadata: &self.metadata,
            refers_to: self.refers_to.map(signed),
            hash: &self.hash.0,
        }
    }
}

impl Line {
    /// Its columns, in this place of its entry.
    pub(crate) fn row(&self, line: i64) -> LineRow<'_> {
        LineRow {
            line,
            account: self.account.as_str(),
            side: self.side.number().into(),
            amount: self.amount,
            currency: self.currency.code(),
            base_amount: self.base_amount,
            rate: self.rate.as_ref().map(|rate| rate.rate.as_str()),
            rate_source: self.rate.as_ref().map(|rate| rate.source.as_str()),
        }
    }
}

/// A line of an account and its entry, as their columns are.
pub(crate) struct AccountLineRow<'a> {
    pub(crate) entry: i64,
    pub(crate) line: i16,
    pub(crate) effective_on: i32,
    pub(crate) description: &'a str,
    pub(crate) side: i16,
    pub(crate) amount: i64,
    pub(crate) currency: &'a str,
}

impl AccountLineRow<'_> {
    pub(crate) fn read(&self, tenant: &TenantId) -> Result<AccountLine, StoreError> {
        let bad = |what: &dyn Display| unreadable(tenant, format!("a line of entry {}", self.entry), what);
        Ok(AccountLine {
            entry: u64::try_from(self.entry).map_err(|error| bad(&error))?,
            line: u16::try_from(self.line).map_err(|error| bad(&error))?,
            effective_on: chain::day(self.effective_on).ok_or_else(|| bad(&"effective_on"))?,
            description: self.description.to_owned(),
            side: Side::from_number(self.side).ok_or_else(|| bad(&"side"))?,
            amount: self.amount,
            currency: Currency::new(self.currency).map_err(|error| bad(&error))?,
        })
    }
}

impl AccountLines {
    /// From the lines, and what is held as a JSON object.
    pub(crate) fn read(
        tenant: &TenantId,
        held: Option<&str>,
        lines: impl Iterator<Item = Result<AccountLine, StoreError>>,
    ) -> Result<Self, StoreError> {
        let bad = |what: &dyn Display| unreadable(tenant, "the balances of an account", what);
        let held: BTreeMap<String, i64> =
            serde_json::from_str(held.unwrap_or("{}")).map_err(|error| bad(&error))?;
        let held = held.into_iter().map(|(currency, held)| Ok((Currency::new(&currency)?, held)));
        let held = held.collect::<Result<_, UnknownCurrency>>().map_err(|error| bad(&error))?;
        Ok(Self { lines: lines.collect::<Result<_, _>>()?, held })
    }
}

/// The kinds of entries whose lines count, as a list in SQL.
pub(crate) fn posting_kinds() -> String {
    let kinds = EntryKind::all().filter(|kind| kind.effect() == Effect::Post);
    kinds.map(|kind| kind.number().to_string()).collect::<Vec<_>>().join(", ")
}

/// As many as a database can count.
pub(crate) fn count(many: usize) -> i64 {
    i64::try_from(many).unwrap_or(i64::MAX)
}

/// Numbers grow from 1 by one: 64 bits signed are enough for ever.
pub(crate) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Something in the books that no ledger wrote.
pub(crate) fn unreadable(tenant: &TenantId, place: impl Display, what: impl Display) -> StoreError {
    let text = format!(
        "{place} of {tenant} cannot be read back ({what}): it was changed by something else than the ledger"
    );
    StoreError::new(StoreErrorKind::Other, text)
}

impl EntryRow<'_> {
    /// The entry, without its lines.
    pub(crate) fn read(&self, tenant: &TenantId) -> Result<Sealed, StoreError> {
        let bad = |what: &dyn Display| unreadable(tenant, format!("entry {}", self.number), what);
        let number = |number: i64| u64::try_from(number).map_err(|error| bad(&error));
        Ok(Sealed {
            tenant: tenant.clone(),
            number: number(self.number)?,
            posted_at: Timestamp::from_microsecond(self.posted_at).map_err(|error| bad(&error))?,
            kind: EntryKind::from_number(self.kind).ok_or_else(|| bad(&"kind"))?,
            effective_on: chain::day(self.effective_on).ok_or_else(|| bad(&"effective_on"))?,
            source: Source {
                event: EventId::new(self.source_event).map_err(|error| bad(&error))?,
                payload_hash: PayloadHash::from_bytes(self.payload_hash)
                    .ok_or_else(|| bad(&"payload_hash"))?,
                rule: self.rule.to_owned(),
            },
            description: self.description.into(),
            metadata: self.metadata.into(),
            refers_to: self.refers_to.map(number).transpose()?,
            lines: Vec::new(),
            hash: Hash::from_bytes(self.hash).ok_or_else(|| bad(&"hash"))?,
        })
    }
}

impl LineRow<'_> {
    /// The line.
    pub(crate) fn read(&self, tenant: &TenantId, entry: i64) -> Result<Line, StoreError> {
        let bad = |what: &dyn Display| unreadable(tenant, format!("a line of entry {entry}"), what);
        let rate = match (self.rate, self.rate_source) {
            (None, None) => None,
            (rate, source) => Some(Rate {
                rate: rate.unwrap_or_default().to_owned(),
                source: source.unwrap_or_default().to_owned(),
            }),
        };
        Ok(Line {
            account: AccountCode::new(self.account).map_err(|error| bad(&error))?,
            side: Side::from_number(self.side).ok_or_else(|| bad(&"side"))?,
            amount: self.amount,
            currency: Currency::new(self.currency).map_err(|error| bad(&error))?,
            base_amount: self.base_amount,
            rate,
        })
    }
}

/// Gives every entry its lines. Both come in the order of the numbers; a line without an entry is named.
pub(crate) fn join(
    tenant: &TenantId,
    mut entries: Vec<Sealed>,
    lines: impl IntoIterator<Item = Result<(i64, Line), StoreError>>,
) -> Result<Vec<Sealed>, StoreError> {
    let mut at = 0;
    for line in lines {
        let (number, line) = line?;
        while entries.get(at).is_some_and(|entry| i64::try_from(entry.number) != Ok(number)) {
            at += 1;
        }
        match entries.get_mut(at) {
            Some(entry) => entry.lines.push(line),
            None => {
                return Err(unreadable(
                    tenant,
                    format!("a line of entry {number}"),
                    "there is no such entry",
                ));
            }
        }
    }
    Ok(entries)
}
