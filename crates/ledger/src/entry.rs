//! A journal entry on its way into the books: drafted, balanced, sealed. Each stage is a type, so that nothing can be sealed
//! that was not balanced, and nothing can be written that was not sealed.

use std::sync::Arc;

use jiff::Timestamp;
use jiff::civil::Date;
use postrider::EventId;
use postrider::envelope::{PayloadHash, TenantId};
use serde::{Deserialize, Serialize};

use crate::account::{AccountCode, Side};
use crate::chain::Hash;
use crate::decimal::Decimal;
use crate::money::{Amount, Currency};

/// What an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EntryKind {
    /// Posted for good.
    Posted,
    /// Amounts that are promised: they count as pending until they are settled or voided.
    Pending,
    /// Settles a pending entry: its promise ends, these lines are posted.
    Settlement,
    /// Ends the promise of a pending entry; nothing is posted.
    Void,
    /// Undoes a posted entry.
    Reversal,
    /// Carries income and expenses to retained earnings at the end of a year.
    Closing,
    /// Balances from before these books.
    Opening,
    /// No lines: the record that a period was closed, with the hash of its trial balance.
    Seal,
}

impl EntryKind {
    const ALL: [(Self, u8, &'static str); 8] = [
        (Self::Posted, 1, "posted"),
        (Self::Pending, 2, "pending"),
        (Self::Settlement, 3, "settlement"),
        (Self::Void, 4, "void"),
        (Self::Reversal, 5, "reversal"),
        (Self::Closing, 6, "closing"),
        (Self::Opening, 7, "opening"),
        (Self::Seal, 8, "seal"),
    ];

    /// Every kind.
    pub fn all() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().map(|(kind, ..)| kind)
    }

    /// Its number, as tables and the chain have it.
    pub fn number(self) -> u8 {
        Self::ALL.iter().find(|(kind, ..)| *kind == self).map_or(0, |(_, number, _)| *number)
    }

    /// By its number.
    pub fn from_number(number: i16) -> Option<Self> {
        Self::ALL.iter().find(|(_, known, _)| i16::from(*known) == number).map(|(kind, ..)| *kind)
    }

    /// Its name.
    pub fn as_str(self) -> &'static str {
        Self::ALL.iter().find(|(kind, ..)| *kind == self).map_or("", |(.., name)| name)
    }

    /// What its lines do to balances.
    pub fn effect(self) -> Effect {
        match self {
            Self::Posted | Self::Reversal | Self::Closing | Self::Opening | Self::Settlement => Effect::Post,
            Self::Pending => Effect::Promise,
            Self::Void | Self::Seal => Effect::None,
        }
    }
}

/// What the lines of an entry do to balances.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// They count.
    Post,
    /// They count as pending.
    Promise,
    /// They only tell what no longer counts as pending.
    None,
}

/// Where an entry comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// The event, unique within the tenant for ever.
    pub event: EventId,
    /// What it said.
    pub payload_hash: PayloadHash,
    /// The rule that made the entry of it, with its version (`order completed@3`); empty for one that people wrote.
    pub rule: String,
}

/// An entry as a rule or a person wants it. Nothing is checked yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Draft {
    /// Where it comes from.
    pub source: Source,
    /// What it is.
    pub kind: EntryKind,
    /// The day it counts for.
    pub effective_on: Date,
    /// For people.
    pub description: String,
    /// A JSON object, its members sorted by name; every value is a text.
    pub metadata: Metadata,
    /// The entry it reverses, settles or voids.
    pub refers_to: Option<u64>,
    /// The lines.
    pub lines: Vec<DraftLine>,
}

/// Names and texts that travel with an entry.
pub type Metadata = std::collections::BTreeMap<String, String>;

/// One line of a draft.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DraftLine {
    /// Which account.
    pub account: AccountCode,
    /// Which side.
    pub side: Side,
    /// How much.
    pub amount: Amount,
    /// Of what.
    pub currency: Currency,
    /// The amount in the tenant's base currency and how it came about, where the draft brings it along: a reversal repeats
    /// what it reverses instead of asking for the rate of its own day.
    pub base: Option<(i64, Option<Rate>)>,
}

/// A rate that was used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rate {
    /// Units of the base currency per unit of the line's.
    pub rate: String,
    /// Whose rate, and of which day: `ecb 2026-11-13`.
    pub source: String,
}

impl Rate {
    /// From an exact number.
    pub fn new(rate: Decimal, source: &str, day: Date) -> Self {
        Self { rate: rate.to_string(), source: format!("{source} {day}") }
    }
}

/// An entry whose lines balance in every currency and in base, on accounts that exist, in a period that is open. Only the
/// pipeline makes one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Balanced {
    pub(crate) draft: Draft,
    pub(crate) lines: Vec<Line>,
}

impl Balanced {
    /// What it was drafted as.
    pub fn draft(&self) -> &Draft {
        &self.draft
    }

    /// The lines with their base amounts, a rounding line included.
    pub fn lines(&self) -> &[Line] {
        &self.lines
    }
}

/// One line, complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// Which account.
    pub account: AccountCode,
    /// Which side.
    pub side: Side,
    /// How much, in minor units; 0 only in a line that carries a rounding residue of the base currency alone.
    pub amount: i64,
    /// Of what.
    pub currency: Currency,
    /// How much in the tenant's base currency, in minor units.
    pub base_amount: i64,
    /// The rate between the two, where they differ.
    pub rate: Option<Rate>,
}

/// An entry with its place in the chain: what is written, and never changed again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sealed {
    /// Whose.
    pub tenant: TenantId,
    /// Its number within the tenant, from 1 without a gap.
    pub number: u64,
    /// When it was posted.
    pub posted_at: Timestamp,
    /// What it is.
    pub kind: EntryKind,
    /// The day it counts for.
    pub effective_on: Date,
    /// Where it comes from.
    pub source: Source,
    /// For people.
    pub description: Arc<str>,
    /// Its metadata as the JSON text that is stored and hashed.
    pub metadata: Arc<str>,
    /// The entry it reverses, settles or voids.
    pub refers_to: Option<u64>,
    /// The lines.
    pub lines: Vec<Line>,
    /// The hash of this entry, which contains that of the one before.
    pub hash: Hash,
}
