//! Idempotency keys in Redis: `fis:ik:{tenant}:{event}`, as the FIS document has them.
//!
//! First sight is `SET … NX EX` and `GET` for every key, completion and failure are `SET … XX EX`, each batch in one pipeline. No
//! command names two keys, so keys need no hash tags and spread over all slots of a cluster. An answer that is an error,
//! such as `OOM` when the memory is full or `WRONGTYPE` for a key of somebody else, says nothing of its event, and the store
//! is asked.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::try_join_all;
use redis::cluster_async::ClusterConnection;
use redis::{Pipeline, Value};

use super::config::RedisConfig;
use super::error::{RedisError, RedisErrorKind};
use super::server::Redis;
use crate::dedup::{Cache, CacheError, CacheKey, Entry, Found};

/// Idempotency keys in Redis: one server, or a cluster, which it finds out when it connects.
pub struct RedisCache {
    config: RedisConfig,
    ttl: Duration,
    line: Mutex<Option<Line>>,
}

/// The connection there is.
#[derive(Clone)]
enum Line {
    Server(Redis),
    Cluster(ClusterConnection),
}

impl RedisCache {
    /// How long a key stays after its last change: over a weekend.
    pub const TTL: Duration = Duration::from_hours(72);

    /// Keys in the database that the URL names, each for so long after its last change.
    pub fn new(config: RedisConfig, ttl: Duration) -> Self {
        Self { config, ttl, line: Mutex::new(None) }
    }

    fn slot(&self) -> MutexGuard<'_, Option<Line>> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends the commands of all entries in one go. On a cluster those of each entry find their own node, all at the same time.
    async fn send(
        &self,
        entries: &[Entry],
        commands: impl Fn(&mut Pipeline, &Entry) + Sync,
    ) -> Result<Vec<Value>, RedisError> {
        let line = self.slot().clone();
        match line {
            None => Err(RedisError::new(RedisErrorKind::Unavailable, "Redis was not connected to yet")),
            Some(Line::Server(redis)) => {
                let mut pipeline = redis::pipe();
                for entry in entries {
                    commands(&mut pipeline, entry);
                }
                redis.pipeline(&mut pipeline).await
            }
            Some(Line::Cluster(cluster)) => {
                let asking = entries.iter().map(|entry| {
                    let (mut pipeline, mut cluster) = (redis::pipe(), cluster.clone());
                    commands(&mut pipeline, entry);
                    pipeline.ignore_errors();
                    async move { pipeline.query_async::<Vec<Value>>(&mut cluster).await }
                });
                Ok(try_join_all(asking).await?.into_iter().flatten().collect())
            }
        }
    }

    async fn ping(&self) -> Result<(), RedisError> {
        let line = self.slot().clone();
        match line {
            None => Err(RedisError::new(RedisErrorKind::Unavailable, "Redis was not connected to yet")),
            Some(Line::Server(redis)) => redis.ping().await,
            Some(Line::Cluster(mut cluster)) => {
                redis::cmd("PING").query_async::<Value>(&mut cluster).await?;
                Ok(())
            }
        }
    }

    fn set(&self, pipeline: &mut Pipeline, entry: &Entry, when: &str) {
        let seconds = self.ttl.as_secs().max(1);
        pipeline.cmd("SET").arg(key(&entry.key)).arg(&entry.value).arg(when).arg("EX").arg(seconds);
    }
}

#[async_trait]
impl Cache for RedisCache {
    async fn first_sight(&self, entries: &[Entry]) -> Result<Vec<Found>, CacheError> {
        if entries.is_empty() {
            // Still a trip: whoever asks for nothing wants to know whether there is an answer.
            self.ping().await?;
            return Ok(Vec::new());
        }
        let asked = |pipeline: &mut Pipeline, entry: &Entry| {
            self.set(pipeline, entry, "NX");
            pipeline.cmd("GET").arg(key(&entry.key));
        };
        let answers = self.send(entries, asked).await?;
        unless_it_refuses(answers.iter().step_by(2))?;
        Ok(answers.as_chunks::<2>().0.iter().map(|[set, get]| found(set, get)).collect())
    }

    async fn replace(&self, entries: &[Entry]) -> Result<(), CacheError> {
        let answers = self.send(entries, |pipeline, entry| self.set(pipeline, entry, "XX")).await?;
        unless_it_refuses(answers.iter())?;
        let refused = answers.iter().filter(|answer| matches!(answer, Value::ServerError(_))).count();
        if refused > 0 {
            metrics::counter!("postrider_dedup_refused_notes_total").increment(refused as u64);
        }
        Ok(())
    }

    async fn connect(&self) -> Result<(), CacheError> {
        *self.slot() = None;
        let redis = Redis::connect(self.config.clone()).await?;
        // Some users may not ask: then it is one server, which refuses what is another node's if it is not.
        let line = if redis.facts().await.is_ok_and(|facts| facts.cluster) {
            Line::Cluster(self.config.cluster()?.get_async_connection().await.map_err(RedisError::from)?)
        } else {
            Line::Server(redis)
        };
        *self.slot() = Some(line);
        Ok(())
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
/// or one that wants a password.
fn unless_it_refuses<'a>(mut writes: impl Iterator<Item = &'a Value>) -> Result<(), RedisError> {
    match writes.next() {
        Some(Value::ServerError(first)) if first.code() != "OOM" => {
            let all = writes.all(|write| matches!(write, Value::ServerError(_)));
            if all { Err(redis::RedisError::from(first.clone()).into()) } else { Ok(()) }
        }
        _ => Ok(()),
    }
}

/// Our own value, if it was set now; else what is there. An error of either is no answer.
fn found(set: &Value, get: &Value) -> Found {
    match (set, get) {
        (Value::Okay, _) | (_, Value::Nil) => Found::Nothing,
        (_, Value::BulkString(bytes)) => Found::Value(bytes.clone()),
        _ => Found::Unreadable,
    }
}

/// `prefix:ik:tenant:event`. A colon in a prefix or a tenant is escaped, so that no two events have the same key; an event's id
/// stands last, as it is.
fn key(key: &CacheKey) -> String {
    let tenant = key.tenant.as_ref().map(AsRef::<str>::as_ref).unwrap_or_default();
    format!("{}:ik:{}:{}", escaped(&key.space), escaped(tenant), key.id)
}

fn escaped(text: &str) -> String {
    text.replace('%', "%25").replace(':', "%3A")
}

impl From<RedisError> for CacheError {
    fn from(error: RedisError) -> Self {
        Self { message: error.message.clone(), source: Some(Box::new(error)) }
    }
}

#[cfg(test)]
mod tests {
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
}
