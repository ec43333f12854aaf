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

mod batch;
mod lease;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use sqlx::SqliteConnection;
use tokio::sync::Mutex;

use self::batch::File;
pub(super) use self::lease::Lease;
use super::error::from_sqlite;
use crate::clock::Clock;
use crate::store::{StoreError, StoreErrorKind};

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
        Ok(Self { file: Arc::new(Mutex::new(File::new(connection))), signals, patience, clock })
    }

    /// Takes the writer and opens a savepoint. Dropping the lease rolls back.
    pub(super) async fn lease(&self) -> Result<Lease, StoreError> {
        let file = tokio::time::timeout(self.patience, self.file.clone().lock_owned()).await.map_err(|_| {
            let text = "the SQLite writer was taken by another transaction for too long; nothing of this one was written: \
                        keep transactions short, do not open one inside another, and try again";
            StoreError::new(StoreErrorKind::Contended, text)
        })?;
        Lease::open(file, self.clone()).await
    }

    /// Writes the log back into the file, as far as others who have it open let it.
    pub(super) async fn write_back(&self) {
        let _written = tokio::spawn(self.clone().check_point()).await;
    }

    /// Runs in a task of its own, so that nobody can cancel it half way through the commit.
    async fn check_point(self) {
        let Ok(mut file) = tokio::time::timeout(self.patience, self.file.lock()).await else { return };
        file.close(&self.signals).await;
        let written = sqlx::query("PRAGMA wal_checkpoint(PASSIVE)").execute(&mut file.connection).await;
        if let Err(error) = written {
            tracing::debug!(%error, "the log was not written back; it stays beside the file, and nothing is lost");
        }
    }

    /// How many commits were made since the file was opened.
    pub(super) fn commits(&self) -> u64 {
        self.signals.commits.load(Ordering::SeqCst)
    }

    /// Ends a batch, unless it was ended meanwhile. Runs in a task of its own, so that nobody can cancel it half way.
    async fn close(self, batch: u64) {
        let mut file = self.file.lock().await;
        if file.batch.as_ref().is_some_and(|open| open.number == batch) {
            file.close(&self.signals).await;
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
