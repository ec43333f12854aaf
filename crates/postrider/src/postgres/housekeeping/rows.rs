//! Old published rows where there is no partition to end: in the default one, or in a table that has none.
//!
//! A step is one transaction. What goes into a table never leaves the database, and what goes into a file is written as it comes, so memory
//! does not depend on how large events are.

use futures_util::TryStreamExt as _;
use sqlx::Connection as _;

use super::file::not_written;
use super::{Round, STEP, carry, fail_of, sql};
use crate::archive::ArchiveFile;
use crate::store::{Archive, StoreError};

/// Takes rows out, with their ids. Looks at the first so many alone: positions go by time, and where the first are young, there is no need to
/// read all of the others at every round. A position says nothing alone: where the sequence began anew, as after an upgrade by logical
/// replication, a row that is not published yet may have that of an old one.
const GONE: &str = "WITH gone AS (DELETE FROM {from} WHERE (position, created_at) IN (SELECT position, created_at FROM ( \
         SELECT position, created_at FROM {from} WHERE status = 'published' ORDER BY position LIMIT $2) first \
         WHERE created_at < now() - $1) AND status = 'published' RETURNING *), \
     ids AS (DELETE FROM {ids} WHERE id IN (SELECT id::text FROM gone))";

const REMOVED: &str = "SELECT count(*) FROM gone";

/// A payload that is the JSON `null` comes out of its document as none at all.
const ARCHIVED: &str = ", kept AS (INSERT INTO {archive} ({columns}) SELECT {values} \
         FROM (SELECT to_jsonb(gone) AS document FROM gone) old, jsonb_populate_record(NULL::{archive}, document)) \
     SELECT count(*) FROM gone";

const READ: &str = "SELECT position, (extract(epoch FROM created_at) * 1000000)::bigint, row_to_json(gone)::text \
     FROM gone ORDER BY position";

/// What a row has that is not computed.
const COLUMNS: &str = "position, id, group_id, subsidiary_id, aggregate_type, aggregate_id, event_type, payload, body, \
     content_type, status, available_at, attempts, created_at, occurred_at, ordering_key, causation_id, correlation_id, \
     traceparent, tracestate, headers, exchange, routing_key, target_queue, published_at, last_error, event_id, \
     verbatim, dead_letter_id";

impl Round<'_> {
    pub(super) async fn remove_old_rows(&mut self, partitioned: bool) -> Result<(), StoreError> {
        let archive = &self.rules.archive;
        let carried = format!(", carried AS ({})", carry("gone"));
        let rest = match archive {
            Archive::Nowhere => format!("{carried} {REMOVED}"),
            Archive::Files(_) => format!("{carried} {READ}"),
            Archive::Table => {
                self.make_archive_table().await.map_err(self.fail())?;
                let values = COLUMNS.replace(
                    " payload,",
                    " CASE WHEN body IS NULL THEN COALESCE(payload, 'null'::jsonb) ELSE payload END,",
                );
                ARCHIVED.replace("{columns}", COLUMNS).replace("{values}", &values)
            }
        };
        let from = if partitioned { "{default}" } else { "{outbox}" };
        let take = format!("{GONE} {rest}").replace("{from}", from);
        loop {
            self.go_on().await?;
            let removed = match archive {
                Archive::Files(folder) => self.move_to_file(&take, folder).await?,
                Archive::Nowhere | Archive::Table => self.move_away(&take).await?,
            };
            self.kept.removed += removed;
            if *archive != Archive::Nowhere {
                self.kept.archived += removed;
            }
            if removed == 0 {
                return Ok(());
            }
        }
    }

    async fn move_away(&mut self, take: &str) -> Result<u64, StoreError> {
        let take = sqlx::query_scalar::<_, i64>(self.sql(take)).bind(self.rules.keep).bind(STEP);
        Ok(take.fetch_one(&mut *self.connection).await.map_err(self.fail())?.unsigned_abs())
    }

    /// The rows are gone when the file is on the disk, and not before.
    async fn move_to_file(&mut self, take: &str, folder: &std::path::Path) -> Result<u64, StoreError> {
        let fail = fail_of(self.postgres);
        let unwritten = |error: std::io::Error| not_written(folder, &error);
        let mut transaction = self.connection.begin().await.map_err(&fail)?;
        let mut file: Option<ArchiveFile> = None;
        let take = sqlx::query_as::<_, (i64, i64, String)>(sql(self.postgres, take));
        let mut rows = take.bind(self.rules.keep).bind(STEP).fetch(&mut *transaction);
        while let Some((position, time, json)) = rows.try_next().await.map_err(&fail)? {
            let into = if let Some(file) = &mut file {
                file
            } else {
                // With its time: where positions began anew, another file may begin at this one, and would be written over.
                let (table, time) = (&self.postgres.table, time.unsigned_abs());
                let name = format!("{table}.from{position:020}{time:020}");
                file.insert(ArchiveFile::create(folder, &name).map_err(unwritten)?)
            };
            into.line(&json).map_err(unwritten)?;
        }
        drop(rows);
        let written = file.map_or(Ok(0), ArchiveFile::finish).map_err(unwritten)?;
        transaction.commit().await.map_err(&fail)?;
        Ok(written)
    }
}
