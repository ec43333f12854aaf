//! The ledger on real databases.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests say what went wrong by panicking")]

mod intake;
mod postgres;
mod sqlite;
