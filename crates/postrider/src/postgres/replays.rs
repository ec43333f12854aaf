//! Published events that are found again: in the outbox, in partitions that left it and are not archived yet, and in its archive table,
//! where there is one.

use jiff::Timestamp;
use jiff_sqlx::ToSqlx as _;
use sqlx::PgConnection;
use uuid::Uuid;

use super::claim::{COLUMNS, outbox_row, row_id};
use super::table::Statement;
use super::{Postgres, PostgresTx};
use crate::envelope::EventId;
use crate::store::{EventFilter, Found, Frozen, OutboxRow, Replays, StoreError, StoreErrorKind, read_item};
use crate::topology::ConsumerName;

/// So many positions are looked at by one statement: however many events an outbox has, each is done within its limit.
const WINDOW: i64 = 250_000;

/// The first position after another, wherever it is.
const NEXT: &str = "SELECT min(position) FROM ({matching}) event";
const FIRST: &str = "SELECT min(position) AS position FROM {source} WHERE position > $1";

/// `$1` to `$5` are the filter, `$6` and `$7` the window. What was sent again is no event of its own.
const MATCHING: &str = "SELECT position, created_at FROM {source} \
     WHERE status = 'published' AND verbatim IS NULL AND created_at >= $1 AND created_at < $2 \
       AND position > $6 AND position <= $7 \
       AND ($3::text IS NULL OR aggregate_type = $3) AND ($4::text IS NULL OR event_type = $4) \
       AND ($5::text IS NULL OR group_id::text = $5)";

const FREEZE: &str = "WITH items AS ( \
         INSERT INTO postrider.operation_item (operation_id, seq, subject) \
         SELECT $8::uuid, position, position || '/' || (extract(epoch FROM created_at) * 1000000)::bigint \
         FROM (SELECT * FROM ({matching}) event ORDER BY position LIMIT $9) event \
         ON CONFLICT (operation_id, seq) DO NOTHING RETURNING seq \
     ) \
     UPDATE postrider.operation SET total = total + (SELECT count(*) FROM items) WHERE id = $8::uuid RETURNING total";

const ADD: &str = "WITH items AS ( \
         INSERT INTO postrider.operation_item (operation_id, seq, subject) \
         SELECT $1::uuid, position, document FROM UNNEST($2::bigint[], $3::text[]) AS found (position, document) \
         ON CONFLICT (operation_id, seq) DO NOTHING RETURNING seq \
     ) \
     UPDATE postrider.operation SET total = total + (SELECT count(*) FROM items) WHERE id = $1::uuid RETURNING total";

/// The last of as many items as are wanted.
const LAST: &str = "SELECT seq FROM postrider.operation_item WHERE operation_id = $1::uuid ORDER BY seq OFFSET $2 - 1 LIMIT 1";

const CUT: &str = "WITH beyond AS (DELETE FROM postrider.operation_item WHERE operation_id = $1::uuid AND seq > $2 RETURNING seq) \
     UPDATE postrider.operation SET total = total - (SELECT count(*) FROM beyond) WHERE id = $1::uuid RETURNING total";

/// The bounds spare a look into other partitions.
const TAKE: &str = "SELECT {columns} FROM {source} \
     WHERE created_at BETWEEN $3 AND $4 \
       AND (position, created_at) IN (SELECT * FROM UNNEST($1::bigint[], $2::timestamptz[]))";

/// A probe of the key for each event: see the inbox.
const FORGET: &str = "DELETE FROM postrider.event_inbox \
     WHERE ctid = ANY (ARRAY(SELECT mark.ctid FROM UNNEST($2::text[]) AS asked (event_id) \
         CROSS JOIN LATERAL (SELECT ctid FROM postrider.event_inbox i \
             WHERE i.consumer_name = $1 AND i.event_id = asked.event_id OFFSET 0) mark))";

impl Replays for Postgres {
    async fn count_events(&self, filter: &EventFilter) -> Result<Found, StoreError> {
        let matching = MATCHING
            .replace("created_at FROM {source}", "created_at, '{source}' = '{outbox}' AS live FROM {source}");
        let count =
            "SELECT count(*) FILTER (WHERE live), count(*) FILTER (WHERE NOT live) FROM ({matching}) event";
        let count = self.everywhere(count, &matching).await?;
        let next = self.everywhere(NEXT, FIRST).await?;
        let mut connection = self.limited("counting published events", self.pool().acquire()).await?;
        let (mut found, mut after) = (Found::default(), i64::MIN);
        while let Some((from, to)) = self.window(&mut connection, &next, after).await? {
            let count = sqlx::query_as::<_, (i64, i64)>(count.sql())
                .bind(filter.from.to_sqlx())
                .bind(filter.to.to_sqlx())
                .bind(&filter.aggregate_type)
                .bind(&filter.event_type)
                .bind(filter.tenant.as_ref().map(AsRef::<str>::as_ref))
                .bind(from)
                .bind(to);
            let (live, archived) =
                self.limited("counting published events", count.fetch_one(&mut *connection)).await?;
            found.live += live.unsigned_abs();
            found.archived += archived.unsigned_abs();
            after = to;
        }
        Ok(found)
    }

    async fn freeze_events(
        &self,
        tx: &mut PostgresTx,
        operation: Uuid,
        filter: &EventFilter,
        limit: Option<u64>,
    ) -> Result<u64, StoreError> {
        let freeze = self.everywhere(FREEZE, MATCHING).await?;
        let next = self.everywhere(NEXT, FIRST).await?;
        let (mut total, mut after) = (0, i64::MIN);
        loop {
            let left = limit.map(|limit| i64::try_from(limit.saturating_sub(total)).unwrap_or(i64::MAX));
            if left == Some(0) {
                return Ok(total);
            }
            let Some((from, to)) = self.window(tx.ours(), &next, after).await? else { return Ok(total) };
            let freeze = sqlx::query_scalar::<_, i64>(freeze.sql())
                .bind(filter.from.to_sqlx())
                .bind(filter.to.to_sqlx())
                .bind(&filter.aggregate_type)
                .bind(&filter.event_type)
                .bind(filter.tenant.as_ref().map(AsRef::<str>::as_ref))
                .bind(from)
                .bind(to)
                .bind(operation.to_string())
                .bind(left);
            total = self.limited("freezing a plan", freeze.fetch_one(tx.ours())).await?.unsigned_abs();
            after = to;
        }
    }

    async fn freeze_documents(
        &self,
        tx: &mut PostgresTx,
        operation: Uuid,
        documents: Vec<(i64, String)>,
        limit: Option<u64>,
    ) -> Result<Frozen, StoreError> {
        let (positions, documents): (Vec<i64>, Vec<String>) = documents.into_iter().unzip();
        let operation = operation.to_string();
        self.limited("freezing a plan", async {
            let add = sqlx::query_scalar(ADD).bind(&operation).bind(positions).bind(documents);
            let mut total: i64 = add.fetch_one(tx.ours()).await?;
            let mut up_to = None;
            if let Some(limit) =
                limit.and_then(|limit| i64::try_from(limit).ok()).filter(|limit| total >= *limit)
            {
                up_to =
                    sqlx::query_scalar(LAST).bind(&operation).bind(limit).fetch_optional(tx.ours()).await?;
                total = sqlx::query_scalar(CUT).bind(&operation).bind(up_to).fetch_one(tx.ours()).await?;
            }
            Ok(Frozen { total: total.unsigned_abs(), up_to })
        })
        .await
    }

    async fn take_events(&self, tx: &mut PostgresTx, items: &[String]) -> Result<Vec<OutboxRow>, StoreError> {
        let (positions, times): (Vec<i64>, Vec<i64>) =
            items.iter().filter_map(|item| read_item(item)).unzip();
        let moment = |micros: i64| Timestamp::from_microsecond(micros).unwrap_or_default().to_sqlx();
        let Some((first, last)) = times.iter().copied().min().zip(times.iter().copied().max()) else {
            return Ok(Vec::new());
        };
        let source = TAKE.replace("{columns}", COLUMNS);
        let take = self.everywhere("SELECT * FROM ({matching}) event ORDER BY position", &source).await?;
        let take = sqlx::query(take.sql())
            .bind(&positions)
            .bind(times.iter().copied().map(moment).collect::<Vec<_>>())
            .bind(moment(first))
            .bind(moment(last));
        let rows = self.limited("taking published events", take.fetch_all(tx.ours())).await?;
        let read = |row| {
            let id = row_id(row).map_err(|error| error.to_string())?;
            outbox_row(row, id).map_err(|error| error.to_string())
        };
        let mut rows = rows.iter().map(read).collect::<Result<Vec<_>, String>>().map_err(|error| {
            let text =
                format!("a published event cannot be read back ({error}); nothing of this step was sent");
            StoreError::new(StoreErrorKind::Other, text)
        })?;
        // A partition that comes to the archive at this moment is found twice.
        rows.dedup_by_key(|row| row.row);
        Ok(rows)
    }

    async fn forget_events(
        &self,
        tx: &mut PostgresTx,
        consumer: &ConsumerName,
        events: &[EventId],
    ) -> Result<u64, StoreError> {
        let events: Vec<&str> = events.iter().map(EventId::as_str).collect();
        let forget = sqlx::query(FORGET).bind(consumer.as_str()).bind(events).execute(tx.ours());
        Ok(self.limited("making an inbox forget", forget).await?.rows_affected())
    }

    fn archive_name(&self) -> String {
        self.table.to_string()
    }
}

impl Postgres {
    /// The next positions to look at, after the one and up to the other; none where there are no more.
    async fn window(
        &self,
        connection: &mut PgConnection,
        next: &Statement,
        after: i64,
    ) -> Result<Option<(i64, i64)>, StoreError> {
        let first = sqlx::query_scalar::<_, Option<i64>>(next.sql()).bind(after).fetch_one(connection);
        let first = self.limited("looking for published events", first).await?;
        Ok(first.map(|first| (first.saturating_sub(1), first.saturating_add(WINDOW))))
    }

    /// The statement with `{matching}` over the outbox, what is on its way out of it, and, where there is one, its archive.
    async fn everywhere(&self, statement: &str, matching: &str) -> Result<Statement, StoreError> {
        let archive = format!("\"{}\".\"{}_archive\"", self.table.schema(), self.table.table());
        let look =
            sqlx::query_scalar("SELECT to_regclass($1) IS NOT NULL").bind(&archive).fetch_one(self.pool());
        let mut others =
            self.limited("looking for old partitions", self.detached(self.pool(), false)).await?;
        if self.limited("looking for the archive", look).await? {
            others.push(archive);
        }
        let sources = others.iter().fold(matching.replace("{source}", "{outbox}"), |sources, other| {
            format!("{sources} UNION ALL {}", matching.replace("{source}", other))
        });
        Ok(self.table.statement(&statement.replace("{matching}", &sources)))
    }
}
