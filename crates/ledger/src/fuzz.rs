//! Fuzz targets of the ledger: rules, expressions, payloads and amounts. Built for tests and for cargo-fuzz only.
//!
//! Each takes any bytes and must not panic; see `postrider`'s module of the same name.

#![allow(clippy::missing_panics_doc, reason = "a target fails by panicking")]

use jiff::Timestamp;
use postrider::{Clock, Envelope, Event, Payload};

use crate::account::AccountCode;
use crate::decimal::Decimal;
use crate::money::Currency;
use crate::rules::{Expression, Rules, Template, ready};

/// A target, and the name of its corpus.
pub type Target = (&'static str, fn(&[u8]));

/// All of them.
pub const TARGETS: [Target; 3] = [("amounts", amounts), ("payload", payload), ("rules", rules)];

/// Rules that somebody wrote, applied to an event.
pub fn rules(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let _expression = Expression::parse(&text).map_err(|error| has_a_text(&error));
    let _template = Template::parse(&text).map_err(|error| has_a_text(&error));
    let paid = br#"{"employeeId":"e-1","gross":"10.00","currency":"EUR","paidOn":"2026-03-01"}"#;
    match Rules::parse(1, &text) {
        Ok(rules) => {
            assert_eq!(rules.document(), text);
            applied(&rules, paid);
        }
        Err(error) => has_a_text(&error),
    }
}

/// The payload of an event that the ready rules are for.
pub fn payload(data: &[u8]) {
    thread_local!(static READY: Option<Rules> = Rules::parse(1, ready::RULES).ok());
    READY.with(|rules| {
        if let Some(rules) = rules {
            applied(rules, data);
        }
    });
}

/// Amounts, currencies and accounts.
pub fn amounts(data: &[u8]) {
    let text = &*String::from_utf8_lossy(data);
    if let Ok(number) = text.parse::<Decimal>() {
        assert_eq!(number.to_string().parse::<Decimal>().ok(), Some(number));
    }
    if let Ok(currency) = Currency::new(text) {
        assert_eq!(currency.to_string(), text);
    }
    if let Ok(account) = text.parse::<AccountCode>() {
        assert_eq!(account.to_string(), text);
    }
}

/// An entry whose debits equal its credits, or a refusal.
fn applied(rules: &Rules, payload: &[u8]) {
    for kind in ["payroll.salary.disbursed", "ecommerce.order.completed", "procurement.invoice.received"] {
        let (Ok(event), Ok(base)) = (Event::new(kind), Currency::new("EUR")) else { continue };
        let envelope = event.into_envelope(&Clock::manual(Timestamp::UNIX_EPOCH).0);
        let payload = Payload::new("application/json", payload.to_vec());
        let envelope = Envelope { payload, ..envelope };
        let _entry_or_refusal = rules.map(&envelope, envelope.payload.hash(), base);
    }
}

fn has_a_text(error: &dyn std::fmt::Display) {
    assert!(!error.to_string().trim().is_empty(), "an error that says nothing");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_corpus_and_what_becomes_of_it_is_read_or_refused() {
        for (name, target) in TARGETS {
            postrider_testkit::hostile::feed(name, 300, target);
        }
    }
}
