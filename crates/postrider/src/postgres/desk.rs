//! The outbox as people see it.

use sqlx::Row as _;
use sqlx::postgres::PgRow;

use super::Postgres;
use crate::envelope::{EventId, OrderingKey};
use crate::store::{Committed, OutboxDesk, OutboxStatus, ParkedKey, RowFilter, RowView, StoreError, Unpark};

const VIEW: &str = "SELECT id::text, position, aggregate_type || '.' || event_type, aggregate_id::text, key, group_id::text, \
     status, attempts, created_at, available_at, published_at, last_error";

/// The index of aggregates, of the unpublished or of the positions serves, whatever is asked for.
const LIST: &str = " FROM {outbox} WHERE ($1::text IS NULL OR status = $1) AND ($2::text IS NULL OR key = $2) \
     AND ($3::text IS NULL OR aggregate_type = $3) ORDER BY position DESC LIMIT $4";

/// By the time of its id, where that is known, so that one partition is read.
const BY_ID: &str = " FROM {outbox} WHERE id::text = $1 \
     AND created_at = COALESCE((SELECT created_at FROM {ids} WHERE id = $1), created_at)";

const PAYLOAD: &str = ", CASE WHEN body IS NULL THEN payload::text WHEN content_type ~ 'json|text' THEN convert_from(body, 'UTF8') \
     ELSE encode(body, 'base64') END";

const COMMITTED: &str =
    "SELECT aggregate_type || '.' || event_type, COALESCE(body, convert_to(payload::text, 'UTF8'))";

const PARKED: &str = "WITH dead AS ( \
         SELECT DISTINCT ON (key) key, id::text, last_error, attempts, available_at, position FROM {outbox} \
         WHERE status = 'dead' AND key IS NOT NULL ORDER BY key, position \
     ) \
     SELECT dead.*, (SELECT count(*) FROM {outbox} o \
         WHERE o.key = dead.key AND o.position > dead.position AND o.status IN ('pending', 'failed')) AS waiting \
     FROM dead ORDER BY waiting DESC, position LIMIT $1";

/// Failed once, so that it is the head of its key still, and the rest of it flows when it is published. The new epoch makes
/// the slot's relay look at everything again.
const UNPARK: &str = "WITH freed AS ( \
         UPDATE {outbox} SET status = 'failed', attempts = 1, \
             available_at = GREATEST(now(), created_at + interval '1 microsecond') \
         WHERE status = 'dead' AND (key = $1 OR id::text = $2) RETURNING id::text, slot, position \
     ), stirred AS ( \
         UPDATE postrider.outbox_slot SET epoch = epoch + 1 \
         WHERE outbox = {name} AND slot IN (SELECT slot FROM freed) \
     ), told AS (SELECT pg_notify('postrider_outbox', '') FROM freed LIMIT 1) \
     SELECT id FROM freed LEFT JOIN told ON true ORDER BY position";

impl OutboxDesk for Postgres {
    async fn list(&self, filter: &RowFilter, limit: usize) -> Result<Vec<RowView>, StoreError> {
        let select = self.table.statement(&format!("{VIEW}{LIST}"));
        let select = sqlx::query(select.sql())
            .bind(filter.status.map(OutboxStatus::as_str))
            .bind(filter.key.as_ref().map(OrderingKey::as_str))
            .bind(filter.aggregate_type.as_deref())
            .bind(i64::try_from(limit).unwrap_or(i64::MAX));
        let rows = self.limited("listing the outbox", select.fetch_all(self.pool())).await?;
        self.views(&rows, false)
    }

    async fn find(&self, id: &EventId) -> Result<Option<RowView>, StoreError> {
        let select = self.table.statement(&format!("{VIEW}{PAYLOAD}{BY_ID}"));
        let select = sqlx::query(select.sql()).bind(id.as_str());
        let rows = self.limited("reading the outbox", select.fetch_all(self.pool())).await?;
        Ok(self.views(&rows, true)?.pop())
    }

    async fn committed(&self, id: &EventId) -> Result<Option<Committed>, StoreError> {
        let select = self.table.statement(&format!("{COMMITTED}{BY_ID}"));
        let select = sqlx::query_as::<_, (String, Vec<u8>)>(select.sql()).bind(id.as_str());
        let row = self.limited("reading the outbox", select.fetch_optional(self.pool())).await?;
        Ok(row.map(|(event_type, body)| Committed::new(event_type, body)))
    }

    async fn parked(&self, limit: usize) -> Result<Vec<ParkedKey>, StoreError> {
        let select = self.table.statement(PARKED);
        let select = sqlx::query(select.sql()).bind(i64::try_from(limit).unwrap_or(i64::MAX));
        let rows = self.limited("listing parked keys", select.fetch_all(self.pool())).await?;
        let parked = |row: &PgRow| {
            Ok(ParkedKey {
                key: row.try_get(0)?,
                event_id: row.try_get(1)?,
                error: row.try_get(2)?,
                attempts: row.try_get(3)?,
                since: row.try_get::<jiff_sqlx::Timestamp, _>(4)?.to_jiff(),
                waiting: row.try_get::<i64, _>(6)?.unsigned_abs(),
            })
        };
        let parked: Result<Vec<_>, sqlx::Error> = rows.iter().map(parked).collect();
        parked.map_err(|cause| super::failed("listing parked keys", &self.inner.place, cause))
    }

    async fn unpark(&self, target: &Unpark) -> Result<Vec<EventId>, StoreError> {
        let (key, id) = match target {
            Unpark::Key(key) => (Some(key.as_str()), None),
            Unpark::Event(id) => (None, Some(id.as_str())),
        };
        let statement = self.table.statement(UNPARK);
        let update = sqlx::query_scalar::<_, String>(statement.sql()).bind(key).bind(id);
        let freed = self.limited("unparking a key", update.fetch_all(self.pool())).await?;
        Ok(freed.into_iter().filter_map(|id| EventId::new(id).ok()).collect())
    }
}

impl Postgres {
    fn views(&self, rows: &[PgRow], with_payload: bool) -> Result<Vec<RowView>, StoreError> {
        let views: Result<Vec<_>, sqlx::Error> = rows.iter().map(|row| view(row, with_payload)).collect();
        views.map_err(|cause| super::failed("reading the outbox", &self.inner.place, cause))
    }
}

fn view(row: &PgRow, with_payload: bool) -> Result<RowView, sqlx::Error> {
    let time =
        |column: usize| row.try_get::<jiff_sqlx::Timestamp, _>(column).map(jiff_sqlx::Timestamp::to_jiff);
    Ok(RowView {
        id: row.try_get(0)?,
        position: row.try_get::<i64, _>(1)?.to_string(),
        event_type: row.try_get(2)?,
        aggregate_id: row.try_get(3)?,
        key: row.try_get(4)?,
        group_id: row.try_get(5)?,
        status: row.try_get(6)?,
        attempts: row.try_get(7)?,
        created_at: time(8)?,
        available_at: time(9)?,
        published_at: row.try_get::<Option<jiff_sqlx::Timestamp>, _>(10)?.map(jiff_sqlx::Timestamp::to_jiff),
        last_error: row.try_get(11)?,
        payload: if with_payload { row.try_get(12)? } else { None },
    })
}
