//! Progress that holds up nobody: while its server is away, updates are kept in memory, and made in their order when it is back.
//!
//! For services without a database, whose authority is Redis alone; a store keeps what Redis missed by itself ([`super::view`]). Every
//! update may be repeated, because items are counted once by their ids, so one whose fate is unknown is made again.
//!
//! A crash of the process loses what is kept here. Whoever cannot have that, because nobody would send the event again, calls the
//! [`ProgressStore`] itself and takes its error for what it is: try again.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{Change, Job, JobId, Mark, Marked, NewJob, ProgressError, ProgressErrorKind, ProgressStore};
use crate::clock::Clock;

/// So many marks and steps are kept, unless somebody says otherwise: some tens of megabytes at most.
const MOST: usize = 100_000;
/// How soon an update that could not be made is tried again.
const AGAIN: Duration = Duration::from_secs(1);
/// How often to look whether all are made.
const LOOK: Duration = Duration::from_millis(50);

/// What became of an update.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Update<T> {
    /// It is made.
    Made(T),
    /// The server is away: it is kept, and made when the server is back.
    Kept,
}

/// The progress of jobs, and what could not be counted yet. Cheap to clone; clones share what is kept.
#[derive(Clone)]
pub struct Keeping<P> {
    shared: Arc<Shared<P>>,
}

struct Shared<P> {
    progress: P,
    clock: Clock,
    most: usize,
    backlog: Mutex<Backlog>,
}

/// What is kept, the oldest first.
#[derive(Default)]
struct Backlog {
    steps: VecDeque<Step>,
    /// Marks and other steps in it.
    size: usize,
    /// Somebody works it off.
    worked_off: bool,
}

#[derive(Debug, Clone)]
enum Step {
    Init(NewJob),
    Change(JobId, Change),
    Mark(JobId, Vec<Mark>),
}

impl Step {
    fn size(&self) -> usize {
        match self {
            Self::Mark(_, marks) => marks.len().max(1),
            Self::Init(_) | Self::Change(..) => 1,
        }
    }
}

impl<P: ProgressStore> Keeping<P> {
    /// Keeps what this one cannot take, 100,000 marks and steps at most. How long a caller waits before his update is kept is said there
    /// (`RedisProgress`: 1, 2 and 4 s). Who comes while something is kept waits no longer.
    pub fn new(progress: P, clock: Clock) -> Self {
        Self::at_most(MOST, progress, clock)
    }

    /// The same with another limit. What is beyond it is refused as an outage, and nothing of it is kept.
    pub fn at_most(most: usize, progress: P, clock: Clock) -> Self {
        Self { shared: Arc::new(Shared { progress, clock, most, backlog: Mutex::default() }) }
    }

    /// Who counts, for all that is only read: it knows nothing of what is kept.
    pub fn progress(&self) -> &P {
        &self.shared.progress
    }

    /// Makes a job.
    pub async fn init(&self, job: &NewJob) -> Result<Update<Job>, ProgressError> {
        self.make(Step::Init(job.clone()), self.shared.progress.init(job)).await
    }

    /// Takes a step.
    pub async fn change(&self, job: &JobId, change: Change) -> Result<Update<Job>, ProgressError> {
        let step = Step::Change(job.clone(), change.clone());
        self.make(step, self.shared.progress.change(job, change)).await
    }

    /// Marks items.
    pub async fn mark(&self, job: &JobId, marks: &[Mark]) -> Result<Update<Marked>, ProgressError> {
        let step = Step::Mark(job.clone(), marks.to_vec());
        self.make(step, self.shared.progress.mark(job, marks)).await
    }

    /// How many marks and steps are kept.
    pub fn kept(&self) -> usize {
        self.shared.backlog().size
    }

    /// Waits until nothing is kept, for so long: before a process ends. Says whether nothing is.
    pub async fn settled(&self, at_most: Duration) -> bool {
        let clock = &self.shared.clock;
        let start = clock.monotonic();
        while self.kept() > 0 {
            if clock.since(start) >= at_most {
                return false;
            }
            clock.sleep(LOOK).await;
        }
        true
    }

    /// Behind what is kept already, or now, or kept.
    async fn make<T>(
        &self,
        step: Step,
        now: impl Future<Output = Result<T, ProgressError>>,
    ) -> Result<Update<T>, ProgressError> {
        if self.shared.backlog().size > 0 {
            self.keep(step)?;
            return Ok(Update::Kept);
        }
        match now.await {
            Ok(made) => Ok(Update::Made(made)),
            Err(error) if error.is_transient() => {
                tracing::warn!(%error, "progress cannot be counted now; it is kept in memory and counted later");
                self.keep(step)?;
                Ok(Update::Kept)
            }
            Err(error) => Err(error),
        }
    }

    fn keep(&self, step: Step) -> Result<(), ProgressError> {
        let mut backlog = self.shared.backlog();
        let size = backlog.size + step.size();
        if size > self.shared.most {
            let text = format!(
                "progress cannot be counted, and {} updates are kept already, which is the limit; this one is not kept. Try again later",
                backlog.size
            );
            return Err(ProgressError::new(ProgressErrorKind::Unavailable, text));
        }
        backlog.size = size;
        metrics::gauge!("postrider_progress_kept_updates").set(as_f64(size));
        backlog.steps.push_back(step);
        if !std::mem::replace(&mut backlog.worked_off, true) {
            tokio::spawn(Arc::clone(&self.shared).work_off());
        }
        Ok(())
    }
}

impl<P: ProgressStore> Shared<P> {
    fn backlog(&self) -> MutexGuard<'_, Backlog> {
        self.backlog.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One after the other, each until it is made or refused for good. Goes on when nobody has a handle any more.
    async fn work_off(self: Arc<Self>) {
        let mut made = 0_usize;
        while let Some(step) = self.first() {
            match self.again(&step).await {
                Ok(()) => made += step.size(),
                Err(error) if error.is_transient() => {
                    self.clock.sleep(AGAIN).await;
                    continue;
                }
                // Its caller would have been told so; now only people can be.
                Err(error) => {
                    metrics::counter!("postrider_progress_kept_refused_total").increment(1);
                    tracing::error!(%error, ?step, "an update that was kept is refused, and is not counted");
                }
            }
            self.done(&step);
        }
        tracing::info!(updates = made, "progress is counted again; all updates that were kept are made");
    }

    async fn again(&self, step: &Step) -> Result<(), ProgressError> {
        match step {
            Step::Init(job) => self.progress.init(job).await.map(|_| ()),
            Step::Change(job, change) => self.progress.change(job, change.clone()).await.map(|_| ()),
            Step::Mark(job, marks) => self.progress.mark(job, marks).await.map(|_| ()),
        }
    }

    /// The oldest, which stays until it is made: whoever comes meanwhile gets behind it. None ends the work.
    fn first(&self) -> Option<Step> {
        let mut backlog = self.backlog();
        let first = backlog.steps.front().cloned();
        backlog.worked_off = first.is_some();
        first
    }

    fn done(&self, step: &Step) {
        let mut backlog = self.backlog();
        backlog.steps.pop_front();
        backlog.size -= step.size();
        metrics::gauge!("postrider_progress_kept_updates").set(as_f64(backlog.size));
    }
}

#[allow(clippy::cast_precision_loss, reason = "a gauge for people")]
fn as_f64(size: usize) -> f64 {
    size as f64
}
