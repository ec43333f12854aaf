//! What is old and published leaves the outbox, some rows at a time, so that no writer waits long.

use futures_util::{FutureExt as _, TryStreamExt as _};
use sqlx::SqliteConnection;

use super::update;
use crate::archive::ArchiveFile;
use crate::sqlite::{Sqlite, from_sqlite};
use crate::store::{Archive, HouseRules, Housekeeping, Kept, RelayId, StoreError, StoreErrorKind};

/// Rows at a time.
const STEP: i64 = 1_000;

const COLUMNS: &str = "position, id, group_id, subsidiary_id, aggregate_type, aggregate_id, event_type, payload, body, \
     content_type, status, available_at, attempts, created_at, occurred_at, ordering_key, causation_id, correlation_id, \
     traceparent, tracestate, headers, exchange, routing_key, target_queue, published_at, last_error, event_id, \
     verbatim, dead_letter_id";

/// A row as a document.
const DOCUMENT: &str = "json_object('position', position, 'id', id, 'group_id', group_id, 'subsidiary_id', subsidiary_id, \
     'aggregate_type', aggregate_type, 'aggregate_id', aggregate_id, 'event_type', event_type, \
     'payload', json(payload), 'body', iif(body IS NULL, NULL, '\\x' || lower(hex(body))), \
     'content_type', content_type, 'attempts', attempts, 'created_at', created_at, 'occurred_at', occurred_at, \
     'ordering_key', ordering_key, 'key', \"key\", 'causation_id', causation_id, 'correlation_id', correlation_id, \
     'traceparent', traceparent, 'tracestate', tracestate, 'headers', json(headers), \
     'status', status, 'event_id', event_id, 'verbatim', iif(verbatim IS NULL, NULL, '\\x' || lower(hex(verbatim))), \
     'dead_letter_id', dead_letter_id, \
     'exchange', exchange, 'routing_key', routing_key, 'target_queue', target_queue, \
     'published_at', published_at)";

/// What unfinished replays still have to send of rows that leave for where they would not find them: each of their items becomes the whole
/// document, as one that was read from a file.
const CARRY: &str = "UPDATE operation_item SET subject = (SELECT {document} FROM event_outbox WHERE position = operation_item.seq) \
     WHERE operation_id IN (SELECT id FROM operation WHERE kind = 'replay_outbox' AND state IN ('planned', 'running')) \
       AND seq IN (SELECT value FROM json_each(?1)) \
       AND subject IN (SELECT position || '/' || created_at FROM event_outbox WHERE position = operation_item.seq AND +status = 'published')";

/// The last position of a step, over an index that has published rows by their time.
const STEP_END: &str = "SELECT position FROM event_outbox INDEXED BY event_outbox_published \
     WHERE status = 'published' AND published_at < ?1 ORDER BY published_at LIMIT ?2";

impl Housekeeping for Sqlite {
    async fn keep_house(&self, _worker: &RelayId, rules: &HouseRules) -> Result<Option<Kept>, StoreError> {
        let mut kept = Kept::default();
        let before = self.kept_since(rules);
        loop {
            let positions: Vec<i64> = sqlx::query_scalar(STEP_END)
                .bind(before)
                .bind(STEP)
                .fetch_all(self.readers())
                .await
                .map_err(from_sqlite)?;
            if positions.is_empty() {
                return Ok(Some(kept));
            }
            if let Archive::Files(folder) = &rules.archive {
                kept.archived += self.write_file(folder, &positions).await?;
            }
            let into_table = rules.archive == Archive::Table;
            let step = serde_json::json!(positions).to_string();
            let removed =
                self.writer().run(move |connection| remove(connection, step, into_table).boxed()).await?;
            kept.removed += removed as u64;
            if into_table {
                kept.archived += removed as u64;
            }
        }
    }

    async fn would_keep_house(&self, rules: &HouseRules) -> Result<Kept, StoreError> {
        let removed: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM event_outbox INDEXED BY event_outbox_published \
             WHERE status = 'published' AND published_at < ?1",
        )
        .bind(self.kept_since(rules))
        .fetch_one(self.readers())
        .await
        .map_err(from_sqlite)?;
        let removed = removed.unsigned_abs();
        let archived = if rules.archive == Archive::Nowhere { 0 } else { removed };
        Ok(Kept { archived, removed, ..Kept::default() })
    }
}

impl Sqlite {
    /// What was published before this time is old.
    fn kept_since(&self, rules: &HouseRules) -> i64 {
        self.clock().now().saturating_sub(rules.keep).map_or(0, jiff::Timestamp::as_microsecond)
    }

    async fn write_file(&self, folder: &std::path::Path, positions: &[i64]) -> Result<u64, StoreError> {
        let unwritten = |error: std::io::Error| {
            let folder = folder.display();
            let message = format!(
                "the archive in {folder} cannot be written ({error}); nothing was removed, mend it and try again"
            );
            StoreError::new(StoreErrorKind::Unavailable, message)
        };
        let first = positions.iter().min().copied().unwrap_or(0);
        let mut file =
            ArchiveFile::create(folder, &format!("event_outbox.from{first:020}")).map_err(unwritten)?;
        let lines = format!(
            "SELECT {DOCUMENT} FROM event_outbox WHERE position IN (SELECT value FROM json_each(?1)) ORDER BY position"
        );
        let lines = sqlx::query_scalar::<_, String>(sqlx::AssertSqlSafe(lines))
            .bind(serde_json::json!(positions).to_string());
        // Written as they come: so many at once may be more than fits into memory.
        let mut lines = lines.fetch(self.readers());
        while let Some(line) = lines.try_next().await.map_err(from_sqlite)? {
            file.line(&line).map_err(unwritten)?;
        }
        file.finish().map_err(unwritten)
    }
}

async fn remove(
    connection: &mut SqliteConnection,
    positions: String,
    keep: bool,
) -> Result<usize, StoreError> {
    if keep {
        let copy = format!(
            "INSERT OR REPLACE INTO event_outbox_archive ({COLUMNS}) SELECT {COLUMNS} FROM event_outbox \
             WHERE position IN (SELECT value FROM json_each(?1))"
        );
        update(connection, sqlx::query(sqlx::AssertSqlSafe(copy)).bind(positions.clone())).await?;
    } else {
        let carry = sqlx::AssertSqlSafe(CARRY.replace("{document}", DOCUMENT));
        update(connection, sqlx::query(carry).bind(positions.clone())).await?;
    }
    let delete = "DELETE FROM event_outbox WHERE position IN (SELECT value FROM json_each(?1)) AND +status = 'published'";
    update(connection, sqlx::query(delete).bind(positions)).await
}
