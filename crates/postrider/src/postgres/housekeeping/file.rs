//! What a partition had, written to a file before it goes.

use super::{Round, STEP, filled};
use crate::archive::ArchiveFile;
use crate::store::{StoreError, StoreErrorKind};

impl Round<'_> {
    pub(super) async fn write_file(
        &mut self,
        folder: &std::path::Path,
        name: &str,
    ) -> Result<u64, StoreError> {
        let select = "SELECT position, row_to_json(p)::text FROM {schema}.\"{part}\" p WHERE position > $1 \
                      ORDER BY position LIMIT $2";
        let select = filled(select, &[("{part}", name)]);
        let mut file = ArchiveFile::create(folder, &format!("{}.{name}", self.postgres.table.schema()))
            .map_err(|error| not_written(folder, &error))?;
        let mut after = 0_i64;
        loop {
            let rows: Vec<(i64, String)> = sqlx::query_as(self.sql(&select))
                .bind(after)
                .bind(STEP)
                .fetch_all(&mut *self.connection)
                .await
                .map_err(self.fail())?;
            let Some((last, _)) = rows.last() else { break };
            after = *last;
            for (_, json) in &rows {
                file.line(json).map_err(|error| not_written(folder, &error))?;
            }
        }
        file.finish().map_err(|error| not_written(folder, &error))
    }
}

pub(super) fn not_written(folder: &std::path::Path, error: &std::io::Error) -> StoreError {
    let folder = folder.display();
    let message = format!(
        "the archive in {folder} cannot be written ({error}); nothing was removed, mend it and try again"
    );
    StoreError::new(StoreErrorKind::Unavailable, message)
}
