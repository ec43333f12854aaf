//! The financial ledger: events in, balanced books out.
//!
//! Pure rules inside, ports at the edge. In the order in which an event meets them:
//!
//! 1. [`intake`]: from a queue. [`sequencer`]: what is queued becomes batches, one tenant at a time each. [`ledger`]: a batch is posted
//!    in one transaction.
//! 2. [`rules`]: a rule makes a [`entry::Draft`] of an event. [`decimal`] and [`money`]: amounts, exactly.
//! 3. [`pipeline`]: the steps from arrival to sealed entry, each pure, each a file. [`refusal`]: why one was not posted.
//! 4. [`chart`], [`account`], [`period`]: what the steps are decided by.
//! 5. [`chain`]: every entry's hash contains that of the one before. [`checkpoint`]: signed roots over them.
//! 6. [`books`]: the port to the database. [`postgres`] and [`sqlite`] keep it.
//! 7. [`journal_event`]: what others are told.
//! 8. [`correcting`] and [`closing`]: what people do. [`report`], [`statement`], [`dated`], [`verify`], [`export`]: what they read. [`import`]: what others
//!    wrote before.

pub mod account;
pub mod accounting;
mod anchoring;
pub mod books;
pub mod chain;
pub mod chart;
pub mod checkpoint;
pub mod closing;
#[doc(hidden)]
pub mod compiled;
pub mod correcting;
pub mod dated;
pub mod decimal;
pub mod entry;
pub mod error;
pub mod export;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod import;
pub mod intake;
pub mod journal_event;
mod json;
mod keeping;
pub mod ledger;
pub mod money;
pub mod period;
pub mod pipeline;
pub mod postgres;
pub mod refusal;
pub mod report;
pub mod rules;
pub mod sequencer;
pub mod sqlite;
pub mod statement;
pub mod stored;
pub mod verify;

pub use anchoring::Proven;
pub use error::LedgerError;
pub use ledger::Ledger;
