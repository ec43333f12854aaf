//! Many rows in one statement: fewer trips to SQLite's thread.

use sqlx::sqlite::SqliteArguments;
use sqlx::{AssertSqlSafe, SqliteConnection};

use super::error::from_sqlite;
use crate::store::StoreError;

/// Statements exist for these numbers of rows only, so that every text stays prepared.
const SIZES: [usize; 4] = [64, 16, 4, 1];

/// `INSERT … VALUES` for each of [`SIZES`], made once from a head and the number of its columns.
pub(super) struct Insert([String; SIZES.len()]);

impl Insert {
    /// From `INSERT INTO t (a, b) VALUES` and 2.
    pub(super) fn new(head: &str, columns: usize) -> Self {
        let row = format!("({})", vec!["?"; columns].join(", "));
        Self(SIZES.map(|size| format!("{head} {}", vec![row.as_str(); size].join(", "))))
    }

    /// Inserts all rows; `bind` adds the columns of one. On an error the caller rolls back.
    pub(super) async fn execute<R: Send>(
        &'static self,
        connection: &mut SqliteConnection,
        rows: Vec<R>,
        bind: impl Fn(R, &mut SqliteArguments) -> Result<(), sqlx::error::BoxDynError> + Send,
    ) -> Result<(), StoreError> {
        let mut rows = rows.into_iter();
        while rows.len() > 0 {
            let pick = SIZES.iter().position(|size| *size <= rows.len()).unwrap_or(SIZES.len() - 1);
            let mut arguments = SqliteArguments::default();
            for row in rows.by_ref().take(SIZES[pick]) {
                bind(row, &mut arguments).map_err(|error| from_sqlite(sqlx::Error::Encode(error)))?;
            }
            let query = sqlx::query_with(AssertSqlSafe(self.0[pick].as_str()), arguments);
            query.execute(&mut *connection).await.map_err(from_sqlite)?;
        }
        Ok(())
    }
}
