//! Redis: an accelerator and a view. It may be lost entirely, at any moment, without losing or repeating an effect.

mod config;
mod connection;
mod error;
mod facts;
mod idempotency;
mod progress;
mod server;

pub use config::{RedisConfig, RedisTls};
pub use error::{RedisError, RedisErrorKind};
pub use facts::{RedisFacts, facts};
pub use idempotency::RedisCache;
pub use progress::{JobKeys, RedisProgress, RedisView};
pub use server::Redis;
