//! The one error of the ledger's own commands.

use postrider::store::StoreError;

use crate::refusal::Refusal;

/// Why something could not be done. Nothing of it was.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// The database.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The ledger says no, by a rule of bookkeeping.
    #[error("{0}")]
    Refused(Refusal),
    /// The input makes no sense.
    #[error("{0}; nothing was changed")]
    Invalid(String),
}

impl From<Refusal> for LedgerError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl LedgerError {
    /// The stable code, for scripts and HTTP.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Store(error) if error.is_transient() => "unavailable",
            Self::Store(_) => "store",
            Self::Refused(refusal) => refusal.code(),
            Self::Invalid(_) => "invalid",
        }
    }
}
