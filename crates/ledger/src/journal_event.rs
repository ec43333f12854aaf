//! What the ledger tells others: `fis.journal.posted` and `fis.journal.reverted`, one for each entry.

use postrider::Event;
use postrider::envelope::Ordering;
use postrider::topology::ExchangeName;
use serde_json::{Value, json};

use crate::entry::{EntryKind, Sealed};
use crate::money::Currency;

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
    event.json(&payload(entry, base)).ok()
}

/// An entry as JSON, the same in events, exports and answers.
pub fn payload(entry: &Sealed, base: Currency) -> Value {
    let lines: Vec<Value> = entry
        .lines
        .iter()
        .map(|line| {
            let mut shown = json!({
                "account": line.account.as_str(),
                "side": line.side.as_str(),
                "amount": line.currency.show(line.amount.into()),
                "currency": line.currency.code(),
                "baseAmount": base.show(line.base_amount.into()),
            });
            if let Some(rate) = &line.rate {
                shown["rate"] = json!(rate.rate);
                shown["rateSource"] = json!(rate.source);
            }
            shown
        })
        .collect();
    let metadata: Value = serde_json::from_str(&entry.metadata).unwrap_or_default();
    json!({
        "tenantId": entry.tenant.as_str(),
        "entry": entry.number.to_string(),
        "kind": entry.kind.as_str(),
        "effectiveOn": entry.effective_on.to_string(),
        "postedAt": entry.posted_at.to_string(),
        "sourceEvent": entry.source.event.as_str(),
        "payloadHash": entry.source.payload_hash.to_string(),
        "rule": entry.source.rule,
        "description": &*entry.description,
        "metadata": metadata,
        "refersTo": entry.refers_to.map(|number| number.to_string()),
        "baseCurrency": base.code(),
        "lines": lines,
        "hash": entry.hash.to_string(),
    })
}
