//! Published events that are found again, in the outbox and in its archive.

use std::collections::HashSet;

use serde_json::json;
use sqlx::AssertSqlSafe;
use uuid::Uuid;

use super::row;
use crate::envelope::EventId;
use crate::sqlite::{Sqlite, SqliteTx, from_sqlite};
use crate::store::{EventFilter, Found, Frozen, OutboxRow, Replays, StoreError, StoreErrorKind, read_item};
use crate::topology::ConsumerName;

/// `?1` to `?5` are the filter. What was sent again is no event of its own.
const MATCHING: &str = "SELECT position, created_at FROM {source} \
     WHERE status = 'published' AND verbatim IS NULL AND created_at >= ?1 AND created_at < ?2 \
       AND (?3 IS NULL OR aggregate_type = ?3) AND (?4 IS NULL OR event_type = ?4) AND (?5 IS NULL OR group_id = ?5)";

/// The columns of a claim; the archive has no key of its own.
const TAKE: &str = "SELECT position, created_at, id, group_id, subsidiary_id, aggregate_type, aggregate_id, event_type, \
         payload, body, content_type, occurred_at, \
         NULLIF(COALESCE(ordering_key, COALESCE(group_id || '/', '') || aggregate_type || '/' || aggregate_id), ''), \
         causation_id, correlation_id, traceparent, tracestate, exchange, routing_key, target_queue, attempts, verbatim, \
         dead_letter_id, headers \
     FROM {source} WHERE position IN (SELECT value FROM json_each(?1))";

impl Replays for Sqlite {
    async fn count_events(&self, filter: &EventFilter) -> Result<Found, StoreError> {
        let matching = MATCHING.replace(
            "created_at FROM {source}",
            "created_at, '{source}' = 'event_outbox' AS live FROM {source}",
        );
        let count = "SELECT count(*) FILTER (WHERE live), count(*) FILTER (WHERE NOT live) FROM ({matching})";
        let count = sqlx::query_as::<_, (i64, i64)>(AssertSqlSafe(everywhere(count, &matching)))
            .bind(filter.from.as_microsecond())
            .bind(filter.to.as_microsecond())
            .bind(&filter.aggregate_type)
            .bind(&filter.event_type)
            .bind(filter.tenant.as_ref().map(AsRef::<str>::as_ref));
        let (live, archived) = count.fetch_one(self.readers()).await.map_err(from_sqlite)?;
        Ok(Found { live: live.unsigned_abs(), archived: archived.unsigned_abs() })
    }

    async fn freeze_events(
        &self,
        tx: &mut SqliteTx,
        operation: Uuid,
        filter: &EventFilter,
        limit: Option<u64>,
    ) -> Result<u64, StoreError> {
        let insert = everywhere(
            "INSERT OR IGNORE INTO operation_item (operation_id, seq, subject) \
             SELECT ?6, position, position || '/' || created_at \
             FROM (SELECT * FROM ({matching}) ORDER BY position LIMIT ?7)",
            MATCHING,
        );
        let insert = sqlx::query(AssertSqlSafe(insert))
            .bind(filter.from.as_microsecond())
            .bind(filter.to.as_microsecond())
            .bind(filter.aggregate_type.clone())
            .bind(filter.event_type.clone())
            .bind(filter.tenant.as_ref().map(ToString::to_string))
            .bind(operation.to_string())
            // A negative limit is none.
            .bind(limit.map_or(-1, |limit| i64::try_from(limit).unwrap_or(i64::MAX)));
        tx.execute(insert).await?;
        counted(tx, operation).await
    }

    async fn freeze_documents(
        &self,
        tx: &mut SqliteTx,
        operation: Uuid,
        documents: Vec<(i64, String)>,
        limit: Option<u64>,
    ) -> Result<Frozen, StoreError> {
        let insert = "INSERT OR IGNORE INTO operation_item (operation_id, seq, subject) \
                      SELECT ?1, value ->> 0, value ->> 1 FROM json_each(?2)";
        let insert = sqlx::query(insert).bind(operation.to_string()).bind(json!(documents).to_string());
        tx.execute(insert).await?;
        let total = counted(tx, operation).await?;
        let Some(limit) =
            limit.and_then(|limit| i64::try_from(limit).ok()).filter(|limit| total >= limit.unsigned_abs())
        else {
            return Ok(Frozen { total, up_to: None });
        };
        let last = "SELECT seq FROM operation_item WHERE operation_id = ? ORDER BY seq LIMIT 1 OFFSET ? - 1";
        let last = sqlx::query_scalar(last).bind(operation.to_string()).bind(limit);
        let up_to: Option<i64> = last.fetch_optional(tx.connection().await?).await.map_err(from_sqlite)?;
        let cut = "DELETE FROM operation_item WHERE operation_id = ? AND seq > ?";
        tx.execute(sqlx::query(cut).bind(operation.to_string()).bind(up_to)).await?;
        Ok(Frozen { total: counted(tx, operation).await?, up_to })
    }

    async fn take_events(&self, tx: &mut SqliteTx, items: &[String]) -> Result<Vec<OutboxRow>, StoreError> {
        let wanted: HashSet<(i64, i64)> = items.iter().filter_map(|item| read_item(item)).collect();
        let positions: Vec<i64> = wanted.iter().map(|(position, _)| *position).collect();
        let take = everywhere("{matching} ORDER BY position", TAKE);
        let take = sqlx::query(AssertSqlSafe(take)).bind(json!(positions).to_string());
        let taken = take.fetch_all(tx.connection().await?).await.map_err(from_sqlite);
        if taken.is_err() {
            tx.fail();
        }
        let rows: Result<Vec<OutboxRow>, _> = taken?.iter().map(row::read).collect();
        let mut rows = rows.map_err(|unreadable| {
            let text = format!(
                "the published event at position {} cannot be read back ({}); nothing of this step was sent",
                unreadable.position, unreadable.error
            );
            StoreError::new(StoreErrorKind::Other, text)
        })?;
        // A position may be given out again after everything was removed; the time tells them apart.
        rows.retain(|row| wanted.contains(&(row.row.position, row.row.created_at.as_microsecond())));
        Ok(rows)
    }

    async fn forget_events(
        &self,
        tx: &mut SqliteTx,
        consumer: &ConsumerName,
        events: &[EventId],
    ) -> Result<u64, StoreError> {
        let forget = "DELETE FROM event_inbox WHERE consumer_name = ?1 AND event_id IN (SELECT value FROM json_each(?2))";
        let events: Vec<&str> = events.iter().map(EventId::as_str).collect();
        tx.execute(sqlx::query(forget).bind(consumer.to_string()).bind(json!(events).to_string())).await
    }

    fn archive_name(&self) -> String {
        "event_outbox".to_owned()
    }
}

/// How many items an operation has, noted in its row.
async fn counted(tx: &mut SqliteTx, operation: Uuid) -> Result<u64, StoreError> {
    let count = "UPDATE operation SET total = (SELECT count(*) FROM operation_item WHERE operation_id = ?1) \
                 WHERE id = ?1 RETURNING total";
    let count = sqlx::query_scalar::<_, i64>(count).bind(operation.to_string());
    Ok(count.fetch_one(tx.connection().await?).await.map_err(from_sqlite)?.unsigned_abs())
}

/// The statement with `{matching}` over the outbox and its archive. Made of constants only.
fn everywhere(statement: &str, matching: &str) -> String {
    let [live, archived] =
        ["event_outbox", "event_outbox_archive"].map(|source| matching.replace("{source}", source));
    statement.replace("{matching}", &format!("{live} UNION ALL {archived}"))
}
