//! What an operator asks of a database: its schema, its clock, and whether it is set up to keep what it is told.

use std::future::Future;

use jiff::Timestamp;

use super::{Store, StoreError};

/// Schema and health of a store.
pub trait Upkeep: Store {
    /// The migrations this version knows, the oldest first, each with whether the database has it. Writes nothing.
    fn migrations(&self) -> impl Future<Output = Result<Vec<Migration>, StoreError>> + Send;

    /// Applies what is missing, one transaction each, and says what it applied.
    fn apply_migrations(&self) -> impl Future<Output = Result<Vec<Migration>, StoreError>> + Send;

    /// What the database says of itself.
    fn facts(&self) -> impl Future<Output = Result<StoreFacts, StoreError>> + Send;

    /// What takes a closer look than [`Self::facts`]: what stands between us and the database, and what a failover would lose.
    /// Each says what is the matter and what to do.
    fn findings(&self) -> impl Future<Output = Result<Vec<String>, StoreError>> + Send {
        std::future::ready(Ok(Vec::new()))
    }

    /// What people watch, read from what is counted already: never a walk through a table that grows.
    fn figures(&self) -> impl Future<Output = Result<StoreFigures, StoreError>> + Send;
}

/// One step of the schema.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Migration {
    /// Its number, from 1.
    pub version: u32,
    /// What it brings.
    pub name: String,
    /// Whether the database has it.
    pub state: MigrationState,
}

/// Whether the database has a migration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MigrationState {
    /// It has it.
    Applied,
    /// It does not have it yet.
    Missing,
    /// It has it, with another text than this version knows.
    Changed,
    /// It has it, from a newer version.
    Unknown,
}

impl MigrationState {
    /// The word for it, in tables.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Applied => "applied",
            Self::Missing => "missing",
            Self::Changed => "changed",
            Self::Unknown => "unknown",
        }
    }
}

/// What a database says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreFacts {
    /// Name and version: `PostgreSQL 15.14`.
    pub product: String,
    /// The time by its own clock.
    pub now: Timestamp,
    /// Settings under which a promise does not hold: what is set, and what to do. Empty when all is well.
    pub warnings: Vec<String>,
}

/// What people watch of a store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoreFigures {
    /// Dead letters that nobody has replayed or discarded, by the queue they were consumed from.
    pub open_letters: Vec<(String, u64)>,
    /// For how many reasons they died.
    pub open_groups: u64,
    /// Operations that are not finished.
    pub operations: u64,
    /// The version of the schema.
    pub schema: u32,
}
