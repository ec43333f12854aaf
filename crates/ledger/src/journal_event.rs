//! What the ledger tells others: `fis.journal.posted` and `fis.journal.reverted`, one for each entry.

use postrider::Event;
use postrider::envelope::Ordering;
use postrider::topology::ExchangeName;
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::books::Page;
use crate::entry::{EntryKind, Line, Sealed};
use crate::money::Currency;

/// The events that tell of a page.
pub fn of_page(page: &Page, base: Currency, exchange: &ExchangeName) -> Vec<Event> {
    page.entries.iter().filter_map(|entry| of(entry, base, exchange)).collect()
}

/// The event that tells of an entry; nothing for the seal of a period. Amounts and numbers are texts.
pub fn of(entry: &Sealed, base: Currency, exchange: &ExchangeName) -> Option<Event> {
    let event_type = match entry.kind {
        EntryKind::Seal => return None,
        EntryKind::Reversal => "fis.journal.reverted",
        _ => "fis.journal.posted",
    };
    let event = Event::new(event_type).ok()?.aggregate_id(entry.number.to_string()).ok()?;
    let mut event = event.ordering(Ordering::Free).occurred_at(entry.posted_at).exchange(exchange.clone());
    event.tenant.group = Some(entry.tenant.clone());
    event.causation_id = Some(entry.source.event.clone());
    event.json(&Shown::new(entry, base)).ok()
}

/// An entry as JSON, the same in events, exports and answers.
pub fn payload(entry: &Sealed, base: Currency) -> Value {
    serde_json::to_value(Shown::new(entry, base)).unwrap_or_default()
}

/// An entry on its way to JSON: written once for every entry, so nothing is built in between. The members are in the order of their
/// names, as in every JSON of ours.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Shown<'a> {
    base_currency: Currency,
    description: &'a str,
    effective_on: jiff::civil::Date,
    entry: String,
    hash: crate::chain::Hash,
    kind: EntryKind,
    lines: Vec<ShownLine<'a>>,
    metadata: Option<&'a RawValue>,
    payload_hash: String,
    posted_at: jiff::Timestamp,
    refers_to: Option<String>,
    rule: &'a str,
    source_event: &'a str,
    tenant_id: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ShownLine<'a> {
    account: &'a str,
    amount: String,
    base_amount: String,
    currency: Currency,
    #[serde(skip_serializing_if = "Option::is_none")]
    rate: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rate_source: Option<&'a str>,
    side: &'static str,
}

impl<'a> Shown<'a> {
    pub(crate) fn new(entry: &'a Sealed, base: Currency) -> Self {
        Self {
            base_currency: base,
            description: &entry.description,
            effective_on: entry.effective_on,
            entry: entry.number.to_string(),
            hash: entry.hash,
            kind: entry.kind,
            lines: entry.lines.iter().map(|line| ShownLine::new(line, base)).collect(),
            metadata: serde_json::from_str(&entry.metadata).ok(),
            payload_hash: entry.source.payload_hash.to_string(),
            posted_at: entry.posted_at,
            refers_to: entry.refers_to.map(|number| number.to_string()),
            rule: &entry.source.rule,
            source_event: entry.source.event.as_str(),
            tenant_id: entry.tenant.as_str(),
        }
    }
}

impl<'a> ShownLine<'a> {
    fn new(line: &'a Line, base: Currency) -> Self {
        Self {
            account: line.account.as_str(),
            amount: line.currency.show(line.amount.into()),
            base_amount: base.show(line.base_amount.into()),
            currency: line.currency,
            rate: line.rate.as_ref().map(|rate| rate.rate.as_str()),
            rate_source: line.rate.as_ref().map(|rate| rate.source.as_str()),
            side: line.side.as_str(),
        }
    }
}

#[cfg(test)]
mod tests {
    use postrider::EventId;
    use postrider::envelope::{Payload, TenantId};

    use super::*;
    use crate::account::{AccountCode, Side};
    use crate::chain::Hash;
    use crate::entry::{Rate, Source};

    #[test]
    fn an_entry_is_told_with_sorted_members_and_amounts_as_texts() {
        let eur = Currency::new("EUR").unwrap();
        let line = |account: &str, side, rate| Line {
            account: AccountCode::new(account).unwrap(),
            side,
            amount: 100_000,
            currency: Currency::new("JPY").unwrap(),
            base_amount: 61_234,
            rate,
        };
        let rate = Rate { rate: "0.0061234".to_owned(), source: "ecb 2026-11-13".to_owned() };
        let entry = Sealed {
            tenant: TenantId::new("acme").unwrap(),
            number: 7,
            posted_at: "2026-11-15T10:00:00.5Z".parse().unwrap(),
            kind: EntryKind::Posted,
            effective_on: jiff::civil::date(2026, 11, 15),
            source: Source {
                event: EventId::new("evt_1").unwrap(),
                payload_hash: Payload::empty_object().hash(),
                rule: "sale@1".to_owned(),
            },
            description: "a \"sale\"".into(),
            metadata: r#"{"order":"4711"}"#.into(),
            refers_to: None,
            lines: vec![line("cash", Side::Debit, Some(rate)), line("sales", Side::Credit, None)],
            hash: Hash([0x1f; 32]),
        };
        let told = serde_json::to_string(&Shown::new(&entry, eur)).unwrap();
        assert_eq!(told, payload(&entry, eur).to_string());
        let told: Value = serde_json::from_str(&told).unwrap();
        assert_eq!(told["postedAt"], "2026-11-15T10:00:00.5Z");
        assert_eq!(told["lines"][0]["amount"], "100000");
        assert_eq!(told["lines"][0]["baseAmount"], "612.34");
        assert_eq!(told["metadata"]["order"], "4711");
        assert_eq!(told["kind"], "posted");
        assert_eq!(told["refersTo"], Value::Null);
        assert_eq!(told["hash"], "1f".repeat(32));
    }
}
