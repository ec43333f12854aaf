//! A journal entry as people write it: JSON, over HTTP or in a file.

use std::collections::BTreeMap;

use jiff::civil::Date;
use postrider::EventId;
use postrider_ledger::account::{AccountCode, Side};
use postrider_ledger::books::Books;
use postrider_ledger::decimal::Decimal;
use postrider_ledger::entry::{Draft, DraftLine, EntryKind};
use postrider_ledger::money::Currency;
use postrider_ledger::{Ledger, LedgerError};
use serde::{Deserialize, Serialize};

/// An entry that somebody writes by hand.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct EntryInput {
    /// The same id again is the same entry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) id: Option<EventId>,
    pub(crate) effective_on: Date,
    #[serde(default)]
    pub(crate) description: String,
    #[serde(default)]
    pub(crate) metadata: BTreeMap<String, String>,
    /// Amounts that are promised, to be settled or voided later.
    #[serde(default)]
    pub(crate) pending: bool,
    pub(crate) lines: Vec<LineInput>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LineInput {
    account: AccountCode,
    side: Side,
    amount: String,
    currency: Currency,
}

impl EntryInput {
    /// The draft of it. What was said under its id is remembered, so that something else under the same id is a conflict.
    pub(crate) fn draft<B: Books>(mut self, ledger: &Ledger<B>) -> Result<Draft, LedgerError> {
        let key = self.id.take();
        let told = serde_json::to_string(&self).map_err(|error| LedgerError::Invalid(error.to_string()))?;
        Ok(Draft {
            source: ledger.by_hand(key, &told),
            kind: if self.pending { EntryKind::Pending } else { EntryKind::Posted },
            effective_on: self.effective_on,
            description: self.description,
            metadata: self.metadata,
            refers_to: None,
            lines: self.lines.into_iter().map(LineInput::draft).collect::<Result<_, _>>()?,
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

impl LineInput {
    fn draft(self) -> Result<DraftLine, LedgerError> {
        let Self { account, side, amount, currency } = self;
        let exact: Decimal =
            amount.parse().map_err(|error| LedgerError::Invalid(format!("the amount {amount:?} {error}")))?;
        Ok(DraftLine { account, side, amount: currency.minor(exact)?, currency, base: None })
    }
}
