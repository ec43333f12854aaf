//! The outbox on SQLite. One process relays, so there is one slot to lease.

mod append;
mod backlog;
mod desk;
mod housekeeping;
mod lease;
mod replays;
mod row;
mod verbatim;

pub(super) use append::append;
pub(super) use lease::Slot;
pub(super) use row::{read as read_row, time};
pub(super) use verbatim::append_verbatim;

use std::time::Duration;

use futures_util::FutureExt as _;
use jiff::Timestamp;
use serde_json::json;
use sqlx::SqliteConnection;

use self::row::Unreadable;
use super::error::from_sqlite;
use super::{Sqlite, SqliteTx};
use crate::envelope::{Event, EventId, OrderingKey};
use crate::store::{
    Ask, Backlog, Horizon, LogPosition, Outbox, OutboxRow, PublishResult, RelayId, RowResult, SlotLease,
    StoreError, Verbatim, Wanted,
};

impl Outbox for Sqlite {
    async fn append(&self, tx: &mut SqliteTx, events: Vec<Event>) -> Result<Vec<EventId>, StoreError> {
        tx.append(events).await
    }

    async fn append_verbatim(&self, tx: &mut SqliteTx, messages: Vec<Verbatim>) -> Result<(), StoreError> {
        tx.append_verbatim(messages).await
    }

    async fn backlog(&self) -> Result<Backlog, StoreError> {
        backlog::read(self.readers(), self.clock().now()).await
    }

    async fn lease(&self, relay: &RelayId, lease: Duration) -> Result<Vec<SlotLease>, StoreError> {
        let now = self.clock().monotonic();
        Ok(self.shared.slot.take(relay, now, now.saturating_add(lease)).into_iter().collect())
    }

    async fn release(&self, relay: &RelayId) -> Result<(), StoreError> {
        self.shared.slot.release(relay);
        Ok(())
    }

    async fn claim(&self, relay: &RelayId, ask: Ask) -> Result<Vec<OutboxRow>, StoreError> {
        let lease = self.shared.slot.held_by(relay);
        let known = |lease| ask.held.as_ref().is_none_or(|held| held.contains(&lease));
        if !lease.is_some_and(known) {
            return Ok(Vec::new());
        }
        self.shared.news.attend().await;
        loop {
            let (rows, unreadable) = self.due(&ask).await?;
            if unreadable.is_empty() {
                return Ok(rows);
            }
            // Then look again: rows of their keys are parked behind them now.
            self.bury(unreadable).await?;
        }
    }

    async fn settle(&self, relay: &RelayId, results: Vec<RowResult>) -> Result<usize, StoreError> {
        let now = self.clock().now();
        let (mut published, mut failed) = (Vec::new(), Vec::new());
        let mut delivered = Vec::new();
        for RowResult { row, result, delivered: both } in results {
            let done = result == PublishResult::Published;
            delivered.extend(both.map(|both| (row.position, both, done)));
            match result {
                PublishResult::Published => published.push(row.position),
                PublishResult::Failed { error, retry_after } => {
                    let retry_at = retry_after.map(|delay| later(now, delay));
                    failed.push(json!([row.position, error, retry_at, true]));
                }
                PublishResult::Postponed { error, retry_after } => {
                    failed.push(json!([row.position, error, later(now, retry_after), false]));
                }
            }
        }
        let now = now.as_microsecond();
        let (shared, relay) = (self.shared.clone(), relay.clone());
        let settle = self.writer().run(|connection| {
            async move {
                // Asked by whoever has the writer, so that no heir has marked anything yet.
                if shared.slot.held_by(&relay).is_none() {
                    return Ok(0);
                }
                super::dual::record(connection, delivered, now).await?;
                let published = mark_published(connection, published, now).await?;
                Ok(published + mark_failed(connection, failed, now).await?)
            }
            .boxed()
        });
        settle.await
    }

    fn is_in_commit_order(&self) -> bool {
        true
    }

    /// Writers take turns here, so what is visible is all there is.
    async fn horizon(&self) -> Result<Horizon, StoreError> {
        let position: i64 = sqlx::query_scalar("SELECT coalesce(max(position), 0) FROM event_outbox")
            .fetch_one(self.readers())
            .await
            .map_err(from_sqlite)?;
        let (at, log) = (self.clock().now(), LogPosition::default());
        Ok(Horizon { position, at, log, writers: Vec::new() })
    }

    async fn wait(&self, at_most: Duration) {
        self.shared.news.wait(at_most, self.clock()).await;
    }

    async fn failing_keys(&self) -> Result<Vec<OrderingKey>, StoreError> {
        let select = "SELECT DISTINCT \"key\" FROM event_outbox WHERE status IN ('failed', 'dead') AND \"key\" IS NOT NULL";
        let keys = sqlx::query_scalar::<_, String>(select).fetch_all(self.readers()).await;
        Ok(keys.map_err(from_sqlite)?.into_iter().filter_map(|key| OrderingKey::new(key).ok()).collect())
    }
}

impl Sqlite {
    async fn due(&self, ask: &Ask) -> Result<(Vec<OutboxRow>, Vec<Unreadable>), StoreError> {
        let (after, times) = match ask.wanted {
            Wanted::New { after, .. } => (after, 0),
            Wanted::Timed => (0, 1),
            Wanted::All => (0, 2),
        };
        let in_hand: Vec<_> = ask.in_hand.iter().filter(|position| **position > after).collect();
        let claimed = sqlx::query(CLAIM)
            .bind(self.clock().now().as_microsecond())
            .bind(after)
            .bind(times)
            .bind(i64::try_from(ask.limit).unwrap_or(i64::MAX))
            .bind(json!(in_hand).to_string())
            .bind(json!(ask.without.iter().map(AsRef::<str>::as_ref).collect::<Vec<_>>()).to_string())
            .fetch_all(self.readers())
            .await
            .map_err(from_sqlite)?;
        let (mut rows, mut unreadable) = (Vec::with_capacity(claimed.len()), Vec::new());
        for row in &claimed {
            match row::read(row) {
                Ok(row) => rows.push(row),
                Err(row) => unreadable.push(row),
            }
        }
        Ok((rows, unreadable))
    }

    /// Rows that a plain INSERT wrote and that cannot be an event are dead, with the reason, where everybody sees them.
    async fn bury(&self, unreadable: Vec<Unreadable>) -> Result<(), StoreError> {
        tracing::warn!(
            rows = unreadable.len(),
            "rows of the outbox cannot be read as events and are dead; see their last_error"
        );
        let dead = unreadable.into_iter().map(|row| json!([row.position, row.error, null, true])).collect();
        let now = self.clock().now().as_microsecond();
        self.writer().run(move |connection| mark_failed(connection, dead, now).boxed()).await.map(|_| ())
    }
}

/// What a claim reads, in the order of [`read_row`].
pub(super) const COLUMNS: &str = r#"position, created_at, id, group_id, subsidiary_id, aggregate_type, aggregate_id, event_type,
       payload, body, content_type, occurred_at, "key", causation_id, correlation_id, traceparent, tracestate, exchange,
       routing_key, target_queue, attempts, verbatim, dead_letter_id, headers"#;

/// Due rows: new ones (?3 = 0), those with a time of their own (1), or both (2). The limit is a sum because SQLite prepares a
/// statement anew for every number that it is limited by.
const CLAIM: &str = r#"
SELECT position, created_at, id, group_id, subsidiary_id, aggregate_type, aggregate_id, event_type, payload, body,
       content_type, occurred_at, "key", causation_id, correlation_id, traceparent, tracestate, exchange, routing_key,
       target_queue, iif(status = 'failed', max(attempts, 1), attempts), verbatim, dead_letter_id, headers
FROM event_outbox AS due INDEXED BY event_outbox_waiting
WHERE status IN ('pending', 'failed')
  AND available_at <= ?1
  AND position > ?2
  AND (?3 = 2 OR (available_at > 0) = ?3)
  AND position NOT IN (SELECT value FROM json_each(?5))
  AND ("key" IS NULL OR "key" NOT IN (SELECT value FROM json_each(?6)))
  AND NOT EXISTS (
        SELECT 1 FROM event_outbox AS head
        WHERE head."key" = due."key" AND head.position < due.position AND head.status IN ('failed', 'dead'))
ORDER BY position
LIMIT ?4 + 0
"#;

async fn mark_published(
    connection: &mut SqliteConnection,
    positions: Vec<i64>,
    now: i64,
) -> Result<usize, StoreError> {
    const SQL: &str = "
        UPDATE event_outbox SET status = 'published', published_at = ?2, last_error = NULL
        WHERE position IN (SELECT value FROM json_each(?1)) AND +status IN ('pending', 'failed')";
    if positions.is_empty() {
        return Ok(0);
    }
    update(connection, sqlx::query(SQL).bind(json!(positions).to_string()).bind(now)).await
}

fn later(now: Timestamp, delay: Duration) -> i64 {
    now.saturating_add(delay).unwrap_or(Timestamp::MAX).as_microsecond()
}

/// Each of `failed` is position, error, the time of the next try, which a dead row has not, and whether it failed by its own fault. A row that
/// waits for its next try was told of before, and counts once.
async fn mark_failed(
    connection: &mut SqliteConnection,
    failed: Vec<serde_json::Value>,
    now: i64,
) -> Result<usize, StoreError> {
    const SQL: &str = "
        UPDATE event_outbox
        SET status = iif(result.retry_at IS NULL, 'dead', 'failed'),
            available_at = coalesce(result.retry_at, available_at),
            attempts = iif(result.counts, attempts + 1, max(attempts, 1)),
            last_error = result.error
        FROM (SELECT value ->> 0 AS position, value ->> 1 AS error, value ->> 2 AS retry_at, value ->> 3 AS counts
              FROM json_each(?1)) AS result
        WHERE event_outbox.position = result.position AND (+status = 'pending' OR +status = 'failed' AND available_at <= ?2)";
    // The replay of a dead letter that dies loses its key, so that it holds up no other, and its letter is open again.
    const FREED: &str = "
        UPDATE event_outbox SET ordering_key = ''
        WHERE position IN (SELECT value ->> 0 FROM json_each(?1)) AND +status = 'dead' AND dead_letter_id IS NOT NULL";
    const REOPENED: &str = "
        UPDATE dead_letter SET status = 'open', resolved_at = NULL, replay_error = died.last_error
        FROM (SELECT dead_letter_id, last_error FROM event_outbox
              WHERE position IN (SELECT value ->> 0 FROM json_each(?1)) AND +status = 'dead') AS died
        WHERE dead_letter.id = died.dead_letter_id AND dead_letter.status = 'replayed'";
    if failed.is_empty() {
        return Ok(0);
    }
    let died = failed.iter().any(|result| result.get(2).is_none_or(serde_json::Value::is_null));
    let failed = json!(failed).to_string();
    let recorded = update(connection, sqlx::query(SQL).bind(&failed).bind(now)).await?;
    if died && recorded > 0 {
        update(connection, sqlx::query(FREED).bind(&failed)).await?;
        update(connection, sqlx::query(REOPENED).bind(&failed)).await?;
    }
    Ok(recorded)
}

async fn update(
    connection: &mut SqliteConnection,
    query: sqlx::query::Query<'_, sqlx::Sqlite, sqlx::sqlite::SqliteArguments>,
) -> Result<usize, StoreError> {
    let done = query.execute(connection).await.map_err(from_sqlite)?;
    Ok(usize::try_from(done.rows_affected()).unwrap_or(usize::MAX))
}
