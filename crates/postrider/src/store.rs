//! The ports to the database: a transaction, the outbox, the inbox, the dead letters, the operations.
//!
//! Two implementations keep these contracts and pass one suite: `postgres` and `sqlite`. The database is the authority
//! on what happened; every other server only helps.

mod audit;
mod backlog;
mod claims;
mod controls;
mod crashes;
mod dead_letter;
mod dual;
mod erasure;
mod error;
mod fingerprint;
mod held;
mod housekeeping;
mod inbox;
mod jobs;
mod letter;
mod memory;
mod operation;
mod outbox;
mod outbox_desk;
mod outboxes;
mod pull_words;
mod registration;
mod replays;
mod stream;
#[cfg(feature = "push")]
mod subscriptions;
mod token;
mod trace;
mod upkeep;

pub use audit::{Audit, AuditScope, CommittedEvent, ConsumerCount, Place};
pub(crate) use audit::{CommittedRow, unusable};
pub(crate) use claims::ClaimRow;
pub use claims::{ClaimKey, Claimed, Claims, FencingToken};
pub use controls::{Controls, Pause};
pub use crashes::Crashes;
pub use dead_letter::{DeadLetter, DeadLetters};
pub use dual::{CopyResult, DualPublishing, PhaseTurn};
pub use erasure::{Erase, Erased, Erasure};
pub use error::{StoreError, StoreErrorKind};
pub use held::{Held, HeldEvent, HeldHead, HeldKey, HeldState};
pub(crate) use held::{pack, unpack};
pub use housekeeping::{Archive, HouseRules, Housekeeping, Kept, PartitionSpan};
pub(crate) use inbox::Mark;
pub use inbox::{Admission, Arrival, Inbox};
pub use jobs::Jobs;
pub use letter::{
    Cursor, GroupPage, GroupQuery, LetterFilter, LetterGroup, LetterId, LetterPage, LetterQuery,
    LetterStatus, LetterSummary, Resolution, SCANNED, StoredLetter, Survey, Triage, Turn,
};
pub use memory::{Forgotten, InboxMemory};
pub use operation::{
    Claim, LogEntry, LogPage, LogQuery, NewOperation, Operation, OperationEnd, OperationKind, OperationState,
    Operations,
};
pub use outbox::{
    Ask, Backlog, Destination, Horizon, Outbox, OutboxRow, OutboxStatus, PublishResult, RelayId, RowId,
    RowResult, SlotLease, Verbatim, Wanted,
};
pub(crate) use outbox::{UNTYPED, read_head, write_head};
pub use outbox_desk::{Committed, OutboxDesk, ParkedKey, RowFilter, RowPage, RowView, Unpark};
pub use outboxes::Outboxes;
pub use pull_words::{PullWords, WordNumber};
pub(crate) use registration::SKEW;
pub use registration::{AppliedIn, MadeIn, Registration, Registrations};
pub(crate) use replays::read_item;
pub use replays::{EventFilter, Found, Frozen, Replays};
pub use stream::{LogPosition, Opening, RowStream, SLOTS, StreamLimit, StreamState, Streamed};
#[cfg(feature = "push")]
pub(crate) use subscriptions::KEPT_ATTEMPTS;
#[cfg(feature = "push")]
pub use subscriptions::{StoredSubscription, Subscriptions};
pub use token::{Token, TokenHash, TokenRole, Tokens};
pub use trace::{AppliedStep, HeldStep, OutboxStep, Trace, Traces};
pub use upkeep::{Migration, MigrationState, StoreFacts, StoreFigures, Upkeep};

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

/// The ports that a consumer works with.
pub trait ConsumerStore: Inbox + InboxMemory + Controls + Crashes + Held + DeadLetters {}

impl<T: Inbox + InboxMemory + Controls + Crashes + Held + DeadLetters> ConsumerStore for T {}

/// The ports of the outbox: the relay's, the operator's, and keeping it small.
pub trait OutboxStore: Outbox + Outboxes + OutboxDesk + Housekeeping {}

impl<T: Outbox + Outboxes + OutboxDesk + Housekeeping> OutboxStore for T {}

/// The ports of triage: dead letters, what is done about them, sending events again, and where an event went.
pub trait TriageStore: DeadLetters + Triage + Operations + Replays + Traces {}

impl<T: DeadLetters + Triage + Operations + Replays + Traces> TriageStore for T {}

/// All the ports a whole backend has.
pub trait Backend: OutboxStore + ConsumerStore + TriageStore + Audit + Claims + Registrations {}

impl<T: OutboxStore + ConsumerStore + TriageStore + Audit + Claims + Registrations> Backend for T {}
