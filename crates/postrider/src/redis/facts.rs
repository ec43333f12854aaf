//! What a Redis server says of itself, for `postrider doctor`.

use std::time::Duration;

use redis::Client;
use secrecy::{ExposeSecret as _, SecretString};

/// Version and settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedisFacts {
    /// `7.0.15`
    pub version: String,
    /// What it does when its memory is full; empty when it does not say.
    pub maxmemory_policy: String,
    /// The memory it may use in bytes; 0 is no limit.
    pub maxmemory: u64,
}

impl RedisFacts {
    /// Whether it may forget keys before their time.
    pub fn may_evict(&self) -> bool {
        self.maxmemory > 0 && !matches!(self.maxmemory_policy.as_str(), "" | "noeviction")
    }
}

/// Why Redis did not say.
#[derive(Debug, thiserror::Error)]
pub enum RedisUnreachable {
    /// It refused, or is not there. Never shows the url.
    #[error("does not answer ({0}); check that it runs and that the password is right")]
    Refused(#[from] redis::RedisError),
    /// It took too long.
    #[error("did not answer within {0} ms; check host, port and firewall")]
    TooLate(u128),
}

/// Asks a server, on a connection of its own, within a time limit.
pub async fn facts(url: &SecretString, limit: Duration) -> Result<RedisFacts, RedisUnreachable> {
    match tokio::time::timeout(limit, ask(url)).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(RedisUnreachable::TooLate(limit.as_millis())),
    }
}

async fn ask(url: &SecretString) -> Result<RedisFacts, redis::RedisError> {
    let client = Client::open(url.expose_secret())?;
    let mut connection = client.get_multiplexed_async_connection().await?;
    let info: String = redis::cmd("INFO").query_async(&mut connection).await?;
    let field = |name: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap_or_default().trim().to_owned()
    };
    Ok(RedisFacts {
        version: field("redis_version"),
        maxmemory_policy: field("maxmemory_policy"),
        maxmemory: field("maxmemory").parse().unwrap_or(0),
    })
}
