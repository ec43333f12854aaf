//! Every implementation of every port under its suite.

mod embedded;
mod postgres;
mod rabbitmq;
mod sqlite;
