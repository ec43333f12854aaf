//! Finding the rows that are due. Writes nothing, locks nothing.

use bytes::Bytes;
use sqlx::Row as _;
use sqlx::postgres::PgRow;

use super::Postgres;
use crate::envelope::{
    AggregateId, Attributes, Envelope, EventId, EventType, OrderingKey, Payload, Tenant, TenantId,
    TraceContext,
};
use crate::store::{
    Ask, LetterId, OutboxRow, PublishResult, RelayId, RowId, RowResult, StoreError, Wanted, read_head,
};
use crate::text::InvalidText;

/// What a claim reads, in the order of [`outbox_row`]. What is failed was tried, whoever wrote that and counted nothing: others of its key
/// wait for it.
pub(super) const COLUMNS: &str = "position, created_at, slot, id::text, group_id::text, subsidiary_id::text, aggregate_type, \
     aggregate_id::text, event_type, COALESCE(body, convert_to(payload::text, 'UTF8')), content_type, occurred_at, key, \
     causation_id::text, correlation_id::text, traceparent, tracestate, exchange, routing_key, target_queue, \
     CASE status WHEN 'failed' THEN GREATEST(attempts, 1) ELSE attempts END, verbatim, dead_letter_id, headers::text";

/// What every claim keeps to: the relay's own slots, what it has not in hand, and keys of which it wants more. Each of these
/// lists is hashed once.
const SELECTION: &str = "slot = ANY (ARRAY(SELECT s.slot FROM postrider.outbox_slot s \
         WHERE s.outbox = {name} AND s.owner = $1 AND s.lease_until > now() AND ($5::smallint[] IS NULL \
             OR (s.slot, s.epoch) IN (SELECT * FROM unnest($5::smallint[], $6::bigint[]))))) \
     AND position NOT IN (SELECT unnest($3::bigint[])) \
     AND (key IS NULL OR key NOT IN (SELECT unnest($4::text[])))";

/// So many failing keys are looked up in memory; where there are more, each row is held against the index of failing rows, too. A list that
/// grew with them would be too large to hash: PostgreSQL would read all of it for every row, and no claim would come to its end.
const FAILING: usize = 10_000;

/// New rows: walks `…_new` in the order of positions, which has no row that is published or has a time of its own: one whose service's
/// clock is ahead, so that both of its times are still to come, is due all the same. `failing`
/// are keys with a failed or dead row; nothing behind such a row is due. Where it is said since when to look, the partitions that were
/// made ahead are left alone too, which is a fifth of a small claim; a row that says it was written in days to come is found by the look
/// at everything.
pub(super) fn new() -> String {
    let held_up = held_up("");
    format!(
        "WITH failing AS MATERIALIZED ( \
             SELECT key FROM {{outbox}} WHERE status IN ('failed', 'dead') AND key IS NOT NULL LIMIT {FAILING} \
         ) \
         SELECT {COLUMNS} FROM {{outbox}} o \
         WHERE status = 'pending' AND available_at <= created_at \
           AND position > $7 AND created_at >= COALESCE($8::timestamptz, '-infinity') \
           AND created_at <= CASE WHEN $8::timestamptz IS NULL THEN 'infinity' ELSE now() + interval '1 day' END \
           AND {SELECTION} \
           AND (key IS NULL OR key NOT IN (SELECT key FROM failing) \
                AND ((SELECT count(*) FROM failing) < {FAILING} OR NOT {held_up})) \
         ORDER BY position LIMIT $2"
    )
}

/// Rows whose time has come: scheduled ones, and failed ones. Of a failing key only its head, and that only when it is failed.
///
/// Whoever says `failed` himself, in an INSERT or by hand, may give no time for the next attempt: that is due at once. `…_timed` does not have
/// such rows, so they are found by their status, beside the others.
pub(super) fn timed() -> String {
    let held_up = held_up("AND (o.status = 'pending' OR f.position < o.position)");
    let due = |rows: &str| {
        format!(
            "(SELECT {COLUMNS} FROM {{outbox}} o WHERE {rows} AND {SELECTION} AND (key IS NULL OR NOT {held_up}) \
             ORDER BY available_at LIMIT $2)"
        )
    };
    let timed =
        due("status IN ('pending', 'failed') AND available_at > created_at AND available_at <= now()");
    // Whose clock is ahead waits for it, as with a time of its own: else every row that waits for its retry would be read here.
    let untimed = due("status = 'failed' AND available_at <= created_at AND available_at <= now()");
    format!("WITH due AS ({timed} UNION ALL {untimed}) SELECT * FROM due ORDER BY position LIMIT $2")
}

/// Whether a failed or dead row stands before the row `o` of its key: a probe of `…_failing`. OFFSET keeps PostgreSQL from reading all of them
/// at once instead.
fn held_up(and: &str) -> String {
    format!(
        "EXISTS (SELECT FROM {{outbox}} f WHERE f.status IN ('failed', 'dead') AND f.slot = o.slot AND f.key = o.key {and} OFFSET 0)"
    )
}

impl Postgres {
    pub(super) async fn claim_rows(&self, relay: &RelayId, ask: Ask) -> Result<Vec<OutboxRow>, StoreError> {
        let rows = match ask.wanted {
            Wanted::New { after, since } => self.new_rows(relay, &ask, after, since).await?,
            Wanted::Timed => self.timed_rows(relay, &ask).await?,
            Wanted::All => {
                let mut rows = self.new_rows(relay, &ask, 0, None).await?;
                rows.extend(self.timed_rows(relay, &ask).await?);
                rows
            }
        };
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
        if ask.wanted == Wanted::All {
            due.sort_by_key(|row| row.row.position);
            due.truncate(ask.limit);
        }
        Ok(due)
    }

    async fn new_rows(
        &self,
        relay: &RelayId,
        ask: &Ask,
        after: i64,
        since: Option<jiff::Timestamp>,
    ) -> Result<Vec<PgRow>, StoreError> {
        let select = sqlx::query(self.statements.claim_new.sql())
            .bind(relay.as_str())
            .bind(limit(ask))
            .bind(&ask.in_hand)
            .bind(keys(ask))
            .bind(slots(ask))
            .bind(epochs(ask))
            .bind(after)
            .bind(since.map(jiff_sqlx::ToSqlx::to_sqlx));
        self.limited("claiming rows of the outbox", select.fetch_all(self.relays())).await
    }

    async fn timed_rows(&self, relay: &RelayId, ask: &Ask) -> Result<Vec<PgRow>, StoreError> {
        let select = sqlx::query(self.statements.claim_timed.sql())
            .bind(relay.as_str())
            .bind(limit(ask))
            .bind(&ask.in_hand)
            .bind(keys(ask))
            .bind(slots(ask))
            .bind(epochs(ask));
        self.limited("claiming rows of the outbox", select.fetch_all(self.relays())).await
    }

    /// The rules of the table allow no row that cannot be read. Should one be there, it must not stop the others.
    async fn bury(&self, relay: &RelayId, rows: Vec<(RowId, Unreadable)>) -> Result<(), StoreError> {
        let results = rows.into_iter().map(|(row, error)| {
            tracing::error!(position = row.position, %error, "a row of the outbox cannot be read; it is dead now");
            RowResult::new(row, PublishResult::Failed { error: error.to_string(), retry_after: None })
        });
        self.settle_rows(relay, results.collect()).await?;
        Ok(())
    }
}

#[derive(Debug, thiserror::Error)]
pub(super) enum Unreadable {
    #[error(transparent)]
    Column(#[from] sqlx::Error),
    #[error(transparent)]
    Text(#[from] InvalidText),
    #[error("the headers of its message cannot be read: {0}")]
    Head(#[from] serde_json::Error),
}

pub(super) fn row_id(row: &PgRow) -> Result<RowId, sqlx::Error> {
    let created_at = row.try_get::<jiff_sqlx::Timestamp, _>(1)?.to_jiff();
    Ok(RowId { position: row.try_get(0)?, created_at })
}

/// Columns are named by their place in [`COLUMNS`], because names cost time on this path.
pub(super) fn outbox_row(row: &PgRow, id: RowId) -> Result<OutboxRow, Unreadable> {
    let text = |column: usize| row.try_get::<&str, _>(column);
    let maybe = |column: usize| row.try_get::<Option<&str>, _>(column);
    let body = Bytes::copy_from_slice(row.try_get(9)?);
    let head: Option<&[u8]> = row.try_get(21)?;
    Ok(OutboxRow {
        row: id,
        verbatim: head.map(|head| read_head(head, body.clone())).transpose()?,
        dead_letter: row.try_get::<Option<i64>, _>(22)?.map(LetterId),
        slot: Some(row.try_get(2)?),
        envelope: Envelope {
            id: EventId::new(text(3)?)?,
            tenant: Tenant {
                group: maybe(4)?.map(TenantId::new).transpose()?,
                subsidiary: maybe(5)?.map(TenantId::new).transpose()?,
            },
            event_type: EventType::from_parts(text(6)?, text(8)?)?,
            aggregate_id: maybe(7)?.map(AggregateId::new).transpose()?,
            payload: Payload::new(text(10)?, body),
            occurred_at: row.try_get::<jiff_sqlx::Timestamp, _>(11)?.to_jiff(),
            ordering_key: maybe(12)?.map(OrderingKey::new).transpose()?,
            causation_id: maybe(13)?.map(EventId::new).transpose()?,
            correlation_id: maybe(14)?.map(EventId::new).transpose()?,
            trace: TraceContext {
                traceparent: maybe(15)?.map(str::to_owned),
                tracestate: maybe(16)?.map(str::to_owned),
            },
            attributes: Attributes::from_json(maybe(23)?.map(str::as_bytes)),
        },
        exchange: maybe(17)?.map(TryInto::try_into).transpose()?,
        routing_key: maybe(18)?.map(TryInto::try_into).transpose()?,
        target_queue: maybe(19)?.map(TryInto::try_into).transpose()?,
        attempts: u32::try_from(row.try_get::<i32, _>(20)?).unwrap_or(0),
    })
}

fn limit(ask: &Ask) -> i64 {
    i64::try_from(ask.limit).unwrap_or(i64::MAX)
}

fn slots(ask: &Ask) -> Option<Vec<i16>> {
    Some(ask.held.as_ref()?.iter().map(|lease| lease.slot).collect())
}

fn epochs(ask: &Ask) -> Option<Vec<i64>> {
    Some(ask.held.as_ref()?.iter().map(|lease| lease.epoch).collect())
}

fn keys(ask: &Ask) -> Vec<&str> {
    ask.without.iter().map(OrderingKey::as_str).collect()
}
