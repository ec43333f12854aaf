//! The integration tests of the library, in one binary. Needs the shared servers: `scripts/test`.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod conformance;
mod dedup;
mod embedded;
mod harness;
mod operator;
mod postgres;
mod progress;
mod push;
mod rabbitmq;
mod redis;
mod runtime;
mod sqlite;
mod streaming;
