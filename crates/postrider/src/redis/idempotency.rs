//! Idempotency keys in Redis: `fis:ik:{tenant}:{event}`, as the FIS document has them.
//!
//! First sight is `SET … NX GET EX` for every key, or `SET … NX EX` and `GET` on servers before 7.0; completion and failure are
//! `SET … XX EX`; each batch is one pipeline. No command names two keys, so keys need no hash tags and spread over all slots of
//! a cluster. A server whose memory is full (`OOM`) is asked once more, for what it has. Any other error, such as `WRONGTYPE` for
//! a key of somebody else, says nothing of its event, and the store is asked.

use std::borrow::Cow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::try_join_all;
use redis::{Cmd, Pipeline, Value};

use super::config::RedisConfig;
use super::error::{RedisError, RedisErrorKind};
use super::server::Redis;
use crate::dedup::{Cache, CacheError, CacheKey, Entry, Found};

/// Idempotency keys in Redis: one server, or a cluster, which it finds out when it connects.
pub struct RedisCache {
    config: RedisConfig,
    ttl: Duration,
    line: Mutex<Option<Line>>,
    /// What it had no room for.
    refused: AtomicU64,
}

/// The connection there is.
#[derive(Clone)]
struct Line {
    redis: Redis,
    /// Whether it takes `SET … NX GET`.
    sets_and_gets: bool,
}

impl RedisCache {
    /// How long a key stays after its last change: over a weekend.
    pub const TTL: Duration = Duration::from_hours(72);

    /// Keys in the database that the URL names, each for so long after its last change.
    pub fn new(config: RedisConfig, ttl: Duration) -> Self {
        Self { config, ttl, line: Mutex::new(None), refused: AtomicU64::new(0) }
    }

    fn slot(&self) -> MutexGuard<'_, Option<Line>> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn line(&self) -> Result<Line, RedisError> {
        let away = || RedisError::new(RedisErrorKind::Unavailable, "Redis was not connected to yet");
        self.slot().clone().ok_or_else(away)
    }

    /// Sends the commands of all entries in one go. On a cluster those of each entry find their own node, all at the same time.
    async fn send(
        line: Line,
        entries: impl ExactSizeIterator<Item = &Entry>,
        commands: impl Fn(&mut Pipeline, &Entry) + Sync,
    ) -> Result<Vec<Value>, RedisError> {
        if !line.redis.is_cluster() {
            let mut pipeline = Pipeline::with_capacity(entries.len());
            for entry in entries {
                commands(&mut pipeline, entry);
            }
            return line.redis.pipeline(&mut pipeline).await;
        }
        let asking = entries.map(|entry| {
            let mut pipeline = redis::pipe();
            commands(&mut pipeline, entry);
            let redis = &line.redis;
            async move { redis.pipeline(&mut pipeline).await }
        });
        Ok(try_join_all(asking).await?.into_iter().flatten().collect())
    }

    fn set(&self, pipeline: &mut Pipeline, entry: &Entry, when: &[&str]) {
        let (key, seconds) = (key(&entry.key), self.ttl.as_secs().max(1));
        let mut set = Cmd::with_capacity(7, key.len() + entry.value.len() + 32);
        set.arg("SET").arg(key).arg(&entry.value).arg(when).arg("EX").arg(seconds);
        pipeline.add_command(set);
    }

    fn count_refused<'a>(&self, writes: impl Iterator<Item = &'a Value>) {
        let refused = writes.filter(|write| is_full(write)).count();
        self.refused.fetch_add(refused as u64, Ordering::Relaxed);
    }

    /// What was there before each entry, which is written where nothing was. In one command each.
    async fn set_and_get(&self, line: Line, entries: &[Entry]) -> Result<Vec<Found>, RedisError> {
        let set = |pipeline: &mut Pipeline, entry: &Entry| self.set(pipeline, entry, &["NX", "GET"]);
        let mut answers = Self::send(line.clone(), entries.iter(), set).await?;
        unless_it_refuses(answers.iter())?;
        self.count_refused(answers.iter());
        let full: Vec<usize> = (0..answers.len()).filter(|place| is_full(&answers[*place])).collect();
        if !full.is_empty() {
            let refused = full.iter().filter_map(|place| entries.get(*place)).collect::<Vec<_>>();
            let had = Self::send(line, refused.into_iter(), get).await?;
            for (place, had) in full.into_iter().zip(had) {
                answers[place] = had;
            }
        }
        Ok(answers.into_iter().map(was_there).collect())
    }

    /// The same in two commands each, for servers that do not know the one.
    async fn set_then_get(&self, line: Line, entries: &[Entry]) -> Result<Vec<Found>, RedisError> {
        let asked = |pipeline: &mut Pipeline, entry: &Entry| {
            self.set(pipeline, entry, &["NX"]);
            get(pipeline, entry);
        };
        let mut answers = Self::send(line, entries.iter(), asked).await?;
        unless_it_refuses(answers.iter().step_by(2))?;
        self.count_refused(answers.iter().step_by(2));
        let pairs = answers.as_chunks_mut::<2>().0.iter_mut();
        Ok(pairs
            .map(|[set, get]| match set {
                // Our own value, which was set now.
                Value::Okay => Found::Nothing,
                _ => was_there(std::mem::replace(get, Value::Nil)),
            })
            .collect())
    }
}

#[async_trait]
impl Cache for RedisCache {
    async fn first_sight(&self, entries: &[Entry]) -> Result<Vec<Found>, CacheError> {
        if entries.is_empty() {
            // Still a trip: whoever asks for nothing wants to know whether there is an answer.
            self.line()?.redis.ping().await?;
            return Ok(Vec::new());
        }
        let line = self.line()?;
        Ok(if line.sets_and_gets {
            self.set_and_get(line, entries).await?
        } else {
            self.set_then_get(line, entries).await?
        })
    }

    async fn replace(&self, entries: &[Entry]) -> Result<(), CacheError> {
        let set = |pipeline: &mut Pipeline, entry: &Entry| self.set(pipeline, entry, &["XX"]);
        let answers = Self::send(self.line()?, entries.iter(), set).await?;
        unless_it_refuses(answers.iter())?;
        self.count_refused(answers.iter());
        let refused = answers.iter().filter(|answer| matches!(answer, Value::ServerError(_))).count();
        if refused > 0 {
            metrics::counter!("postrider_dedup_refused_notes_total").increment(refused as u64);
        }
        Ok(())
    }

    async fn connect(&self) -> Result<(), CacheError> {
        *self.slot() = None;
        let redis = Redis::connect(self.config.clone()).await?;
        // Some users may not ask: then it is taken for an old one.
        let facts = redis.facts().await.ok();
        if facts.as_ref().is_some_and(|facts| facts.refuses_writes) {
            let replica = "Redis is a replica that refuses writes; name its primary, or promote it";
            return Err(RedisError::new(RedisErrorKind::Unavailable, replica).into());
        }
        let sets_and_gets = facts.is_some_and(|facts| facts.sets_and_gets());
        *self.slot() = Some(Line { redis, sets_and_gets });
        Ok(())
    }

    fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
}

impl std::fmt::Debug for RedisCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisCache")
            .field("config", &self.config)
            .field("ttl", &self.ttl)
            .finish_non_exhaustive()
    }
}

/// A server that refuses every write for another reason than its memory is none to work with: a replica, one that is loading,
/// or one that wants a password. A key that somebody else made something else of says nothing about the server.
fn unless_it_refuses<'a>(writes: impl Iterator<Item = &'a Value>) -> Result<(), RedisError> {
    let mut writes = writes.filter(|write| !is_of_another_type(write));
    match writes.next() {
        Some(Value::ServerError(first)) if first.code() != "OOM" => {
            let all = writes.all(|write| matches!(write, Value::ServerError(_)));
            if all { Err(redis::RedisError::from(first.clone()).into()) } else { Ok(()) }
        }
        _ => Ok(()),
    }
}

fn get(pipeline: &mut Pipeline, entry: &Entry) {
    pipeline.cmd("GET").arg(key(&entry.key));
}

fn is_full(answer: &Value) -> bool {
    matches!(answer, Value::ServerError(error) if error.code() == "OOM")
}

fn is_of_another_type(answer: &Value) -> bool {
    matches!(answer, Value::ServerError(error) if error.code() == "WRONGTYPE")
}

/// What a key had. An error is no answer.
fn was_there(answer: Value) -> Found {
    match answer {
        Value::Nil => Found::Nothing,
        Value::BulkString(bytes) => Found::Value(bytes),
        _ => Found::Unreadable,
    }
}

/// `prefix:ik:tenant:event`. A colon in a prefix or a tenant is escaped, so that no two events have the same key; an event's id
/// stands last, as it is.
fn key(key: &CacheKey) -> String {
    let tenant = key.tenant.as_ref().map(AsRef::<str>::as_ref).unwrap_or_default();
    [&*escaped(&key.space), ":ik:", &*escaped(tenant), ":", &*key.id].concat()
}

fn escaped(text: &str) -> Cow<'_, str> {
    if text.contains(['%', ':']) { text.replace('%', "%25").replace(':', "%3A").into() } else { text.into() }
}

impl From<RedisError> for CacheError {
    fn from(error: RedisError) -> Self {
        Self { message: error.message.clone(), source: Some(Box::new(error)) }
    }
}

#[cfg(test)]
mod tests {
    use redis::parse_redis_value;

    use super::*;
    use crate::envelope::TenantId;

    fn of(space: &str, tenant: Option<&str>, id: &str) -> String {
        let tenant = tenant.map(|tenant| TenantId::new(tenant).unwrap());
        key(&CacheKey { space: space.into(), tenant, id: id.to_owned() })
    }

    #[test]
    fn keys_are_those_of_the_document() {
        assert_eq!(of("fis", Some("2f3d-tenant"), "evt_987654321"), "fis:ik:2f3d-tenant:evt_987654321");
        assert_eq!(of("fis", Some("2f3d-tenant"), "pay_run_2026_03"), "fis:ik:2f3d-tenant:pay_run_2026_03");
        assert_eq!(of("mail", None, "evt_1"), "mail:ik::evt_1");
    }

    #[test]
    fn no_two_events_share_a_key() {
        let keys = [
            of("a", Some("b:c"), "d"),
            of("a", Some("b"), "c:d"),
            of("a", Some("b%3Ac"), "d"),
            of("a", None, "b:c:d"),
            of("a:ik:b", None, "c:d"),
            of("a", Some("b"), "ik::c:d"),
        ];
        let distinct: std::collections::HashSet<_> = keys.iter().collect();
        assert_eq!(distinct.len(), keys.len(), "{keys:?}");
    }

    #[test]
    fn a_key_of_another_type_says_nothing_about_the_server() {
        let refused = |answers: &[&str]| {
            let answers: Vec<_> =
                answers.iter().map(|text| parse_redis_value(text.as_bytes()).unwrap()).collect();
            unless_it_refuses(answers.iter()).is_err()
        };
        let (list, replica, full, done) =
            ("-WRONGTYPE a list\r\n", "-READONLY a replica\r\n", "-OOM full\r\n", "+OK\r\n");
        assert!(!refused(&[list]) && !refused(&[list, list]) && !refused(&[list, done]));
        assert!(refused(&[replica]) && refused(&[list, replica]));
        assert!(!refused(&[full]) && !refused(&[replica, done]));
    }
}
