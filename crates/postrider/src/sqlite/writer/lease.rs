//! A turn at the writer.

use std::sync::atomic::Ordering;
use std::time::Duration;

use sqlx::SqliteConnection;
use tokio::sync::{OwnedMutexGuard, watch};

use super::Writer;
use super::batch::{File, Outcome, Savepoint};
use crate::store::{StoreError, StoreErrorKind};

/// A batch takes no more members than this,
const MAX_MEMBERS: u32 = 256;
/// and none after this time.
const MAX_AGE: Duration = Duration::from_millis(5);

/// The right to write, in a savepoint of one's own. Dropping it rolls back.
pub(crate) struct Lease {
    /// Absent once the batch has been handed to its commit.
    file: Option<OwnedMutexGuard<File>>,
    writer: Writer,
}

impl Lease {
    pub(super) async fn open(file: OwnedMutexGuard<File>, writer: Writer) -> Result<Self, StoreError> {
        let now = writer.clock.monotonic();
        // Made first, so that whoever is cancelled while it opens cleans up by dropping it.
        let mut lease = Self { file: Some(file), writer };
        if let Some(file) = &mut lease.file {
            file.open(now, &lease.writer.signals).await?;
        }
        Ok(lease)
    }

    /// Where to write. Refuses once SQLite has rolled the whole transaction back.
    pub(crate) fn connection(&mut self) -> Result<&mut SqliteConnection, StoreError> {
        if self.writer.signals.rolled_back.load(Ordering::SeqCst) {
            Outcome::lost().into_result()?;
        }
        self.file.as_mut().map(|file| &mut file.connection).ok_or_else(unknown)
    }

    /// Adds the work to the batch. It is not committed yet: wait for what this returns, without the lease.
    pub(crate) fn finish(mut self) -> Result<Finished, StoreError> {
        self.connection()?;
        let mut file = self.file.take().ok_or_else(unknown)?;
        let alone = file.alone > 0;
        file.alone = file.alone.saturating_sub(1);
        let batch = file.batch.as_mut().ok_or_else(unknown)?;
        batch.state = Savepoint::Done;
        batch.members += 1;
        let finished = Finished(batch.outcome.subscribe());
        let age = self.writer.clock.monotonic().saturating_sub(batch.started);
        if alone || batch.members >= MAX_MEMBERS || age >= MAX_AGE {
            let signals = self.writer.signals.clone();
            tokio::spawn(async move { file.close(&signals).await });
        } else {
            // Dropping the lease sends for the commit.
            self.file = Some(file);
        }
        Ok(finished)
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
pub(crate) struct Finished(watch::Receiver<Option<Outcome>>);

impl Finished {
    /// Returns when the batch is committed and synced, or says that nothing of it is.
    pub(crate) async fn committed(mut self) -> Result<(), StoreError> {
        let outcome = self.0.wait_for(Option::is_some).await.ok().and_then(|outcome| outcome.clone());
        outcome.map_or_else(|| Err(unknown()), Outcome::into_result)
    }
}

fn unknown() -> StoreError {
    let text = "the SQLite file was closed before the commit was confirmed; whether it was made shows when it is opened again";
    StoreError::new(StoreErrorKind::Unavailable, text)
}
