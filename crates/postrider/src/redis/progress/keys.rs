//! Where jobs are in Redis, and how they are read.

use std::collections::HashMap;
use std::time::Duration;

use futures_util::future::try_join_all;
use jiff::Timestamp;

use crate::envelope::{EventType, TenantId};
use crate::progress::{Counts, Job, JobId, ProgressError, ProgressErrorKind, Refusal, Status};
use crate::redis::error::{RedisError, RedisErrorKind};
use crate::redis::server::Redis;

/// How jobs are called in Redis, and how long they stay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobKeys {
    prefix: String,
    ttl: Duration,
}

impl JobKeys {
    /// The prefix of `smap:proj:{id}`.
    pub const SMAP: &str = "smap:proj:";

    /// 7 days after the last change.
    pub const TTL: Duration = Duration::from_hours(7 * 24);

    /// Keys that begin with `prefix`. Braces would choose another node of a cluster for the sets beside a job.
    pub fn new(prefix: impl Into<String>, ttl: Duration) -> Result<Self, ProgressError> {
        let prefix = prefix.into();
        if prefix.is_empty() || prefix.contains(['{', '}']) || ttl.as_secs() == 0 {
            let text = format!(
                "the key prefix {prefix:?} cannot be used; it needs some text without braces, and a TTL of a second or more"
            );
            return Err(ProgressError::invalid(text));
        }
        Ok(Self { prefix, ttl })
    }

    pub(super) fn job(&self, job: &JobId) -> String {
        format!("{}{job}", self.prefix)
    }

    /// In the slot of the job's key: the part in braces is that key.
    pub(super) fn items(&self, job: &JobId) -> String {
        format!("{{{}{job}}}:items", self.prefix)
    }

    pub(super) fn pages(&self, job: &JobId) -> String {
        format!("{{{}{job}}}:pages", self.prefix)
    }

    /// Is there for as long as Redis did not lose its data. No job has such a name.
    pub(super) fn memory(&self) -> String {
        format!("{{{}}}:shown", self.prefix)
    }

    pub(super) fn ttl_ms(&self) -> u64 {
        u64::try_from(self.ttl.as_millis()).unwrap_or(u64::MAX >> 1)
    }

    /// The keys of all jobs, as a pattern. The sets beside them begin with a brace.
    fn pattern(&self) -> String {
        let mut pattern = String::new();
        for c in self.prefix.chars() {
            if matches!(c, '*' | '?' | '[' | ']' | '\\' | '^') {
                pattern.push('\\');
            }
            pattern.push(c);
        }
        pattern + "*"
    }
}

impl Default for JobKeys {
    fn default() -> Self {
        Self { prefix: Self::SMAP.to_owned(), ttl: Self::TTL }
    }
}

/// What the script said.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) counted: u64,
    pub(super) failed: u64,
    pub(super) announcement: Announcement,
    pub(super) job: Job,
    refused: bool,
}

/// Whether a completion is to be announced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Announcement {
    /// Not done, or announced.
    None,
    /// By us, now.
    Claimed,
    /// Somebody else is at it.
    ClaimedByAnother,
}

impl Answer {
    pub(super) fn read(id: &JobId, texts: Vec<String>) -> Result<Self, ProgressError> {
        let mut texts = texts.into_iter();
        let verdict = texts.next().unwrap_or_default();
        let wrong = |text: String| Err(ProgressError::new(ProgressErrorKind::WrongType, text));
        match verdict.as_str() {
            "ok" | "refused" => {}
            "unknown" => return Err(ProgressError::unknown(id)),
            "type" => return wrong(not_a_hash(id, &texts.next().unwrap_or_default())),
            "foreign" => {
                return wrong(format!(
                    "job {id} is kept by a store, and Redis has only a view of it; nothing was counted. Mark it there"
                ));
            }
            "forgotten" => {
                return wrong(format!(
                    "Redis has lost the items of job {id} that were counted, so repeats cannot be told; nothing was counted. \
                     Set maxmemory-policy to noeviction, delete the job's keys and start it again"
                ));
            }
            _ => {
                return wrong(format!(
                    "the hash of job {id} in Redis lacks a field, so somebody else wrote it; nothing was counted. \
                     Delete the key and init the job again"
                ));
            }
        }
        let refused = verdict == "refused";
        let counted = texts.next().and_then(|text| text.parse().ok()).unwrap_or(0);
        let third = texts.next().unwrap_or_default();
        let mut fields = HashMap::new();
        while let (Some(field), Some(value)) = (texts.next(), texts.next()) {
            fields.insert(field, value);
        }
        let announcement = match third.as_str() {
            "claim" => Announcement::Claimed,
            "wait" => Announcement::ClaimedByAnother,
            _ => Announcement::None,
        };
        let Some(job) = read(id, &fields) else {
            return wrong(format!(
                "the hash of job {id} in Redis cannot be read; delete the key and init the job again"
            ));
        };
        Ok(Self { counted, failed: third.parse().unwrap_or(0), announcement, job, refused })
    }

    /// The rules say why the script refused: there is one place for that.
    pub(super) fn unless_refused(
        self,
        rule: impl Fn(Counts) -> Result<Counts, Refusal>,
    ) -> Result<Self, ProgressError> {
        if !self.refused {
            return Ok(self);
        }
        let Err(why) = rule(self.job.counts()) else {
            let text = format!(
                "Redis refused a step of job {} that the rules allow, which is a bug; nothing was counted",
                self.job.id
            );
            return Err(ProgressError::new(ProgressErrorKind::Other, text));
        };
        Err(ProgressError::refused(&self.job.id, why))
    }
}

pub(super) fn not_a_hash(job: &JobId, kind: &str) -> String {
    format!(
        "the key of job {job} in Redis holds a {kind} instead of a hash, and was left alone; delete it, or choose another key prefix"
    )
}

/// All fields of a job; none if one is missing or makes no sense.
pub(super) fn read(id: &JobId, fields: &HashMap<String, String>) -> Option<Job> {
    let text = |name: &str| fields.get(name).map(String::as_str);
    let number = |name: &str| text(name)?.parse().ok();
    let moment = |name: &str| Timestamp::from_microsecond(text(name)?.parse().ok()?).ok();
    let tenant = text("tenant").filter(|tenant| !tenant.is_empty());
    let finished = text("finished_at").filter(|at| !at.is_empty());
    Some(Job {
        id: id.clone(),
        tenant: tenant.map(TenantId::new).transpose().ok()?,
        status: Status::from_name(text("status")?)?,
        total: number("total")?,
        done: number("done")?,
        errors: number("errors")?,
        announces: EventType::new(text("announces")?).ok()?,
        version: number("version")?,
        created_at: moment("created_at")?,
        updated_at: moment("updated_at")?,
        finished_at: finished.map(|_| moment("finished_at")).map_or(Some(None), |at| at.map(Some))?,
    })
}

/// A job's hash; empty when there is none.
pub(super) async fn fields(redis: &Redis, key: &str) -> Result<HashMap<String, String>, RedisError> {
    redis.ask(redis::cmd("HGETALL").arg(key).take()).await
}

/// Jobs that are read at the same time.
const AT_ONCE: usize = 1000;

/// Every job whose authority is Redis. What is something else is left out.
pub(super) async fn all(redis: &Redis, keys: &JobKeys) -> Result<Vec<Job>, RedisError> {
    let mut found = redis.scan(&keys.pattern(), "hash").await?;
    found.sort_unstable();
    found.dedup();
    let mut jobs = Vec::new();
    for some in found.chunks(AT_ONCE) {
        let reading = some.iter().map(async |key| match fields(redis, key).await {
            // It became something else since.
            Err(error) if error.kind == RedisErrorKind::WrongType => Ok((key, HashMap::new())),
            answer => answer.map(|fields| (key, fields)),
        });
        for (key, fields) in try_join_all(reading).await? {
            let id = key.strip_prefix(&keys.prefix).and_then(|id| JobId::new(id).ok());
            let ours = fields.get("authority").is_some_and(|authority| authority == "redis");
            jobs.extend(id.filter(|_| ours).and_then(|id| read(&id, &fields)));
        }
    }
    Ok(jobs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sets_beside_a_job_are_in_its_slot() {
        let keys = JobKeys::new("smap:proj:", Duration::from_secs(1)).unwrap();
        let job = JobId::new("7").unwrap();
        // What is in the first braces decides the slot; a key without braces decides as a whole.
        assert_eq!(keys.job(&job), "smap:proj:7");
        assert_eq!(keys.items(&job), "{smap:proj:7}:items");
        assert!(JobKeys::new("{smap}:", Duration::from_secs(1)).is_err());
        assert!(JobKeys::new("", Duration::from_secs(1)).is_err());
    }

    #[test]
    fn a_prefix_is_not_a_pattern() {
        assert_eq!(JobKeys::new("a*[b]:", Duration::from_secs(1)).unwrap().pattern(), "a\\*\\[b\\]:*");
    }
}
