//! What lines add up to, and which of it is asked for.

use std::fmt;

use jiff::civil::Date;

use crate::account::AccountCode;
use crate::dated::AfterDay;
use crate::money::Currency;

/// Which totals by day; all of them by default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Days {
    /// Of this account and those below it.
    pub account: Option<AccountCode>,
    /// From this day.
    pub from: Option<Date>,
    /// To this day.
    pub to: Option<Date>,
    /// Where the page before ended.
    pub after: Option<AfterDay>,
    /// So many at most; all when absent.
    pub limit: Option<usize>,
}

/// Sums of one account in one currency, in minor units.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Balance {
    /// Which account.
    pub account: AccountCode,
    /// Which currency.
    pub currency: Currency,
    /// The sums.
    pub sums: Sums,
}

/// Debits and credits, apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sums {
    /// Debits.
    pub debits: i64,
    /// Credits.
    pub credits: i64,
    /// Debits in the base currency.
    pub base_debits: i64,
    /// Credits in the base currency.
    pub base_credits: i64,
    /// Debits that are promised.
    pub pending_debits: i64,
    /// Credits that are promised.
    pub pending_credits: i64,
}

impl fmt::Display for Sums {
    /// Minor units, as the table has them; promises where there are some.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { debits, credits, base_debits, base_credits, pending_debits, pending_credits } = self;
        write!(f, "debits {debits} ({base_debits} in base), credits {credits} ({base_credits} in base)")?;
        if (*pending_debits, *pending_credits) != (0, 0) {
            write!(f, ", pending debits {pending_debits}, pending credits {pending_credits}")?;
        }
        Ok(())
    }
}

impl Sums {
    /// Both together; nothing when one of the sums leaves its range.
    pub fn plus(&self, other: &Self) -> Option<Self> {
        Some(Self {
            debits: self.debits.checked_add(other.debits)?,
            credits: self.credits.checked_add(other.credits)?,
            base_debits: self.base_debits.checked_add(other.base_debits)?,
            base_credits: self.base_credits.checked_add(other.base_credits)?,
            pending_debits: self.pending_debits.checked_add(other.pending_debits)?,
            pending_credits: self.pending_credits.checked_add(other.pending_credits)?,
        })
    }

    /// What is left of the posted sums without these; nothing when one of them leaves its range.
    pub fn without(&self, other: &Self) -> Option<Self> {
        Some(Self {
            debits: self.debits.checked_sub(other.debits)?,
            credits: self.credits.checked_sub(other.credits)?,
            base_debits: self.base_debits.checked_sub(other.base_debits)?,
            base_credits: self.base_credits.checked_sub(other.base_credits)?,
            ..*self
        })
    }
}
