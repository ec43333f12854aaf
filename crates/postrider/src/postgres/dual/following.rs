//! A migration that another database keeps: what is followed here, and what others follow from here.

use std::time::Duration;

use jiff::Timestamp;
use jiff_sqlx::ToSqlx as _;
use sqlx::Row as _;
use sqlx::postgres::PgRow;

use super::{Postgres, unreadable};
use crate::migration::{Followed, Lead, Leader, MigrationName, Phase, There};
use crate::store::{StoreError, StoreErrorKind};

const LEADS: &str = "SELECT definition::text, phase, version, started_at, \
         GREATEST(0, EXTRACT(epoch FROM now() - phase_at) * 1000000)::bigint \
     FROM postrider.bus_migration WHERE leader_started_at IS NULL ORDER BY started_at DESC, name";

const THERE: &str = "SELECT now(), m.name, m.started_at, m.version, m.phase FROM (VALUES (1)) AS one (row) LEFT JOIN ( \
         SELECT name, COALESCE(leader_started_at, started_at) AS started_at, COALESCE(leader_version, version) AS version, phase \
         FROM postrider.bus_migration WHERE phase <> 'finished' OR leader_started_at IS NOT NULL \
         ORDER BY (phase <> 'finished') DESC, phase_at DESC LIMIT 1) m ON true";

/// What has no copy is owed as where it is kept: since copies ended, or since they began and not every relay knew. Deliveries of
/// another migration say nothing of this one.
const FOLLOW: &str = "WITH forgotten AS ( \
         DELETE FROM postrider.event_delivery WHERE NOT EXISTS ( \
             SELECT FROM postrider.bus_migration WHERE name = $1 AND leader_started_at = $3)) \
     INSERT INTO postrider.bus_migration AS m \
         (name, definition, phase, leader_started_at, leader_version, phase_at, copy_since, off_since) \
     VALUES ($1, $2::jsonb, $5, $3, $4, $6, CASE WHEN $5 = 'dual' THEN $6 END, CASE WHEN $5 <> 'dual' THEN $6 END) \
     ON CONFLICT (name) DO UPDATE SET definition = EXCLUDED.definition, phase = EXCLUDED.phase, \
         version = nextval('postrider.bus_migration_version'), leader_started_at = EXCLUDED.leader_started_at, \
         leader_version = EXCLUDED.leader_version, phase_at = EXCLUDED.phase_at, \
         started_at = CASE WHEN m.leader_started_at = $3 THEN m.started_at ELSE now() END, \
         copy_since = CASE WHEN $5 <> 'dual' THEN NULL WHEN m.leader_started_at = $3 THEN COALESCE(m.copy_since, m.off_since, $6) \
             ELSE $6 END, \
         off_since = CASE WHEN $5 = 'dual' THEN NULL WHEN m.leader_started_at = $3 THEN COALESCE(m.off_since, m.copy_since, $6) \
             ELSE $6 END \
     WHERE (m.leader_started_at = $3 AND m.leader_version < $4) OR (m.leader_started_at <> $3 AND m.phase = 'finished')";

/// Those that keep another from being followed.
const IN_THE_WAY: &str = "SELECT name, phase FROM postrider.bus_migration \
     WHERE (phase <> 'finished' OR (name = $1 AND leader_started_at IS NULL)) \
       AND (name <> $1 OR leader_started_at IS DISTINCT FROM $2)";

impl Postgres {
    pub(super) async fn read_leads(&self) -> Result<Vec<Lead>, StoreError> {
        let doing = "reading which migrations are followed";
        let rows = self.limited(doing, sqlx::query(LEADS).fetch_all(self.pool())).await?;
        rows.iter().map(|row| self.lead(row)).collect()
    }

    fn lead(&self, row: &PgRow) -> Result<Lead, StoreError> {
        let fail = |cause| self.error("reading which migrations are followed", cause);
        let definition: &str = row.try_get(0).map_err(fail)?;
        let phase: &str = row.try_get(1).map_err(fail)?;
        let age: i64 = row.try_get(4).map_err(fail)?;
        Ok(Lead {
            definition: serde_json::from_str(definition).map_err(unreadable)?,
            phase: read_phase(phase)?,
            version: row.try_get(2).map_err(fail)?,
            started_at: row.try_get::<jiff_sqlx::Timestamp, _>(3).map_err(fail)?.to_jiff(),
            age: Duration::from_micros(age.unsigned_abs()),
        })
    }

    pub(super) async fn read_there(&self) -> Result<There, StoreError> {
        type Row =
            (jiff_sqlx::Timestamp, Option<String>, Option<jiff_sqlx::Timestamp>, Option<i64>, Option<String>);
        let select = sqlx::query_as(THERE);
        let (now, name, started_at, version, phase): Row =
            self.limited("looking which migration is followed", select.fetch_one(self.pool())).await?;
        let followed = match (name, started_at, version, phase) {
            (Some(name), Some(started_at), Some(version), Some(phase)) => Some(Followed {
                name: MigrationName::new(name).map_err(unreadable)?,
                leader: Leader { started_at: started_at.to_jiff(), version },
                phase: read_phase(&phase)?,
            }),
            _ => None,
        };
        Ok(There { now: now.to_jiff(), followed })
    }

    pub(super) async fn take_up(&self, lead: &Lead, since: Timestamp) -> Result<(), StoreError> {
        let doing = "following a migration";
        let name = lead.definition.name.as_str();
        let look = sqlx::query_as(IN_THE_WAY).bind(name).bind(lead.started_at.to_sqlx());
        let in_the_way: Option<(String, String)> =
            self.limited(doing, look.fetch_optional(self.pool())).await?;
        if let Some((other, phase)) = in_the_way {
            let text =
                format!("there is a migration {other} of its own, in the phase {phase}; nothing was changed");
            return Err(StoreError::new(StoreErrorKind::Duplicate, text));
        }
        let json = serde_json::to_string(&lead.definition).map_err(unreadable)?;
        let write = sqlx::query(FOLLOW)
            .bind(name)
            .bind(json)
            .bind(lead.started_at.to_sqlx())
            .bind(lead.version)
            .bind(lead.phase.as_str())
            .bind(since.to_sqlx());
        self.limited(doing, write.execute(self.pool())).await?;
        Ok(())
    }
}

fn read_phase(phase: &str) -> Result<Phase, StoreError> {
    Phase::from_name(phase).ok_or_else(|| unreadable("its phase is none"))
}
