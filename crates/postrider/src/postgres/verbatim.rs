//! Messages that are sent again as they were.

use super::{Postgres, PostgresTx};
use crate::store::{StoreError, UNTYPED, Verbatim, write_head};

const APPEND: &str = "INSERT INTO postrider.event_outbox (id, event_id, group_id, aggregate_type, event_type, body, \
     content_type, ordering_key, exchange, routing_key, target_queue, verbatim, dead_letter_id) \
     SELECT * FROM UNNEST($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bytea[], $7::text[], \
     $8::text[], $9::text[], $10::text[], $11::text[], $12::bytea[], $13::bigint[])";

impl Postgres {
    pub(super) async fn insert_verbatim(
        &self,
        tx: &mut PostgresTx,
        messages: Vec<Verbatim>,
    ) -> Result<(), StoreError> {
        fn column<'a, T>(messages: &'a [Verbatim], of: impl Fn(&'a Verbatim) -> T) -> Vec<T> {
            messages.iter().map(of).collect()
        }
        if messages.is_empty() {
            return Ok(());
        }
        let heads = messages.iter().map(|row| write_head(&row.message)).collect::<Result<Vec<_>, _>>()?;
        // PostgreSQL keeps no NUL in text; what is published has it from `verbatim`.
        let content_type = |row: &Verbatim| {
            row.message.properties.content_type.as_deref().unwrap_or_default().replace('\0', "\u{fffd}")
        };
        let insert = sqlx::query(APPEND)
            .bind(column(&messages, |row| row.row_id.as_str()))
            .bind(column(&messages, |row| row.event_id.as_ref().map(AsRef::<str>::as_ref)))
            .bind(column(&messages, |row| row.tenant.as_ref().map(AsRef::<str>::as_ref)))
            .bind(column(&messages, |row| {
                row.event_type.as_ref().map_or(UNTYPED.0, |of| of.aggregate_type())
            }))
            .bind(column(&messages, |row| row.event_type.as_ref().map_or(UNTYPED.1, |of| of.action())))
            .bind(column(&messages, |row| row.message.body.as_ref()))
            .bind(column(&messages, content_type))
            .bind(column(&messages, Verbatim::row_key))
            .bind(column(&messages, |row| row.to.columns().0))
            .bind(column(&messages, |row| row.to.columns().1))
            .bind(column(&messages, |row| row.to.columns().2))
            .bind(heads)
            .bind(column(&messages, |row| row.dead_letter.map(|letter| letter.0)));
        self.limited("appending to the outbox", insert.execute(tx.ours())).await?;
        Ok(())
    }
}
