//! The view of a store's jobs in Redis: `smap:proj:{id}`, a hash that any service can read with HGETALL.

use std::sync::LazyLock;

use futures_util::future::try_join_all;
use jiff::Timestamp;
use redis::Script;

use super::keys::{self, JobKeys};
use crate::progress::view::{Shown, View};
use crate::progress::{Job, JobId, ProgressError, Status};
use crate::redis::error::RedisError;
use crate::redis::server::Redis;

static SHOW: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("show.lua")));

/// What is kept while everything is shown; while that is made anew, its name stands there.
const WHOLE: &str = "1";

/// Where another process has made all of it anew in the meantime, nothing was lost since either.
static REMEMBER: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('SET', KEYS[1], ARGV[2]) end return redis.call('GET', KEYS[1]) or ''",
    )
});

/// Jobs shown in Redis.
#[derive(Debug, Clone)]
pub struct RedisView {
    redis: Redis,
    keys: JobKeys,
}

impl RedisView {
    /// In the database that `redis` is connected to.
    pub fn new(redis: Redis, keys: JobKeys) -> Self {
        Self { redis, keys }
    }

    async fn show_one(&self, job: &Job) -> Result<Shown, RedisError> {
        let moment = |at: Timestamp| at.as_microsecond().to_string();
        let mut call = SHOW.prepare_invoke();
        call.key(self.keys.job(&job.id)).arg(job.version).arg(self.keys.ttl_ms()).arg(moment(job.created_at));
        for (field, value) in [
            ("status", job.status.to_string()),
            ("total", job.total.to_string()),
            ("done", job.done.to_string()),
            ("errors", job.errors.to_string()),
            ("version", job.version.to_string()),
            ("authority", "store".to_owned()),
            ("announces", job.announces.to_string()),
            ("tenant", job.tenant.as_ref().map(ToString::to_string).unwrap_or_default()),
            ("created_at", moment(job.created_at)),
            ("updated_at", moment(job.updated_at)),
            ("finished_at", job.finished_at.map(moment).unwrap_or_default()),
        ] {
            call.arg(field).arg(value);
        }
        let answer: String = self.redis.run_script(&call).await?;
        Ok(match answer.as_str() {
            "written" => Shown::Written,
            "newer" => Shown::Newer,
            "redis" => Shown::Refused(format!(
                "Redis itself is the authority on a job {}; give one of the two another id or key prefix",
                job.id
            )),
            kind => Shown::Refused(keys::not_a_hash(&job.id, kind)),
        })
    }
}

impl View for RedisView {
    async fn show(&self, jobs: &[Job]) -> Result<Vec<Shown>, ProgressError> {
        Ok(try_join_all(jobs.iter().map(|job| self.show_one(job))).await?)
    }

    async fn look(&self, job: &JobId) -> Result<Option<Job>, ProgressError> {
        let fields = keys::fields(&self.redis, &self.keys.job(job)).await?;
        Ok(keys::read(job, &fields))
    }

    async fn finished(&self) -> Result<Vec<Job>, ProgressError> {
        let mut jobs = keys::all(&self.redis, &self.keys).await?;
        jobs.retain(|job| job.status == Status::Done);
        Ok(jobs)
    }

    async fn remembers(&self) -> Result<bool, ProgressError> {
        let there: Option<String> = self.redis.ask(redis::cmd("GET").arg(self.keys.memory()).take()).await?;
        Ok(there.as_deref() == Some(WHOLE))
    }

    async fn begin(&self, name: &str) -> Result<(), ProgressError> {
        let _: String = self.redis.ask(redis::cmd("SET").arg(self.keys.memory()).arg(name).take()).await?;
        Ok(())
    }

    async fn remember(&self, name: &str) -> Result<bool, ProgressError> {
        let mut call = REMEMBER.prepare_invoke();
        let there: String = self.redis.run_script(call.key(self.keys.memory()).arg(name).arg(WHOLE)).await?;
        Ok(there == WHOLE)
    }

    async fn memory_used(&self) -> Result<Option<f64>, ProgressError> {
        Ok(self.redis.facts().await?.memory_used())
    }
}
