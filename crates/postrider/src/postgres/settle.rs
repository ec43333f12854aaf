//! Recording what became of claimed rows, fenced by the ownership of their slots.
//!
//! Marks come after confirms. A crash in between publishes the rows again, with the same ids.

use std::time::Duration;

use jiff_sqlx::ToSqlx as _;

use super::Postgres;
use super::dual::Columns;
use crate::migration::Delivered;
use crate::store::{PublishResult, RelayId, RowId, RowResult, StoreError};

/// A row that is published stays so, whatever a slow relay says of it later. Written so that the primary key is the only index
/// that fits: no join, no condition that fits a partial index, because a plan made while the table was empty, or all of it
/// published, would choose any of them, and read the whole backlog for every mark. The range of `created_at` leaves out the
/// partitions that have none of the rows.
pub(super) const PUBLISHED: &str = "UPDATE {outbox} o \
     SET status = 'published', published_at = now(), last_error = NULL \
     WHERE o.position = ANY($2) AND o.created_at BETWEEN $3 AND $4 AND o.status || '' NOT IN ('published', 'dead') \
       AND o.slot + 0 = ANY (ARRAY(SELECT slot::int FROM postrider.outbox_slot WHERE outbox = {name} AND owner = $1))";

/// The same for rows that a migration has copied: what became of them at both destinations is recorded with the mark. A copy that
/// did not get through is tried again a moment later, by whoever looks after copies.
pub(super) const PUBLISHED_BOTH: &str = "WITH marked AS ( \
         UPDATE {outbox} o \
         SET status = 'published', published_at = now(), last_error = NULL \
         WHERE o.position = ANY($2) AND o.created_at BETWEEN $3 AND $4 AND o.status || '' NOT IN ('published', 'dead') \
           AND o.slot + 0 = ANY (ARRAY(SELECT slot::int FROM postrider.outbox_slot WHERE outbox = {name} AND owner = $1)) \
         RETURNING o.position \
     ), delivered AS ( \
         INSERT INTO postrider.event_delivery AS d \
             (outbox, position, destination, event_id, status, attempts, next_attempt_at, error, confirmed_at) \
         SELECT {name}, position, destination, event_id, status, 1, \
             CASE WHEN status <> 'confirmed' THEN now() + interval '1 second' END, error, \
             CASE WHEN status = 'confirmed' THEN now() END \
         FROM UNNEST($5::bigint[], $6::text[], $7::text[], $8::text[], $9::text[]) \
             AS result (position, destination, event_id, status, error) \
         WHERE position IN (SELECT position FROM marked) \
         ON CONFLICT (outbox, position, destination) DO UPDATE SET status = EXCLUDED.status, error = EXCLUDED.error, \
             attempts = d.attempts + 1, next_attempt_at = EXCLUDED.next_attempt_at, confirmed_at = EXCLUDED.confirmed_at \
             WHERE d.status <> 'confirmed' \
     ) \
     SELECT count(*) FROM marked";

/// Delays are counted from the database's own time; no delay is no other attempt. What was postponed counts as one attempt, however
/// often. A row that was tried has a time of its own, later than when it was written: that tells it from new ones. The replay of a
/// dead letter that dies loses its key, so that it holds up no other, and its letter is open again. A row that waits already was told of
/// before: what is told again, because the mark of another came too early, counts once.
pub(super) const FAILED: &str = "WITH failed AS ( \
         UPDATE {outbox} o \
         SET status = CASE WHEN ($6::interval[])[array_position($2, o.position)] IS NULL THEN 'dead' ELSE 'failed' END, \
             ordering_key = CASE WHEN ($6::interval[])[array_position($2, o.position)] IS NULL \
                 AND o.dead_letter_id IS NOT NULL THEN '' ELSE o.ordering_key END, \
             attempts = CASE WHEN ($7::bool[])[array_position($2, o.position)] THEN o.attempts + 1 \
                 ELSE GREATEST(o.attempts, 1) END, last_error = ($5::text[])[array_position($2, o.position)], \
             available_at = GREATEST(now(), o.created_at) + COALESCE(($6::interval[])[array_position($2, o.position)], \
                 interval '1 microsecond') \
         WHERE o.position = ANY($2) AND o.created_at BETWEEN $3 AND $4 AND o.status || '' NOT IN ('published', 'dead') \
           AND (o.status || '' <> 'failed' OR o.available_at <= now()) \
           AND o.slot + 0 = ANY (ARRAY(SELECT slot::int FROM postrider.outbox_slot WHERE outbox = {name} AND owner = $1)) \
         RETURNING o.status, o.dead_letter_id, o.last_error \
     ), reopened AS ( \
         UPDATE postrider.dead_letter d \
         SET status = 'open', resolved_at = NULL, replay_error = failed.last_error \
         FROM failed WHERE failed.status = 'dead' AND d.id = failed.dead_letter_id AND d.status = 'replayed' \
     ) \
     SELECT count(*) FROM failed";

/// A row that was tried is told from a new one by a time that is later than when it was written.
const SHORTEST_DELAY: Duration = Duration::from_micros(1);
/// The longest delay before a retry; also keeps every interval within PostgreSQL's.
const LONGEST_DELAY: Duration = Duration::from_hours(365 * 24);

impl Postgres {
    pub(super) async fn settle_rows(
        &self,
        relay: &RelayId,
        results: Vec<RowResult>,
    ) -> Result<usize, StoreError> {
        let (mut published, mut both) = (Vec::new(), Vec::new());
        let (mut failed, mut tried) = (Vec::new(), Vec::new());
        for RowResult { row, result, delivered } in results {
            match result {
                PublishResult::Published => match delivered {
                    None => published.push(row),
                    Some(delivered) => both.push((row, delivered)),
                },
                PublishResult::Failed { error, retry_after } => {
                    tried.extend(delivered.map(|delivered| (row.position, delivered)));
                    failed.push(Failed::new(row, &error, retry_after, true));
                }
                PublishResult::Postponed { error, retry_after } => {
                    tried.extend(delivered.map(|delivered| (row.position, delivered)));
                    failed.push(Failed::new(row, &error, Some(retry_after), false));
                }
            }
        }
        let mut recorded = 0;
        if let Some(rows) = Rows::of(&published) {
            recorded += self.mark_published(relay, rows).await?;
        }
        recorded += self.mark_both(relay, both).await?;
        self.record_tried(&tried).await?;
        recorded += self.mark_failed(relay, failed).await?;
        Ok(usize::try_from(recorded).unwrap_or(usize::MAX))
    }

    async fn mark_published(&self, relay: &RelayId, rows: Rows) -> Result<u64, StoreError> {
        let update = sqlx::query(self.statements.published.sql())
            .bind(relay.as_str())
            .bind(rows.positions)
            .bind(rows.oldest)
            .bind(rows.newest);
        Ok(self.limited("marking rows as published", update.execute(self.relays())).await?.rows_affected())
    }

    async fn mark_both(&self, relay: &RelayId, rows: Vec<(RowId, Delivered)>) -> Result<u64, StoreError> {
        let (ids, delivered): (Vec<_>, Vec<_>) =
            rows.into_iter().map(|(row, delivered)| (row, (row.position, delivered))).unzip();
        let Some(rows) = Rows::of(&ids) else { return Ok(0) };
        let columns = Columns::of(&delivered);
        let update = sqlx::query_scalar(self.statements.published_both.sql())
            .bind(relay.as_str())
            .bind(rows.positions)
            .bind(rows.oldest)
            .bind(rows.newest)
            .bind(columns.positions)
            .bind(columns.destinations)
            .bind(columns.ids)
            .bind(columns.statuses)
            .bind(columns.errors);
        let recorded: i64 =
            self.limited("marking rows as published", update.fetch_one(self.relays())).await?;
        Ok(recorded.unsigned_abs())
    }

    async fn mark_failed(&self, relay: &RelayId, failed: Vec<Failed>) -> Result<u64, StoreError> {
        let Some(rows) = Rows::of(&failed.iter().map(|failed| failed.row).collect::<Vec<_>>()) else {
            return Ok(0);
        };
        let delays: Vec<_> = failed.iter().map(|failed| failed.delay).collect();
        let counts: Vec<_> = failed.iter().map(|failed| failed.counts).collect();
        let errors: Vec<_> = failed.into_iter().map(|failed| failed.error).collect();
        let update = sqlx::query_scalar(self.statements.failed.sql())
            .bind(relay.as_str())
            .bind(rows.positions)
            .bind(rows.oldest)
            .bind(rows.newest)
            .bind(errors)
            .bind(delays)
            .bind(counts);
        let recorded: i64 = self.limited("marking rows as failed", update.fetch_one(self.relays())).await?;
        Ok(recorded.unsigned_abs())
    }
}

/// A row that was not published, and what follows from it.
struct Failed {
    row: RowId,
    error: String,
    /// Without one it is dead.
    delay: Option<Duration>,
    /// By its own fault.
    counts: bool,
}

impl Failed {
    fn new(row: RowId, error: &str, retry_after: Option<Duration>, counts: bool) -> Self {
        Self { row, error: error.replace('\0', "\u{fffd}"), delay: retry_after.map(interval), counts }
    }
}

/// The database adds it to its own time, so a relay's clock that is wrong by an hour makes no retry late by an hour. In whole
/// microseconds: an interval has no more.
fn interval(delay: Duration) -> Duration {
    let delay = delay.clamp(SHORTEST_DELAY, LONGEST_DELAY);
    Duration::new(delay.as_secs(), delay.subsec_micros() * 1000)
}

/// Which rows, and between which times they were written.
struct Rows {
    positions: Vec<i64>,
    oldest: jiff_sqlx::Timestamp,
    newest: jiff_sqlx::Timestamp,
}

impl Rows {
    fn of(rows: &[RowId]) -> Option<Self> {
        Some(Self {
            positions: rows.iter().map(|row| row.position).collect(),
            oldest: rows.iter().map(|row| row.created_at).min()?.to_sqlx(),
            newest: rows.iter().map(|row| row.created_at).max()?.to_sqlx(),
        })
    }
}
