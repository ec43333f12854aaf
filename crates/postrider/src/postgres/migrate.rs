//! Makes and checks the schema `postrider`.
//!
//! Migrations run when asked for, never by themselves, all in one transaction: a crash leaves the schema as it was. An
//! advisory lock makes a second migrator wait for the first and then find its work done.

mod status;

pub use status::{MigrationState, MigrationStatus};

use std::fmt::Write as _;

use jiff::Timestamp;
use sha2::{Digest as _, Sha256};
use sqlx::{AssertSqlSafe, Executor as _, PgConnection, Row as _};

use super::Postgres;
use super::error::failed;
use crate::store::{StoreError, StoreErrorKind};

/// Every migration, in order.
const MIGRATIONS: &[Migration] = &[
    Migration {
        version: 1,
        name: "foundation",
        sql: include_str!("../../../../migrations/postgres/0001_foundation.sql"),
    },
    Migration {
        version: 2,
        name: "consumers",
        sql: include_str!("../../../../migrations/postgres/0002_consumers.sql"),
    },
    Migration {
        version: 3,
        name: "triage",
        sql: include_str!("../../../../migrations/postgres/0003_triage.sql"),
    },
    Migration {
        version: 4,
        name: "outbox",
        sql: include_str!("../../../../migrations/postgres/0004_outbox.sql"),
    },
    Migration {
        version: 6,
        name: "ledger",
        sql: include_str!("../../../../migrations/postgres/0006_ledger.sql"),
    },
    Migration {
        version: 7,
        name: "inbox",
        sql: include_str!("../../../../migrations/postgres/0007_inbox.sql"),
    },
    Migration {
        version: 9,
        name: "progress",
        sql: include_str!("../../../../migrations/postgres/0009_progress.sql"),
    },
    Migration { version: 10, name: "cdc", sql: include_str!("../../../../migrations/postgres/0010_cdc.sql") },
    Migration {
        version: 11,
        name: "push",
        sql: include_str!("../../../../migrations/postgres/0011_push.sql"),
    },
    Migration {
        version: 12,
        name: "migration",
        sql: include_str!("../../../../migrations/postgres/0012_migration.sql"),
    },
    Migration {
        version: 14,
        name: "replay",
        sql: include_str!("../../../../migrations/postgres/0014_replay.sql"),
    },
    Migration {
        version: 20,
        name: "ledger_source",
        sql: include_str!("../../../../migrations/postgres/0020_ledger_source.sql"),
    },
    Migration {
        version: 21,
        name: "held_event",
        sql: include_str!("../../../../migrations/postgres/0021_held_event.sql"),
    },
    Migration {
        version: 22,
        name: "pull_word",
        sql: include_str!("../../../../migrations/postgres/0022_pull_word.sql"),
    },
    Migration {
        version: 26,
        name: "ledger_closing",
        sql: include_str!("../../../../migrations/postgres/0026_ledger_closing.sql"),
    },
    Migration {
        version: 27,
        name: "pull_key",
        sql: include_str!("../../../../migrations/postgres/0027_pull_key.sql"),
    },
    Migration {
        version: 28,
        name: "letters_of_group",
        sql: include_str!("../../../../migrations/postgres/0028_letters_of_group.sql"),
    },
    Migration {
        version: 29,
        name: "inbox_mark",
        sql: include_str!("../../../../migrations/postgres/0029_inbox_mark.sql"),
    },
    Migration {
        version: 30,
        name: "bus_followers",
        sql: include_str!("../../../../migrations/postgres/0030_bus_followers.sql"),
    },
    Migration {
        version: 31,
        name: "payload_limit",
        sql: include_str!("../../../../migrations/postgres/0031_payload_limit.sql"),
    },
    Migration {
        version: 33,
        name: "outbox_times",
        sql: include_str!("../../../../migrations/postgres/0033_outbox_times.sql"),
    },
    Migration {
        version: 34,
        name: "lists_of_jobs",
        sql: include_str!("../../../../migrations/postgres/0034_lists_of_jobs.sql"),
    },
    Migration {
        version: 35,
        name: "dated_ahead",
        sql: include_str!("../../../../migrations/postgres/0035_dated_ahead.sql"),
    },
    Migration {
        version: 37,
        name: "marks_by_aggregate",
        sql: include_str!("../../../../migrations/postgres/0037_marks_by_aggregate.sql"),
    },
    Migration {
        version: 39,
        name: "positions",
        sql: include_str!("../../../../migrations/postgres/0039_positions.sql"),
    },
    Migration {
        version: 40,
        name: "parked_letter",
        sql: include_str!("../../../../migrations/postgres/0040_parked_letter.sql"),
    },
    Migration {
        version: 41,
        name: "collation",
        sql: include_str!("../../../../migrations/postgres/0041_collation.sql"),
    },
    Migration {
        version: 42,
        name: "waking",
        sql: include_str!("../../../../migrations/postgres/0042_waking.sql"),
    },
];

/// The migrations that a binary from before them cannot work with. Every other one only adds, so that old and new binaries run side by
/// side during an upgrade: migrate first, then roll the new binary out.
const BREAKING: &[i32] = &[1, 2, 3, 4, 6, 7, 9, 10, 11, 12];

/// "postrider" in ASCII, shortened to 64 bits: the lock of migrators.
const LOCK: i64 = 0x706f_7374_7269_6465;

/// The oldest server it works on.
const OLDEST_SERVER: i32 = 130_000;

struct Migration {
    version: i32,
    name: &'static str,
    sql: &'static str,
}

impl Migration {
    fn checksum(&self) -> String {
        let mut hex = String::with_capacity(64);
        for byte in Sha256::digest(self.sql.as_bytes()) {
            // Writing to a String cannot fail.
            let _ = write!(hex, "{byte:02x}");
        }
        hex
    }
}

struct Applied {
    version: i32,
    name: String,
    checksum: String,
    at: Timestamp,
    /// The oldest version whose binary works with it; of what was applied by a binary that did not say, itself.
    works_with: i32,
}

impl Postgres {
    /// Brings the schema to the version this binary needs. Returns what was applied now; nothing if it was there already.
    pub async fn migrate(&self) -> Result<Vec<MigrationStatus>, StoreError> {
        let fail = |cause| failed("migrating", &self.inner.place, cause);
        let mut transaction = self.transaction("BEGIN").await.map_err(fail)?;
        transaction.execute("SET LOCAL statement_timeout = 0").await.map_err(fail)?;
        sqlx::query("SELECT pg_advisory_xact_lock($1)")
            .bind(LOCK)
            .execute(&mut *transaction)
            .await
            .map_err(fail)?;
        self.check_server(&mut transaction).await?;
        prepare(&mut transaction).await.map_err(fail)?;
        let applied = applied(&mut transaction).await.map_err(fail)?;
        refuse_strangers(&applied)?;
        let missing: Vec<_> = MIGRATIONS
            .iter()
            .filter(|known| !applied.iter().any(|row| row.version == known.version))
            .collect();
        for migration in &missing {
            apply(&mut transaction, migration).await.map_err(fail)?;
        }
        transaction.commit().await.map_err(fail)?;
        let status = self.migration_status().await?;
        Ok(status.into_iter().filter(|row| missing.iter().any(|done| done.version == row.version)).collect())
    }

    /// Every migration that this binary or the database knows.
    pub async fn migration_status(&self) -> Result<Vec<MigrationStatus>, StoreError> {
        let applied = self.applied_migrations().await?;
        let known = MIGRATIONS.iter().map(|known| MigrationStatus {
            version: known.version,
            name: known.name.to_owned(),
            state: match applied.iter().find(|row| row.version == known.version) {
                None => MigrationState::Pending,
                Some(row) if row.checksum == known.checksum() => MigrationState::Applied { at: row.at },
                Some(row) => MigrationState::Changed { at: row.at },
            },
        });
        let unknown = applied.iter().filter(|row| row.version > newest_known()).map(|row| MigrationStatus {
            version: row.version,
            name: row.name.clone(),
            state: MigrationState::Unknown { at: row.at },
        });
        Ok(known.chain(unknown).collect())
    }

    async fn applied_migrations(&self) -> Result<Vec<Applied>, StoreError> {
        self.limited("reading the schema version", async {
            let mut connection = self.pool().acquire().await?;
            let there: bool =
                sqlx::query_scalar("SELECT to_regclass('postrider.schema_version') IS NOT NULL")
                    .fetch_one(&mut *connection)
                    .await?;
            if there { applied(&mut connection).await } else { Ok(Vec::new()) }
        })
        .await
    }

    async fn check_server(&self, connection: &mut PgConnection) -> Result<(), StoreError> {
        let row = sqlx::query(
            "SELECT current_setting('server_version_num')::int, current_setting('server_version'), \
             current_setting('server_encoding')",
        )
        .fetch_one(connection)
        .await
        .map_err(|cause| failed("migrating", &self.inner.place, cause))?;
        let (number, version, encoding): (i32, String, String) = (row.get(0), row.get(1), row.get(2));
        if number < OLDEST_SERVER {
            let message = format!("PostgreSQL {version} is too old; version 13 or newer is needed");
            return Err(StoreError::new(StoreErrorKind::Schema, message));
        }
        if encoding != "UTF8" {
            let message = format!("the database is encoded in {encoding}; create one with ENCODING 'UTF8'");
            return Err(StoreError::new(StoreErrorKind::Schema, message));
        }
        Ok(())
    }
}

/// Whether the schema is there, and neither too old nor too new.
pub(super) async fn check(postgres: &Postgres) -> Result<(), StoreError> {
    let applied = postgres.applied_migrations().await?;
    refuse_strangers(&applied)?;
    let has = applied.iter().map(|row| row.version).max().unwrap_or(0);
    let needs = newest_known();
    let message = match has {
        0 => "the database has no schema `postrider` yet; run `postrider db migrate`".to_owned(),
        _ if has < needs => {
            format!("the schema has version {has}, this binary needs {needs}; run `postrider db migrate`")
        }
        _ => match MIGRATIONS.iter().find(|known| applied.iter().all(|row| row.version != known.version)) {
            Some(Migration { version, name, .. }) => {
                format!("the schema lacks migration {version} ({name}); run `postrider db migrate`")
            }
            None => return Ok(()),
        },
    };
    Err(StoreError::new(StoreErrorKind::Schema, message))
}

/// Refuses what another binary made of the schema, unless it is newer and says that this one may go on.
fn refuse_strangers(applied: &[Applied]) -> Result<(), StoreError> {
    let knows = newest_known();
    // What a newer binary made is left alone, as long as it says that this one may go on.
    let stranger = applied.iter().filter(|row| row.version > knows && row.works_with > knows);
    if let Some(newer) = stranger.map(|row| row.version).max() {
        let message =
            format!("this binary knows schema version {knows}, the database has {newer}; upgrade the binary");
        return Err(StoreError::new(StoreErrorKind::Schema, message));
    }
    let changed = |known: &&Migration| {
        applied.iter().any(|row| row.version == known.version && row.checksum != known.checksum())
    };
    match MIGRATIONS.iter().find(changed) {
        None => Ok(()),
        Some(Migration { version, name, .. }) => {
            let message = format!(
                "migration {version} ({name}) was applied with another text than this binary has; use the binary that \
                 made this schema, or a fresh database"
            );
            Err(StoreError::new(StoreErrorKind::Schema, message))
        }
    }
}

/// The schema and its list of versions. A schema that an administrator made is used as it is.
async fn prepare(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    let there: bool = sqlx::query_scalar("SELECT to_regnamespace('postrider') IS NOT NULL")
        .fetch_one(&mut *connection)
        .await?;
    if !there {
        connection.execute("CREATE SCHEMA postrider").await?;
    }
    let there: bool = sqlx::query_scalar("SELECT to_regclass('postrider.schema_version') IS NOT NULL")
        .fetch_one(&mut *connection)
        .await?;
    if !there {
        connection
            .execute(
                "CREATE TABLE postrider.schema_version (version integer PRIMARY KEY, name text NOT NULL, \
                 checksum text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now())",
            )
            .await?;
    }
    connection
        .execute("ALTER TABLE postrider.schema_version ADD COLUMN IF NOT EXISTS works_with integer")
        .await?;
    Ok(())
}

/// The oldest version whose binary works with this migration and all before it.
fn works_with(version: i32) -> i32 {
    BREAKING.iter().copied().filter(|breaking| *breaking <= version).max().unwrap_or(version)
}

async fn apply(connection: &mut PgConnection, migration: &Migration) -> Result<(), sqlx::Error> {
    // The text is a file of this repository.
    connection.execute(sqlx::raw_sql(AssertSqlSafe(migration.sql))).await?;
    sqlx::query(
        "INSERT INTO postrider.schema_version (version, name, checksum, works_with) VALUES ($1, $2, $3, $4)",
    )
    .bind(migration.version)
    .bind(migration.name)
    .bind(migration.checksum())
    .bind(works_with(migration.version))
    .execute(connection)
    .await?;
    Ok(())
}

async fn applied(connection: &mut PgConnection) -> Result<Vec<Applied>, sqlx::Error> {
    // Read so that a table from before the column can be read too.
    let rows = sqlx::query(
        "SELECT version, name, checksum, applied_at, COALESCE((to_jsonb(v) ->> 'works_with')::int, version) \
         FROM postrider.schema_version v ORDER BY version",
    )
    .fetch_all(connection)
    .await?;
    rows.iter()
        .map(|row| {
            Ok(Applied {
                version: row.try_get(0)?,
                name: row.try_get(1)?,
                checksum: row.try_get(2)?,
                at: row.try_get::<jiff_sqlx::Timestamp, _>(3)?.to_jiff(),
                works_with: row.try_get(4)?,
            })
        })
        .collect()
}

fn newest_known() -> i32 {
    MIGRATIONS.last().map_or(0, |migration| migration.version)
}
