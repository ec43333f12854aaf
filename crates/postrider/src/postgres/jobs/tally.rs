//! What a transaction has marked and not yet added to its jobs: that is done as it commits.
//!
//! A job's row is one for all its workers. Whoever updates it holds it until his commit is on disk; if he did so at once,
//! he would hold it for the rest of his handler too, and all workers of the job would take turns.

use std::collections::BTreeMap;

use super::rows::{job_columns, read};
use crate::postgres::{Postgres, PostgresTx};
use crate::progress::{Counts, JobId, ProgressError};
use crate::store::{StoreError, StoreErrorKind};

const COUNT: &str = concat!(
    "UPDATE postrider.progress_job SET done = done + $2, errors = errors + $3, version = version + 1, unshown = true, \
     updated_at = statement_timestamp() WHERE job = $1 AND status <> 'DONE' RETURNING ",
    job_columns!()
);

/// New items by job, in the order of the jobs, which everybody keeps, so that nobody deadlocks.
#[derive(Debug, Default)]
pub(in crate::postgres) struct Tallies {
    jobs: BTreeMap<JobId, Tally>,
    /// A step was begun and not ended: refused, failed or dropped. What it wrote must not be committed without the rest.
    midway: bool,
    changed: bool,
}

/// New items of one job.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Tally {
    pub(super) done: u64,
    pub(super) errors: u64,
}

impl Tallies {
    pub(super) fn of(&self, job: &JobId) -> Tally {
        self.jobs.get(job).copied().unwrap_or_default()
    }

    pub(super) fn add(&mut self, job: &JobId, done: u64, errors: u64) {
        if done > 0 {
            let tally = self.jobs.entry(job.clone()).or_default();
            tally.done += done;
            tally.errors += errors;
        }
    }

    pub(super) fn begin_step(&mut self) {
        self.midway = true;
    }

    pub(super) fn end_step(&mut self) {
        self.midway = false;
    }

    pub(super) fn changed(&mut self) {
        self.changed = true;
    }

    /// Whether a job has changed, so that whoever shows it is told after the commit.
    pub(in crate::postgres) fn has_changed(&self) -> bool {
        self.changed
    }
}

impl Postgres {
    /// Adds up all that is marked, right before the commit.
    pub(in crate::postgres) async fn add_up(&self, tx: &mut PostgresTx) -> Result<(), StoreError> {
        if tx.tallies().midway {
            let text = "a step of a job's progress was refused or interrupted in this transaction, and its error was not \
                        passed on; nothing was committed. Return the error from the handler";
            return Err(StoreError::new(StoreErrorKind::Invalid, text));
        }
        while let Some(job) = tx.tallies().jobs.keys().next().cloned() {
            self.add_up_job(tx, &job).await.map_err(at_commit)?;
        }
        Ok(())
    }

    /// Adds up what is marked of one job, and locks its row until the transaction ends.
    pub(super) async fn add_up_job(&self, tx: &mut PostgresTx, job: &JobId) -> Result<(), ProgressError> {
        let Some(Tally { done, errors }) = tx.tallies().jobs.remove(job) else { return Ok(()) };
        tx.tallies().begin_step();
        let update = sqlx::query(COUNT)
            .bind(job.as_str())
            .bind(done.cast_signed())
            .bind(errors.cast_signed())
            .fetch_optional(tx.ours());
        let Some(row) = self.limited("counting items", update).await? else {
            // DONE by now, which it stays: the rules say so in words.
            let select = sqlx::query(super::GET).bind(job.as_str()).fetch_optional(tx.ours());
            let row = self.limited("reading a job", select).await?;
            let finished = read(&row.ok_or_else(|| ProgressError::unknown(job))?)?;
            let ruled = finished.counts().after_marks(done, errors);
            return ruled.map(|_| ()).map_err(|why| ProgressError::refused(job, why));
        };
        tx.tallies().changed();
        let counted = read(&row)?.counts();
        let before = Counts { done: counted.done - done, errors: counted.errors - errors, ..counted };
        let after = before.after_marks(done, errors).map_err(|why| ProgressError::refused(job, why))?;
        if after.status != counted.status {
            self.write_job(tx, job, after).await?;
        }
        tx.tallies().end_step();
        Ok(())
    }
}

/// A refusal here means that the job has moved on since the mark: the next attempt is refused in the handler.
fn at_commit(error: ProgressError) -> StoreError {
    let Some(source) = error.source else {
        return StoreError::new(StoreErrorKind::Contended, error.message);
    };
    match source.downcast::<StoreError>() {
        Ok(store) => *store,
        Err(source) => StoreError::new(StoreErrorKind::Other, error.message).because(source),
    }
}
