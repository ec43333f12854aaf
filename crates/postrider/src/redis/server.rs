//! Redis: one server, or a cluster of which the URL names a node.

use std::sync::Arc;

use redis::{Cmd, Pipeline, RedisResult, Value};
use tokio::sync::OnceCell;
use tokio::time::timeout;

use super::config::RedisConfig;
use super::connection::{Connection, Node};
use super::error::RedisError;
use super::facts::RedisFacts;

/// Keys asked for in one step of a walk through all of them.
const STEP: u32 = 1000;

/// A Redis server or a Redis Cluster. Cheap to clone; clones share one connection.
#[derive(Clone)]
pub struct Redis {
    config: RedisConfig,
    /// Made by whoever needs it first; what could not be made is tried again by the next.
    connection: Arc<OnceCell<Connection>>,
}

impl Redis {
    /// Connects, and says what to do if that is not possible within the time limit.
    pub async fn connect(config: RedisConfig) -> Result<Self, RedisError> {
        let redis = Self::lazy(config)?;
        match timeout(redis.config.limit, redis.connection()).await {
            Ok(connected) => connected.map(|_| redis),
            Err(_) => Err(RedisError::late(redis.config.limit)),
        }
    }

    /// Connects at the first command: a server that is away is that command's error.
    pub fn lazy(config: RedisConfig) -> Result<Self, RedisError> {
        config.client()?;
        Ok(Self { config, connection: Arc::default() })
    }

    /// Whether it answers now; of a cluster, every node.
    pub async fn ping(&self) -> Result<(), RedisError> {
        self.ask(redis::cmd("PING")).await.map(|_: String| ())
    }

    /// What it says of itself; of a cluster, the node whose memory is fullest.
    pub async fn facts(&self) -> Result<RedisFacts, RedisError> {
        let said = match self.ask(redis::cmd("INFO")).await? {
            Value::Map(nodes) => nodes.into_iter().map(|(_, said)| said).collect(),
            said => vec![said],
        };
        let read = |said| Ok(RedisFacts::read(&redis::from_redis_value::<String>(said)?));
        let facts = said.into_iter().map(read).collect::<RedisResult<Vec<_>>>()?;
        let fullest = facts.into_iter().max_by(|a, b| {
            let used = |facts: &RedisFacts| facts.memory_used().unwrap_or(0.0);
            used(a).total_cmp(&used(b))
        });
        Ok(fullest.unwrap_or_else(|| RedisFacts::read("")))
    }

    /// Whether it is a cluster, as far as it was connected to.
    pub(super) fn is_cluster(&self) -> bool {
        matches!(self.connection.get(), Some(Connection::Cluster(_)))
    }

    async fn connection(&self) -> Result<Connection, RedisError> {
        self.connection.get_or_try_init(|| Connection::open(&self.config)).await.cloned()
    }

    /// Asks something that may be asked twice: after a lost connection the first command only finds out that it is lost.
    pub(super) async fn ask<T: redis::FromRedisValue>(&self, command: Cmd) -> Result<T, RedisError> {
        let command = &command;
        self.limited(|mut connection| async move { command.query_async(&mut connection).await }).await
    }

    /// Sends commands that may be sent twice in one go; those to a cluster are about one key. Each has its own answer, an error
    /// of its own included.
    pub(super) async fn pipeline(&self, commands: &mut Pipeline) -> Result<Vec<Value>, RedisError> {
        let commands = &*commands.ignore_errors();
        self.limited(|mut connection| async move { commands.query_async(&mut connection).await }).await
    }

    /// Runs a script that may be run twice, on the node that has its keys. One that a server has forgotten is loaded again.
    pub(super) async fn run_script<T: redis::FromRedisValue>(
        &self,
        call: &redis::ScriptInvocation<'_>,
    ) -> Result<T, RedisError> {
        self.limited(|mut connection| async move { call.invoke_async(&mut connection).await }).await
    }

    /// All keys of one type that match, node by node. What comes, goes or moves to another node meanwhile may be left out or be
    /// told twice.
    pub(super) async fn scan(&self, pattern: &str, kind: &str) -> Result<Vec<String>, RedisError> {
        let mut keys = Vec::new();
        let nodes = self.limited(|mut connection| async move { connection.nodes().await }).await?;
        for node in &nodes {
            let mut cursor = "0".to_owned();
            loop {
                let mut scan = redis::cmd("SCAN");
                scan.arg(&cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(STEP).arg("TYPE").arg(kind);
                let (next, found) = self.scan_step(node, &scan).await?;
                keys.extend(found);
                if next == "0" {
                    break;
                }
                cursor = next;
            }
        }
        Ok(keys)
    }

    async fn scan_step(&self, node: &Node, scan: &Cmd) -> Result<(String, Vec<String>), RedisError> {
        let asked = |mut connection: Connection| async move {
            let answer = connection.ask_node(node, scan).await?;
            Ok(redis::from_redis_value(answer)?)
        };
        self.limited(asked).await
    }

    /// Connects if need be, and asks, once more where the connection turned out to be lost; all within the limit.
    async fn limited<T, F: Future<Output = RedisResult<T>>>(
        &self,
        ask: impl Fn(Connection) -> F,
    ) -> Result<T, RedisError> {
        let limit = self.config.limit;
        let asking = async {
            let connection = self.connection().await?;
            match ask(connection.clone()).await {
                Err(error) if error.is_connection_dropped() => Ok(ask(connection).await?),
                answer => Ok(answer?),
            }
        };
        timeout(limit, asking).await.unwrap_or_else(|_| Err(RedisError::late(limit)))
    }
}

impl std::fmt::Debug for Redis {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Redis").field("config", &self.config).finish_non_exhaustive()
    }
}
