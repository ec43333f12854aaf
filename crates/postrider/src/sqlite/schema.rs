//! The tables of the file, brought up to date when it is opened.
//!
//! Each migration commits whole or not at all, together with its number, so a crash in the middle costs nothing: the next
//! one who opens the file goes on. Processes that open it at the same time wait for each other.

use jiff::Timestamp;
use sqlx::SqliteConnection;

use super::error::from_sqlite;
use crate::store::{Migration, MigrationState, StoreError, StoreErrorKind};

/// The migrations, in order; the first has number 1. Never change one that was released.
const MIGRATIONS: &[&str] = &[
    include_str!("../../../../migrations/sqlite/0001_foundation.sql"),
    include_str!("../../../../migrations/sqlite/0002_broker.sql"),
    include_str!("../../../../migrations/sqlite/0003_consumers.sql"),
    include_str!("../../../../migrations/sqlite/0004_triage.sql"),
    include_str!("../../../../migrations/sqlite/0005_outbox.sql"),
    include_str!("../../../../migrations/sqlite/0006_topology.sql"),
    include_str!("../../../../migrations/sqlite/0007_ledger.sql"),
    include_str!("../../../../migrations/sqlite/0008_progress.sql"),
    include_str!("../../../../migrations/sqlite/0009_inbox.sql"),
    include_str!("../../../../migrations/sqlite/0010_push.sql"),
    include_str!("../../../../migrations/sqlite/0011_replay.sql"),
    include_str!("../../../../migrations/sqlite/0012_migration.sql"),
    include_str!("../../../../migrations/sqlite/0013_ledger_final.sql"),
    include_str!("../../../../migrations/sqlite/0014_pull_key.sql"),
    include_str!("../../../../migrations/sqlite/0015_bus_followers.sql"),
    include_str!("../../../../migrations/sqlite/0016_lists_of_jobs.sql"),
    include_str!("../../../../migrations/sqlite/0017_parked_letter.sql"),
];

/// Applies what is missing.
pub(super) async fn migrate(connection: &mut SqliteConnection, now: Timestamp) -> Result<(), StoreError> {
    if version(connection).await? == MIGRATIONS.len() {
        return Ok(());
    }
    sqlx::raw_sql("BEGIN IMMEDIATE").execute(&mut *connection).await.map_err(from_sqlite)?;
    let migrated = apply(connection, now).await;
    let end = if migrated.is_ok() { "COMMIT" } else { "ROLLBACK" };
    let ended = sqlx::raw_sql(end).execute(&mut *connection).await;
    migrated?;
    ended.map(|_| ()).map_err(from_sqlite)
}

/// Says what to do if the file's schema is not the one of this version.
pub(super) async fn check(connection: &mut SqliteConnection) -> Result<(), StoreError> {
    let (found, known) = (version(connection).await?, MIGRATIONS.len());
    if found < known {
        let text = format!(
            "the SQLite file has schema {found}, this version needs {known}; open it once to migrate it"
        );
        return Err(StoreError::new(StoreErrorKind::Schema, text));
    }
    not_newer(found)
}

/// Every migration, and whether the file has it.
pub(super) async fn list(connection: &mut SqliteConnection) -> Result<Vec<Migration>, StoreError> {
    let found = version(connection).await?;
    let known = (1_u32..).zip(MIGRATIONS).enumerate().map(|(index, (version, sql))| Migration {
        version,
        name: called(sql).to_owned(),
        state: if index < found { MigrationState::Applied } else { MigrationState::Missing },
    });
    Ok(known.collect())
}

/// What its first line says, to the end of the sentence or to the colon.
fn called(sql: &str) -> &str {
    let first = sql.lines().next().unwrap_or_default().trim_start_matches("-- ");
    first.split(['.', ':']).next().unwrap_or_default()
}

async fn apply(connection: &mut SqliteConnection, now: Timestamp) -> Result<(), StoreError> {
    let create = "CREATE TABLE IF NOT EXISTS schema_version (version INTEGER PRIMARY KEY, applied_at INTEGER NOT NULL)";
    sqlx::raw_sql(create).execute(&mut *connection).await.map_err(from_sqlite)?;
    // Read again: another process may have migrated while this one waited.
    let found = version(connection).await?;
    not_newer(found)?;
    for (number, sql) in (1_i64..).zip(MIGRATIONS).skip(found) {
        sqlx::raw_sql(*sql).execute(&mut *connection).await.map_err(from_sqlite)?;
        let insert = "INSERT INTO schema_version (version, applied_at) VALUES (?, ?)";
        let insert = sqlx::query(insert).bind(number).bind(now.as_microsecond());
        insert.execute(&mut *connection).await.map_err(from_sqlite)?;
    }
    Ok(())
}

fn not_newer(found: usize) -> Result<(), StoreError> {
    let known = MIGRATIONS.len();
    if found <= known {
        return Ok(());
    }
    let text = format!(
        "the SQLite file has schema {found}, this version knows {known} and leaves it alone; run the newer version that \
         made it, or choose another file"
    );
    Err(StoreError::new(StoreErrorKind::Schema, text))
}

/// 0 for an empty file.
async fn version(connection: &mut SqliteConnection) -> Result<usize, StoreError> {
    let exists = "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = 'schema_version'";
    let exists: i64 = sqlx::query_scalar(exists).fetch_one(&mut *connection).await.map_err(from_sqlite)?;
    if exists == 0 {
        return Ok(0);
    }
    let newest = "SELECT coalesce(max(version), 0) FROM schema_version";
    let newest: i64 = sqlx::query_scalar(newest).fetch_one(connection).await.map_err(from_sqlite)?;
    Ok(usize::try_from(newest).unwrap_or(usize::MAX))
}
