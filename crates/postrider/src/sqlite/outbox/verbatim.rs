//! Messages that are sent again as they were.

use std::sync::LazyLock;

use sqlx::{Arguments as _, SqliteConnection};

use crate::sqlite::bulk::Insert;
use crate::store::{StoreError, UNTYPED, Verbatim, write_head};

static INSERT: LazyLock<Insert> = LazyLock::new(|| {
    let head = "INSERT INTO event_outbox (id, event_id, group_id, aggregate_type, event_type, body, content_type, \
                created_at, ordering_key, exchange, routing_key, target_queue, verbatim, dead_letter_id) VALUES";
    Insert::new(head, 14)
});

/// Writes the rows. After an error the transaction must be rolled back.
pub(in crate::sqlite) async fn append_verbatim(
    connection: &mut SqliteConnection,
    messages: Vec<Verbatim>,
    now: i64,
) -> Result<(), StoreError> {
    let heads = messages.iter().map(|row| write_head(&row.message)).collect::<Result<Vec<_>, _>>()?;
    let rows: Vec<_> = messages.into_iter().zip(heads).collect();
    INSERT
        .execute(connection, rows, |(row, head), columns| {
            let key = row.row_key();
            let (exchange, routing_key, queue) = row.to.columns();
            let (aggregate, action) =
                row.event_type.as_ref().map_or(UNTYPED, |of| (of.aggregate_type(), of.action()));
            columns.add(row.row_id.as_str().to_owned())?;
            columns.add(row.event_id.as_ref().map(|id| id.as_str().to_owned()))?;
            columns.add(row.tenant.as_ref().map(|tenant| tenant.as_str().to_owned()))?;
            columns.add(aggregate.to_owned())?;
            columns.add(action.to_owned())?;
            columns.add(row.message.body.to_vec())?;
            columns.add(row.message.properties.content_type.clone())?;
            columns.add(now)?;
            columns.add(key)?;
            columns.add(exchange.map(str::to_owned))?;
            columns.add(routing_key.map(str::to_owned))?;
            columns.add(queue.map(str::to_owned))?;
            columns.add(head)?;
            columns.add(row.dead_letter.map(|letter| letter.0))
        })
        .await
}
