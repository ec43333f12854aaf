//! The outbox as people see it.

use std::collections::HashMap;

use futures_util::FutureExt as _;
use sqlx::Row as _;
use sqlx::sqlite::SqliteRow;

use super::row::time;
use crate::envelope::{EventId, OrderingKey};
use crate::sqlite::{Sqlite, from_sqlite};
use crate::store::{
    Committed, OutboxDesk, ParkedKey, RowFilter, RowPage, RowView, SCANNED, StoreError, Unpark,
};

const VIEW: &str = "SELECT id, position, aggregate_type || '.' || event_type, aggregate_id, \"key\", group_id, status, \
     attempts, created_at, available_at, published_at, last_error, coalesce(payload, CAST(body AS TEXT)), subsidiary_id, exchange, \
     routing_key, target_queue FROM event_outbox";

impl OutboxDesk for Sqlite {
    async fn list(&self, filter: &RowFilter, limit: usize) -> Result<RowPage, StoreError> {
        let floor = if filter.is_indexed() { None } else { self.floor(filter.before).await? };
        let mut query = sqlx::QueryBuilder::<sqlx::Sqlite>::new(format!("{VIEW} WHERE true"));
        let texts = [
            ("\"key\"", filter.key.as_ref().map(OrderingKey::as_str)),
            ("aggregate_type", filter.aggregate_type.as_deref()),
            ("event_type", filter.event_type.as_deref()),
            ("aggregate_id", filter.aggregate_id.as_ref().map(AsRef::as_ref)),
            ("group_id", filter.tenant.as_ref().map(AsRef::as_ref)),
        ];
        for (column, value) in texts {
            if let Some(value) = value {
                query.push(format_args!(" AND {column} = ")).push_bind(value.to_owned());
            }
        }
        if let Some(status) = filter.status {
            // Written, so that the partial indexes fit.
            query.push(format_args!(" AND status = '{}'", status.as_str()));
        }
        for (than, place) in [("<", filter.before), (">=", floor)] {
            if let Some(place) = place {
                query.push(format_args!(" AND position {than} ")).push_bind(place);
            }
        }
        query.push(" ORDER BY position DESC LIMIT ").push_bind(i64::try_from(limit).unwrap_or(i64::MAX));
        let rows = query.build().fetch_all(self.readers()).await.map_err(from_sqlite)?;
        let rows = rows.iter().map(|row| view(row, false)).collect::<Result<_, _>>()?;
        Ok(RowPage::of(rows, limit, floor))
    }

    async fn find(&self, id: &EventId) -> Result<Option<RowView>, StoreError> {
        let row = sqlx::query(sqlx::AssertSqlSafe(format!("{VIEW} WHERE id = ?1")))
            .bind(id.as_str())
            .fetch_optional(self.readers())
            .await
            .map_err(from_sqlite)?;
        row.map(|row| view(&row, true)).transpose()
    }

    async fn committed(&self, ids: &[EventId]) -> Result<HashMap<EventId, Committed>, StoreError> {
        type Said = (String, String, Vec<u8>, Option<String>, Option<String>);
        let select = "SELECT id, aggregate_type || '.' || event_type, coalesce(body, CAST(payload AS BLOB)), group_id, aggregate_id \
             FROM event_outbox WHERE id IN (SELECT value FROM json_each(?1))";
        let asked = serde_json::Value::from(ids.iter().map(EventId::as_str).collect::<Vec<_>>()).to_string();
        let rows = sqlx::query_as::<_, Said>(select).bind(asked);
        let rows = rows.fetch_all(self.readers()).await.map_err(from_sqlite)?;
        let said = |(id, event_type, body, tenant, entity)| {
            Some((EventId::new(id).ok()?, Committed::new(event_type, body, tenant, entity)))
        };
        Ok(rows.into_iter().filter_map(said).collect())
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

impl Sqlite {
    /// The last row that a search without an index looks at; nothing if it comes to the end before.
    async fn floor(&self, before: Option<i64>) -> Result<Option<i64>, StoreError> {
        let select =
            "SELECT position FROM event_outbox WHERE position < ?1 ORDER BY position DESC LIMIT 1 OFFSET ?2";
        let floor = sqlx::query_scalar(select).bind(before.unwrap_or(i64::MAX)).bind(i64::from(SCANNED) - 1);
        floor.fetch_optional(self.readers()).await.map_err(from_sqlite)
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
            subsidiary_id: row.try_get(13)?,
            exchange: row.try_get(14)?,
            routing_key: row.try_get(15)?,
            target_queue: row.try_get(16)?,
        })
    };
    read().map_err(from_sqlite)
}
