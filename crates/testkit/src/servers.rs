//! Real servers for tests: PostgreSQL, Redis and RabbitMQ as child processes.
//!
//! Two ways to have one:
//!
//! - **Private**: [`Postgres::start`], [`Redis::start`], [`RabbitMq::start`], [`RabbitCluster::start`]. The test owns the
//!   server and may kill, pause and restart it. It has ports and a data folder of its own, ends with the value that owns
//!   it, and ends with the test process even when that process is killed.
//! - **Shared**: [`shared()`]. Servers started once for a whole test run (`scripts/servers up`); a test takes a database,
//!   a vhost and a key prefix of its own from them. A missing server fails the test; nothing is ever skipped.
//!
//! RabbitMQ comes in two versions, and a test says which: see [`RabbitVersion`].
//!
//! Nothing here touches a server that the machine itself runs: ports are picked free, folders are new.

mod disk;
mod fleet;
mod home;
pub(crate) mod http;
mod management;
pub(crate) mod ports;
mod postgres;
pub(crate) mod process;
mod rabbitmq;
mod redis;
mod shared;
mod tls;
mod tree;
pub(crate) mod wait;

pub use fleet::{Fleet, down, up};
pub use postgres::Postgres;
pub use rabbitmq::{RabbitCluster, RabbitMq, RabbitVersion};
pub use redis::Redis;
pub use shared::{Shared, TestDatabase, TestVhost, shared};
pub use tree::processes_in;
