//! The rows of `event_delivery`.

use std::time::Duration;

use jiff::Timestamp;
use jiff_sqlx::ToSqlx as _;
use sqlx::Row as _;

use super::super::claim::{COLUMNS, outbox_row, row_id};
use super::Postgres;
use crate::envelope::EventId;
use crate::migration::{Delivered, DeliveryResult, Halves};
use crate::store::{CopyResult, OutboxRow, StoreError};

/// Taken with their time moved on: who takes a copy and dies leaves it to the next after that. Reads what is due, and nothing else.
const TAKE: &str = "UPDATE postrider.event_delivery SET next_attempt_at = now() + $2 WHERE ctid = ANY (ARRAY( \
         SELECT ctid FROM postrider.event_delivery \
         WHERE outbox = {name} AND destination = 'legacy' AND status <> 'confirmed' AND next_attempt_at <= now() \
         ORDER BY next_attempt_at LIMIT $1 FOR UPDATE SKIP LOCKED)) \
     RETURNING position, attempts";

/// The copies of rows: a probe of the key for each. With `position = ANY($1)` all of an outbox's deliveries are read while the
/// statistics do not know the outbox. A copy that another relay changes at this very moment is left as it is: it was due again,
/// goes out a second time, and is recorded then.
macro_rules! copies {
    ($what:literal) => {
        concat!(
            $what,
            " WHERE ctid = ANY (ARRAY(SELECT d.ctid FROM UNNEST($1::bigint[]) AS asked (position) \
                CROSS JOIN LATERAL (SELECT ctid FROM postrider.event_delivery \
                    WHERE outbox = {name} AND position = asked.position AND destination = 'legacy' OFFSET 0) d))"
        )
    };
}

const CONFIRMED: &str = copies!(
    "UPDATE postrider.event_delivery SET status = 'confirmed', confirmed_at = now(), error = NULL, \
         attempts = attempts + 1, next_attempt_at = NULL"
);

/// An error is one of the copy, and counts; without one the broker was away.
const AGAIN: &str = concat!(
    copies!(
        "UPDATE postrider.event_delivery SET \
             next_attempt_at = now() + ($3::interval[])[array_position($1, position)], \
             status = CASE WHEN ($2::text[])[array_position($1, position)] IS NULL THEN status ELSE 'failed' END, \
             error = COALESCE(($2::text[])[array_position($1, position)], error), \
             attempts = attempts + CASE WHEN ($2::text[])[array_position($1, position)] IS NULL THEN 0 ELSE 1 END"
    ),
    " AND status <> 'confirmed'"
);

const NOT_WANTED: &str = copies!("DELETE FROM postrider.event_delivery");

const HALVES: &str = "SELECT asked.position, bool_or(d.destination = 'new'), bool_or(d.destination = 'legacy') \
     FROM UNNEST($1::bigint[]) AS asked (position) CROSS JOIN LATERAL (SELECT destination FROM postrider.event_delivery \
         WHERE outbox = {name} AND position = asked.position AND status = 'confirmed' OFFSET 0) d \
     GROUP BY asked.position";

/// Begins with the outbox: a row that went out without a copy is found, too.
const PUBLISHED: &str = "SELECT o.position, d.status, d.error FROM {outbox} o LEFT JOIN LATERAL ( \
         SELECT status, error FROM postrider.event_delivery \
         WHERE outbox = {name} AND position = o.position AND destination = 'legacy' OFFSET 0) d ON true \
     WHERE o.status = 'published' AND o.verbatim IS NULL AND o.target_queue IS NULL AND o.position > $1 AND o.position <= $2 \
     ORDER BY o.position LIMIT $3";

const UNCOPIED: &str = "SELECT o.position FROM {outbox} o \
     WHERE o.status = 'published' AND o.verbatim IS NULL AND o.target_queue IS NULL AND o.position > $2 AND o.position <= $3 \
       AND o.published_at >= $1 AND NOT EXISTS (SELECT FROM postrider.event_delivery d \
         WHERE d.outbox = {name} AND d.position = o.position AND d.destination = 'legacy') \
     ORDER BY o.position LIMIT $4";

const OWE: &str = "INSERT INTO postrider.event_delivery (outbox, position, destination, event_id, status, next_attempt_at) \
     SELECT {name}, position, 'legacy', event_id, 'pending', now() \
     FROM UNNEST($1::bigint[], $2::text[]) AS owed (position, event_id) ON CONFLICT DO NOTHING";

const FORGET: &str = "DELETE FROM postrider.event_delivery WHERE ctid = ANY (ARRAY( \
         SELECT ctid FROM postrider.event_delivery WHERE confirmed_at < $1 LIMIT $2))";

/// Of rows that failed: what arrived on one side is not sent there again. A copy that did not is the relay's to try again, with
/// its row, so it has no time of its own.
const TRIED: &str = "INSERT INTO postrider.event_delivery AS d \
         (outbox, position, destination, event_id, status, attempts, error, confirmed_at) \
     SELECT {name}, position, destination, event_id, status, 1, error, CASE WHEN status = 'confirmed' THEN now() END \
     FROM UNNEST($1::bigint[], $2::text[], $3::text[], $4::text[], $5::text[]) \
         AS tried (position, destination, event_id, status, error) \
     ON CONFLICT (outbox, position, destination) DO UPDATE SET status = EXCLUDED.status, error = EXCLUDED.error, \
         attempts = d.attempts + 1, confirmed_at = EXCLUDED.confirmed_at WHERE d.status <> 'confirmed'";

impl Postgres {
    pub(super) async fn take_copies(
        &self,
        limit: usize,
        lease: Duration,
    ) -> Result<Vec<OutboxRow>, StoreError> {
        let take = self.table.statement(TAKE);
        let take = sqlx::query_as(take.sql()).bind(i64::try_from(limit).unwrap_or(i64::MAX)).bind(lease);
        let taken: Vec<(i64, i32)> =
            self.limited("taking copies for the old bus", take.fetch_all(self.pool())).await?;
        if taken.is_empty() {
            return Ok(Vec::new());
        }
        let mut rows = self.rows_at(taken.iter().map(|(position, _)| *position).collect()).await?;
        let mut gone = Vec::new();
        for (position, attempts) in taken {
            match rows.iter_mut().find(|row| row.row.position == position) {
                Some(row) => row.attempts = u32::try_from(attempts).unwrap_or(0),
                None => gone.push((position, CopyResult::NotWanted)),
            }
        }
        if !gone.is_empty() {
            tracing::warn!(
                copies = gone.len(),
                "the outbox does not keep these events any more; they are not copied"
            );
            self.record_copies(gone).await?;
        }
        Ok(rows)
    }

    async fn rows_at(&self, positions: Vec<i64>) -> Result<Vec<OutboxRow>, StoreError> {
        let select = self.table.statement(&format!(
            "SELECT {COLUMNS} FROM {{outbox}} WHERE position = ANY($1) ORDER BY position"
        ));
        let select = sqlx::query(select.sql()).bind(positions);
        let found = self.limited("reading events to copy", select.fetch_all(self.pool())).await?;
        let mut rows = Vec::with_capacity(found.len());
        for row in &found {
            let id = row_id(row).map_err(|cause| self.error("reading events to copy", cause))?;
            match outbox_row(row, id) {
                Ok(row) => rows.push(row),
                Err(error) => {
                    tracing::error!(position = id.position, %error, "an event cannot be read to copy it");
                }
            }
        }
        Ok(rows)
    }

    pub(super) async fn record_copies(&self, results: Vec<(i64, CopyResult)>) -> Result<(), StoreError> {
        let (mut confirmed, mut not_wanted) = (Vec::new(), Vec::new());
        let (mut again, mut errors, mut delays) = (Vec::new(), Vec::new(), Vec::new());
        for (position, result) in results {
            let (error, delay) = match result {
                CopyResult::Confirmed => {
                    confirmed.push(position);
                    continue;
                }
                CopyResult::NotWanted => {
                    not_wanted.push(position);
                    continue;
                }
                CopyResult::Failed(error, delay) => (Some(error.replace('\0', "\u{fffd}")), delay),
                CopyResult::Unknown(delay) => (None, delay),
            };
            again.push(position);
            errors.push(error);
            delays.push(Duration::new(delay.as_secs(), delay.subsec_micros() * 1000));
        }
        let doing = "recording what became of copies";
        for (positions, sql) in [(confirmed, CONFIRMED), (not_wanted, NOT_WANTED)] {
            if !positions.is_empty() {
                let statement = self.table.statement(sql);
                let write = sqlx::query(statement.sql()).bind(positions);
                self.limited(doing, write.execute(self.pool())).await?;
            }
        }
        if !again.is_empty() {
            let statement = self.table.statement(AGAIN);
            let write = sqlx::query(statement.sql()).bind(again).bind(errors).bind(delays);
            self.limited(doing, write.execute(self.pool())).await?;
        }
        Ok(())
    }

    pub(super) async fn read_halves(&self, positions: Vec<i64>) -> Result<Vec<(i64, Halves)>, StoreError> {
        let statement = self.table.statement(HALVES);
        let select = sqlx::query_as(statement.sql()).bind(positions);
        let found: Vec<(i64, bool, bool)> =
            self.limited("looking which halves have arrived", select.fetch_all(self.pool())).await?;
        Ok(found.into_iter().map(|(position, new, legacy)| (position, Halves { new, legacy })).collect())
    }

    pub(super) async fn read_published(
        &self,
        after: i64,
        up_to: i64,
        limit: usize,
    ) -> Result<Vec<(OutboxRow, Option<DeliveryResult>)>, StoreError> {
        let statement = self.table.statement(PUBLISHED);
        let select = sqlx::query(statement.sql())
            .bind(after)
            .bind(up_to)
            .bind(i64::try_from(limit).unwrap_or(i64::MAX));
        let doing = "reading which events were published";
        let found = self.limited(doing, select.fetch_all(self.pool())).await?;
        let mut copies = std::collections::HashMap::new();
        for row in &found {
            let read = || {
                let (status, error): (Option<String>, Option<String>) = (row.try_get(1)?, row.try_get(2)?);
                let result = status.map(|status| DeliveryResult::from_columns(&status, error));
                Ok((row.try_get::<i64, _>(0)?, result))
            };
            let (position, result) = read().map_err(|cause| self.error(doing, cause))?;
            copies.insert(position, result);
        }
        let rows = self.rows_at(copies.keys().copied().collect()).await?;
        Ok(rows
            .into_iter()
            .filter_map(|row| Some((copies.remove(&row.row.position)?, row)))
            .map(|(copy, row)| (row, copy))
            .collect())
    }

    pub(super) async fn read_uncopied(
        &self,
        since: Timestamp,
        after: i64,
        up_to: i64,
        limit: usize,
    ) -> Result<Vec<OutboxRow>, StoreError> {
        let statement = self.table.statement(UNCOPIED);
        let select = sqlx::query_scalar(statement.sql())
            .bind(since.to_sqlx())
            .bind(after)
            .bind(up_to)
            .bind(i64::try_from(limit).unwrap_or(i64::MAX));
        let doing = "reading which events were not copied";
        let positions: Vec<i64> = self.limited(doing, select.fetch_all(self.pool())).await?;
        if positions.is_empty() { Ok(Vec::new()) } else { self.rows_at(positions).await }
    }

    pub(super) async fn record_owed(&self, rows: Vec<(i64, EventId)>) -> Result<(), StoreError> {
        let (positions, ids): (Vec<_>, Vec<_>) =
            rows.into_iter().map(|(position, id)| (position, id.to_string())).unzip();
        let statement = self.table.statement(OWE);
        let insert = sqlx::query(statement.sql()).bind(positions).bind(ids);
        self.limited("recording which copies are owed", insert.execute(self.pool())).await?;
        Ok(())
    }

    pub(super) async fn drop_deliveries(&self, before: Timestamp, limit: u32) -> Result<u64, StoreError> {
        let delete = sqlx::query(FORGET).bind(before.to_sqlx()).bind(i64::from(limit));
        let done = self.limited("forgetting deliveries", delete.execute(self.pool())).await?;
        Ok(done.rows_affected())
    }

    /// Records what became of rows that failed, at both destinations.
    pub(in crate::postgres) async fn record_tried(
        &self,
        tried: &[(i64, Delivered)],
    ) -> Result<(), StoreError> {
        if tried.is_empty() {
            return Ok(());
        }
        let Columns { positions, destinations, ids, statuses, errors } = Columns::of(tried);
        let statement = self.table.statement(TRIED);
        let write = sqlx::query(statement.sql())
            .bind(positions)
            .bind(destinations)
            .bind(ids)
            .bind(statuses)
            .bind(errors);
        self.limited("recording what became of deliveries", write.execute(self.pool())).await?;
        Ok(())
    }
}

/// Deliveries as columns, two for each row.
#[derive(Default)]
pub(in crate::postgres) struct Columns {
    pub(in crate::postgres) positions: Vec<i64>,
    pub(in crate::postgres) destinations: Vec<&'static str>,
    pub(in crate::postgres) ids: Vec<String>,
    pub(in crate::postgres) statuses: Vec<&'static str>,
    pub(in crate::postgres) errors: Vec<Option<String>>,
}

impl Columns {
    pub(in crate::postgres) fn of(rows: &[(i64, Delivered)]) -> Self {
        let mut columns = Self::default();
        for (position, delivered) in rows {
            for (destination, result) in [("new", &delivered.new), ("legacy", &delivered.legacy)] {
                columns.positions.push(*position);
                columns.destinations.push(destination);
                columns.ids.push(delivered.event_id.to_string());
                columns.statuses.push(result.status());
                columns.errors.push(result.error().map(|error| error.replace('\0', "\u{fffd}")));
            }
        }
        columns
    }
}
