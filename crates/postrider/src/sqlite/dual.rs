//! Publishing to two buses, on SQLite. One process relays, so a phase is settled when its relay obeys it.

mod following;
mod standing;

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use jiff::Timestamp;
use serde_json::json;
use sqlx::{AssertSqlSafe, SqliteConnection};

use super::Sqlite;
use super::error::from_sqlite;
use super::outbox::{COLUMNS, read_row};
use crate::envelope::EventId;
use crate::migration::{
    Course, Definition, Delivered, DeliveryResult, Halves, Lead, MigrationName, P99, Parity, Phase, Standing,
    There,
};
use crate::store::{CopyResult, DualPublishing, OutboxRow, PhaseTurn, RelayId, StoreError, StoreErrorKind};

impl DualPublishing for Sqlite {
    async fn course(&self) -> Result<Option<Course>, StoreError> {
        let select = "SELECT version, phase, definition, settled_version >= version, phase_at \
                      FROM bus_migration WHERE phase <> 'finished'";
        let row: Option<(i64, String, String, bool, i64)> =
            sqlx::query_as(select).fetch_optional(self.readers()).await.map_err(from_sqlite)?;
        let Some((version, phase, definition, settled, since)) = row else { return Ok(None) };
        let definition: Definition = serde_json::from_str(&definition).map_err(unreadable)?;
        let phase = Phase::from_name(&phase).ok_or_else(|| unreadable("its phase is none"))?;
        let since = Timestamp::from_microsecond(since).map_err(unreadable)?;
        Ok(Some(Course { version, phase, definition: Arc::new(definition), settled, since }))
    }

    async fn obeys(&self, relay: &RelayId, version: i64, latency: P99) -> Result<(), StoreError> {
        const DAY: i64 = 86_400 * 1_000_000;
        let (relay, now) = (relay.to_string(), self.clock().now().as_microsecond());
        let write = self.writer().run(move |connection| {
            async move {
                let old = sqlx::query("DELETE FROM bus_migration_relay WHERE seen_at < ?").bind(now - DAY);
                old.execute(&mut *connection).await.map_err(from_sqlite)?;
                let insert = "INSERT OR REPLACE INTO bus_migration_relay (relay, version, seen_at, new_p99_ms, legacy_p99_ms) \
                              VALUES (?, ?, ?, ?, ?)";
                let insert =
                    sqlx::query(insert).bind(relay).bind(version).bind(now).bind(latency.new).bind(latency.legacy);
                execute(connection, insert).await.map(|_| ())
            }
            .boxed()
        });
        write.await
    }

    async fn settle_course(&self) -> Result<bool, StoreError> {
        if self.course().await?.is_none_or(|course| course.settled) {
            return Ok(true);
        }
        let now = self.clock().now().as_microsecond();
        self.writer().run(move |connection| settle(connection, now).boxed()).await
    }

    async fn claim_copies(&self, limit: usize, lease: Duration) -> Result<Vec<OutboxRow>, StoreError> {
        let now = self.clock().now().as_microsecond();
        let due = "SELECT count(*) FROM event_delivery WHERE status <> 'confirmed' AND next_attempt_at <= ?";
        let due: i64 =
            sqlx::query_scalar(due).bind(now).fetch_one(self.readers()).await.map_err(from_sqlite)?;
        if due == 0 {
            return Ok(Vec::new());
        }
        let until = now.saturating_add(micros(lease));
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let taken = self.writer().run(move |connection| take(connection, now, until, limit).boxed()).await?;
        let mut rows = self.rows_at(taken.iter().map(|(position, _)| *position).collect()).await?;
        let mut gone = Vec::new();
        for (position, attempts) in taken {
            match rows.iter_mut().find(|row| row.row.position == position) {
                Some(row) => row.attempts = attempts,
                None => gone.push((position, CopyResult::NotWanted)),
            }
        }
        if !gone.is_empty() {
            tracing::warn!(
                copies = gone.len(),
                "the outbox does not keep these events any more; they are not copied"
            );
            self.settle_copies(gone).await?;
        }
        Ok(rows)
    }

    async fn settle_copies(&self, results: Vec<(i64, CopyResult)>) -> Result<(), StoreError> {
        let now = self.clock().now().as_microsecond();
        self.writer().run(move |connection| record_copies(connection, results, now).boxed()).await
    }

    async fn confirmed_halves(&self, positions: Vec<i64>) -> Result<Vec<(i64, Halves)>, StoreError> {
        let select = "SELECT position, max(destination = 'new'), max(destination = 'legacy') FROM event_delivery \
                      WHERE status = 'confirmed' AND position IN (SELECT value FROM json_each(?)) GROUP BY position";
        let found: Vec<(i64, bool, bool)> = sqlx::query_as(select)
            .bind(json!(positions).to_string())
            .fetch_all(self.readers())
            .await
            .map_err(from_sqlite)?;
        Ok(found.into_iter().map(|(position, new, legacy)| (position, Halves { new, legacy })).collect())
    }

    async fn published_rows(
        &self,
        after: i64,
        up_to: i64,
        limit: usize,
    ) -> Result<Vec<(OutboxRow, Option<DeliveryResult>)>, StoreError> {
        let select = "SELECT o.position, d.status, d.error FROM event_outbox o LEFT JOIN event_delivery d \
                      ON d.position = o.position AND d.destination = 'legacy' \
                      WHERE o.status = 'published' AND o.verbatim IS NULL AND o.target_queue IS NULL \
                      AND o.position > ? AND o.position <= ? ORDER BY o.position LIMIT ?";
        let found: Vec<(i64, Option<String>, Option<String>)> = sqlx::query_as(select)
            .bind(after)
            .bind(up_to)
            .bind(i64::try_from(limit).unwrap_or(i64::MAX))
            .fetch_all(self.readers())
            .await
            .map_err(from_sqlite)?;
        let rows = self.rows_at(found.iter().map(|(position, ..)| *position).collect()).await?;
        let copy = |row: OutboxRow| {
            let at = found.binary_search_by_key(&row.row.position, |(position, ..)| *position).ok()?;
            let (_, status, error) = &found[at];
            let result = status.as_ref().map(|status| DeliveryResult::from_columns(status, error.clone()));
            Some((row, result))
        };
        Ok(rows.into_iter().filter_map(copy).collect())
    }

    async fn uncopied_rows(
        &self,
        since: Timestamp,
        after: i64,
        up_to: i64,
        limit: usize,
    ) -> Result<Vec<OutboxRow>, StoreError> {
        let select = "SELECT o.position FROM event_outbox o WHERE o.status = 'published' AND o.verbatim IS NULL \
                      AND o.target_queue IS NULL AND o.published_at >= ? AND o.position > ? AND o.position <= ? \
                      AND NOT EXISTS (SELECT 1 FROM event_delivery d WHERE d.position = o.position AND d.destination = 'legacy') \
                      ORDER BY o.position LIMIT ?";
        let positions: Vec<i64> = sqlx::query_scalar(select)
            .bind(since.as_microsecond())
            .bind(after)
            .bind(up_to)
            .bind(i64::try_from(limit).unwrap_or(i64::MAX))
            .fetch_all(self.readers())
            .await
            .map_err(from_sqlite)?;
        self.rows_at(positions).await
    }

    async fn owe_copies(&self, rows: Vec<(i64, EventId)>) -> Result<(), StoreError> {
        let rows: Vec<_> = rows.iter().map(|(position, id)| json!([position, id.as_str()])).collect();
        let (rows, now) = (json!(rows).to_string(), self.clock().now().as_microsecond());
        let write = self.writer().run(move |connection| {
            async move {
                let insert = "INSERT INTO event_delivery (position, destination, event_id, status, next_attempt_at) \
                              SELECT value ->> 0, 'legacy', value ->> 1, 'pending', ?2 FROM json_each(?1) WHERE true \
                              ON CONFLICT DO NOTHING";
                execute(connection, sqlx::query(insert).bind(rows).bind(now)).await.map(|_| ())
            }
            .boxed()
        });
        write.await
    }

    async fn start_migration(
        &self,
        definition: &Definition,
        by: &str,
        reason: &str,
    ) -> Result<(), StoreError> {
        self.insert_migration(definition, by, reason).await
    }

    async fn turn_migration(&self, turn: &PhaseTurn) -> Result<bool, StoreError> {
        self.change_phase(turn).await
    }

    async fn keep_parity(&self, name: &MigrationName, parity: &Parity) -> Result<(), StoreError> {
        let (name, text) = (name.to_string(), serde_json::to_string(parity).map_err(unreadable)?);
        let write = self.writer().run(move |connection| {
            async move {
                let update =
                    sqlx::query("UPDATE bus_migration SET parity = ? WHERE name = ?").bind(text).bind(name);
                execute(connection, update).await.map(|_| ())
            }
            .boxed()
        });
        write.await
    }

    async fn migrations_of_buses(&self) -> Result<Vec<Standing>, StoreError> {
        self.read_standings().await
    }

    async fn leads(&self) -> Result<Vec<Lead>, StoreError> {
        self.read_leads().await
    }

    async fn there(&self) -> Result<There, StoreError> {
        self.read_there().await
    }

    async fn follow(&self, lead: &Lead, since: Timestamp) -> Result<(), StoreError> {
        self.take_up(lead, since).await
    }

    async fn forget_deliveries(&self, before: Timestamp, limit: u32) -> Result<u64, StoreError> {
        let before = before.as_microsecond();
        let delete = self.writer().run(move |connection| {
            async move {
                let delete = "DELETE FROM event_delivery WHERE (position, destination) IN ( \
                              SELECT position, destination FROM event_delivery WHERE confirmed_at < ? LIMIT ?)";
                execute(connection, sqlx::query(delete).bind(before).bind(limit)).await
            }
            .boxed()
        });
        delete.await
    }
}

impl Sqlite {
    async fn rows_at(&self, positions: Vec<i64>) -> Result<Vec<OutboxRow>, StoreError> {
        let select = format!(
            "SELECT {COLUMNS} FROM event_outbox WHERE position IN (SELECT value FROM json_each(?)) ORDER BY position"
        );
        let found = sqlx::query(AssertSqlSafe(select))
            .bind(json!(positions).to_string())
            .fetch_all(self.readers())
            .await
            .map_err(from_sqlite)?;
        // What cannot be read was never published.
        Ok(found.iter().filter_map(|row| read_row(row).ok()).collect())
    }
}

/// The one relay obeys, so nothing is published without a copy any more: what was, gets one.
async fn settle(connection: &mut SqliteConnection, now: i64) -> Result<bool, StoreError> {
    const OBEYED: &str = "SELECT count(*) FROM bus_migration m JOIN bus_migration_relay r ON r.version >= m.version \
                          WHERE m.phase <> 'finished'";
    const MAKE_UP: &str = "INSERT INTO event_delivery (position, destination, event_id, status, next_attempt_at) \
        SELECT o.position, 'legacy', o.id, 'pending', ?1 FROM event_outbox o JOIN bus_migration m ON m.phase = 'dual' \
        WHERE o.status = 'published' AND o.verbatim IS NULL AND o.target_queue IS NULL AND o.published_at >= m.copy_since \
        ON CONFLICT (position, destination) DO UPDATE SET next_attempt_at = excluded.next_attempt_at \
            WHERE event_delivery.status <> 'confirmed' AND event_delivery.next_attempt_at IS NULL";
    const SETTLED: &str =
        "UPDATE bus_migration SET settled_version = version, copy_since = NULL WHERE phase <> 'finished'";
    let obeyed: i64 = sqlx::query_scalar(OBEYED).fetch_one(&mut *connection).await.map_err(from_sqlite)?;
    if obeyed == 0 {
        return Ok(false);
    }
    execute(connection, sqlx::query(MAKE_UP).bind(now)).await?;
    execute(connection, sqlx::query(SETTLED)).await?;
    Ok(true)
}

/// Who takes a copy and dies leaves it to the next, when its time has come again.
async fn take(
    connection: &mut SqliteConnection,
    now: i64,
    until: i64,
    limit: i64,
) -> Result<Vec<(i64, u32)>, StoreError> {
    let take = "UPDATE event_delivery SET next_attempt_at = ?2 WHERE destination = 'legacy' AND position IN ( \
                SELECT position FROM event_delivery WHERE destination = 'legacy' AND status <> 'confirmed' \
                AND next_attempt_at <= ?1 ORDER BY next_attempt_at LIMIT ?3) RETURNING position, attempts";
    let take = sqlx::query_as(take).bind(now).bind(until).bind(limit);
    take.fetch_all(connection).await.map_err(from_sqlite)
}

async fn record_copies(
    connection: &mut SqliteConnection,
    results: Vec<(i64, CopyResult)>,
    now: i64,
) -> Result<(), StoreError> {
    const CONFIRMED: &str = "UPDATE event_delivery SET status = 'confirmed', confirmed_at = ?2, error = NULL, \
        attempts = attempts + 1, next_attempt_at = NULL WHERE destination = 'legacy' AND position = ?1";
    const FAILED: &str = "UPDATE event_delivery SET status = 'failed', error = ?3, attempts = attempts + 1, \
        next_attempt_at = ?2 WHERE destination = 'legacy' AND status <> 'confirmed' AND position = ?1";
    const UNKNOWN: &str = "UPDATE event_delivery SET next_attempt_at = ?2 \
        WHERE destination = 'legacy' AND status <> 'confirmed' AND position = ?1";
    const NOT_WANTED: &str = "DELETE FROM event_delivery WHERE destination = 'legacy' AND position = ?1";
    for (position, result) in results {
        let query = match result {
            CopyResult::Confirmed => sqlx::query(CONFIRMED).bind(position).bind(now),
            CopyResult::NotWanted => sqlx::query(NOT_WANTED).bind(position),
            CopyResult::Unknown(delay) => {
                sqlx::query(UNKNOWN).bind(position).bind(now.saturating_add(micros(delay)))
            }
            CopyResult::Failed(error, delay) => {
                sqlx::query(FAILED).bind(position).bind(now.saturating_add(micros(delay))).bind(error)
            }
        };
        execute(connection, query).await?;
    }
    Ok(())
}

/// Records what became of rows at both destinations, in the transaction that marks them. A copy of a row that failed is the relay's
/// to try again, with its row, so it has no time of its own.
pub(super) async fn record(
    connection: &mut SqliteConnection,
    delivered: Vec<(i64, Delivered, bool)>,
    now: i64,
) -> Result<(), StoreError> {
    const SQL: &str = "
        INSERT INTO event_delivery (position, destination, event_id, status, attempts, next_attempt_at, error, confirmed_at)
        SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, 1,
               iif(value ->> 3 <> 'confirmed' AND value ->> 5, ?2 + 1000000, NULL), value ->> 4,
               iif(value ->> 3 = 'confirmed', ?2, NULL)
        FROM json_each(?1) WHERE true
        ON CONFLICT (position, destination) DO UPDATE SET status = excluded.status, error = excluded.error,
            attempts = attempts + 1, next_attempt_at = excluded.next_attempt_at, confirmed_at = excluded.confirmed_at
        WHERE event_delivery.status <> 'confirmed'";
    if delivered.is_empty() {
        return Ok(());
    }
    let rows: Vec<_> = delivered
        .iter()
        .flat_map(|(position, both, done)| {
            [("new", &both.new), ("legacy", &both.legacy)].map(|(destination, result)| {
                json!([position, destination, both.event_id.as_str(), result.status(), result.error(), done])
            })
        })
        .collect();
    execute(connection, sqlx::query(SQL).bind(json!(rows).to_string()).bind(now)).await.map(|_| ())
}

async fn execute(
    connection: &mut SqliteConnection,
    query: sqlx::query::Query<'_, sqlx::Sqlite, sqlx::sqlite::SqliteArguments>,
) -> Result<u64, StoreError> {
    Ok(query.execute(connection).await.map_err(from_sqlite)?.rows_affected())
}

fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

/// What was stored of a migration cannot be understood.
fn unreadable(why: impl std::fmt::Display) -> StoreError {
    let text = format!(
        "what is stored of a migration cannot be read ({why}); a newer version wrote it, or somebody by hand"
    );
    StoreError::new(StoreErrorKind::Other, text)
}
