//! A migration as people see it, and its steps.

use sqlx::Row as _;
use sqlx::postgres::PgRow;

use super::{Postgres, unreadable};
use crate::migration::{Definition, DeliveryCounts, Leader, Phase, RelayStanding, Standing};
use crate::store::{PhaseTurn, StoreError, StoreErrorKind};

const IN_THE_WAY: &str =
    "SELECT name, phase FROM postrider.bus_migration WHERE phase <> 'finished' OR name = $1";

/// Deliveries of an earlier migration say nothing of this one.
const START: &str = "WITH forgotten AS (DELETE FROM postrider.event_delivery), started AS ( \
         INSERT INTO postrider.bus_migration (name, definition, phase, copy_since) VALUES ($1, $2::jsonb, 'dual', now()) \
         RETURNING name) \
     INSERT INTO postrider.audit_log (actor, action, subject, reason, detail) \
     SELECT $3, 'migration.start', 'migration/' || name, NULLIF($4, ''), $2::jsonb FROM started";

/// What has no copy is owed since copies ended, or since they began and not every relay knew.
const TURN: &str = "WITH turned AS ( \
         UPDATE postrider.bus_migration SET phase = $3, version = nextval('postrider.bus_migration_version'), phase_at = now(), \
             copy_since = CASE WHEN $3 = 'dual' THEN COALESCE(copy_since, off_since, now()) END, \
             off_since = CASE WHEN $3 = 'dual' THEN NULL ELSE COALESCE(off_since, copy_since, now()) END \
         WHERE name = $1 AND version = $2 RETURNING name) \
     INSERT INTO postrider.audit_log (actor, action, subject, reason, detail) \
     SELECT $4, 'migration.' || $3, 'migration/' || name, NULLIF($5, ''), $6::jsonb FROM turned";

const ALL: &str = "SELECT definition::text, phase, version, settled_version >= version, started_at, phase_at, parity::text, \
         leader_started_at, leader_version FROM postrider.bus_migration ORDER BY started_at DESC, name";

/// What is owed is found by its index, all of it as a rule; of what is confirmed, which may be everything that a day brought, only
/// so much is looked at.
const COUNTS: &str = "WITH owed AS ( \
         SELECT destination, status FROM postrider.event_delivery WHERE status <> 'confirmed' LIMIT $1), \
     seen AS (SELECT destination, status FROM postrider.event_delivery LIMIT $1) \
     SELECT destination, status, count(*), (SELECT count(*) >= $1 FROM owed) FROM owed GROUP BY destination, status \
     UNION ALL \
     SELECT destination, status, count(*), (SELECT count(*) >= $1 FROM seen) FROM seen WHERE status = 'confirmed' \
     GROUP BY destination, status";

const WHY: &str = "SELECT error FROM postrider.event_delivery WHERE destination = 'legacy' AND status = 'failed' \
     ORDER BY next_attempt_at DESC NULLS LAST LIMIT 1";

const RELAYS: &str = "SELECT r.relay, m.version, m.new_p99_ms, m.legacy_p99_ms FROM postrider.outbox_relay r \
     LEFT JOIN postrider.bus_migration_relay m ON m.relay = r.relay WHERE r.seen_until > now() ORDER BY r.relay";

/// Its id, the version it obeys, and how long its publishes take.
type Relay = (String, Option<i64>, Option<f64>, Option<f64>);

impl Postgres {
    pub(super) async fn insert_migration(
        &self,
        definition: &Definition,
        by: &str,
        reason: &str,
    ) -> Result<(), StoreError> {
        let name = definition.name.as_str();
        let doing = "starting a migration";
        let look = sqlx::query_as(IN_THE_WAY).bind(name);
        let in_the_way: Option<(String, String)> =
            self.limited(doing, look.fetch_optional(self.pool())).await?;
        if let Some((other, phase)) = in_the_way {
            let text =
                format!("there is a migration {other} already, in the phase {phase}; nothing was changed");
            return Err(StoreError::new(StoreErrorKind::Duplicate, text));
        }
        let json = serde_json::to_string(definition).map_err(unreadable)?;
        let insert = sqlx::query(START).bind(name).bind(json).bind(by).bind(reason);
        self.limited(doing, insert.execute(self.pool())).await?;
        Ok(())
    }

    pub(super) async fn change_phase(&self, turn: &PhaseTurn) -> Result<bool, StoreError> {
        let detail = serde_json::json!({ "forced": turn.forced }).to_string();
        let detail = (!turn.forced.is_empty()).then_some(detail);
        let update = sqlx::query(TURN)
            .bind(turn.name.as_str())
            .bind(turn.from_version)
            .bind(turn.to.as_str())
            .bind(&turn.by)
            .bind(&turn.reason)
            .bind(detail);
        let done = self.limited("changing the phase of a migration", update.execute(self.pool())).await?;
        Ok(done.rows_affected() > 0)
    }

    pub(super) async fn read_standings(&self) -> Result<Vec<Standing>, StoreError> {
        let doing = "reading migrations";
        let rows = self.limited(doing, sqlx::query(ALL).fetch_all(self.pool())).await?;
        let mut standings =
            rows.iter().map(|row| self.standing(row)).collect::<Result<Vec<_>, StoreError>>()?;
        let Some(running) = standings.iter_mut().find(|one| one.phase != Phase::Finished) else {
            return Ok(standings);
        };
        let counts = sqlx::query_as(COUNTS).bind(DeliveryCounts::LOOKED_AT).fetch_all(self.pool());
        running.count(self.limited(doing, counts).await?);
        let why = sqlx::query_scalar(WHY).fetch_optional(self.pool());
        running.legacy_error = self.limited(doing, why).await?.flatten();
        let relays: Vec<Relay> = self.limited(doing, sqlx::query_as(RELAYS).fetch_all(self.pool())).await?;
        running.relays = relays
            .into_iter()
            .map(|(relay, version, new_p99_ms, legacy_p99_ms)| RelayStanding {
                relay,
                version,
                new_p99_ms,
                legacy_p99_ms,
            })
            .collect();
        Ok(standings)
    }

    fn standing(&self, row: &PgRow) -> Result<Standing, StoreError> {
        let fail = |cause| self.error("reading migrations", cause);
        let time = |column| row.try_get::<jiff_sqlx::Timestamp, _>(column).map(jiff_sqlx::Timestamp::to_jiff);
        let definition: &str = row.try_get(0).map_err(fail)?;
        let phase: &str = row.try_get(1).map_err(fail)?;
        let parity: Option<&str> = row.try_get(6).map_err(fail)?;
        let leader: Option<jiff_sqlx::Timestamp> = row.try_get(7).map_err(fail)?;
        let leader_version: Option<i64> = row.try_get(8).map_err(fail)?;
        Ok(Standing {
            definition: serde_json::from_str(definition).map_err(unreadable)?,
            phase: Phase::from_name(phase).ok_or_else(|| unreadable("its phase is none"))?,
            version: row.try_get(2).map_err(fail)?,
            settled: row.try_get(3).map_err(fail)?,
            started_at: time(4).map_err(fail)?,
            phase_at: time(5).map_err(fail)?,
            new: DeliveryCounts::default(),
            legacy: DeliveryCounts::default(),
            legacy_error: None,
            relays: Vec::new(),
            databases: Vec::new(),
            follows: leader
                .zip(leader_version)
                .map(|(started_at, version)| Leader { started_at: started_at.to_jiff(), version }),
            parity: parity.map(serde_json::from_str).transpose().map_err(unreadable)?,
        })
    }
}
