//! How far the outbox is written, and who may still commit something before that point.
//!
//! A position is drawn by a transaction that holds the lock of writers on the table, and keeps it to its end. So: first
//! the last position drawn, then who holds that lock. Whoever drew a position before is among them, or has ended.

use super::Postgres;
use crate::store::{Horizon, LogPosition, StoreError};

pub(super) const POSITION: &str = "SELECT last_value - CASE WHEN is_called THEN 0 ELSE 1 END, clock_timestamp(), \
     (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint FROM {positions}";

/// On the table and on its partitions, into which somebody may have inserted directly.
pub(super) const WRITERS: &str = "SELECT DISTINCT virtualtransaction FROM pg_locks \
     WHERE locktype = 'relation' AND mode = 'RowExclusiveLock' AND granted \
       AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) \
       AND relation = ANY (ARRAY(SELECT relid::oid FROM pg_partition_tree('{outbox}')) || '{outbox}'::regclass::oid)";

impl Postgres {
    pub(super) async fn read_horizon(&self) -> Result<Horizon, StoreError> {
        self.limited("reading the horizon of the outbox", async {
            let mut connection = self.relays().acquire().await?;
            let (position, at, log): (i64, jiff_sqlx::Timestamp, i64) =
                sqlx::query_as(self.statements.position.sql()).fetch_one(&mut *connection).await?;
            let writers =
                sqlx::query_scalar(self.statements.writers.sql()).fetch_all(&mut *connection).await?;
            Ok(Horizon { position, at: at.to_jiff(), log: LogPosition(log.unsigned_abs()), writers })
        })
        .await
    }
}
