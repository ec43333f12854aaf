//! Operations: long work as rows, with progress that anybody can see and a crash cannot lose.

use std::future::Future;
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;
use uuid::Uuid;

use super::{Store, StoreError};

/// The table of operations, and the log of who did what.
///
/// An operation is created with its items in one transaction: that is the frozen plan. One process at a time runs it, under a
/// lease; each chunk takes items off, does their work and counts them in one transaction, so that a crash at any point leaves
/// exactly the items that were not done.
pub trait Operations: Store {
    /// Writes an operation that is yet to be run, and who asked for it.
    fn create_operation(
        &self,
        tx: &mut Self::Tx,
        operation: &NewOperation,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Adds items to an operation that is being created, in order, and counts them.
    fn add_items(
        &self,
        tx: &mut Self::Tx,
        operation: Uuid,
        subjects: Vec<String>,
    ) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// One operation.
    fn operation(&self, id: Uuid) -> impl Future<Output = Result<Option<Operation>, StoreError>> + Send;

    /// The newest operations first, or those that are older than one.
    fn operations(
        &self,
        before: Option<Uuid>,
        limit: usize,
    ) -> impl Future<Output = Result<Vec<Operation>, StoreError>> + Send;

    /// Takes an operation to run it: this one, or the oldest of these kinds that waits. Nothing if it is over, or if another
    /// process runs it.
    fn claim_operation(
        &self,
        which: &Claim,
        runner: &str,
        lease: Duration,
    ) -> impl Future<Output = Result<Option<Operation>, StoreError>> + Send;

    /// Takes the next items off and renews the lease. Nothing if the operation was cancelled, or belongs to somebody else by
    /// now; an empty list when all is done.
    fn next_items(
        &self,
        tx: &mut Self::Tx,
        operation: Uuid,
        runner: &str,
        limit: usize,
        lease: Duration,
    ) -> impl Future<Output = Result<Option<Vec<String>>, StoreError>> + Send;

    /// Counts items as done, and as skipped because they needed nothing any more.
    fn advance(
        &self,
        tx: &mut Self::Tx,
        operation: Uuid,
        done: u64,
        skipped: u64,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Ends an operation that this runner has. False if it has it no longer, or it is over.
    fn finish_operation(
        &self,
        id: Uuid,
        runner: &str,
        end: OperationEnd,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Gives an operation back, so that others need not wait for the lease to end.
    fn release_operation(
        &self,
        id: Uuid,
        runner: &str,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Ends an operation before its time. What is done stays done. False if it was over already.
    fn cancel_operation(
        &self,
        id: Uuid,
        actor: &str,
        reason: &str,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Takes a turn of something that is done by schedule, once among all processes: true for the first to ask with this
    /// time, false for everybody after him, for turns before the last that was taken, and for turns that have not come by the
    /// store's clock: a process that is ahead must not take the turns of others.
    fn take_turn(
        &self,
        tx: &mut Self::Tx,
        name: &str,
        at: Timestamp,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Writes down who did what.
    fn record(
        &self,
        tx: &mut Self::Tx,
        entries: Vec<LogEntry>,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// What was done to a subject, the newest first.
    fn log_of(
        &self,
        subject: &str,
        limit: usize,
    ) -> impl Future<Output = Result<Vec<LogEntry>, StoreError>> + Send;

    /// A page of the audit log, the newest first. A search by actor or action looks at [`SCANNED`](super::SCANNED) entries and no
    /// more.
    fn log(&self, query: &LogQuery) -> impl Future<Output = Result<LogPage, StoreError>> + Send;
}

/// Which page of the audit log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogQuery {
    /// By whom.
    pub actor: Option<String>,
    /// What was done.
    pub action: Option<String>,
    /// To what.
    pub subject: Option<String>,
    /// Before this place: what the page before named as the next.
    pub before: Option<i64>,
    /// At most so many.
    pub limit: usize,
}

impl LogQuery {
    /// Whether walking an index finds nothing but what fits.
    pub(crate) fn is_indexed(&self) -> bool {
        self.subject.is_some() || (self.actor.is_none() && self.action.is_none())
    }
}

/// A page of the audit log.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LogPage {
    /// The entries.
    pub entries: Vec<LogEntry>,
    /// Where to go on, if there may be more.
    pub next: Option<i64>,
}

impl LogPage {
    /// Of entries with their numbers, looked for no further than `floor`.
    pub(crate) fn of(found: Vec<(i64, LogEntry)>, limit: usize, floor: Option<i64>) -> Self {
        let last = found.last().filter(|_| found.len() == limit).map(|(number, _)| *number);
        let floor = floor.filter(|floor| *floor > 1);
        Self { entries: found.into_iter().map(|(_, entry)| entry).collect(), next: last.or(floor) }
    }
}

/// What kind of work it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OperationKind {
    /// Dead letters are sent again.
    ReplayLetters,
    /// Dead letters are discarded.
    DiscardLetters,
    /// Dead letters are corrected, and sent as new events.
    EditLetters,
    /// Published events are sent again, from the outbox.
    ReplayOutbox,
    /// Both buses of a migration are compared.
    CompareBuses,
    /// The old bus of a migration is removed.
    FinishMigration,
}

impl OperationKind {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::ReplayLetters,
        Self::DiscardLetters,
        Self::EditLetters,
        Self::ReplayOutbox,
        Self::CompareBuses,
        Self::FinishMigration,
    ];

    /// The word for it, in tables and on pages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ReplayLetters => "replay_letters",
            Self::DiscardLetters => "discard_letters",
            Self::EditLetters => "edit_letters",
            Self::ReplayOutbox => "replay_outbox",
            Self::CompareBuses => "compare_buses",
            Self::FinishMigration => "finish_migration",
        }
    }

    /// The kind with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }
}

/// Where an operation stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OperationState {
    /// Created, and nobody has begun.
    Planned,
    /// Begun. Whether somebody works on it now is told by its lease.
    Running,
    /// All items are done.
    Done,
    /// Somebody ended it before its time.
    Cancelled,
    /// It cannot go on.
    Failed,
}

impl OperationState {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Planned, Self::Running, Self::Done, Self::Cancelled, Self::Failed];

    /// The word for it, in tables and on pages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Planned => "planned",
            Self::Running => "running",
            Self::Done => "done",
            Self::Cancelled => "cancelled",
            Self::Failed => "failed",
        }
    }

    /// The state with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == name)
    }

    /// Whether nothing more comes of it.
    pub fn is_over(self) -> bool {
        matches!(self, Self::Done | Self::Cancelled | Self::Failed)
    }
}

/// How a runner ends an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OperationEnd {
    /// All items are done.
    Done,
    /// It cannot go on, for this reason.
    Failed(String),
}

/// Which operation to take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claim {
    /// This one.
    This(Uuid),
    /// The oldest of these kinds.
    AnyOf(Vec<OperationKind>),
    /// The oldest of these kinds that was asked for by none of these.
    ForOthers(Vec<OperationKind>, Vec<String>),
}

impl Claim {
    /// The one that is meant, the kinds, and who is passed over.
    pub(crate) fn parts(&self) -> (Option<Uuid>, Option<Vec<&'static str>>, Option<&[String]>) {
        let names = |kinds: &[OperationKind]| kinds.iter().map(|kind| kind.as_str()).collect();
        match self {
            Self::This(id) => (Some(*id), None, None),
            Self::AnyOf(kinds) => (None, Some(names(kinds)), None),
            Self::ForOthers(kinds, people) => (None, Some(names(kinds)), Some(people)),
        }
    }
}

/// An operation to be created.
#[derive(Debug, Clone, PartialEq)]
pub struct NewOperation {
    /// Its id.
    pub id: Uuid,
    /// What it does.
    pub kind: OperationKind,
    /// How, in words of the kind's own.
    pub plan: serde_json::Value,
    /// Items a second, at most.
    pub rate: Option<f64>,
    /// Who asked for it.
    pub created_by: String,
    /// Why.
    pub reason: Option<String>,
}

/// An operation.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Operation {
    /// Its id.
    pub id: Uuid,
    /// What it does.
    pub kind: OperationKind,
    /// Where it stands.
    pub state: OperationState,
    /// How, in words of the kind's own.
    pub plan: serde_json::Value,
    /// Items that are done.
    pub done: u64,
    /// Items that needed nothing any more.
    pub skipped: u64,
    /// Items in all.
    pub total: u64,
    /// Items a second, at most.
    pub rate: Option<f64>,
    /// Who asked for it.
    pub created_by: String,
    /// Why.
    pub reason: Option<String>,
    /// When it was created.
    pub created_at: Timestamp,
    /// When somebody began.
    pub started_at: Option<Timestamp>,
    /// When it was over.
    pub finished_at: Option<Timestamp>,
    /// Why it cannot go on.
    pub error: Option<String>,
    /// Who works on it now.
    pub runner: Option<String>,
}

/// One entry of the audit log.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LogEntry {
    /// When.
    pub at: Timestamp,
    /// Who: a person, a token, or a rule.
    pub actor: String,
    /// What was done: `dead_letter.replayed`.
    pub action: String,
    /// To what: `dead_letter/42`.
    pub subject: String,
    /// Why.
    pub reason: Option<String>,
    /// More of it.
    pub detail: Option<serde_json::Value>,
}
