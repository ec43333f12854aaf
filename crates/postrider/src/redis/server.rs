//! A connection to one Redis server, kept by the driver: lost, it is made again at the next command.

use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::{Cmd, Pipeline, Value};
use tokio::time::timeout;

use super::config::RedisConfig;
use super::error::RedisError;
use super::facts::RedisFacts;

/// A Redis server. Cheap to clone; clones share one connection.
#[derive(Clone)]
pub struct Redis {
    connection: ConnectionManager,
    config: RedisConfig,
}

impl Redis {
    /// Connects, and says what to do if that is not possible within the time limit.
    pub async fn connect(config: RedisConfig) -> Result<Self, RedisError> {
        let client = config.client()?;
        let connecting = ConnectionManager::new_with_config(client, limits(&config));
        match timeout(config.limit, connecting).await {
            Ok(connection) => Ok(Self { connection: connection?, config }),
            Err(_) => Err(RedisError::late(config.limit)),
        }
    }

    /// Connects at the first command: a server that is away is that command's error.
    pub fn lazy(config: RedisConfig) -> Result<Self, RedisError> {
        let connection = ConnectionManager::new_lazy_with_config(config.client()?, limits(&config))?;
        Ok(Self { connection, config })
    }

    /// Whether it answers now.
    pub async fn ping(&self) -> Result<(), RedisError> {
        self.ask(redis::cmd("PING")).await.map(|_: String| ())
    }

    /// What it says of itself.
    pub async fn facts(&self) -> Result<RedisFacts, RedisError> {
        let info: String = self.ask(redis::cmd("INFO")).await?;
        Ok(RedisFacts::read(&info))
    }

    /// Asks something that may be asked twice: after a lost connection the first command only finds out that it is lost.
    pub(super) async fn ask<T: redis::FromRedisValue>(&self, command: Cmd) -> Result<T, RedisError> {
        let asking = async {
            let mut connection = self.connection.clone();
            match command.query_async(&mut connection).await {
                Err(error) if error.is_connection_dropped() => command.query_async(&mut connection).await,
                answer => answer,
            }
        };
        match timeout(self.config.limit, asking).await {
            Ok(answer) => Ok(answer?),
            Err(_) => Err(RedisError::late(self.config.limit)),
        }
    }

    /// Sends commands that may be sent twice in one go. Each has its own answer, an error of its own included.
    pub(super) async fn pipeline(&self, commands: &mut Pipeline) -> Result<Vec<Value>, RedisError> {
        commands.ignore_errors();
        let asking = async {
            let mut connection = self.connection.clone();
            match commands.query_async(&mut connection).await {
                Err(error) if error.is_connection_dropped() => commands.query_async(&mut connection).await,
                answers => answers,
            }
        };
        match timeout(self.config.limit, asking).await {
            Ok(answers) => Ok(answers?),
            Err(_) => Err(RedisError::late(self.config.limit)),
        }
    }

    /// Runs a script that may be run twice. One that the server has forgotten is loaded again.
    pub(super) async fn run_script<T: redis::FromRedisValue>(
        &self,
        call: &redis::ScriptInvocation<'_>,
    ) -> Result<T, RedisError> {
        let running = async {
            let mut connection = self.connection.clone();
            match call.invoke_async(&mut connection).await {
                Err(error) if error.is_connection_dropped() => call.invoke_async(&mut connection).await,
                answer => answer,
            }
        };
        match timeout(self.config.limit, running).await {
            Ok(answer) => Ok(answer?),
            Err(_) => Err(RedisError::late(self.config.limit)),
        }
    }
}

fn limits(config: &RedisConfig) -> ConnectionManagerConfig {
    ConnectionManagerConfig::new()
        .set_connection_timeout(Some(config.limit))
        .set_response_timeout(Some(config.limit))
        .set_number_of_retries(1)
}

impl std::fmt::Debug for Redis {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Redis").field("config", &self.config).finish_non_exhaustive()
    }
}
