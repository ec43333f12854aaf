//! Forgetting what the inbox has long known, a step at a time, by age.

use std::time::Duration;

use jiff::Timestamp;
use sqlx::Row as _;

use super::Postgres;
use crate::store::{Forgotten, InboxMemory, StoreError};
use crate::topology::ConsumerName;

/// Takes or renews the duty. What nobody has done for ten minutes is anybody's.
const DUTY: &str = "INSERT INTO postrider.duty (name, holder, until) \
     VALUES ('inbox', $1, now() + interval '10 minutes') \
     ON CONFLICT (name) DO UPDATE SET holder = EXCLUDED.holder, until = EXCLUDED.until \
     WHERE duty.until < now() OR duty.holder = EXCLUDED.holder";

/// Begins near where the last step ended, so that the remains of what is gone, which vacuum may not have cleared away yet, are
/// not walked through again. A mark has the time its transaction began, so some may turn up late, but not by an hour.
const FORGET: &str = "WITH gone AS ( \
         DELETE FROM postrider.event_inbox WHERE ctid = ANY(ARRAY( \
             SELECT ctid FROM postrider.event_inbox WHERE processed_at < now() - $1 \
             AND processed_at >= COALESCE((SELECT max(forgotten_before) FROM postrider.inbox_memory) - interval '1 hour', '-infinity') \
             ORDER BY processed_at LIMIT $2)) \
         RETURNING consumer_name, processed_at \
     ), noted AS ( \
         INSERT INTO postrider.inbox_memory AS m (consumer_name, forgotten_before) \
         SELECT consumer_name, max(processed_at) + interval '1 microsecond' FROM gone GROUP BY consumer_name \
         ON CONFLICT (consumer_name) DO UPDATE \
         SET forgotten_before = greatest(m.forgotten_before, EXCLUDED.forgotten_before) \
     ) SELECT count(*) FROM gone";

impl InboxMemory for Postgres {
    async fn forget(&self, worker: &str, keep: Duration, most: u32) -> Result<Option<Forgotten>, StoreError> {
        let duty = sqlx::query(DUTY).bind(worker).execute(self.pool());
        if self.limited("taking up the inbox's upkeep", duty).await?.rows_affected() == 0 {
            return Ok(None);
        }
        let forget = sqlx::query_scalar(FORGET).bind(keep).bind(i64::from(most)).fetch_one(self.pool());
        let marks: i64 = self.limited("forgetting old marks of the inbox", forget).await?;
        Ok(Some(Forgotten { marks: marks.unsigned_abs(), more: marks >= i64::from(most) }))
    }

    async fn forgotten_before(&self, consumer: &ConsumerName) -> Result<Option<Timestamp>, StoreError> {
        let select = "SELECT forgotten_before FROM postrider.inbox_memory WHERE consumer_name = $1";
        let select = sqlx::query(select).bind(consumer.as_str()).fetch_optional(self.pool());
        let row = self.limited("reading what the inbox has forgotten", select).await?;
        Ok(row.map(|row| row.get::<jiff_sqlx::Timestamp, _>(0).to_jiff()))
    }
}
