//! From the columns of a store back to an entry. What cannot be read is named, because somebody changed it.

use std::fmt::Display;

use jiff::Timestamp;
use postrider::EventId;
use postrider::envelope::{PayloadHash, TenantId};
use postrider::store::{StoreError, StoreErrorKind};

use crate::account::{AccountCode, Side};
use crate::chain::{self, Hash};
use crate::entry::{EntryKind, Line, Rate, Sealed, Source};
use crate::money::Currency;

/// The columns of an entry.
pub(crate) struct EntryRow<'a> {
    pub(crate) number: i64,
    pub(crate) kind: i16,
    pub(crate) effective_on: i32,
    pub(crate) posted_at: Timestamp,
    pub(crate) source_event: &'a str,
    pub(crate) payload_hash: &'a [u8],
    pub(crate) rule: &'a str,
    pub(crate) description: &'a str,
    pub(crate) metadata: &'a str,
    pub(crate) refers_to: Option<i64>,
    pub(crate) hash: &'a [u8],
}

/// The columns of a line.
pub(crate) struct LineRow<'a> {
    pub(crate) account: &'a str,
    pub(crate) side: i16,
    pub(crate) amount: i64,
    pub(crate) currency: &'a str,
    pub(crate) base_amount: i64,
    pub(crate) rate: Option<&'a str>,
    pub(crate) rate_source: Option<&'a str>,
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
            posted_at: self.posted_at,
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
