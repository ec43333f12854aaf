//! The outbox as people see it.

use futures_util::FutureExt as _;
use sqlx::Row as _;
use sqlx::sqlite::SqliteRow;

use super::row::time;
use crate::envelope::{EventId, OrderingKey};
use crate::sqlite::{Sqlite, from_sqlite};
use crate::store::{Committed, OutboxDesk, OutboxStatus, ParkedKey, RowFilter, RowView, StoreError, Unpark};

const VIEW: &str = "SELECT id, position, aggregate_type || '.' || event_type, aggregate_id, \"key\", group_id, status, \
     attempts, created_at, available_at, published_at, last_error, coalesce(payload, CAST(body AS TEXT)) FROM event_outbox";

impl OutboxDesk for Sqlite {
    async fn list(&self, filter: &RowFilter, limit: usize) -> Result<Vec<RowView>, StoreError> {
        let select = format!(
            "{VIEW} WHERE (?1 IS NULL OR status = ?1) AND (?2 IS NULL OR \"key\" = ?2) \
             AND (?3 IS NULL OR aggregate_type = ?3) ORDER BY position DESC LIMIT ?4"
        );
        let rows = sqlx::query(sqlx::AssertSqlSafe(select))
            .bind(filter.status.map(OutboxStatus::as_str))
            .bind(filter.key.as_ref().map(OrderingKey::as_str))
            .bind(filter.aggregate_type.as_deref())
            .bind(i64::try_from(limit).unwrap_or(i64::MAX))
            .fetch_all(self.readers())
            .await
            .map_err(from_sqlite)?;
        rows.iter().map(|row| view(row, false)).collect()
    }

    async fn find(&self, id: &EventId) -> Result<Option<RowView>, StoreError> {
        let row = sqlx::query(sqlx::AssertSqlSafe(format!("{VIEW} WHERE id = ?1")))
            .bind(id.as_str())
            .fetch_optional(self.readers())
            .await
            .map_err(from_sqlite)?;
        row.map(|row| view(&row, true)).transpose()
    }

    async fn committed(&self, id: &EventId) -> Result<Option<Committed>, StoreError> {
        let select = "SELECT aggregate_type || '.' || event_type, coalesce(body, CAST(payload AS BLOB)) \
             FROM event_outbox WHERE id = ?1";
        let row = sqlx::query_as::<_, (String, Vec<u8>)>(select).bind(id.as_str());
        let row = row.fetch_optional(self.readers()).await.map_err(from_sqlite)?;
        Ok(row.map(|(event_type, body)| Committed::new(event_type, body)))
    }

    async fn parked(&self, limit: usize) -> Result<Vec<ParkedKey>, StoreError> {
        let select = "SELECT dead.\"key\", dead.id, dead.last_error, dead.attempts, dead.available_at, \
                (SELECT count(*) FROM event_outbox o WHERE o.\"key\" = dead.\"key\" AND o.position > dead.position \
                     AND o.status IN ('pending', 'failed')) AS waiting \
             FROM event_outbox dead WHERE dead.status = 'dead' AND dead.\"key\" IS NOT NULL \
               AND NOT EXISTS (SELECT 1 FROM event_outbox earlier WHERE earlier.\"key\" = dead.\"key\" \
                   AND earlier.status = 'dead' AND earlier.position < dead.position) \
             ORDER BY waiting DESC, dead.position LIMIT ?1";
        let rows = sqlx::query(select)
            .bind(i64::try_from(limit).unwrap_or(i64::MAX))
            .fetch_all(self.readers())
            .await
            .map_err(from_sqlite)?;
        let parked = |row: &SqliteRow| {
            Ok(ParkedKey {
                key: row.try_get(0)?,
                event_id: row.try_get(1)?,
                error: row.try_get(2)?,
                attempts: row.try_get(3)?,
                since: time(row.try_get(4)?),
                waiting: row.try_get::<i64, _>(5)?.unsigned_abs(),
            })
        };
        rows.iter().map(|row| parked(row).map_err(from_sqlite)).collect()
    }

    async fn unpark(&self, target: &Unpark) -> Result<Vec<EventId>, StoreError> {
        const FREE: &str = "UPDATE event_outbox SET status = 'failed', attempts = 1, available_at = ?3 \
             WHERE status = 'dead' AND (\"key\" = ?1 OR id = ?2) RETURNING id";
        let (key, id) = match target.clone() {
            Unpark::Key(key) => (Some(key.as_str().to_owned()), None),
            Unpark::Event(id) => (None, Some(id.as_str().to_owned())),
        };
        let now = self.clock().now().as_microsecond();
        let free = self.writer().run(move |connection| {
            async move {
                let freed = sqlx::query_scalar::<_, String>(FREE).bind(key).bind(id).bind(now);
                freed.fetch_all(connection).await.map_err(from_sqlite)
            }
            .boxed()
        });
        let freed = free.await?;
        self.shared.slot.stir();
        self.shared.news.announce();
        Ok(freed.into_iter().filter_map(|id| EventId::new(id).ok()).collect())
    }
}

fn view(row: &SqliteRow, with_payload: bool) -> Result<RowView, StoreError> {
    let read = || {
        let created_at = time(row.try_get(8)?);
        Ok::<_, sqlx::Error>(RowView {
            id: row.try_get(0)?,
            position: row.try_get::<i64, _>(1)?.to_string(),
            event_type: row.try_get(2)?,
            aggregate_id: row.try_get(3)?,
            key: row.try_get(4)?,
            group_id: row.try_get(5)?,
            status: row.try_get(6)?,
            attempts: row.try_get(7)?,
            created_at,
            // 0 means at once.
            available_at: time(row.try_get(9)?).max(created_at),
            published_at: row.try_get::<Option<i64>, _>(10)?.map(time),
            last_error: row.try_get(11)?,
            payload: if with_payload { row.try_get(12)? } else { None },
        })
    };
    read().map_err(from_sqlite)
}
