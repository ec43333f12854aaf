//! One transaction of SQLite, shared by many.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use sqlx::{AssertSqlSafe, SqliteConnection};
use tokio::sync::watch;

use super::Signals;
use crate::sqlite::error::from_sqlite;
use crate::store::{StoreError, StoreErrorKind};

/// The connection, and the transaction that is open on it.
pub(super) struct File {
    pub(super) connection: SqliteConnection,
    pub(super) batch: Option<Batch>,
    batches: u64,
    /// So many members commit alone, because one of them broke the commit of a batch.
    pub(super) alone: u32,
}

/// The members of a transaction, and how they learn what became of it.
pub(super) struct Batch {
    pub(super) number: u64,
    pub(super) started: Duration,
    /// Whose work is done.
    pub(super) members: u32,
    /// The number of the newest savepoint; 0 for the first member, which needs none: without it there is no batch, and to keep what
    /// a page was before costs a copy. Numbers are not used again within a batch, so that a savepoint whose opening was
    /// cancelled cannot be mistaken for another one.
    savepoint: u32,
    pub(super) state: Savepoint,
    /// A task is on its way to commit it.
    pub(super) closing: bool,
    pub(super) outcome: watch::Sender<Option<Outcome>>,
}

/// What is known of the newest savepoint.
#[derive(PartialEq)]
pub(super) enum Savepoint {
    /// Somebody works in it, or left it in the middle.
    InUse,
    /// Its work is done and belongs to the batch.
    Done,
    /// It was rolled back, and may exist or not.
    RolledBack,
}

/// What became of a batch.
#[derive(Clone)]
pub(super) enum Outcome {
    Committed,
    Failed(StoreErrorKind, Arc<str>),
}

impl File {
    pub(super) fn new(connection: SqliteConnection) -> Self {
        Self { connection, batch: None, batches: 0, alone: 0 }
    }

    /// Opens a savepoint in the batch, or a batch if there is none. Cancelled, it leaves the rest to the next one.
    pub(super) async fn open(&mut self, now: Duration, signals: &Signals) -> Result<(), StoreError> {
        self.mend(signals).await;
        if let Some(batch) = &mut self.batch {
            let release = if batch.state == Savepoint::Done && batch.savepoint > 0 {
                format!("RELEASE member{}; ", batch.savepoint)
            } else {
                String::new()
            };
            batch.savepoint += 1;
            batch.state = Savepoint::InUse;
            let sql = format!("{release}SAVEPOINT member{}", batch.savepoint);
            return execute(&mut self.connection, sql).await;
        }
        self.batches += 1;
        self.batch = Some(Batch {
            number: self.batches,
            started: now,
            members: 0,
            savepoint: 0,
            state: Savepoint::InUse,
            closing: false,
            outcome: watch::Sender::new(None),
        });
        signals.rolled_back.store(false, Ordering::SeqCst);
        let opened = sqlx::query("BEGIN IMMEDIATE").execute(&mut self.connection).await;
        if opened.is_err() {
            self.forget().await;
            self.batch = None;
        }
        opened.map(|_| ()).map_err(from_sqlite)
    }

    /// Commits the batch and tells its members.
    pub(super) async fn close(&mut self, signals: &Signals) {
        self.mend(signals).await;
        if let Some(batch) = self.batch.take() {
            let outcome = self.commit(batch.members, signals).await;
            batch.outcome.send_replace(Some(outcome));
        }
    }

    /// Rolls back what somebody left in the middle. Afterwards there is no batch if nothing is in it, or if SQLite has
    /// ended its transaction.
    async fn mend(&mut self, signals: &Signals) {
        let Some(batch) = &mut self.batch else { return };
        if batch.state == Savepoint::InUse && batch.members > 0 {
            // It fails only if the savepoint was never opened, or if the whole transaction is gone.
            let _absent =
                execute(&mut self.connection, format!("ROLLBACK TO member{}", batch.savepoint)).await;
            batch.state = Savepoint::RolledBack;
        }
        if batch.members == 0 || signals.rolled_back.load(Ordering::SeqCst) {
            self.forget().await;
            if let Some(batch) = self.batch.take() {
                batch.outcome.send_replace(Some(Outcome::lost()));
            }
        }
    }

    /// Rolls everything back. In no transaction there is nothing to roll back, which SQLite calls an error.
    async fn forget(&mut self) {
        let _none_open = sqlx::query("ROLLBACK").execute(&mut self.connection).await;
    }

    async fn commit(&mut self, members: u32, signals: &Signals) -> Outcome {
        signals.may_commit.store(true, Ordering::SeqCst);
        let committed = sqlx::query("COMMIT").execute(&mut self.connection).await;
        signals.may_commit.store(false, Ordering::SeqCst);
        let Err(error) = committed else { return Outcome::Committed };
        self.forget().await;
        let error = from_sqlite(error);
        if error.kind == StoreErrorKind::Invalid && members > 1 {
            // A deferred foreign key: each of them commits alone at the next try, and only the one at fault fails.
            self.alone = members;
            let text =
                "another transaction broke the commit that this one shared; nothing was written, try again";
            return Outcome::Failed(StoreErrorKind::Contended, text.into());
        }
        Outcome::Failed(error.kind, error.message.into())
    }
}

impl Outcome {
    /// SQLite ended the transaction by itself.
    pub(super) fn lost() -> Self {
        let text = "SQLite rolled the transaction back, as it does when the disk is full or fails; nothing was committed, \
                    check the disk and try again";
        Self::Failed(StoreErrorKind::Unavailable, text.into())
    }

    pub(super) fn into_result(self) -> Result<(), StoreError> {
        match self {
            Self::Committed => Ok(()),
            Self::Failed(kind, message) => Err(StoreError::new(kind, message.as_ref())),
        }
    }
}

/// The text is made here, of words and numbers of our own.
async fn execute(connection: &mut SqliteConnection, sql: String) -> Result<(), StoreError> {
    let query = sqlx::query(AssertSqlSafe(sql)).persistent(false);
    query.execute(connection).await.map(|_| ()).map_err(from_sqlite)
}
