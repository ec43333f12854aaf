//! What has not been published.

use jiff_sqlx::Timestamp;

use super::Postgres;
use super::error::failed;
use crate::store::{Backlog, StoreError};

impl Postgres {
    pub(super) async fn read_backlog(&self) -> Result<Backlog, StoreError> {
        let select = "SELECT count(*) FILTER (WHERE status <> 'dead' AND available_at <= now()), \
                             count(*) FILTER (WHERE status <> 'dead' AND available_at > now()), \
                             count(*) FILTER (WHERE status = 'dead' AND dead_letter_id IS NULL), \
                             min(created_at) FILTER (WHERE status <> 'dead' AND available_at <= now()) \
                      FROM postrider.event_outbox WHERE status IN ('pending', 'failed', 'dead')";
        let (due, later, dead, oldest): (i64, i64, i64, Option<Timestamp>) = sqlx::query_as(select)
            .fetch_one(&self.inner.pool)
            .await
            .map_err(|cause| failed("counting the backlog", &self.inner.place, cause))?;
        Ok(Backlog {
            due: due.unsigned_abs(),
            later: later.unsigned_abs(),
            dead: dead.unsigned_abs(),
            oldest_due: oldest.map(Timestamp::to_jiff),
        })
    }
}
