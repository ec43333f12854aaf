//! What everybody who keeps the progress of jobs must do: count items once, cross the finish line once.

mod counting;
mod crowding;
mod finishing;
mod refusing;

pub use counting::*;
pub use crowding::*;
pub use finishing::*;
pub use refusing::*;

use std::future::Future;

use postrider::Envelope;
use postrider::progress::{
    ItemId, Job, JobId, Mark, Marked, NewJob, ProgressErrorKind, ProgressStore, Status, Total,
};

/// Jobs of the case's own.
pub trait ProgressFixture: Send + Sync {
    /// Who keeps them.
    type Progress: ProgressStore;

    /// Who keeps them.
    fn progress(&self) -> Self::Progress;

    /// Every event that was announced so far; one that was announced twice is here twice.
    fn announced(&self) -> impl Future<Output = Vec<Envelope>> + Send;
}

pub(super) fn job(id: &str) -> JobId {
    JobId::new(id).unwrap()
}

fn total(count: u32) -> Total {
    Total::from(count)
}

fn done(items: &[&str]) -> Vec<Mark> {
    items.iter().map(|item| Mark::done(item).unwrap()).collect()
}

/// A progress store and its one job.
struct Desk<P> {
    progress: P,
    job: JobId,
}

impl<P: ProgressStore> Desk<P> {
    /// A job that was just made.
    async fn init<F: ProgressFixture<Progress = P>>(fixture: &F) -> Self {
        let progress = fixture.progress();
        progress.init(&NewJob::new("project-7").unwrap()).await.unwrap();
        Self { progress, job: job("project-7") }
    }

    /// A job whose discovery has ended, with this many items.
    async fn closed<F: ProgressFixture<Progress = P>>(fixture: &F, items: u32) -> Self {
        let desk = Self::init(fixture).await;
        desk.progress.set_total(&desk.job, total(items)).await.unwrap();
        desk.progress.end_discovery(&desk.job).await.unwrap();
        desk
    }

    async fn get(&self) -> Job {
        self.progress.get(&self.job).await.unwrap().unwrap()
    }

    async fn mark(&self, items: &[&str]) -> Marked {
        self.progress.mark(&self.job, &done(items)).await.unwrap()
    }

    /// Marks items that cannot be counted.
    async fn refused(&self, items: &[&str]) -> ProgressErrorKind {
        let before = self.get().await;
        let error = self.progress.mark(&self.job, &done(items)).await.unwrap_err();
        assert!(error.to_string().contains(self.job.as_str()), "the error names the job: {error}");
        assert_eq!(self.get().await, before, "nothing was counted");
        error.kind
    }

    async fn add(&self, page: &str, found: u32) -> Job {
        self.progress.add_total(&self.job, ItemId::new(page).unwrap(), total(found)).await.unwrap()
    }

    /// Where it stands, and its numbers: total, done, errors.
    async fn stands(&self) -> (Status, u64, u64, u64) {
        let Job { status, total, done, errors, .. } = self.get().await;
        (status, total, done, errors)
    }
}
