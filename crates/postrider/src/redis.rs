//! Redis: an accelerator and a view. It may be lost entirely, at any moment, without losing or repeating an effect.

mod facts;

pub use facts::{RedisFacts, RedisUnreachable, facts};
