//! Every implementation of every port under its suite.

mod embedded;
mod postgres;
mod progress;
mod rabbitmq;
pub(crate) mod redis;
mod sqlite;
