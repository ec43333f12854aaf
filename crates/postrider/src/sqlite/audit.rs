//! The store's part of the account: what was committed for a consumer, and where it is.

use jiff::Timestamp;
use serde_json::json;
use sqlx::SqliteConnection;

use super::Sqlite;
use super::error::from_sqlite;
use super::letters::sent_elsewhere;
use crate::envelope::EventId;
use crate::store::{Audit, AuditScope, CommittedEvent, CommittedRow, ConsumerCount, StoreError, unusable};

impl Audit for Sqlite {
    /// All from one snapshot: what is committed meanwhile is in none of the figures.
    async fn count(&self, scope: &AuditScope) -> Result<ConsumerCount, StoreError> {
        let mut reader = self.readers().begin().await.map_err(from_sqlite)?;
        let routed = routed(&mut reader, scope).await?;
        let mut count = count(&mut reader, scope, &routed).await?;
        if scope.list > 0 && count.elsewhere > 0 {
            count.elsewhere_ids = elsewhere(&mut reader, scope, &routed).await?;
        }
        // It only read, so there is nothing to keep.
        reader.rollback().await.map_err(from_sqlite)?;
        Ok(count)
    }

    async fn last_position(&self) -> Result<i64, StoreError> {
        let last = sqlx::query_scalar("SELECT coalesce(max(position), 0) FROM event_outbox");
        last.fetch_one(self.readers()).await.map_err(from_sqlite)
    }

    /// Everything is in one file, so where they show is known with them.
    async fn committed_to(
        &self,
        scope: &AuditScope,
        after: i64,
        limit: usize,
    ) -> Result<Vec<CommittedEvent>, StoreError> {
        let mut reader = self.readers().begin().await.map_err(from_sqlite)?;
        let routed = routed(&mut reader, scope).await?;
        let sql = from_committed(
            scope,
            "SELECT id, group_id, position, CASE
                WHEN applied THEN 'applied' WHEN dead THEN 'dead' WHEN status <> 'published' THEN 'unpublished'
                WHEN held THEN 'held' WHEN early THEN 'early' ELSE 'elsewhere' END
             FROM committed WHERE position > ?6 ORDER BY position LIMIT ?7",
        );
        let query = sqlx::query_as::<_, CommittedRow>(sqlx::AssertSqlSafe(sql))
            .bind(&routed)
            .bind(scope.consumer.as_str())
            .bind(scope.queue.as_str())
            .bind(scope.inbox.as_str())
            .bind(scope.since.map(Timestamp::as_microsecond))
            .bind(after)
            .bind(i64::try_from(limit).unwrap_or(i64::MAX));
        let rows = query.fetch_all(&mut *reader).await.map_err(from_sqlite)?;
        reader.rollback().await.map_err(from_sqlite)?;
        rows.into_iter().map(CommittedEvent::read).collect()
    }
}

type Route = (Option<String>, String, Option<String>);

/// Which routes of the outbox lead to the queue, as JSON. There are few routes, however many rows.
async fn routed(reader: &mut SqliteConnection, scope: &AuditScope) -> Result<String, StoreError> {
    let select = "SELECT DISTINCT exchange, coalesce(routing_key, aggregate_type || '.' || event_type), target_queue \
                  FROM event_outbox WHERE verbatim IS NULL OR event_id = id";
    let routes: Vec<Route> = sqlx::query_as(select).fetch_all(reader).await.map_err(from_sqlite)?;
    let wanted: Vec<_> = routes.into_iter().filter(|route| reaches(scope, route)).collect();
    Ok(json!(wanted).to_string())
}

fn reaches(scope: &AuditScope, (exchange, key, target): &Route) -> bool {
    match target {
        Some(target) => *target == scope.queue.as_str(),
        None => scope.is_reached_by(exchange.as_deref().unwrap_or(scope.exchange.as_str()), key),
    }
}

/// The rows that are routed to the queue, and where each is. A blob stands for no exchange and no target, because no text
/// equals it. A dead letter that was sent again is not dead any more; the row that sends it again is no event of its own, but a
/// place where one waits; unless the event is its own, edited and sent in the place of another.
const COMMITTED: &str = "
WITH committed AS (
    SELECT position, id, group_id,
        iif(status = 'published' AND EXISTS (
            SELECT 1 FROM event_outbox AS again
            WHERE again.event_id = event_outbox.id AND (again.target_queue = ?3 OR again.target_queue IS NULL)
              AND again.status IN ('pending', 'failed')),
            'pending', status) AS status,
        EXISTS (SELECT 1 FROM event_inbox WHERE consumer_name = ?4 AND event_id = event_outbox.id) AS applied,
        status = 'dead' OR EXISTS (
            SELECT 1 FROM dead_letter d
            WHERE d.event_id = event_outbox.id AND d.queue = ?3 AND (d.status <> 'replayed' OR {elsewhere})) AS dead,
        EXISTS (SELECT 1 FROM held_event WHERE consumer_name = ?2 AND event_id = event_outbox.id) AS held,
        coalesce(published_at < ?5, 0) AS early
    FROM event_outbox
    WHERE position <= {until} AND (verbatim IS NULL OR event_id = id) AND (coalesce(exchange, x'00'), coalesce(routing_key, aggregate_type || '.' || event_type),
           coalesce(target_queue, x'00'))
        IN (SELECT coalesce(value ->> 0, x'00'), value ->> 1, coalesce(value ->> 2, x'00') FROM json_each(?1))
)";

async fn count(
    reader: &mut SqliteConnection,
    scope: &AuditScope,
    routed: &str,
) -> Result<ConsumerCount, StoreError> {
    let sql = from_committed(
        scope,
        "SELECT count(*),
            count(*) FILTER (WHERE applied),
            count(*) FILTER (WHERE NOT applied AND dead),
            count(*) FILTER (WHERE NOT applied AND NOT dead AND status <> 'published'),
            count(*) FILTER (WHERE NOT applied AND NOT dead AND status = 'published' AND held),
            count(*) FILTER (WHERE NOT applied AND NOT dead AND status = 'published' AND NOT held),
            count(*) FILTER (WHERE NOT applied AND NOT dead AND status = 'published' AND NOT held AND early)
         FROM committed",
    );
    let query = sqlx::query_as(sqlx::AssertSqlSafe(sql))
        .bind(routed)
        .bind(scope.consumer.as_str())
        .bind(scope.queue.as_str())
        .bind(scope.inbox.as_str())
        .bind(scope.since.map(Timestamp::as_microsecond));
    let counted: (i64, i64, i64, i64, i64, i64, i64) = query.fetch_one(reader).await.map_err(from_sqlite)?;
    let number = |count: i64| u64::try_from(count).unwrap_or(0);
    Ok(ConsumerCount {
        committed: number(counted.0),
        applied: number(counted.1),
        dead: number(counted.2),
        unpublished: number(counted.3),
        held: number(counted.4),
        elsewhere: number(counted.5),
        early: number(counted.6),
        elsewhere_ids: Vec::new(),
    })
}

async fn elsewhere(
    reader: &mut SqliteConnection,
    scope: &AuditScope,
    routed: &str,
) -> Result<Vec<EventId>, StoreError> {
    let sql = from_committed(
        scope,
        "SELECT id FROM committed WHERE NOT applied AND NOT dead AND status = 'published' AND NOT held AND NOT early
         ORDER BY position LIMIT ?6",
    );
    let query = sqlx::query_scalar(sqlx::AssertSqlSafe(sql))
        .bind(routed)
        .bind(scope.consumer.as_str())
        .bind(scope.queue.as_str())
        .bind(scope.inbox.as_str())
        .bind(scope.since.map(Timestamp::as_microsecond))
        .bind(i64::try_from(scope.list).unwrap_or(i64::MAX));
    let ids: Vec<String> = query.fetch_all(reader).await.map_err(from_sqlite)?;
    ids.into_iter().map(EventId::new).collect::<Result<_, _>>().map_err(|error| unusable(&error))
}

/// The text is made of constants and a number only.
fn from_committed(scope: &AuditScope, select: &str) -> String {
    let committed = COMMITTED.replace("{until}", &scope.until.to_string());
    format!("{} {select}", committed.replace("{elsewhere}", sent_elsewhere!()))
}
