//! Finding the rows that are due. Writes nothing, locks nothing.

use bytes::Bytes;
use sqlx::Row as _;
use sqlx::postgres::PgRow;

use super::Postgres;
use crate::envelope::{
    AggregateId, Envelope, EventId, EventType, OrderingKey, Payload, Tenant, TenantId, TraceContext,
};
use crate::store::{
    Lane, LetterId, OutboxRow, PublishResult, RelayId, RowId, RowResult, StoreError, read_head,
};
use crate::text::InvalidText;

/// Walks `event_outbox_claim` slot by slot, so a lane never reads the rows of another.
///
/// `failing` are the keys with a failed or dead row. Of such a key nothing is due but its head, and that only when it is
/// failed and its time has come. Both tests are hashed once per claim, and keep the order of the index.
///
/// Reading `$4` rows of every slot only to return `$4` of them all would read most of them in vain, so a slot gives a little
/// more than its part. `cut` is the last position up to which no slot has more: everything before is in order. `$5` asks
/// for whole slots, where a few slots have most of the rows.
const CLAIM: &str = "WITH held AS MATERIALIZED ( \
         SELECT slot FROM postrider.outbox_slot \
         WHERE owner = $1 AND lease_until > now() AND slot % $3::smallint = $2::smallint \
     ), part AS MATERIALIZED ( \
         SELECT CASE WHEN $5 THEN $4 ELSE least($4, $4 * 3 / (2 * greatest(count(*), 1)) + 12) END AS size FROM held \
     ), failing AS MATERIALIZED ( \
         SELECT o.key, min(o.position) AS head FROM held JOIN postrider.event_outbox o ON o.slot = held.slot \
         WHERE o.status IN ('failed', 'dead') AND o.key IS NOT NULL GROUP BY o.key \
     ), due AS MATERIALIZED ( \
         SELECT o.* FROM held CROSS JOIN LATERAL ( \
             SELECT * FROM postrider.event_outbox o \
             WHERE o.slot = held.slot AND o.status IN ('pending', 'failed') AND o.available_at <= now() \
               AND (o.key IS NULL OR o.key NOT IN (SELECT key FROM failing) \
                    OR o.position IN (SELECT head FROM failing)) \
             ORDER BY o.position LIMIT (SELECT size FROM part) \
         ) o \
     ), cut AS MATERIALIZED ( \
         SELECT min(last) AS position FROM ( \
             SELECT max(position) AS last FROM due GROUP BY slot HAVING count(*) >= (SELECT size FROM part) \
         ) slots \
     ) \
     SELECT position, created_at, id, group_id, subsidiary_id, aggregate_type, aggregate_id, event_type, \
         COALESCE(body, convert_to(payload::text, 'UTF8')) AS body, content_type, occurred_at, key, causation_id, \
         correlation_id, traceparent, tracestate, exchange, routing_key, target_queue, attempts, \
         verbatim, dead_letter_id, (SELECT position FROM cut) IS NOT NULL AS more \
     FROM due WHERE position <= COALESCE((SELECT position FROM cut), 9223372036854775807) \
     ORDER BY position LIMIT $4";

impl Postgres {
    pub(super) async fn claim_rows(
        &self,
        relay: &RelayId,
        lane: Lane,
        limit: usize,
    ) -> Result<Vec<OutboxRow>, StoreError> {
        let mut rows = self.due_rows(relay, lane, limit, false).await?;
        let more = rows.first().is_some_and(|row| row.try_get("more").unwrap_or(false));
        if more && rows.len() < limit {
            rows = self.due_rows(relay, lane, limit, true).await?;
        }
        let mut due = Vec::with_capacity(rows.len());
        let mut unreadable = Vec::new();
        for row in &rows {
            let id =
                row_id(row).map_err(|cause| super::failed("reading the outbox", &self.inner.place, cause))?;
            match outbox_row(row, id) {
                Ok(row) => due.push(row),
                Err(error) => unreadable.push((id, error)),
            }
        }
        if !unreadable.is_empty() {
            self.bury(relay, unreadable).await?;
        }
        Ok(due)
    }

    async fn due_rows(
        &self,
        relay: &RelayId,
        lane: Lane,
        limit: usize,
        whole: bool,
    ) -> Result<Vec<PgRow>, StoreError> {
        let select = sqlx::query(CLAIM)
            .bind(relay.as_str())
            .bind(i32::from(lane.index))
            .bind(i32::from(lane.count.max(1)))
            .bind(i64::try_from(limit).unwrap_or(i64::MAX / 4))
            .bind(whole);
        self.limited("claiming rows of the outbox", select.fetch_all(self.relays())).await
    }

    /// The rules of the table allow no row that cannot be read. Should one be there, it must not stop the others.
    async fn bury(&self, relay: &RelayId, rows: Vec<(RowId, Unreadable)>) -> Result<(), StoreError> {
        let results = rows.into_iter().map(|(row, error)| {
            tracing::error!(position = row.position, %error, "a row of the outbox cannot be read; it is dead now");
            RowResult { row, result: PublishResult::Failed { error: error.to_string(), retry_at: None } }
        });
        self.settle_rows(relay, results.collect()).await?;
        Ok(())
    }
}

#[derive(Debug, thiserror::Error)]
enum Unreadable {
    #[error(transparent)]
    Column(#[from] sqlx::Error),
    #[error(transparent)]
    Text(#[from] InvalidText),
    #[error("the headers of its message cannot be read: {0}")]
    Head(#[from] serde_json::Error),
}

fn row_id(row: &PgRow) -> Result<RowId, sqlx::Error> {
    let created_at = row.try_get::<jiff_sqlx::Timestamp, _>("created_at")?.to_jiff();
    Ok(RowId { position: row.try_get("position")?, created_at })
}

fn outbox_row(row: &PgRow, id: RowId) -> Result<OutboxRow, Unreadable> {
    let text = |column: &str| row.try_get::<&str, _>(column);
    let maybe = |column: &str| row.try_get::<Option<&str>, _>(column);
    let body = Bytes::copy_from_slice(row.try_get("body")?);
    let head: Option<&[u8]> = row.try_get("verbatim")?;
    Ok(OutboxRow {
        row: id,
        verbatim: head.map(|head| read_head(head, body.clone())).transpose()?,
        dead_letter: row.try_get::<Option<i64>, _>("dead_letter_id")?.map(LetterId),
        envelope: Envelope {
            id: EventId::new(text("id")?)?,
            event_type: EventType::from_parts(text("aggregate_type")?, text("event_type")?)?,
            aggregate_id: maybe("aggregate_id")?.map(AggregateId::new).transpose()?,
            tenant: Tenant {
                group: maybe("group_id")?.map(TenantId::new).transpose()?,
                subsidiary: maybe("subsidiary_id")?.map(TenantId::new).transpose()?,
            },
            occurred_at: row.try_get::<jiff_sqlx::Timestamp, _>("occurred_at")?.to_jiff(),
            ordering_key: maybe("key")?.map(OrderingKey::new).transpose()?,
            causation_id: maybe("causation_id")?.map(EventId::new).transpose()?,
            correlation_id: maybe("correlation_id")?.map(EventId::new).transpose()?,
            trace: TraceContext {
                traceparent: maybe("traceparent")?.map(str::to_owned),
                tracestate: maybe("tracestate")?.map(str::to_owned),
            },
            payload: Payload::new(text("content_type")?, body),
        },
        exchange: maybe("exchange")?.map(TryInto::try_into).transpose()?,
        routing_key: maybe("routing_key")?.map(TryInto::try_into).transpose()?,
        target_queue: maybe("target_queue")?.map(TryInto::try_into).transpose()?,
        attempts: u32::try_from(row.try_get::<i32, _>("attempts")?).unwrap_or(0),
    })
}
