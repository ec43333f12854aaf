//! Publishing to two buses, on PostgreSQL: what relays obey, and the copies they owe.

mod deliveries;
mod following;
mod standing;

pub(super) use deliveries::Columns;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use sqlx::{Executor as _, PgConnection, Row as _};

use super::{OutboxTable, Postgres};
use crate::envelope::EventId;
use crate::migration::{
    Course, Definition, DeliveryResult, Halves, Lead, MigrationName, P99, Parity, Phase, Standing, There,
};
use crate::store::{CopyResult, DualPublishing, OutboxRow, PhaseTurn, RelayId, StoreError, StoreErrorKind};

const COURSE: &str = "SELECT version, phase, definition::text, settled_version >= version, phase_at \
     FROM postrider.bus_migration WHERE phase <> 'finished'";

const OBEYS: &str = "WITH old AS (DELETE FROM postrider.bus_migration_relay WHERE seen_at < now() - interval '1 day') \
     INSERT INTO postrider.bus_migration_relay (relay, version, new_p99_ms, legacy_p99_ms) VALUES ($1, $2, $3, $4) \
     ON CONFLICT (relay) DO UPDATE SET version = EXCLUDED.version, seen_at = now(), new_p99_ms = EXCLUDED.new_p99_ms, \
         legacy_p99_ms = EXCLUDED.legacy_p99_ms";

/// Who settles locks the migration: a phase that changes meanwhile waits for it.
const UNSETTLED: &str = "SELECT version, phase, copy_since IS NOT NULL FROM postrider.bus_migration \
     WHERE phase <> 'finished' AND settled_version < version FOR UPDATE";

/// A relay leases before it looks which phase it is, so one that is not here yet will see the newest.
const BEHIND: &str = "SELECT count(*) FROM postrider.outbox_relay r WHERE r.seen_until > now() AND NOT EXISTS ( \
         SELECT FROM postrider.bus_migration_relay m WHERE m.relay = r.relay AND m.version >= $1)";

/// Marks are fenced by the owner of a slot: whoever is gone cannot mark any more what it published under another phase.
const FENCE: &str = "UPDATE postrider.outbox_slot SET owner = NULL, lease_until = NULL \
     WHERE owner IS NOT NULL AND lease_until <= now()";

/// Copies that are missing, also of events that were tried while there was a copy to make and published when there was none. Those of events
/// that are not copied at all are dropped when they are taken.
const MAKE_UP: &str = "INSERT INTO postrider.event_delivery AS d (outbox, position, destination, event_id, status, next_attempt_at) \
     SELECT {name}, o.position, 'legacy', o.id::text, 'pending', now() FROM {outbox} o \
     WHERE o.status = 'published' AND o.verbatim IS NULL AND o.target_queue IS NULL \
       AND o.published_at >= (SELECT copy_since FROM postrider.bus_migration WHERE phase <> 'finished') \
     ON CONFLICT (outbox, position, destination) DO UPDATE SET next_attempt_at = EXCLUDED.next_attempt_at \
         WHERE d.status <> 'confirmed' AND d.next_attempt_at IS NULL";

const SETTLED: &str = "UPDATE postrider.bus_migration SET settled_version = version, copy_since = NULL \
     WHERE phase <> 'finished'";

impl DualPublishing for Postgres {
    async fn course(&self) -> Result<Option<Course>, StoreError> {
        let select = sqlx::query(COURSE);
        let row = self.limited("looking for a migration", select.fetch_optional(self.relays())).await?;
        let Some(row) = row else { return Ok(None) };
        let read = || {
            let (phase, definition): (&str, &str) = (row.try_get(1)?, row.try_get(2)?);
            let since: jiff_sqlx::Timestamp = row.try_get(4)?;
            let settled = row.try_get(3)?;
            Ok::<_, sqlx::Error>((row.try_get(0)?, phase.to_owned(), definition.to_owned(), settled, since))
        };
        let (version, phase, definition, settled, since) =
            read().map_err(|cause| self.error("looking for a migration", cause))?;
        let definition: Definition = serde_json::from_str(&definition).map_err(unreadable)?;
        let phase = Phase::from_name(&phase).ok_or_else(|| unreadable("its phase is none"))?;
        Ok(Some(Course { version, phase, definition: Arc::new(definition), settled, since: since.to_jiff() }))
    }

    async fn obeys(&self, relay: &RelayId, version: i64, latency: P99) -> Result<(), StoreError> {
        let write =
            sqlx::query(OBEYS).bind(relay.as_str()).bind(version).bind(latency.new).bind(latency.legacy);
        self.limited("saying which phase is obeyed", write.execute(self.pool())).await?;
        Ok(())
    }

    async fn settle_course(&self) -> Result<bool, StoreError> {
        let fail = |cause| self.error("settling a phase", cause);
        let mut transaction = self.transaction("BEGIN").await.map_err(fail)?;
        let settled = self.settle_in(&mut transaction).await.map_err(fail)?;
        if settled {
            transaction.commit().await.map_err(fail)?;
        }
        Ok(settled)
    }

    async fn claim_copies(&self, limit: usize, lease: Duration) -> Result<Vec<OutboxRow>, StoreError> {
        self.take_copies(limit, lease).await
    }

    async fn settle_copies(&self, results: Vec<(i64, CopyResult)>) -> Result<(), StoreError> {
        self.record_copies(results).await
    }

    async fn confirmed_halves(&self, positions: Vec<i64>) -> Result<Vec<(i64, Halves)>, StoreError> {
        self.read_halves(positions).await
    }

    async fn published_rows(
        &self,
        after: i64,
        up_to: i64,
        limit: usize,
    ) -> Result<Vec<(OutboxRow, Option<DeliveryResult>)>, StoreError> {
        self.read_published(after, up_to, limit).await
    }

    async fn uncopied_rows(
        &self,
        since: Timestamp,
        after: i64,
        up_to: i64,
        limit: usize,
    ) -> Result<Vec<OutboxRow>, StoreError> {
        self.read_uncopied(since, after, up_to, limit).await
    }

    async fn owe_copies(&self, rows: Vec<(i64, EventId)>) -> Result<(), StoreError> {
        self.record_owed(rows).await
    }

    async fn start_migration(
        &self,
        definition: &Definition,
        by: &str,
        reason: &str,
    ) -> Result<(), StoreError> {
        self.insert_migration(definition, by, reason).await
    }

    async fn turn_migration(&self, turn: &PhaseTurn) -> Result<bool, StoreError> {
        self.change_phase(turn).await
    }

    async fn keep_parity(&self, name: &MigrationName, parity: &Parity) -> Result<(), StoreError> {
        let text = serde_json::to_string(parity).map_err(unreadable)?;
        let update = sqlx::query("UPDATE postrider.bus_migration SET parity = $2::jsonb WHERE name = $1");
        let update = update.bind(name.as_str()).bind(text);
        self.limited("keeping a comparison", update.execute(self.pool())).await?;
        Ok(())
    }

    async fn migrations_of_buses(&self) -> Result<Vec<Standing>, StoreError> {
        self.read_standings().await
    }

    async fn leads(&self) -> Result<Vec<Lead>, StoreError> {
        self.read_leads().await
    }

    async fn there(&self) -> Result<There, StoreError> {
        self.read_there().await
    }

    async fn follow(&self, lead: &Lead, since: Timestamp) -> Result<(), StoreError> {
        self.take_up(lead, since).await
    }

    async fn forget_deliveries(&self, before: Timestamp, limit: u32) -> Result<u64, StoreError> {
        self.drop_deliveries(before, limit).await
    }
}

impl Postgres {
    async fn settle_in(&self, connection: &mut PgConnection) -> Result<bool, sqlx::Error> {
        let Some(row) = sqlx::query(UNSETTLED).fetch_optional(&mut *connection).await? else {
            return Ok(true);
        };
        let (version, phase, owed): (i64, String, bool) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
        let behind: i64 = sqlx::query_scalar(BEHIND).bind(version).fetch_one(&mut *connection).await?;
        if behind > 0 {
            return Ok(false);
        }
        sqlx::query(FENCE).execute(&mut *connection).await?;
        if owed && phase == Phase::Dual.as_str() {
            connection.execute("SET LOCAL statement_timeout = 0").await?;
            let outboxes: Vec<String> =
                sqlx::query_scalar("SELECT name FROM postrider.outbox").fetch_all(&mut *connection).await?;
            for table in outboxes.iter().filter_map(|name| OutboxTable::new(name).ok()) {
                sqlx::query(table.statement(MAKE_UP).sql()).execute(&mut *connection).await?;
            }
        }
        sqlx::query(SETTLED).execute(&mut *connection).await?;
        Ok(true)
    }
}

/// What was stored of a migration cannot be understood.
fn unreadable(why: impl std::fmt::Display) -> StoreError {
    let text = format!(
        "what is stored of a migration cannot be read ({why}); a newer version wrote it, or somebody by hand"
    );
    StoreError::new(StoreErrorKind::Other, text)
}
