//! The schema and the health of a PostgreSQL database.

mod findings;

use sqlx::Row as _;

use super::Postgres;
use super::migrate::{MigrationState as Known, MigrationStatus};
use crate::store::{Migration, MigrationState, StoreError, StoreFacts, StoreFigures, Upkeep};

/// What the promise asks of a server, and what is not the case when it is broken.
const SETTINGS: &str = "SELECT current_setting('server_version'), clock_timestamp(), current_setting('synchronous_commit'), \
     current_setting('fsync'), current_setting('full_page_writes'), pg_is_in_recovery()";

/// Groups are counted as letters come and go; there are few that are open.
const OPEN_LETTERS: &str = "SELECT queue, sum(open)::bigint FROM postrider.dead_letter_group WHERE open > 0 GROUP BY queue ORDER BY queue";

const OTHERS: &str = "SELECT (SELECT count(*) FROM postrider.operation WHERE state IN ('planned', 'running')), \
     (SELECT max(version) FROM postrider.schema_version), \
     (SELECT count(*) FROM postrider.dead_letter_group WHERE open > 0)";

impl Upkeep for Postgres {
    async fn migrations(&self) -> Result<Vec<Migration>, StoreError> {
        Ok(self.migration_status().await?.into_iter().map(plain).collect())
    }

    async fn apply_migrations(&self) -> Result<Vec<Migration>, StoreError> {
        Ok(self.migrate().await?.into_iter().map(plain).collect())
    }

    async fn facts(&self) -> Result<StoreFacts, StoreError> {
        let asked = async {
            let row = sqlx::query(SETTINGS).fetch_one(self.pool()).await?;
            let now = row.try_get::<jiff_sqlx::Timestamp, _>(1)?.to_jiff();
            let version: String = row.try_get(0)?;
            let (commit, fsync, pages): (String, String, String) =
                (row.try_get(2)?, row.try_get(3)?, row.try_get(4)?);
            let warnings = warnings(&commit, &fsync, &pages, row.try_get(5)?);
            Ok(StoreFacts { product: format!("PostgreSQL {version}"), now, warnings })
        };
        self.limited("asking for the server's settings", asked).await
    }

    async fn findings(&self) -> Result<Vec<String>, StoreError> {
        self.look_closely().await
    }

    async fn figures(&self) -> Result<StoreFigures, StoreError> {
        let counted = async {
            let letters: Vec<(String, i64)> = sqlx::query_as(OPEN_LETTERS).fetch_all(self.pool()).await?;
            let (operations, schema, groups): (i64, i32, i64) =
                sqlx::query_as(OTHERS).fetch_one(self.pool()).await?;
            Ok(StoreFigures {
                open_letters: letters.into_iter().map(|(queue, open)| (queue, open.unsigned_abs())).collect(),
                open_groups: groups.unsigned_abs(),
                operations: operations.unsigned_abs(),
                schema: schema.unsigned_abs(),
            })
        };
        self.limited("reading figures", counted).await
    }
}

fn plain(status: MigrationStatus) -> Migration {
    Migration {
        version: u32::try_from(status.version).unwrap_or(0),
        name: status.name,
        state: match status.state {
            Known::Pending => MigrationState::Missing,
            Known::Applied { .. } => MigrationState::Applied,
            Known::Changed { .. } => MigrationState::Changed,
            Known::Unknown { .. } => MigrationState::Unknown,
        },
    }
}

fn warnings(synchronous_commit: &str, fsync: &str, full_page_writes: &str, standby: bool) -> Vec<String> {
    let mut warnings = Vec::new();
    if synchronous_commit == "off" {
        warnings.push(
            "synchronous_commit is off: a crash of the server loses committed events; set it to on"
                .to_owned(),
        );
    }
    if fsync == "off" {
        warnings.push("fsync is off: a crash of the machine can ruin the database; set it to on".to_owned());
    }
    if full_page_writes == "off" {
        warnings
            .push("full_page_writes is off: a crash of the machine can ruin pages; set it to on".to_owned());
    }
    if standby {
        warnings.push("this server is a standby and takes no writes; connect to the primary".to_owned());
    }
    warnings
}
