//! How migrations stand, for people.

use jiff::Timestamp;

/// One migration, and whether the database has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MigrationStatus {
    /// Its number.
    pub version: i32,
    /// What it makes.
    pub name: String,
    /// Where it stands.
    pub state: MigrationState,
}

/// Where a migration stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MigrationState {
    /// Not applied yet.
    Pending,
    /// Applied.
    Applied {
        /// When.
        at: Timestamp,
    },
    /// Applied with another text than this binary has.
    Changed {
        /// When.
        at: Timestamp,
    },
    /// Applied by a newer binary.
    Unknown {
        /// When.
        at: Timestamp,
    },
}
