//! Finding the rows that are due. Writes nothing, locks nothing.

use bytes::Bytes;
use sqlx::Row as _;
use sqlx::postgres::PgRow;

use super::Postgres;
use crate::envelope::{
    AggregateId, Envelope, EventId, EventType, OrderingKey, Payload, Tenant, TenantId, TraceContext,
};
use crate::store::{Lane, OutboxRow, PublishResult, RelayId, RowId, RowResult, StoreError};
use crate::text::InvalidText;

/// Walks `event_outbox_claim` slot by slot, so a lane never reads the rows of another.
///
/// `failing` are the keys with a failed or dead row. Of such a key nothing is due but its head, and that only when it is
/// failed and its time has come. Both tests are hashed once per claim, and keep the order of the index.
const CLAIM: &str = "WITH held AS MATERIALIZED ( \
         SELECT slot FROM postrider.outbox_slot \
         WHERE owner = $1 AND lease_until > now() AND slot % $3::smallint = $2::smallint \
     ), failing AS MATERIALIZED ( \
         SELECT o.key, min(o.position) AS head FROM held JOIN postrider.event_outbox o ON o.slot = held.slot \
         WHERE o.status IN ('failed', 'dead') AND o.key IS NOT NULL GROUP BY o.key \
     ) \
     SELECT due.position, due.created_at, due.id, due.group_id, due.subsidiary_id, due.aggregate_type, \
         due.aggregate_id, due.event_type, COALESCE(due.body, convert_to(due.payload::text, 'UTF8')) AS body, \
         due.content_type, due.occurred_at, due.key, due.causation_id, due.correlation_id, due.traceparent, \
         due.tracestate, due.exchange, due.routing_key, due.target_queue, due.attempts \
     FROM held CROSS JOIN LATERAL ( \
         SELECT o.* FROM postrider.event_outbox o \
         WHERE o.slot = held.slot AND o.status IN ('pending', 'failed') AND o.available_at <= now() \
           AND (o.key IS NULL OR o.key NOT IN (SELECT key FROM failing) \
                OR o.position IN (SELECT head FROM failing)) \
         ORDER BY o.position LIMIT $4 \
     ) due \
     ORDER BY due.position LIMIT $4";

impl Postgres {
    pub(super) async fn claim_rows(
        &self,
        relay: &RelayId,
        lane: Lane,
        limit: usize,
    ) -> Result<Vec<OutboxRow>, StoreError> {
        let select = sqlx::query(CLAIM)
            .bind(relay.as_str())
            .bind(i32::from(lane.index))
            .bind(i32::from(lane.count.max(1)))
            .bind(i64::try_from(limit).unwrap_or(i64::MAX));
        let rows = self.limited("claiming rows of the outbox", select.fetch_all(self.relays())).await?;
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
}

fn row_id(row: &PgRow) -> Result<RowId, sqlx::Error> {
    let created_at = row.try_get::<jiff_sqlx::Timestamp, _>("created_at")?.to_jiff();
    Ok(RowId { position: row.try_get("position")?, created_at })
}

fn outbox_row(row: &PgRow, id: RowId) -> Result<OutboxRow, Unreadable> {
    let text = |column: &str| row.try_get::<&str, _>(column);
    let maybe = |column: &str| row.try_get::<Option<&str>, _>(column);
    let body = Bytes::copy_from_slice(row.try_get("body")?);
    Ok(OutboxRow {
        row: id,
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
