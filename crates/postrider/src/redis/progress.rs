//! Progress with Redis alone as its authority, for services without a database.
//!
//! One script decides (`step.lua`), so nothing comes between a mark and its finish check. Items are remembered in a set beside the
//! hash; if Redis loses the set and not the hash, or any field of it, that is an error and never a wrong count. A lost or
//! expired job is unknown: it is not made again by a mark. What Redis loses here nobody else knows: it should persist
//! (`appendonly yes`) and not evict (`maxmemory-policy noeviction`). Where there is a database, let the store decide.

mod keys;
mod view;

pub use keys::JobKeys;
pub use view::RedisView;

use std::sync::Arc;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::Script;

use self::keys::{Announcement, Answer};
use super::error::RedisError;
use super::server::Redis;
use crate::clock::Clock;
use crate::progress::{
    Announcer, Change, Job, JobFilter, JobId, Mark, Marked, NewJob, ProgressError, ProgressErrorKind,
    ProgressStore, Status, completed,
};

static STEP: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("progress/step.lua")));

/// How soon to look again while somebody else announces a job.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// The progress of jobs in Redis alone. Cheap to clone.
#[derive(Clone)]
pub struct RedisProgress {
    redis: Redis,
    keys: JobKeys,
    clock: Clock,
    announcer: Arc<dyn Announcer>,
    retries: Arc<[Duration]>,
    /// Whether somebody was called about the outage that goes on.
    called: Arc<AtomicBool>,
}

impl RedisProgress {
    /// In the database that `redis` is connected to. Completions are announced by `announcer`.
    pub fn new(redis: Redis, keys: JobKeys, announcer: Arc<dyn Announcer>, clock: Clock) -> Self {
        let retries = [1, 2, 4].map(Duration::from_secs).into();
        Self { redis, keys, clock, announcer, retries, called: Arc::default() }
    }

    /// Other waits between attempts to reach Redis than 1 s, 2 s and 4 s.
    #[must_use]
    pub fn retries(mut self, waits: &[Duration]) -> Self {
        self.retries = waits.into();
        self
    }

    /// Announces what was done when whoever did it died before he could. Returns how many jobs are done.
    pub async fn announce_late(&self) -> Result<u64, ProgressError> {
        let done = JobFilter { status: Some(Status::Done), limit: u32::MAX, ..JobFilter::default() };
        let jobs = self.list(&done).await?;
        for job in &jobs {
            match self.step(&job.id, "look", &[]).await {
                // The view of a store, which has announced it itself.
                Err(error) if error.kind == ProgressErrorKind::WrongType => {}
                looked => drop(looked?),
            }
        }
        Ok(jobs.len() as u64)
    }

    /// Takes a step, and announces the job if that is ours to do. Returns how many items were new, and the job.
    async fn step(&self, job: &JobId, step: &str, more: &[&str]) -> Result<Answer, ProgressError> {
        let first = self.run(job, step, more).await?;
        let mut announcement = first.announcement;
        loop {
            match announcement {
                Announcement::None => return Ok(first),
                Announcement::Claimed => {
                    self.announce(job).await?;
                    return Ok(first);
                }
                // Wait for him: if he dies, the announcement is ours.
                Announcement::ClaimedByAnother => {
                    self.clock.sleep(LOOK_AGAIN).await;
                    announcement = self.run(job, "look", &[]).await?.announcement;
                }
            }
        }
    }

    /// The claim is given back when it fails, so that the next attempt need not wait for its end.
    async fn announce(&self, job: &JobId) -> Result<(), ProgressError> {
        let done = self.get(job).await?.ok_or_else(|| ProgressError::unknown(job))?;
        if let Err(error) = self.announcer.announce(completed(&done)?).await {
            // If that fails too, the claim ends by itself.
            let _released = self.run(job, "release", &[]).await;
            return Err(error);
        }
        self.run(job, "announced", &[]).await.map(|_| ())
    }

    /// Runs the script, again and again while Redis is away, until the waits are used up. Every step may be repeated.
    async fn run(&self, job: &JobId, step: &str, more: &[&str]) -> Result<Answer, ProgressError> {
        let mut waits = self.retries.iter();
        loop {
            match self.ask(job, step, more).await {
                Ok(texts) => {
                    self.called.store(false, Ordering::Relaxed);
                    return Answer::read(job, texts);
                }
                Err(error) if error.is_transient() => match waits.next() {
                    Some(wait) => self.clock.sleep(*wait).await,
                    None => return Err(self.call_somebody(error)),
                },
                Err(error) => return Err(error.into()),
            }
        }
    }

    async fn ask(&self, job: &JobId, step: &str, more: &[&str]) -> Result<Vec<String>, RedisError> {
        let mut call = STEP.prepare_invoke();
        call.key(self.keys.job(job)).key(self.keys.items(job)).key(self.keys.pages(job));
        call.arg(step).arg(self.keys.ttl_ms()).arg(self.clock.now().as_microsecond());
        for text in more {
            call.arg(*text);
        }
        self.redis.run_script(&call).await
    }

    /// Once an outage, however many callers meet it.
    fn call_somebody(&self, error: RedisError) -> ProgressError {
        if !self.called.swap(true, Ordering::Relaxed) {
            metrics::counter!("postrider_progress_alerts_total", "alert" => "unavailable").increment(1);
            tracing::error!(alert = "critical", %error, "progress cannot be counted: Redis is away");
        }
        error.into()
    }
}

impl ProgressStore for RedisProgress {
    async fn init(&self, job: &NewJob) -> Result<Job, ProgressError> {
        let tenant = job.tenant.as_ref().map_or("", AsRef::<str>::as_ref);
        Ok(self.step(&job.id, "init", &[job.announces.as_str(), tenant]).await?.job)
    }

    async fn change(&self, job: &JobId, change: Change) -> Result<Job, ProgressError> {
        let answer = match &change {
            Change::SetTotal(total) => self.step(job, "total", &[&total.get().to_string()]).await?,
            Change::AddTotal { page, found } => {
                self.step(job, "page", &[page.as_str(), &found.get().to_string()]).await?
            }
            Change::BeginDiscovery => self.step(job, "begin", &[]).await?,
            Change::EndDiscovery => self.step(job, "end", &[]).await?,
        };
        answer.unless_refused(|counts| counts.after(&change)).map(|answer| answer.job)
    }

    async fn mark(&self, job: &JobId, marks: &[Mark]) -> Result<Marked, ProgressError> {
        let firsts = Mark::first_of_each(marks);
        let pairs = firsts.iter().flat_map(|mark| [mark.item.as_str(), if mark.failed { "1" } else { "0" }]);
        let answer = self.step(job, "mark", &pairs.collect::<Vec<_>>()).await?;
        let (counted, failed) = (answer.counted, answer.failed);
        answer.unless_refused(|counts| counts.after_marks(counted, failed))?;
        Ok(Marked { counted, repeated: marks.len() as u64 - counted })
    }

    async fn get(&self, job: &JobId) -> Result<Option<Job>, ProgressError> {
        match self.run(job, "get", &[]).await {
            Ok(answer) => Ok(Some(answer.job)),
            Err(error) if error.kind == ProgressErrorKind::UnknownJob => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Walks all keys of the database: for people and for archiving, not for every request.
    async fn list(&self, filter: &JobFilter) -> Result<Vec<Job>, ProgressError> {
        let mut jobs = keys::all(&self.redis, &self.keys).await?;
        jobs.retain(|job| filter.accepts(job));
        jobs.sort_by(|a, b| (b.created_at, &b.id).cmp(&(a.created_at, &a.id)));
        jobs.truncate(usize::try_from(filter.limit).unwrap_or(usize::MAX));
        Ok(jobs)
    }
}

impl std::fmt::Debug for RedisProgress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisProgress").field("redis", &self.redis).finish_non_exhaustive()
    }
}
