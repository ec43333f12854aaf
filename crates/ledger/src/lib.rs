//! The financial ledger.

pub mod account;
pub mod chain;
pub mod decimal;
pub mod entry;
mod json;
pub mod money;
pub mod refusal;
pub mod rules;
