//! How far a job of many items has come, with a finish line that is crossed once.
//!
//! A job is made, its items are discovered, workers mark them done or failed, and when discovery has ended and all items are
//! marked, one event (`job.completed`) tells of it. Items are counted once by their ids, however often they are delivered.
//!
//! Two authorities can decide, and pass one suite:
//! - **a store** ([`Progress`]): marks commit in the handler's own transaction, and the transaction that crosses the finish
//!   line appends the event to the outbox. Redis may show a view of it to others ([`view`]).
//! - **Redis alone** (`redis::RedisProgress`), where there is no database: one atomic script decides, and the event's id is
//!   derived from the job, so that a repeat is a duplicate. A [`BrokerAnnouncer`] publishes it; [`Keeping`] lets a caller go on while
//!   Redis is away.
//!
//! ```no_run
//! # use postrider::{Failure, progress::{JobId, Mark, Progress}, sqlite::{Sqlite, SqliteTx}};
//! # async fn handle(progress: Progress<Sqlite>, tx: &mut SqliteTx) -> Result<(), Failure> {
//! // In a handler: the mark commits with everything else the handler writes.
//! progress.mark_in(tx, &JobId::new("project-7")?, &[Mark::done("page-1")?, Mark::failed("page-2")?]).await?;
//! # Ok(()) }
//! ```

mod announce;
mod completion;
mod error;
mod job;
mod keeping;
mod state;
mod stored;
pub mod view;

pub use announce::{Announcer, BrokerAnnouncer, OutboxAnnouncer};
pub(crate) use completion::completed;
pub use completion::completion_id;
pub use error::{ProgressError, ProgressErrorKind};
pub use job::{ItemId, Job, JobFilter, JobId, Mark, Marked, NewJob, Total};
pub use keeping::{Keeping, Update};
pub(crate) use state::Refusal;
pub use state::{Change, Counts, Status};
pub use stored::Progress;

use std::future::Future;

/// The event that tells that a job is done, unless the job names another.
pub const JOB_COMPLETED: &str = "job.completed";

/// Who keeps the progress of jobs. Every step may be repeated: what was done before changes nothing.
pub trait ProgressStore: Clone + Send + Sync + 'static {
    /// Makes a job, INITIALIZING and without items. One that exists is returned as it stands.
    fn init(&self, job: &NewJob) -> impl Future<Output = Result<Job, ProgressError>> + Send;

    /// Takes a step. Returns the job as it stands then.
    fn change(&self, job: &JobId, change: Change) -> impl Future<Output = Result<Job, ProgressError>> + Send;

    /// Marks items, all of them or none. The last one to be marked announces the job's completion.
    fn mark(&self, job: &JobId, marks: &[Mark])
    -> impl Future<Output = Result<Marked, ProgressError>> + Send;

    /// The job as it stands, if there is one.
    fn get(&self, job: &JobId) -> impl Future<Output = Result<Option<Job>, ProgressError>> + Send;

    /// Jobs, the newest first.
    fn list(&self, filter: &JobFilter) -> impl Future<Output = Result<Vec<Job>, ProgressError>> + Send;

    /// There are this many items.
    fn set_total(
        &self,
        job: &JobId,
        total: Total,
    ) -> impl Future<Output = Result<Job, ProgressError>> + Send {
        self.change(job, Change::SetTotal(total))
    }

    /// A page of discovery found this many more.
    fn add_total(
        &self,
        job: &JobId,
        page: ItemId,
        found: Total,
    ) -> impl Future<Output = Result<Job, ProgressError>> + Send {
        self.change(job, Change::AddTotal { page, found })
    }

    /// Discovery begins: CRAWLING.
    fn begin_discovery(&self, job: &JobId) -> impl Future<Output = Result<Job, ProgressError>> + Send {
        self.change(job, Change::BeginDiscovery)
    }

    /// Discovery has ended. Runs the finish check.
    fn end_discovery(&self, job: &JobId) -> impl Future<Output = Result<Job, ProgressError>> + Send {
        self.change(job, Change::EndDiscovery)
    }
}
