//! What has not been published.

use jiff_sqlx::Timestamp;

use super::Postgres;
use crate::store::{Backlog, StoreError};

pub(super) const BACKLOG: &str = "SELECT count(*) FILTER (WHERE status <> 'dead' AND available_at <= now()), \
            count(*) FILTER (WHERE status <> 'dead' AND available_at > now()), \
            count(*) FILTER (WHERE status = 'dead' AND dead_letter_id IS NULL), \
            count(DISTINCT key) FILTER (WHERE status = 'dead'), \
            min(created_at) FILTER (WHERE status <> 'dead' AND available_at <= now()) \
     FROM {outbox} WHERE status <> 'published'";

impl Postgres {
    pub(super) async fn read_backlog(&self) -> Result<Backlog, StoreError> {
        let count = sqlx::query_as(self.statements.backlog.sql()).fetch_one(&self.inner.pool);
        let (due, later, dead, parked, oldest): (i64, i64, i64, i64, Option<Timestamp>) =
            self.limited("counting the backlog", count).await?;
        Ok(Backlog {
            due: due.unsigned_abs(),
            later: later.unsigned_abs(),
            dead: dead.unsigned_abs(),
            parked_keys: parked.unsigned_abs(),
            oldest_due: oldest.map(Timestamp::to_jiff),
        })
    }
}
