//! A view of progress for other services to read: the hash in Redis, written after the commit.
//!
//! Nothing waits for it and nothing depends on it. A job that changed is *unshown* in the store until its newest version is
//! written, so a view that was away, lost or restarted gets everything it missed, and a crash between writing and noting
//! it writes the same version again. An older version never replaces a newer one. A view that lost its data gets all of it again
//! within seconds; a single key that is gone, as soon as somebody reads the job here.

mod outage;

use std::future::Future;
use std::time::Duration;

use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use self::outage::Outage;
use super::error::ProgressError;
use super::job::{Job, JobFilter, JobId};
use super::state::Status;
use crate::clock::Clock;
use crate::store::{Jobs, StoreError};

/// Where jobs are shown.
pub trait View: Send + Sync + 'static {
    /// Writes jobs, each whole. One answer a job, in their order; an error when the server is away, and nothing is known.
    fn show(&self, jobs: &[Job]) -> impl Future<Output = Result<Vec<Shown>, ProgressError>> + Send;

    /// The job as others see it. One that is not there, or not whole, is none.
    fn look(&self, job: &JobId) -> impl Future<Output = Result<Option<Job>, ProgressError>> + Send;

    /// Finished jobs that nobody but the view's own server knows, and that will expire there.
    fn finished(&self) -> impl Future<Output = Result<Vec<Job>, ProgressError>> + Send;

    /// Whether it still has what was shown there. A new view, or one that lost its data, has not.
    fn remembers(&self) -> impl Future<Output = Result<bool, ProgressError>> + Send;

    /// Everything will be shown there anew, under this name.
    fn begin(&self, name: &str) -> impl Future<Output = Result<(), ProgressError>> + Send;

    /// Everything was shown there since that began. Says whether it is still there: what was shown first may have been lost meanwhile.
    fn remember(&self, name: &str) -> impl Future<Output = Result<bool, ProgressError>> + Send;

    /// How much of the memory it may use is used, from 0 to 1; nothing where there is no limit.
    fn memory_used(&self) -> impl Future<Output = Result<Option<f64>, ProgressError>> + Send;
}

/// What became of a job that was to be shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shown {
    /// It is there.
    Written,
    /// This version or a newer one is there already.
    Newer,
    /// Something else is in its place, and was left there: what, and what to do.
    Refused(String),
}

/// How a view is kept.
#[derive(Debug, Clone, PartialEq)]
pub struct ViewConfig {
    /// How many jobs are written at a time.
    pub batch: usize,
    /// The least time between two writings: a busy job is shown this often, not at every mark.
    pub pause: Duration,
    /// How soon changes by other processes are noticed.
    pub poll_interval: Duration,
    /// The waits between attempts to reach the server, before somebody is called. The last one is repeated from then on.
    pub retries: Vec<Duration>,
    /// Jobs that were done this long ago are no longer shown.
    pub ttl: Duration,
    /// Somebody is called when more of the server's memory than this is used, from 0 to 1.
    pub memory_alert: f64,
    /// How often memory is looked at.
    pub memory_interval: Duration,
    /// How often it is looked whether the view lost its data.
    pub loss_interval: Duration,
    /// How often finished jobs that only the view's server knows are archived.
    pub archive_interval: Duration,
}

impl Default for ViewConfig {
    fn default() -> Self {
        Self {
            batch: 500,
            pause: Duration::from_millis(100),
            poll_interval: Duration::from_secs(1),
            retries: [1, 2, 4].map(Duration::from_secs).to_vec(),
            ttl: Duration::from_hours(7 * 24),
            memory_alert: 0.8,
            memory_interval: Duration::from_secs(30),
            loss_interval: Duration::from_secs(5),
            archive_interval: Duration::from_hours(1),
        }
    }
}

/// Keeps a view in step with a store, until it is told to stop. Several processes may do so at the same time.
pub async fn keep<S: Jobs, V: View>(
    store: S,
    view: V,
    clock: Clock,
    config: ViewConfig,
    stop: CancellationToken,
) {
    let mut keeper =
        Keeper { store, view, clock, outage: Outage::new(config.retries.clone()), config, crowded: false };
    tokio::select! {
        () = stop.cancelled() => {}
        () = keeper.run() => {}
    }
}

/// A job through its view: as the view has it, or from the store, which then fills the gap in the view.
///
/// An expired or lost key is rebuilt whole. Where the view's server is away, the store answers.
pub async fn read<S: Jobs, V: View>(store: &S, view: &V, job: &JobId) -> Result<Option<Job>, StoreError> {
    if let Ok(Some(shown)) = view.look(job).await {
        return Ok(Some(shown));
    }
    let found = store.job(job).await?;
    if let Some(found) = &found {
        // It only helps the next one who looks.
        let _shown = view.show(std::slice::from_ref(found)).await;
    }
    Ok(found)
}

/// Puts a job that somebody read from the store back into its view, whole, if it is not there: its key expired or was lost. Where the
/// view's server is away, nothing happens.
pub async fn mend<V: View>(view: &V, job: &Job) {
    if let Ok(None) = view.look(&job.id).await {
        let _shown = view.show(std::slice::from_ref(job)).await;
    }
}

struct Keeper<S, V> {
    store: S,
    view: V,
    clock: Clock,
    config: ViewConfig,
    outage: Outage,
    /// Whether memory was above the limit at the last look.
    crowded: bool,
}

impl<S: Jobs, V: View> Keeper<S, V> {
    async fn run(&mut self) {
        let (mut memory_at, mut archive_at, mut loss_at) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
        loop {
            let mut passed = self.pass().await;
            let now = self.clock.monotonic();
            if passed.is_ok() && now >= memory_at {
                memory_at = now + self.config.memory_interval;
                passed = passed.and(self.watch_memory().await);
            }
            if passed.is_ok() && now >= archive_at {
                archive_at = now + self.config.archive_interval;
                passed = passed.and(self.archive().await);
            }
            if passed.is_ok() && now >= loss_at {
                loss_at = now + self.config.loss_interval;
                passed = passed.and(self.rebuild().await);
            }
            match passed {
                Ok(()) => {
                    self.outage.over();
                    self.store.wait_for_jobs(self.config.poll_interval).await;
                    self.clock.sleep(self.config.pause).await;
                }
                Err(error) => {
                    // Also where no job changes, it is over only when the server has answered.
                    loss_at = Duration::ZERO;
                    let wait = self.outage.failed(&error);
                    self.clock.sleep(wait).await;
                }
            }
        }
    }

    /// Shows everything that is unshown.
    async fn pass(&self) -> Result<(), ProgressError> {
        loop {
            let jobs = self.store.unshown_jobs(self.config.batch).await?;
            if !jobs.is_empty() {
                self.show(&jobs).await?;
                self.store.mark_shown(&jobs).await?;
            }
            if jobs.len() < self.config.batch {
                return Ok(());
            }
        }
    }

    /// Shows jobs, but for those that were done so long ago that they expired.
    async fn show(&self, jobs: &[Job]) -> Result<(), ProgressError> {
        let gone = self.before(self.config.ttl);
        let current: Vec<Job> =
            jobs.iter().filter(|job| job.finished_at.is_none_or(|at| at > gone)).cloned().collect();
        let shown = if current.is_empty() { Vec::new() } else { self.view.show(&current).await? };
        for (job, shown) in current.iter().zip(shown) {
            // Not tried again before the job changes: what is in its place will not go away by itself.
            if let Shown::Refused(why) = shown {
                metrics::counter!("postrider_progress_view_refused_total").increment(1);
                tracing::error!(job = %job.id, why, "a job cannot be shown; its progress is safe in the store");
            }
        }
        metrics::counter!("postrider_progress_jobs_shown_total").increment(current.len() as u64);
        Ok(())
    }

    /// Shows everything again if the view lost its data: all jobs that are not done, and of the others those made within twice the time
    /// that keys stay. A crash before the end begins anew, because only then is the view told to remember; so does a further loss.
    async fn rebuild(&self) -> Result<(), ProgressError> {
        if self.view.remembers().await? {
            return Ok(());
        }
        let name = self.clock.new_id().to_string();
        self.view.begin(&name).await?;
        let (oldest, mut jobs) = (self.before(self.config.ttl * 2), 0);
        for status in Status::ALL {
            let limit = u32::try_from(self.config.batch).unwrap_or(u32::MAX);
            let mut filter = JobFilter { status: Some(status), limit, ..JobFilter::default() };
            loop {
                let page = self.store.jobs(&filter).await?;
                let Some(last) = page.last() else { break };
                filter.after = Some((last.created_at, last.id.clone()));
                self.show(&page).await?;
                jobs += page.len();
                if status == Status::Done && last.created_at < oldest {
                    break;
                }
            }
        }
        if self.view.remember(&name).await? && jobs > 0 {
            tracing::info!(jobs, "jobs are shown anew: the view was empty");
        }
        Ok(())
    }

    /// So long ago.
    fn before(&self, ago: Duration) -> Timestamp {
        self.clock.now().checked_sub(ago).unwrap_or(Timestamp::MIN)
    }

    async fn watch_memory(&mut self) -> Result<(), ProgressError> {
        let used = self.view.memory_used().await?.unwrap_or(0.0);
        metrics::gauge!("postrider_progress_redis_memory_ratio").set(used);
        let crowded = used > self.config.memory_alert;
        if crowded && !self.crowded {
            metrics::counter!("postrider_progress_alerts_total", "alert" => "memory").increment(1);
            tracing::error!(
                alert = "critical",
                used_percent = (used * 100.0).round(),
                "Redis is running out of memory; give it more, or shorten progress.ttl_days. Views that it drops are rebuilt"
            );
        }
        self.crowded = crowded;
        Ok(())
    }

    /// Keeps what would expire.
    async fn archive(&self) -> Result<(), ProgressError> {
        let finished = self.view.finished().await?;
        let new = self.store.archive_jobs(&finished).await?;
        if new > 0 {
            tracing::info!(jobs = new, "finished jobs were archived to the store");
        }
        Ok(())
    }
}
