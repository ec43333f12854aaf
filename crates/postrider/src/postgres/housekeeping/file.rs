//! What a partition had, written to a file before it goes.

use futures_util::TryStreamExt as _;

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
            self.go_on().await?;
            let (before, fail) = (after, self.fail());
            let step = sqlx::query_as::<_, (i64, String)>(self.sql(&select)).bind(after).bind(STEP);
            // Written as they come: so many rows at once may be more than fits into memory.
            let mut rows = step.fetch(&mut *self.connection);
            while let Some((position, json)) = rows.try_next().await.map_err(&fail)? {
                after = position;
                file.line(&json).map_err(|error| not_written(folder, &error))?;
            }
            if after == before {
                break;
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
