//! What has not been published.

use jiff::Timestamp;
use sqlx::sqlite::SqlitePool;

use super::time;
use crate::sqlite::from_sqlite;
use crate::store::{Backlog, StoreError};

pub(super) async fn read(readers: &SqlitePool, now: Timestamp) -> Result<Backlog, StoreError> {
    // Both parts walk an index that has only what is not published yet, however long the archive is.
    let select = "SELECT count(*) FILTER (WHERE available_at <= ?1), count(*) FILTER (WHERE available_at > ?1), \
                         (SELECT count(*) FROM event_outbox INDEXED BY event_outbox_parked \
                          WHERE status IN ('failed', 'dead') AND status = 'dead' AND dead_letter_id IS NULL), \
                         (SELECT count(DISTINCT \"key\") FROM event_outbox INDEXED BY event_outbox_parked \
                          WHERE status IN ('failed', 'dead') AND status = 'dead'), \
                         min(created_at) FILTER (WHERE available_at <= ?1) \
                  FROM event_outbox INDEXED BY event_outbox_waiting WHERE status IN ('pending', 'failed')";
    let (due, later, dead, parked, oldest): (i64, i64, i64, i64, Option<i64>) =
        sqlx::query_as(select).bind(now.as_microsecond()).fetch_one(readers).await.map_err(from_sqlite)?;
    Ok(Backlog {
        due: due.unsigned_abs(),
        later: later.unsigned_abs(),
        dead: dead.unsigned_abs(),
        parked_keys: parked.unsigned_abs(),
        oldest_due: oldest.map(time),
    })
}
