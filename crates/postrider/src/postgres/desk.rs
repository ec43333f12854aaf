//! The outbox as people see it.

use std::collections::{BTreeSet, HashMap};

use jiff_sqlx::ToSqlx as _;
use sqlx::Row as _;
use sqlx::postgres::PgRow;

use super::Postgres;
use crate::envelope::{EventId, OrderingKey};
use crate::store::{
    Committed, OutboxDesk, ParkedKey, RowFilter, RowPage, RowView, SCANNED, StoreError, Unpark,
};

const VIEW: &str = "SELECT id::text, position, aggregate_type || '.' || event_type, aggregate_id::text, key, group_id::text, \
     status, attempts, created_at, available_at, published_at, last_error, subsidiary_id::text, exchange, routing_key, target_queue";

/// The last row that a search without an index looks at.
const FLOOR: &str =
    "SELECT position FROM {outbox} WHERE position < $1 ORDER BY position DESC LIMIT 1 OFFSET $2";

/// When events were committed, whether the table is one of ours, and whether its ids are uuids. Asked first: no plan finds a row by a time that
/// it would have to look up on the way. Every row of ours has its id there, and no index by it: without a time there is no row, and
/// nobody looks for it.
const WHEN: &str = "SELECT asked.relkind = 'p', column_id.atttypid = 'uuid'::regtype, known.created_at FROM pg_class asked \
     JOIN pg_attribute column_id ON column_id.attrelid = asked.oid AND column_id.attname = 'id' \
     LEFT JOIN {ids} known ON known.id = ANY ($1) WHERE asked.oid = '{outbox}'::regclass";
/// By their ids and those times, so that a few pages of few partitions are read …
const AT: &str =
    " FROM {outbox} WHERE id::text = ANY ($1) AND created_at = ANY ($2) AND created_at BETWEEN $3 AND $4";
/// … and by the ids alone in a table that others keep, which has an index of its own for them: on what they are there.
const BY_ID: &str = " FROM {outbox} WHERE id::text = ANY ($1)";
const BY_UUID: &str = " FROM {outbox} WHERE id = ANY ($1::text[]::uuid[])";

const PAYLOAD: &str = ", CASE WHEN body IS NULL THEN payload::text WHEN content_type ~ 'json|text' THEN convert_from(body, 'UTF8') \
     ELSE encode(body, 'base64') END";

const COMMITTED: &str = "SELECT id::text, aggregate_type || '.' || event_type, COALESCE(body, convert_to(payload::text, 'UTF8')), \
     group_id::text, aggregate_id::text";

/// One pass over what is not published, if anything is dead at all: counted for each key apart, behind some thousand dead heads, it took longer
/// than a statement may. Then a look at the heads that are shown.
const PARKED: &str = "WITH parked AS MATERIALIZED ( \
         SELECT key, min(position) FILTER (WHERE status = 'dead') AS head, count(*) FILTER (WHERE status <> 'dead') AS waiting \
         FROM {outbox} WHERE status IN ('pending', 'failed', 'dead') AND key IS NOT NULL \
           AND EXISTS (SELECT FROM {outbox} WHERE status = 'dead' AND key IS NOT NULL) \
         GROUP BY key HAVING bool_or(status = 'dead') ORDER BY waiting DESC, head LIMIT $1 \
     ) \
     SELECT dead.*, parked.waiting FROM parked CROSS JOIN LATERAL ( \
         SELECT key, id::text, last_error, attempts, available_at, position FROM {outbox} o \
         WHERE o.position = parked.head AND o.key = parked.key AND o.status = 'dead' LIMIT 1) dead \
     ORDER BY waiting DESC, position";

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
    async fn list(&self, filter: &RowFilter, limit: usize) -> Result<RowPage, StoreError> {
        let floor = if filter.is_indexed() { None } else { self.floor(filter.before).await? };
        let start = self.table.statement(&format!("{VIEW} FROM {{outbox}} WHERE true"));
        let mut query = sqlx::QueryBuilder::<sqlx::Postgres>::new(start.text());
        let texts = [
            ("key", filter.key.as_ref().map(OrderingKey::as_str)),
            ("aggregate_type", filter.aggregate_type.as_deref()),
            ("event_type", filter.event_type.as_deref()),
            ("aggregate_id::text", filter.aggregate_id.as_ref().map(AsRef::as_ref)),
            ("group_id::text", filter.tenant.as_ref().map(AsRef::as_ref)),
        ];
        for (column, value) in texts {
            if let Some(value) = value {
                query.push(format_args!(" AND {column} = ")).push_bind(value.replace('\0', "\u{fffd}"));
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
        let select = query.build().fetch_all(self.pool());
        let rows = self.limited("listing the outbox", select).await?;
        Ok(RowPage::of(self.views(&rows, false)?, limit, floor))
    }

    async fn find(&self, id: &EventId) -> Result<Option<RowView>, StoreError> {
        let rows = self.rows_of(&format!("{VIEW}{PAYLOAD}"), std::slice::from_ref(id)).await?;
        Ok(self.views(&rows, true)?.pop())
    }

    async fn committed(&self, ids: &[EventId]) -> Result<HashMap<EventId, Committed>, StoreError> {
        let said = |row: &PgRow| {
            let said = Committed::new(row.try_get(1)?, row.try_get(2)?, row.try_get(3)?, row.try_get(4)?);
            Ok((row.try_get::<String, _>(0)?, said))
        };
        let rows = self.rows_of(COMMITTED, ids).await?;
        let read: Result<Vec<_>, sqlx::Error> = rows.iter().map(said).collect();
        let read = read.map_err(|cause| super::failed("reading the outbox", &self.inner.place, cause))?;
        Ok(read.into_iter().filter_map(|(id, said)| Some((EventId::new(id).ok()?, said))).collect())
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
    /// The rows of these events, with these columns.
    async fn rows_of(&self, columns: &str, ids: &[EventId]) -> Result<Vec<PgRow>, StoreError> {
        type When = (bool, bool, Option<jiff_sqlx::Timestamp>);
        let doing = "reading the outbox";
        let ids: Vec<&str> = ids.iter().map(EventId::as_str).collect();
        let when = self.table.statement(WHEN);
        // Both are planned each time: a plan for a table that was small once would be kept, and read all of it.
        let when = sqlx::query_as::<_, When>(when.sql()).bind(&ids).persistent(false);
        let when = self.limited(doing, when.fetch_all(self.pool())).await?;
        let (ours, uuids) = when.first().map_or((true, false), |(ours, uuids, ..)| (*ours, *uuids));
        let known = when.iter().filter(|(.., at)| at.is_some()).count();
        let times: BTreeSet<_> = when.into_iter().filter_map(|(.., at)| Some(at?.to_jiff())).collect();
        let mut rows = Vec::new();
        if let (Some(first), Some(last)) = (times.first(), times.last()) {
            let select = self.table.statement(&format!("{columns}{AT}"));
            let all: Vec<_> = times.iter().map(|at| at.to_sqlx()).collect();
            let select = sqlx::query(select.sql()).bind(&ids).bind(all);
            let select = select.bind(first.to_sqlx()).bind(last.to_sqlx()).persistent(false);
            rows = self.limited(doing, select.fetch_all(self.pool())).await?;
        }
        if !ours && known < ids.len() {
            let by = if uuids { BY_UUID } else { BY_ID };
            let select = self.table.statement(&format!("{columns}{by}"));
            let asked: Vec<&str> = ids.into_iter().filter(|id| !uuids || is_uuid(id)).collect();
            let select = sqlx::query(select.sql()).bind(asked);
            rows = self.limited(doing, select.fetch_all(self.pool())).await?;
        }
        Ok(rows)
    }

    /// Nothing if the search comes to the end before.
    async fn floor(&self, before: Option<i64>) -> Result<Option<i64>, StoreError> {
        let select = self.table.statement(FLOOR);
        let select = sqlx::query_scalar::<_, i64>(select.sql())
            .bind(before.unwrap_or(i64::MAX))
            .bind(i64::from(SCANNED) - 1);
        self.limited("listing the outbox", select.fetch_optional(self.pool())).await
    }

    fn views(&self, rows: &[PgRow], with_payload: bool) -> Result<Vec<RowView>, StoreError> {
        let views: Result<Vec<_>, sqlx::Error> = rows.iter().map(|row| view(row, with_payload)).collect();
        views.map_err(|cause| super::failed("reading the outbox", &self.inner.place, cause))
    }
}

/// Whether it is one as PostgreSQL writes it.
fn is_uuid(text: &str) -> bool {
    uuid::Uuid::try_parse(text).is_ok_and(|uuid| uuid.to_string() == text)
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
        subsidiary_id: row.try_get(12)?,
        exchange: row.try_get(13)?,
        routing_key: row.try_get(14)?,
        target_queue: row.try_get(15)?,
        payload: if with_payload { row.try_get(16)? } else { None },
    })
}
