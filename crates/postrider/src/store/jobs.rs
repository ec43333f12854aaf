//! Jobs of many items, and which of these are done.

use std::future::Future;
use std::time::Duration;

use super::{Store, StoreError};
use crate::progress::{Change, Job, JobFilter, JobId, Mark, Marked, NewJob, ProgressError};

/// The tables of jobs: the authority on their progress. See [`crate::progress`] for what people use.
///
/// After an error of a method that takes a transaction, that transaction cannot be committed.
pub trait Jobs: Store {
    /// Makes a job, or finds the one that exists.
    fn create_job(
        &self,
        tx: &mut Self::Tx,
        job: &NewJob,
    ) -> impl Future<Output = Result<Job, ProgressError>> + Send;

    /// Takes a step, and appends the completion event if it crosses the finish line.
    fn change_job(
        &self,
        tx: &mut Self::Tx,
        job: &JobId,
        change: &Change,
    ) -> impl Future<Output = Result<Job, ProgressError>> + Send;

    /// Marks items, each counted once for ever. The transaction that marks the last one appends the completion event, at its
    /// commit at the latest. Of two transactions that mark the same item one counts it, and the other waits for that one.
    fn mark_items(
        &self,
        tx: &mut Self::Tx,
        job: &JobId,
        marks: &[Mark],
    ) -> impl Future<Output = Result<Marked, ProgressError>> + Send;

    /// A job as it stands.
    fn job(&self, job: &JobId) -> impl Future<Output = Result<Option<Job>, StoreError>> + Send;

    /// Jobs, the newest first.
    fn jobs(&self, filter: &JobFilter) -> impl Future<Output = Result<Vec<Job>, StoreError>> + Send;

    /// Jobs that changed since they were shown last.
    fn unshown_jobs(&self, limit: usize) -> impl Future<Output = Result<Vec<Job>, StoreError>> + Send;

    /// Notes that these versions were shown. A job that changed meanwhile stays unshown.
    fn mark_shown(&self, jobs: &[Job]) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Keeps finished jobs whose authority was another. What is here already stays as it is; returns how many were new.
    fn archive_jobs(&self, jobs: &[Job]) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// Forgets the items, not the jobs, of those that are done for this long, by the store's clock. A redelivery that is later still is refused,
    /// because its job is DONE. Returns how many items were forgotten, at most about `limit`.
    fn forget_items(
        &self,
        done_for: Duration,
        limit: u32,
    ) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// Waits until a job may have changed, or for this long at most.
    fn wait_for_jobs(&self, at_most: Duration) -> impl Future<Output = ()> + Send;
}
