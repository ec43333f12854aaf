//! What is on Redis, where one is set: idempotency keys in front of the inbox, and jobs as others see them. It may be away at any time.

use std::sync::Arc;
use std::time::Duration;

use postrider::dedup::{Accelerator, AcceleratorConfig};
use postrider::progress::OutboxAnnouncer;
use postrider::redis::{JobKeys, Redis, RedisCache, RedisConfig, RedisError, RedisProgress, RedisTls, facts};
pub(crate) use postrider::redis::{RedisFacts, RedisView as JobView};

use super::WholeStore;
use crate::commands::Context;
use crate::config::{Config, Server};

fn at(config: &Config, server: &Server) -> RedisConfig {
    let files = &config.settings.redis.tls;
    let tls = RedisTls {
        ca_file: files.ca_file(),
        client_cert_file: files.client_cert_file(),
        client_key_file: files.client_key_file(),
    };
    RedisConfig { url: server.url.to_secret_string(), tls, limit: Duration::from_secs(5) }
}

/// Redis in front of the inbox, where there is one and it is wanted. It may be away, then or at any time.
pub(crate) async fn accelerator(context: &Context) -> Option<Accelerator> {
    let config = &context.config;
    let server = config.redis.as_ref().filter(|_| config.settings.redis.idempotency)?;
    let cache = RedisCache::new(at(config, server), config.settings.redis.idempotency_ttl());
    Some(Accelerator::start(Arc::new(cache), context.clock.clone(), accelerator_config(config)).await)
}

fn accelerator_config(config: &Config) -> AcceleratorConfig {
    let limit = Duration::from_millis(config.settings.redis.idempotency_limit_ms);
    AcceleratorConfig { limit, ..AcceleratorConfig::default() }
}

/// What the server says of itself.
pub(crate) async fn redis_facts(config: &Config, server: &Server) -> Result<RedisFacts, RedisError> {
    facts(at(config, server)).await
}

/// Where others see jobs, if a Redis is set. Connects when it is used.
pub(crate) fn job_view(config: &Config) -> anyhow::Result<Option<JobView>> {
    let Some(server) = &config.redis else { return Ok(None) };
    Ok(Some(JobView::new(Redis::lazy(state_redis(config, server))?, job_keys(config)?)))
}

/// The same server, at the database for progress.
pub(crate) fn state_redis(config: &Config, server: &Server) -> RedisConfig {
    let number = config.settings.redis.state_db;
    let with_path = server.url.get().and_then(|text| url::Url::parse(text).ok()).map(|mut url| {
        url.set_path(&number.to_string());
        url
    });
    // A url that cannot be read was refused when the configuration was.
    let url = with_path.map_or_else(|| server.url.to_secret_string(), |url| String::from(url).into());
    RedisConfig { url, ..at(config, server) }
}

/// The jobs that Redis alone decides on, if one is set; completions go through the outbox of the store.
pub(crate) fn jobs_in_redis<S: WholeStore>(
    store: &S,
    context: &Context,
) -> anyhow::Result<Option<RedisProgress>> {
    let config = &context.config;
    let Some(server) = &config.redis else { return Ok(None) };
    let redis = Redis::lazy(state_redis(config, server))?;
    let announcer = Arc::new(OutboxAnnouncer(store.clone()));
    Ok(Some(RedisProgress::new(redis, job_keys(config)?, announcer, context.clock.clone())))
}

fn job_keys(config: &Config) -> anyhow::Result<JobKeys> {
    let progress = &config.settings.progress;
    Ok(JobKeys::new(&progress.key_prefix, progress.ttl())?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Environment, Flags};

    #[test]
    fn the_binary_and_the_library_have_the_same_defaults() {
        let config = Config::load(&Flags::default(), &Environment::default()).unwrap();
        assert_eq!(accelerator_config(&config), AcceleratorConfig::default());
        assert_eq!(config.settings.redis.idempotency_ttl(), RedisCache::TTL);
        assert_eq!(job_keys(&config).unwrap(), JobKeys::default());
    }
}
