//! Why the ledger did not post an event: a closed set with stable codes.
//!
//! A refusal is about this event alone; its neighbours are posted. The event becomes a dead letter with the code and this
//! text, nothing of it is in the books, and it can be replayed once the cause is mended.

use jiff::civil::Date;

use crate::account::AccountCode;
use crate::money::Currency;
use crate::period::PeriodState;

/// Why an event was not posted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It cannot be read, or it has no id or no type.
    #[error("the event cannot be read: {0}; mend it, and send it again")]
    Malformed(String),
    /// It does not say whose it is.
    #[error("the event names no tenant; say whose it is")]
    NoTenant,
    /// The tenant keeps no books here.
    #[error(
        "the tenant {0:?} has no books; open them with `postrider ledger accounts init`, then replay the event"
    )]
    UnknownTenant(String),
    /// The same id was posted with another payload.
    #[error("an event with this id is entry {entry} already, with another payload; the first one stands")]
    Conflict {
        /// The entry that stands.
        entry: u64,
    },
    /// No rule wants it.
    #[error("no rule of the tenant matches {0}; add one, then replay the event")]
    NoRule(String),
    /// A rule could not be worked out on this event.
    #[error("the rule {rule} cannot work out {part}: {why}")]
    RuleFailed {
        /// Which rule.
        rule: String,
        /// Which of its expressions.
        part: String,
        /// What went wrong.
        why: String,
    },
    /// An amount is missing.
    #[error("the rule {rule} finds no amount for {part}: {why}")]
    MissingAmount {
        /// Which rule.
        rule: String,
        /// Which of its expressions.
        part: String,
        /// What is missing.
        why: String,
    },
    /// Zero or less.
    #[error("the amount {amount} is not more than zero; swap debit and credit instead of a negative amount")]
    AmountNotPositive {
        /// As it was.
        amount: String,
    },
    /// More digits than the currency has.
    #[error("the amount {amount} has more digits than {currency} has; round it in the rule: round(…, {})", currency.digits())]
    TooManyDigits {
        /// As it was.
        amount: String,
        /// The currency.
        currency: Currency,
    },
    /// Larger than any book should hold.
    #[error("the amount {amount} is too large for the books")]
    AmountTooLarge {
        /// As it was.
        amount: String,
    },
    /// Not of ISO 4217.
    #[error("{0:?} is not a currency of ISO 4217")]
    UnknownCurrency(String),
    /// Not a calendar day.
    #[error("{0:?} is not a date; write 2026-02-28 or 2026-02-28T12:00:00Z")]
    BadDate(String),
    /// A text that cannot be kept.
    #[error("the description or the metadata {0}; shorten or mend it in the rule")]
    BadText(&'static str),
    /// Not in the chart of accounts.
    #[error("there is no account {0}; add it to the chart, then replay the event")]
    UnknownAccount(AccountCode),
    /// What a template made is no code.
    #[error("{0:?} cannot be the code of an account")]
    BadAccount(String),
    /// Closed for entries.
    #[error("the account {0} is not active")]
    InactiveAccount(AccountCode),
    /// The account takes another currency.
    #[error("the account {account} takes {takes}, not {given}")]
    WrongCurrency {
        /// The account.
        account: AccountCode,
        /// What it takes.
        takes: Currency,
        /// What it was given.
        given: Currency,
    },
    /// Fewer than two lines.
    #[error("an entry needs two lines at least; this one has {0}")]
    TooFewLines(usize),
    /// More lines than one entry should have.
    #[error("an entry has 1000 lines at most; this one has {0}")]
    TooManyLines(usize),
    /// Debits and credits differ.
    #[error("debits are {debits} and credits {credits} in {currency}: they must be equal")]
    Unbalanced {
        /// In which currency.
        currency: Currency,
        /// The debits.
        debits: String,
        /// The credits.
        credits: String,
    },
    /// The day lies in a period that takes no entries.
    #[error("{day} lies in the period {period}, which is {state}; {}", way_out(state))]
    PeriodClosed {
        /// The day.
        day: Date,
        /// The period.
        period: String,
        /// What it is.
        state: &'static str,
    },
    /// No rate of that day or shortly before.
    #[error(
        "there is no rate from {from} to {to} on {day}; add one with `postrider ledger rates add`, then replay the event"
    )]
    MissingRate {
        /// From.
        from: Currency,
        /// To.
        to: Currency,
        /// On which day.
        day: Date,
    },
    /// The base amounts differ by a residue, and nobody takes it.
    #[error("after conversion {0} is left over, and the tenant has no rounding account; name one")]
    NoRoundingAccount(String),
    /// There is no such entry.
    #[error("there is no entry {0}")]
    UnknownEntry(u64),
    /// It was reversed before.
    #[error("entry {entry} was reversed before, by entry {by}")]
    AlreadyReversed {
        /// The entry.
        entry: u64,
        /// What reversed it.
        by: u64,
    },
    /// It was settled or voided before.
    #[error("entry {entry} was resolved before, by entry {by}")]
    AlreadyResolved {
        /// The entry.
        entry: u64,
        /// What resolved it.
        by: u64,
    },
    /// It cannot be reversed or settled for what it is.
    #[error("entry {entry} is a {kind} entry and cannot be {action}")]
    WrongKind {
        /// The entry.
        entry: u64,
        /// What it is.
        kind: &'static str,
        /// What was wanted of it.
        action: &'static str,
    },
    /// A balance would leave its range.
    #[error("a balance would grow beyond what can be kept; nothing was posted")]
    BalanceOverflow,
    /// The tenant has used up what it may.
    #[error("the tenant has used its {0}; raise the quota, then replay the event")]
    QuotaExceeded(&'static str),
    /// The ledger itself failed on it.
    #[error(
        "the ledger failed on this event by a defect of its own ({0}); report it, then replay the event with a version that has it mended"
    )]
    Panicked(String),
}

/// What can be done about a period that takes no entries.
fn way_out(state: &str) -> &'static str {
    if state == PeriodState::Locked.as_str() {
        return "it cannot be opened again: give the event a date in an open period, or let back-dated events count for the next open day \
            (`postrider ledger book set --back-dated next_open`) and replay it";
    }
    "reopen it, or give the event a later date"
}

/// Every code there is. docs/ledger.md says of each what to do.
pub const CODES: [&str; 30] = [
    "malformed",
    "no_tenant",
    "unknown_tenant",
    "conflict",
    "no_rule",
    "rule_failed",
    "missing_amount",
    "amount_not_positive",
    "too_many_digits",
    "amount_too_large",
    "unknown_currency",
    "bad_date",
    "bad_text",
    "unknown_account",
    "bad_account",
    "inactive_account",
    "wrong_currency",
    "too_few_lines",
    "too_many_lines",
    "unbalanced",
    "period_closed",
    "missing_rate",
    "no_rounding_account",
    "unknown_entry",
    "already_reversed",
    "already_resolved",
    "wrong_kind",
    "balance_overflow",
    "quota_exceeded",
    "panicked",
];

impl Refusal {
    /// The stable code, by which dead letters are grouped.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Malformed(_) => "malformed",
            Self::NoTenant => "no_tenant",
            Self::UnknownTenant(_) => "unknown_tenant",
            Self::Conflict { .. } => "conflict",
            Self::NoRule(_) => "no_rule",
            Self::RuleFailed { .. } => "rule_failed",
            Self::MissingAmount { .. } => "missing_amount",
            Self::AmountNotPositive { .. } => "amount_not_positive",
            Self::TooManyDigits { .. } => "too_many_digits",
            Self::AmountTooLarge { .. } => "amount_too_large",
            Self::UnknownCurrency(_) => "unknown_currency",
            Self::BadDate(_) => "bad_date",
            Self::BadText(_) => "bad_text",
            Self::UnknownAccount(_) => "unknown_account",
            Self::BadAccount(_) => "bad_account",
            Self::InactiveAccount(_) => "inactive_account",
            Self::WrongCurrency { .. } => "wrong_currency",
            Self::TooFewLines(_) => "too_few_lines",
            Self::TooManyLines(_) => "too_many_lines",
            Self::Unbalanced { .. } => "unbalanced",
            Self::PeriodClosed { .. } => "period_closed",
            Self::MissingRate { .. } => "missing_rate",
            Self::NoRoundingAccount(_) => "no_rounding_account",
            Self::UnknownEntry(_) => "unknown_entry",
            Self::AlreadyReversed { .. } => "already_reversed",
            Self::AlreadyResolved { .. } => "already_resolved",
            Self::WrongKind { .. } => "wrong_kind",
            Self::BalanceOverflow => "balance_overflow",
            Self::QuotaExceeded(_) => "quota_exceeded",
            Self::Panicked(_) => "panicked",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_listed_and_explained() {
        let (source, docs) = (include_str!("refusal.rs"), include_str!("../../../docs/ledger.md"));
        assert_eq!(source.matches(" => \"").count(), CODES.len(), "a code is missing in the list");
        for code in CODES {
            assert!(source.contains(&format!("=> \"{code}\"")), "no refusal has the code {code}");
            assert!(docs.contains(&format!("| `{code}` |")), "docs/ledger.md does not explain {code}");
        }
    }
}
