//! Progress with a store as its authority: in your own transaction, or in one of its own.

use super::ProgressStore;
use super::error::ProgressError;
use super::job::{Job, JobFilter, JobId, Mark, Marked, NewJob};
use super::state::Change;
use crate::store::Jobs;

/// The progress of jobs in a store. Cheap to clone.
///
/// The `…_in` methods take your transaction: what they do commits with whatever else it writes, or not at all. After an
/// error of one of them the transaction cannot be committed. The others open one of their own.
#[derive(Debug, Clone)]
pub struct Progress<S> {
    store: S,
}

impl<S: Jobs> Progress<S> {
    /// On this store.
    pub fn new(store: S) -> Self {
        Self { store }
    }

    /// Makes a job. One that exists is returned as it stands.
    pub async fn init_in(&self, tx: &mut S::Tx, job: &NewJob) -> Result<Job, ProgressError> {
        self.store.create_job(tx, job).await
    }

    /// Takes a step. The job's row is locked until the transaction ends, so take it late.
    pub async fn change_in(
        &self,
        tx: &mut S::Tx,
        job: &JobId,
        change: &Change,
    ) -> Result<Job, ProgressError> {
        self.store.change_job(tx, job, change).await
    }

    /// Marks many items in one round trip. They are added up when the transaction commits, so that workers on one job wait for
    /// each other during the commit alone.
    pub async fn mark_in(
        &self,
        tx: &mut S::Tx,
        job: &JobId,
        marks: &[Mark],
    ) -> Result<Marked, ProgressError> {
        self.store.mark_items(tx, job, marks).await
    }
}

impl<S: Jobs> ProgressStore for Progress<S> {
    async fn init(&self, job: &NewJob) -> Result<Job, ProgressError> {
        let mut tx = self.store.begin().await?;
        let made = self.init_in(&mut tx, job).await?;
        self.store.commit(tx).await?;
        Ok(made)
    }

    async fn change(&self, job: &JobId, change: Change) -> Result<Job, ProgressError> {
        let mut tx = self.store.begin().await?;
        let changed = self.change_in(&mut tx, job, &change).await?;
        self.store.commit(tx).await?;
        Ok(changed)
    }

    async fn mark(&self, job: &JobId, marks: &[Mark]) -> Result<Marked, ProgressError> {
        let mut tx = self.store.begin().await?;
        let marked = self.mark_in(&mut tx, job, marks).await?;
        self.store.commit(tx).await?;
        Ok(marked)
    }

    async fn get(&self, job: &JobId) -> Result<Option<Job>, ProgressError> {
        Ok(self.store.job(job).await?)
    }

    async fn list(&self, filter: &JobFilter) -> Result<Vec<Job>, ProgressError> {
        Ok(self.store.jobs(filter).await?)
    }
}
