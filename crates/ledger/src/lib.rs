//! The financial ledger.
