//! Recording what became of claimed rows, fenced by the ownership of their slots.
//!
//! Marks come after confirms. A crash in between publishes the rows again, with the same ids.

use std::time::Duration;

use jiff::Timestamp;
use jiff_sqlx::ToSqlx as _;

use super::Postgres;
use crate::store::{PublishResult, RelayId, RowId, RowResult, StoreError};

/// A row that is published stays so, whatever a relay that was slow says later. The range of `created_at` leaves out the
/// partitions that have none of the rows.
const PUBLISHED: &str = "UPDATE postrider.event_outbox o \
     SET status = 'published', published_at = now(), last_error = NULL \
     FROM UNNEST($2::bigint[], $3::timestamptz[]) AS done (position, created_at), postrider.outbox_slot s \
     WHERE o.position = done.position AND o.created_at = done.created_at AND o.created_at BETWEEN $4 AND $5 \
       AND o.status IN ('pending', 'failed') AND s.slot = o.slot AND s.owner = $1";

/// Delays are counted from the database's own time.
const FAILED: &str = "UPDATE postrider.event_outbox o \
     SET status = CASE WHEN done.delay IS NULL THEN 'dead' ELSE 'failed' END, attempts = o.attempts + 1, \
         available_at = now() + COALESCE(done.delay, interval '0'), last_error = done.error \
     FROM UNNEST($2::bigint[], $3::timestamptz[], $6::text[], $7::interval[]) \
         AS done (position, created_at, error, delay), postrider.outbox_slot s \
     WHERE o.position = done.position AND o.created_at = done.created_at AND o.created_at BETWEEN $4 AND $5 \
       AND o.status IN ('pending', 'failed') AND s.slot = o.slot AND s.owner = $1";

/// The longest delay before a retry; also keeps every interval within PostgreSQL's.
const LONGEST_DELAY: Duration = Duration::from_secs(365 * 24 * 3600);

impl Postgres {
    pub(super) async fn settle_rows(
        &self,
        relay: &RelayId,
        results: Vec<RowResult>,
    ) -> Result<usize, StoreError> {
        let now = self.clock().now();
        let mut published = Vec::new();
        let mut failed = Vec::new();
        for RowResult { row, result } in results {
            match result {
                PublishResult::Published => published.push(row),
                PublishResult::Failed { error, retry_at } => {
                    failed.push((row, error.replace('\0', "\u{fffd}"), retry_at.map(|at| delay(now, at))));
                }
            }
        }
        let mut recorded = 0;
        if let Some(rows) = Rows::of(published) {
            recorded += self.mark_published(relay, rows).await?;
        }
        recorded += self.mark_failed(relay, failed).await?;
        Ok(usize::try_from(recorded).unwrap_or(usize::MAX))
    }

    async fn mark_published(&self, relay: &RelayId, rows: Rows) -> Result<u64, StoreError> {
        let update = sqlx::query(PUBLISHED)
            .bind(relay.as_str())
            .bind(rows.positions)
            .bind(rows.created_at)
            .bind(rows.oldest)
            .bind(rows.newest);
        Ok(self.limited("marking rows as published", update.execute(self.relays())).await?.rows_affected())
    }

    async fn mark_failed(
        &self,
        relay: &RelayId,
        failed: Vec<(RowId, String, Option<Duration>)>,
    ) -> Result<u64, StoreError> {
        let Some(rows) = Rows::of(failed.iter().map(|(row, ..)| *row).collect()) else { return Ok(0) };
        let (errors, delays): (Vec<_>, Vec<_>) =
            failed.into_iter().map(|(_, error, delay)| (error, delay)).unzip();
        let update = sqlx::query(FAILED)
            .bind(relay.as_str())
            .bind(rows.positions)
            .bind(rows.created_at)
            .bind(rows.oldest)
            .bind(rows.newest)
            .bind(errors)
            .bind(delays);
        Ok(self.limited("marking rows as failed", update.execute(self.relays())).await?.rows_affected())
    }
}

/// `retry_at` was reckoned with our clock; what is meant is the delay from now, which the database adds to its own time.
/// So a clock that is wrong by an hour does not make a retry late by an hour.
fn delay(now: Timestamp, retry_at: Timestamp) -> Duration {
    Duration::try_from(retry_at.duration_since(now)).unwrap_or(Duration::ZERO).min(LONGEST_DELAY)
}

/// Rows as the columns of UNNEST.
struct Rows {
    positions: Vec<i64>,
    created_at: Vec<jiff_sqlx::Timestamp>,
    oldest: jiff_sqlx::Timestamp,
    newest: jiff_sqlx::Timestamp,
}

impl Rows {
    fn of(rows: Vec<RowId>) -> Option<Self> {
        let oldest = rows.iter().map(|row| row.created_at).min()?.to_sqlx();
        let newest = rows.iter().map(|row| row.created_at).max()?.to_sqlx();
        let (positions, created_at) =
            rows.into_iter().map(|row| (row.position, row.created_at.to_sqlx())).unzip();
        Some(Self { positions, created_at, oldest, newest })
    }
}
