//! The one writer of the file: many short transactions, few commits.
//!
//! Everybody who writes takes the writer in turn and works in a savepoint. The commit is left to a task of its own that
//! queues for the writer like anybody else: those who were waiting when it was started come before it, so their work
//! goes into the same commit and shares one sync of the disk. Nobody is told of success before that commit is synced.
//!
//! A crash at any moment loses only what nobody was told of. Work that was dropped half way leaves its savepoint behind,
//! and whoever takes the writer next rolls back to it first. If SQLite rolls the whole transaction back (disk full) or
//! the commit fails, everybody who shared it is told so, with an error that can be tried again.
//!
//! A task that holds the writer and asks for it again waits for itself: it gets an error after the time limit.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use sqlx::{AssertSqlSafe, SqliteConnection};
use tokio::sync::{Mutex, OwnedMutexGuard, watch};

use super::error::from_sqlite;
use crate::clock::Clock;
use crate::store::{StoreError, StoreErrorKind};

/// A batch takes no more members than this,
const MAX_MEMBERS: u32 = 256;
/// and none after this time.
const MAX_AGE: Duration = Duration::from_millis(5);

/// The one writer of a file. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Writer {
    file: Arc<Mutex<File>>,
    signals: Arc<Signals>,
    /// How long to wait for the writer.
    patience: Duration,
    clock: Clock,
}

impl Writer {
    /// Runs work in a savepoint of the current batch and returns when the batch that holds it is committed and synced.
    pub(crate) async fn run<T, F>(&self, work: F) -> Result<T, StoreError>
    where
        T: Send,
        F: for<'c> FnOnce(&'c mut SqliteConnection) -> BoxFuture<'c, Result<T, StoreError>> + Send,
    {
        let mut lease = self.lease().await?;
        let value = work(lease.connection()?).await?;
        lease.finish()?.committed().await?;
        Ok(value)
    }

    /// Takes over a connection that is in no transaction.
    pub(super) async fn new(
        mut connection: SqliteConnection,
        patience: Duration,
        clock: Clock,
    ) -> Result<Self, StoreError> {
        let signals = Arc::new(Signals::default());
        let mut handle = connection.lock_handle().await.map_err(from_sqlite)?;
        let hook = signals.clone();
        handle.set_commit_hook(move || {
            let allowed = hook.may_commit.load(Ordering::SeqCst);
            hook.commits.fetch_add(u64::from(allowed), Ordering::SeqCst);
            allowed
        });
        let hook = signals.clone();
        handle.set_rollback_hook(move || hook.rolled_back.store(true, Ordering::SeqCst));
        drop(handle);
        let file = File { connection, batch: None, batches: 0, alone: 0 };
        Ok(Self { file: Arc::new(Mutex::new(file)), signals, patience, clock })
    }

    /// Takes the writer and opens a savepoint. Dropping the lease rolls back.
    pub(super) async fn lease(&self) -> Result<Lease, StoreError> {
        let file = tokio::time::timeout(self.patience, self.file.clone().lock_owned()).await.map_err(|_| {
            let text = "the SQLite writer was taken by another transaction for too long; nothing of this one was written: \
                        keep transactions short, do not open one inside another, and try again";
            StoreError::new(StoreErrorKind::Contended, text)
        })?;
        let mut lease = Lease { file: Some(file), writer: self.clone() };
        lease.open().await?;
        Ok(lease)
    }

    /// How many commits were made since the file was opened.
    pub(super) fn commits(&self) -> u64 {
        self.signals.commits.load(Ordering::SeqCst)
    }

    /// Ends a batch, unless it was ended meanwhile. Runs in a task of its own, so that nobody can cancel it half way.
    async fn close(self, batch: u64) {
        let mut file = self.file.clone().lock_owned().await;
        self.close_now(&mut file, batch).await;
    }

    async fn close_now(&self, file: &mut File, batch: u64) {
        if file.batch.as_ref().is_none_or(|open| open.number != batch) {
            return;
        }
        file.mend(&self.signals).await;
        if let Some(batch) = file.batch.take() {
            let outcome = file.commit(batch.members, &self.signals).await;
            batch.outcome.send_replace(Some(outcome));
        }
    }
}

/// What the hooks of SQLite tell and are told.
#[derive(Default)]
struct Signals {
    /// Only the writer commits: a `COMMIT` by hand, or a write after SQLite ended the transaction, is refused.
    may_commit: AtomicBool,
    /// The whole transaction was rolled back.
    rolled_back: AtomicBool,
    commits: AtomicU64,
}

/// The connection, and the transaction that is open on it.
struct File {
    connection: SqliteConnection,
    batch: Option<Batch>,
    batches: u64,
    /// So many members commit alone, because one of them broke the commit of a batch.
    alone: u32,
}

/// One transaction of SQLite, shared by its members.
struct Batch {
    number: u64,
    started: Duration,
    members: u32,
    /// The number of the newest savepoint. Numbers are not used again within a batch, so that a savepoint whose opening was
    /// cancelled cannot be mistaken for another one.
    savepoint: u32,
    state: Savepoint,
    /// A task is on its way to commit it.
    closing: bool,
    outcome: watch::Sender<Option<Outcome>>,
}

#[derive(PartialEq)]
enum Savepoint {
    /// Somebody works in it, or left it in the middle.
    InUse,
    /// Its work is done and belongs to the batch.
    Done,
    /// It was rolled back, and may exist or not.
    RolledBack,
}

#[derive(Clone)]
enum Outcome {
    Committed,
    Failed(StoreErrorKind, Arc<str>),
}

impl File {
    /// Makes the batch ready for the next member or for the commit: what somebody left in the middle is rolled back.
    /// Cancelled, it leaves the rest to the next one. Afterwards there is no batch if SQLite has ended its transaction.
    async fn mend(&mut self, signals: &Signals) {
        let Some(batch) = self.batch.as_mut() else { return };
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

/// The text is made here, of words and numbers of our own.
async fn execute(connection: &mut SqliteConnection, sql: String) -> Result<(), StoreError> {
    let query = sqlx::query(AssertSqlSafe(sql)).persistent(false);
    query.execute(connection).await.map(|_| ()).map_err(from_sqlite)
}

impl Outcome {
    fn lost() -> Self {
        let text = "SQLite rolled the transaction back, as it does when the disk is full or fails; nothing was committed, \
                    check the disk and try again";
        Self::Failed(StoreErrorKind::Unavailable, text.into())
    }

    fn into_result(self) -> Result<(), StoreError> {
        match self {
            Self::Committed => Ok(()),
            Self::Failed(kind, message) => Err(StoreError::new(kind, message.as_ref())),
        }
    }
}

/// The right to write, in a savepoint of one's own.
pub(super) struct Lease {
    /// Absent only while it is dropped.
    file: Option<OwnedMutexGuard<File>>,
    writer: Writer,
}

impl Lease {
    /// Where to write. Refuses once SQLite has rolled the whole transaction back.
    pub(super) fn connection(&mut self) -> Result<&mut SqliteConnection, StoreError> {
        if self.writer.signals.rolled_back.load(Ordering::SeqCst) {
            Outcome::lost().into_result()?;
        }
        self.file.as_mut().map(|file| &mut file.connection).ok_or_else(released)
    }

    /// Adds the work to the batch. It is not committed yet: wait for what this returns, without the lease.
    pub(super) fn finish(mut self) -> Result<Finished, StoreError> {
        self.connection()?;
        let mut file = self.file.take().ok_or_else(released)?;
        let alone = file.alone > 0;
        file.alone = file.alone.saturating_sub(1);
        let batch = file.batch.as_mut().ok_or_else(released)?;
        batch.state = Savepoint::Done;
        batch.members += 1;
        let number = batch.number;
        let finished = Finished(batch.outcome.subscribe());
        let age = self.writer.clock.monotonic().saturating_sub(batch.started);
        if alone || batch.members >= MAX_MEMBERS || age >= MAX_AGE {
            let writer = self.writer.clone();
            tokio::spawn(async move { writer.close_now(&mut file, number).await });
        } else {
            self.file = Some(file);
        }
        Ok(finished)
    }

    async fn open(&mut self) -> Result<(), StoreError> {
        let (writer, file) = (&self.writer, self.file.as_deref_mut().ok_or_else(released)?);
        file.mend(&writer.signals).await;
        match file.batch.as_mut() {
            Some(batch) => {
                let release = match batch.state {
                    Savepoint::Done => format!("RELEASE member{}; ", batch.savepoint),
                    _ => String::new(),
                };
                batch.savepoint += 1;
                batch.state = Savepoint::InUse;
                let sql = format!("{release}SAVEPOINT member{}", batch.savepoint);
                execute(&mut file.connection, sql).await
            }
            None => {
                file.batches += 1;
                file.batch = Some(Batch {
                    number: file.batches,
                    started: writer.clock.monotonic(),
                    members: 0,
                    savepoint: 1,
                    state: Savepoint::InUse,
                    closing: false,
                    outcome: watch::Sender::new(None),
                });
                writer.signals.rolled_back.store(false, Ordering::SeqCst);
                let begun =
                    sqlx::query("BEGIN IMMEDIATE; SAVEPOINT member1").execute(&mut file.connection).await;
                if let Err(error) = begun {
                    file.forget().await;
                    file.batch = None;
                    return Err(from_sqlite(error));
                }
                Ok(())
            }
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let Some(batch) = self.file.as_mut().and_then(|file| file.batch.as_mut()) else { return };
        if batch.closing {
            return;
        }
        // Without a runtime nobody waits either, and closing the file rolls back.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            batch.closing = true;
            runtime.spawn(self.writer.clone().close(batch.number));
        }
    }
}

/// Work that is part of a batch.
pub(super) struct Finished(watch::Receiver<Option<Outcome>>);

impl Finished {
    /// Returns when the batch is committed and synced, or says that nothing of it is.
    pub(super) async fn committed(mut self) -> Result<(), StoreError> {
        let outcome = self.0.wait_for(Option::is_some).await.ok().and_then(|outcome| outcome.clone());
        outcome.map_or_else(|| Err(released()), Outcome::into_result)
    }
}

fn released() -> StoreError {
    let text = "the SQLite file was closed before the commit was confirmed; the inbox tells at the next try whether it was made";
    StoreError::new(StoreErrorKind::Unavailable, text)
}
