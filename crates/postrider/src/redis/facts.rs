//! What a Redis server says of itself, for `postrider doctor`.

use super::config::RedisConfig;
use super::error::RedisError;
use super::server::Redis;

/// Version and settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedisFacts {
    /// `7.0.15`
    pub version: String,
    /// What it does when its memory is full; empty when it does not say.
    pub maxmemory_policy: String,
    /// The memory it may use in bytes; 0 is no limit.
    pub maxmemory: u64,
    /// The memory it uses in bytes.
    pub used_memory: u64,
    /// Whether it is a node of a Redis Cluster.
    pub cluster: bool,
    /// Whether it is a replica that refuses writes.
    pub refuses_writes: bool,
}

impl RedisFacts {
    /// Whether it may forget keys before their time.
    pub fn may_evict(&self) -> bool {
        self.maxmemory > 0 && !matches!(self.maxmemory_policy.as_str(), "" | "noeviction")
    }

    /// Whether `SET` may have both `NX` and `GET`, as from 7.0 on.
    pub(super) fn sets_and_gets(&self) -> bool {
        let major = self.version.split('.').next().and_then(|major| major.parse().ok());
        major.is_some_and(|major: u32| major >= 7)
    }

    /// How much of the memory it may use is used, from 0 to 1; nothing where there is no limit.
    #[allow(clippy::cast_precision_loss, reason = "a ratio for people")]
    pub fn memory_used(&self) -> Option<f64> {
        (self.maxmemory > 0).then(|| self.used_memory as f64 / self.maxmemory as f64)
    }

    pub(super) fn read(info: &str) -> Self {
        let field = |name: &str| {
            let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.unwrap_or_default().trim().to_owned()
        };
        Self {
            version: field("redis_version"),
            maxmemory_policy: field("maxmemory_policy"),
            maxmemory: field("maxmemory").parse().unwrap_or(0),
            used_memory: field("used_memory").parse().unwrap_or(0),
            cluster: field("cluster_enabled") == "1",
            // Only a replica speaks of it.
            refuses_writes: field("slave_read_only") == "1",
        }
    }
}

/// Asks a server, on a connection of its own.
pub async fn facts(config: RedisConfig) -> Result<RedisFacts, RedisError> {
    Redis::connect(config).await?.facts().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eviction_needs_a_limit_and_a_policy() {
        let info = "# Server\r\nredis_version:7.0.15\r\nmaxmemory:1048576\r\nmaxmemory_human:1M\r\nmaxmemory_policy:volatile-ttl\r\n";
        let facts = RedisFacts::read(info);
        assert_eq!((facts.version.as_str(), facts.maxmemory), ("7.0.15", 1_048_576));
        assert!(facts.may_evict());
        assert!(!RedisFacts::read("maxmemory:0\r\nmaxmemory_policy:allkeys-lru\r\n").may_evict());
    }

    #[test]
    fn a_replica_says_whether_it_refuses_writes() {
        let refuses = |info: &str| RedisFacts::read(info).refuses_writes;
        assert!(refuses("role:slave\r\nslave_priority:100\r\nslave_read_only:1\r\n"));
        assert!(!refuses("role:slave\r\nslave_read_only:0\r\n") && !refuses("role:master\r\n"));
    }
}
