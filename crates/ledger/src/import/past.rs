//! An entry of a file: as it was exported, or as another program writes it.

use std::collections::BTreeMap;

use jiff::Timestamp;
use jiff::civil::Date;
use postrider::EventId;
use postrider::envelope::PayloadHash;
use serde::Deserialize;

use crate::account::{AccountCode, Side};
use crate::chain::Hash;
use crate::correcting::hash_of;
use crate::decimal::{Decimal, DecimalError};
use crate::entry::{Draft, DraftLine, EntryKind, Metadata, Rate, Source};
use crate::money::{Amount, Currency};
use crate::refusal::Refusal;

/// What the metadata says of an entry that came from elsewhere: its tenant and number there, and when it was posted there.
const IMPORTED_ENTRY: &str = "imported_entry";
const IMPORTED_POSTED_AT: &str = "imported_posted_at";

/// Where an entry stands in a file: whose it was, and its number there. A file may have what several exports have.
pub(super) type There = (Option<String>, u64);

/// An entry of a file. The source event, the day and the lines have to be there; the rest is what an export has besides.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PastEntry {
    /// The same again is the same entry, for ever.
    pub source_event: String,
    /// What it is.
    #[serde(default = "posted")]
    pub kind: EntryKind,
    /// The day it counts for.
    pub effective_on: Date,
    /// Its number there, to which others refer.
    #[serde(default)]
    pub entry: Option<String>,
    /// The number there of the entry that it reverses, settles or voids.
    #[serde(default)]
    pub refers_to: Option<String>,
    /// Whose it was.
    #[serde(default)]
    pub tenant_id: Option<String>,
    /// When it was posted there.
    #[serde(default)]
    pub posted_at: Option<Timestamp>,
    /// What its source said.
    #[serde(default)]
    pub payload_hash: Option<String>,
    /// The rule that made it there.
    #[serde(default)]
    pub rule: String,
    /// For people.
    #[serde(default)]
    pub description: String,
    /// More for people and programs.
    #[serde(default)]
    pub metadata: Option<BTreeMap<String, String>>,
    /// What the base amounts are in.
    #[serde(default)]
    pub base_currency: Option<Currency>,
    /// The lines.
    pub lines: Vec<PastLine>,
    /// Its hash there. It gets another one here, because another entry stands before it.
    #[serde(default)]
    pub hash: Option<String>,
}

/// A line of it.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PastLine {
    /// Which account.
    pub account: String,
    /// Which side.
    pub side: Side,
    /// How much, as an exact decimal.
    pub amount: String,
    /// Of what.
    pub currency: String,
    /// How much in the base currency there.
    #[serde(default)]
    pub base_amount: Option<String>,
    /// The rate between the two.
    #[serde(default)]
    pub rate: Option<String>,
    /// Whose rate.
    #[serde(default)]
    pub rate_source: Option<String>,
}

fn posted() -> EntryKind {
    EntryKind::Posted
}

impl PastEntry {
    /// Where it stands in the file.
    pub(super) fn there(&self) -> Option<There> {
        let number = self.entry.as_deref().and_then(|number| number.parse().ok())?;
        Some((self.tenant_id.clone(), number))
    }

    /// Where in the file that stands which it refers to. What is no number is referred to by nobody.
    pub(super) fn referred(&self) -> Option<There> {
        let number = self.refers_to.as_deref().map(|number| number.parse().unwrap_or(0))?;
        Some((self.tenant_id.clone(), number))
    }

    /// The draft of it for books that are kept in `base`. `here` knows the numbers here by where entries stand in the file.
    pub(super) fn draft(
        self,
        base: Currency,
        here: impl Fn(&There) -> Option<u64>,
    ) -> Result<Draft, Refusal> {
        let refers_to = match self.referred() {
            None => None,
            Some(referred) => Some(here(&referred).ok_or(Refusal::UnknownEntry(referred.1))?),
        };
        let event = EventId::new(&self.source_event)
            .map_err(|error| Refusal::Malformed(format!("sourceEvent: {error}")))?;
        kept("rule", &self.rule)?;
        let payload_hash = match &self.payload_hash {
            None => hash_of(&self.told()),
            Some(text) => payload_hash(text)?,
        };
        // Base amounts of another currency mean nothing here.
        let keep_base = self.base_currency.is_none_or(|theirs| theirs == base);
        let mut lines = Vec::with_capacity(self.lines.len());
        for line in &self.lines {
            lines.extend(line.draft(keep_base.then_some(base), is_carried(self.kind))?);
        }
        let mut metadata: Metadata = self.metadata.unwrap_or_default();
        if let Some(number) = &self.entry {
            let theirs = self.tenant_id.iter().chain([number]).map(String::as_str).collect::<Vec<_>>();
            metadata.entry(IMPORTED_ENTRY.to_owned()).or_insert_with(|| theirs.join("/"));
        }
        if let Some(at) = self.posted_at {
            metadata.entry(IMPORTED_POSTED_AT.to_owned()).or_insert_with(|| at.to_string());
        }
        Ok(Draft {
            source: Source { event, payload_hash, rule: self.rule },
            kind: self.kind,
            effective_on: self.effective_on,
            description: self.description,
            metadata,
            refers_to,
            lines,
        })
    }

    /// What it says, where no hash tells whether another file says the same.
    fn told(&self) -> String {
        let line = |line: &PastLine| {
            format!(" {} {} {} {}", line.account, line.side.as_str(), line.amount, line.currency)
        };
        let lines: String = self.lines.iter().map(line).collect();
        format!("{} {} {}{lines}", self.kind.as_str(), self.effective_on, self.description)
    }
}

impl PastLine {
    /// The line; nothing for a residue of rounding that has to be worked out anew, because its base amounts are not kept.
    fn draft(&self, keep_base: Option<Currency>, is_carried: bool) -> Result<Option<DraftLine>, Refusal> {
        let account = AccountCode::new(&self.account).map_err(|bad| Refusal::BadAccount(bad.0))?;
        let currency = Currency::new(&self.currency).map_err(|bad| Refusal::UnknownCurrency(bad.0))?;
        let base = match (keep_base, &self.base_amount) {
            (Some(base), Some(amount)) => Some(minor(base, amount, is_carried)?),
            _ => None,
        };
        let amount = minor(currency, &self.amount, is_carried)?;
        let amount = match (Amount::held(amount), base) {
            (Some(amount), _) => amount,
            (None, Some(1..)) => Amount::NONE,
            (None, _) if keep_base.is_none() && self.base_amount.is_some() => return Ok(None),
            (None, _) => return Err(Refusal::AmountNotPositive { amount: self.amount.clone() }),
        };
        let rate = self.rate()?;
        Ok(Some(DraftLine {
            account,
            side: self.side,
            amount,
            currency,
            base: base.map(|base| (base, rate)),
        }))
    }

    /// The rate as it is written, if it is one.
    fn rate(&self) -> Result<Option<Rate>, Refusal> {
        let Some(rate) = self.rate.clone().filter(|rate| !rate.is_empty()) else { return Ok(None) };
        let bad = |why: String| Refusal::Malformed(format!("the rate {rate:?} {why}"));
        let exact: Decimal = rate.parse().map_err(|error: DecimalError| bad(error.to_string()))?;
        if exact.is_zero() || exact.is_negative() {
            return Err(bad("is not more than zero".to_owned()));
        }
        let source = self.rate_source.clone().unwrap_or_default();
        kept("rateSource", &source)?;
        if source.len() > 200 {
            return Err(bad("has a source of more than 200 bytes".to_owned()));
        }
        Ok(Some(Rate { rate, source }))
    }
}

/// Refuses a text that no database keeps, where it goes into the books as it is.
fn kept(name: &str, text: &str) -> Result<(), Refusal> {
    if text.contains('\0') {
        return Err(Refusal::Malformed(format!("{name} contains a NUL character")));
    }
    Ok(())
}

/// Whether entries of this kind carry on what books hold, or undo that, and may have more in a line than an event may bring.
fn is_carried(kind: EntryKind) -> bool {
    matches!(kind, EntryKind::Closing | EntryKind::Opening | EntryKind::Reversal)
}

/// Minor units, which may be none.
fn minor(currency: Currency, amount: &str, is_carried: bool) -> Result<i64, Refusal> {
    let exact: Decimal =
        amount.parse().map_err(|error| Refusal::Malformed(format!("the amount {amount:?} {error}")))?;
    let units = match (exact.is_zero(), is_carried) {
        (true, _) => return Ok(0),
        (false, true) => currency.minor_held(exact),
        (false, false) => currency.minor(exact),
    };
    units.map(Amount::minor)
}

/// `sha256:…`, as exports have it.
fn payload_hash(text: &str) -> Result<PayloadHash, Refusal> {
    let hash = Hash::from_hex(text.strip_prefix("sha256:").unwrap_or(text));
    hash.and_then(|hash| PayloadHash::from_bytes(&hash.0))
        .ok_or_else(|| Refusal::Malformed(format!("the payload hash {text:?} is not a SHA-256")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn past(lines: &str) -> PastEntry {
        let text = format!(
            r#"{{"sourceEvent": "e-1", "effectiveOn": "2025-12-31", "baseCurrency": "EUR", "lines": [{lines}]}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    fn drafted(lines: &str, base: &str) -> Result<Vec<(i64, Option<i64>)>, &'static str> {
        let draft = past(lines).draft(Currency::new(base).unwrap(), |_| None);
        let shown = |line: &DraftLine| (line.amount.minor(), line.base.as_ref().map(|(base, _)| *base));
        draft.map(|draft| draft.lines.iter().map(shown).collect()).map_err(|refusal| refusal.code())
    }

    #[test]
    fn base_amounts_are_kept_where_the_base_currency_is_the_same() {
        let dollars = r#"{"account": "bank", "side": "debit", "amount": "10.05", "currency": "USD", "baseAmount": "3.35"}"#;
        let residue = r#"{"account": "rounding", "side": "credit", "amount": "0.00", "currency": "EUR", "baseAmount": "0.01"}"#;
        let lines = format!("{dollars},{residue}");
        assert_eq!(drafted(&lines, "EUR"), Ok(vec![(1005, Some(335)), (0, Some(1))]));
        assert_eq!(drafted(&lines, "CHF"), Ok(vec![(1005, None)]), "the residue is worked out anew");
        assert_eq!(drafted(&residue.replace("0.01", "0"), "EUR"), Err("amount_not_positive"));
        assert_eq!(drafted(&dollars.replace("3.35", "3.355"), "EUR"), Err("too_many_digits"));
        assert_eq!(drafted(&dollars.replace("10.05", "-1"), "EUR"), Err("amount_not_positive"));
        assert_eq!(drafted(&dollars.replace("10.05", "ten"), "EUR"), Err("malformed"));
    }

    #[test]
    fn texts_that_are_no_rate_are_refused() {
        let line = |rate: &str| {
            let start = r#"{"account": "bank", "side": "debit", "amount": "10.05", "currency": "USD", "baseAmount": "3.35""#;
            drafted(&format!(r#"{start}, "rate": "{rate}", "rateSource": "ecb"}}"#), "EUR")
        };
        assert!(line("0.3333").is_ok() && line("").is_ok());
        for bad in ["abc", "1,5", "0", "-1", "=1+1", "1\\u0000"] {
            assert_eq!(line(bad), Err("malformed"), "{bad}");
        }
        let mut other = past("");
        other.rule = "a\0b".to_owned();
        assert_eq!(other.draft(Currency::new("EUR").unwrap(), |_| None).unwrap_err().code(), "malformed");
    }

    #[test]
    fn what_books_carry_on_may_be_more_than_an_event_brings() {
        let much =
            r#"{"account": "sales", "side": "debit", "amount": "20000000000000.00", "currency": "EUR"}"#;
        assert_eq!(drafted(much, "EUR"), Err("amount_too_large"));
        let mut closing = past(much);
        closing.kind = EntryKind::Closing;
        let draft = closing.draft(Currency::new("EUR").unwrap(), |_| None).unwrap();
        assert_eq!(draft.lines[0].amount.minor(), 2_000_000_000_000_000);
    }

    #[test]
    fn what_it_refers_to_is_found_by_its_number_in_the_file() {
        let eur = Currency::new("EUR").unwrap();
        let mut reversal = past("");
        reversal.refers_to = Some("7".to_owned());
        reversal.tenant_id = Some("acme".to_owned());
        let here = |there: &There| (there.0.as_deref() == Some("acme")).then_some(there.1 + 100);
        assert_eq!(reversal.clone().draft(eur, here).unwrap().refers_to, Some(107));
        assert_eq!(reversal.draft(eur, |_| None).unwrap_err().code(), "unknown_entry");
    }
}
