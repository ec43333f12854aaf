//! The ports to the database: a transaction, the outbox, the inbox, the dead letters, the operations.
//!
//! Two implementations keep these contracts and pass one suite: `postgres` and `sqlite`. The database is the authority
//! on what happened; every other server only helps.

mod audit;
mod dead_letter;
mod error;
mod fingerprint;
mod inbox;
mod letter;
mod operation;
mod outbox;
mod registration;
mod token;
mod trace;
mod upkeep;

pub use audit::{Audit, AuditScope, ConsumerCount};
pub use dead_letter::{DeadLetter, DeadLetters};
pub use error::{StoreError, StoreErrorKind};
pub use inbox::{Admission, Arrival, Inbox};
pub use letter::{
    Cursor, GroupPage, GroupQuery, LetterFilter, LetterGroup, LetterId, LetterPage, LetterQuery,
    LetterStatus, LetterSummary, Resolution, SCANNED, StoredLetter, Survey, Triage, Turn,
};
pub use operation::{
    Claim, LogEntry, NewOperation, Operation, OperationEnd, OperationKind, OperationState, Operations,
};
pub use outbox::{
    Backlog, Lane, Outbox, OutboxRow, OutboxStatus, PublishResult, RelayId, RowId, RowResult, Verbatim,
};
pub(crate) use outbox::{UNTYPED, read_head, write_head};
pub use registration::{Registration, Registrations};
pub use token::{Token, TokenHash, TokenRole, Tokens};
pub use trace::{AppliedStep, OutboxStep, Trace, Traces};
pub use upkeep::{Migration, MigrationState, StoreFacts, Upkeep};

use std::future::Future;

/// A database with transactions. Cheap to clone.
pub trait Store: Clone + Send + Sync + 'static {
    /// A transaction. Dropping it rolls it back.
    type Tx: Send;

    /// Opens a transaction.
    fn begin(&self) -> impl Future<Output = Result<Self::Tx, StoreError>> + Send;

    /// Commits. After an error the outcome may be unknown: the inbox tells at the next delivery.
    fn commit(&self, tx: Self::Tx) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Rolls back.
    fn rollback(&self, tx: Self::Tx) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Whether the database can be reached now, and has the schema this version needs.
    fn check(&self) -> impl Future<Output = Result<(), StoreError>> + Send;
}

/// All the ports a whole backend has.
pub trait Backend:
    Store + Outbox + Inbox + DeadLetters + Triage + Operations + Traces + Audit + Registrations
{
}

impl<T: Store + Outbox + Inbox + DeadLetters + Triage + Operations + Traces + Audit + Registrations> Backend
    for T
{
}
