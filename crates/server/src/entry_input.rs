//! A journal entry as people write it: JSON, over HTTP or in a file.
//!
//! Days, accounts and currencies are read as texts first: one that is none is refused like that of an event, by its own code, and not as
//! JSON that cannot be read.

use std::collections::BTreeMap;

use jiff::civil::Date;
use postrider::EventId;
use postrider_ledger::account::{AccountCode, Side};
use postrider_ledger::books::Books;
use postrider_ledger::decimal::Decimal;
use postrider_ledger::entry::{Draft, DraftLine, EntryKind};
use postrider_ledger::money::Currency;
use postrider_ledger::refusal::Refusal;
use postrider_ledger::{Ledger, LedgerError};
use serde::{Deserialize, Serialize};

/// An entry that somebody writes by hand.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct EntryInput {
    /// The same id again is the same entry.
    pub(crate) id: Option<EventId>,
    effective_on: String,
    #[serde(default)]
    description: String,
    #[serde(default)]
    metadata: BTreeMap<String, String>,
    /// Amounts that are promised, to be settled or voided later.
    #[serde(default)]
    pending: bool,
    lines: Vec<LineInput>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LineInput {
    account: String,
    side: Side,
    amount: String,
    currency: String,
}

/// The same, read. What was said under an id is remembered in this form: its names and their order are for good.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    effective_on: Date,
    description: String,
    metadata: BTreeMap<String, String>,
    pending: bool,
    lines: Vec<Line>,
}

#[derive(Serialize)]
struct Line {
    account: AccountCode,
    side: Side,
    amount: String,
    currency: Currency,
}

impl EntryInput {
    /// The draft of it. What was said under its id is remembered, so that something else under the same id is a conflict.
    pub(crate) fn draft<B: Books>(self, ledger: &Ledger<B>) -> Result<Draft, LedgerError> {
        let Self { id, effective_on, description, metadata, pending, lines } = self;
        let lines = lines.into_iter().map(LineInput::read).collect::<Result<_, _>>()?;
        let entry = Entry { effective_on: day(&effective_on)?, description, metadata, pending, lines };
        let told = serde_json::to_string(&entry).map_err(|error| LedgerError::Invalid(error.to_string()))?;
        Ok(Draft {
            source: ledger.by_hand(id, &told),
            kind: if entry.pending { EntryKind::Pending } else { EntryKind::Posted },
            effective_on: entry.effective_on,
            description: entry.description,
            metadata: entry.metadata,
            refers_to: None,
            lines: entry.lines.into_iter().map(Line::draft).collect::<Result<_, _>>()?,
        })
    }

    /// The draft of what an entry should have been. Without an id of its own it has one that follows from that of the correction.
    pub(crate) fn correction<B: Books>(
        mut self,
        of: Option<&EventId>,
        ledger: &Ledger<B>,
    ) -> Result<Draft, LedgerError> {
        if let (None, Some(key)) = (&self.id, of) {
            let id = EventId::new(format!("{key}:right"));
            self.id = Some(id.map_err(|error| LedgerError::Invalid(error.to_string()))?);
        }
        self.draft(ledger)
    }
}

/// A calendar day, of the years that books have.
fn day(text: &str) -> Result<Date, Refusal> {
    let day = text.parse::<Date>().ok().filter(|day| (1900..=2999).contains(&day.year()));
    day.ok_or_else(|| Refusal::BadDate(text.chars().take(40).collect()))
}

impl LineInput {
    fn read(self) -> Result<Line, Refusal> {
        let Self { account, side, amount, currency } = self;
        let account = AccountCode::new(&account).map_err(|bad| Refusal::BadAccount(bad.0))?;
        let currency = Currency::new(&currency).map_err(|unknown| Refusal::UnknownCurrency(unknown.0))?;
        Ok(Line { account, side, amount, currency })
    }
}

impl Line {
    fn draft(self) -> Result<DraftLine, LedgerError> {
        let Self { account, side, amount, currency } = self;
        let exact: Decimal =
            amount.parse().map_err(|error| LedgerError::Invalid(format!("the amount {amount:?} {error}")))?;
        Ok(DraftLine { account, side, amount: currency.minor(exact)?, currency, base: None })
    }
}
