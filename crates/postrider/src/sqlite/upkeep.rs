//! The schema and the health of a SQLite file.

use futures_util::FutureExt as _;
use sqlx::SqliteConnection;

use super::error::from_sqlite;
use super::{Durability, Sqlite, schema};
use crate::store::{Migration, StoreError, StoreErrorKind, StoreFacts, StoreFigures, Upkeep};

impl Upkeep for Sqlite {
    async fn migrations(&self) -> Result<Vec<Migration>, StoreError> {
        let mut reader = self.readers().acquire().await.map_err(from_sqlite)?;
        let connection: &mut SqliteConnection = &mut reader;
        schema::list(connection).await
    }

    /// Nothing to do: the file was brought up to date when it was opened.
    async fn apply_migrations(&self) -> Result<Vec<Migration>, StoreError> {
        Ok(Vec::new())
    }

    async fn facts(&self) -> Result<StoreFacts, StoreError> {
        let version = sqlx::query_scalar("SELECT sqlite_version()").fetch_one(self.readers());
        let version: String = version.await.map_err(from_sqlite)?;
        let mut warnings = Vec::new();
        if self.shared.config.durability == Durability::System {
            warnings
                .push("commits do not wait for the disk: the newest may be lost with the power".to_owned());
        }
        // The file has no clock of its own: it is this machine's.
        Ok(StoreFacts { product: format!("SQLite {version}"), now: self.clock().now(), warnings })
    }

    /// Whether it may be written to, which whoever only reads would never notice: a statement that changes nothing.
    async fn findings(&self) -> Result<Vec<String>, StoreError> {
        let tried = self.writer().run(|connection| {
            async move {
                let nothing = sqlx::query("DELETE FROM lineage WHERE false").execute(connection);
                nothing.await.map(|_| ()).map_err(from_sqlite)
            }
            .boxed()
        });
        match tried.await {
            Err(error) if error.kind == StoreErrorKind::Denied => Ok(vec![error.message]),
            _ => Ok(Vec::new()),
        }
    }

    async fn figures(&self) -> Result<StoreFigures, StoreError> {
        let letters =
            "SELECT queue, sum(open) FROM dead_letter_group WHERE open > 0 GROUP BY queue ORDER BY queue";
        let letters: Vec<(String, i64)> =
            sqlx::query_as(letters).fetch_all(self.readers()).await.map_err(from_sqlite)?;
        let others = "SELECT (SELECT count(*) FROM operation WHERE state IN ('planned', 'running')), \
                             (SELECT max(version) FROM schema_version), \
                             (SELECT count(*) FROM dead_letter_group WHERE open > 0)";
        let (operations, schema, groups): (i64, i64, i64) =
            sqlx::query_as(others).fetch_one(self.readers()).await.map_err(from_sqlite)?;
        Ok(StoreFigures {
            open_letters: letters.into_iter().map(|(queue, open)| (queue, open.unsigned_abs())).collect(),
            open_groups: groups.unsigned_abs(),
            operations: operations.unsigned_abs(),
            schema: u32::try_from(schema).unwrap_or(0),
        })
    }
}
