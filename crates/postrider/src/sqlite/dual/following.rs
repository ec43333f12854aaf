//! A migration that another database keeps: what is followed here, and what others follow from here.

use std::time::Duration;

use futures_util::FutureExt as _;
use jiff::Timestamp;
use sqlx::SqliteConnection;

use super::{execute, unreadable};
use crate::migration::{Followed, Lead, Leader, MigrationName, Phase, There};
use crate::sqlite::outbox::time;
use crate::sqlite::{Sqlite, from_sqlite};
use crate::store::{StoreError, StoreErrorKind};

const LEADS: &str = "SELECT definition, phase, version, started_at, phase_at FROM bus_migration \
     WHERE leader_started_at IS NULL ORDER BY started_at DESC, name";

const THERE: &str = "SELECT name, coalesce(leader_started_at, started_at), coalesce(leader_version, version), phase \
     FROM bus_migration WHERE phase <> 'finished' OR leader_started_at IS NOT NULL \
     ORDER BY phase <> 'finished' DESC, phase_at DESC LIMIT 1";

const IN_THE_WAY: &str = "SELECT name, phase FROM bus_migration \
     WHERE (phase <> 'finished' OR (name = ?1 AND leader_started_at IS NULL)) \
       AND (name <> ?1 OR leader_started_at IS NOT ?2)";

/// Deliveries of another migration say nothing of this one.
const FORGET: &str = "DELETE FROM event_delivery WHERE NOT EXISTS ( \
     SELECT 1 FROM bus_migration WHERE name = ?1 AND leader_started_at = ?2)";

/// What has no copy is owed as where it is kept: since copies ended, or since they began and the relay did not know.
const FOLLOW: &str = "INSERT INTO bus_migration \
         (name, definition, phase, version, leader_started_at, leader_version, phase_at, started_at, copy_since, off_since) \
     SELECT ?1, ?2, ?5, coalesce(max(version), 0) + 1, ?3, ?4, ?6, ?7, iif(?5 = 'dual', ?6, NULL), iif(?5 <> 'dual', ?6, NULL) \
     FROM bus_migration WHERE true \
     ON CONFLICT (name) DO UPDATE SET definition = excluded.definition, phase = excluded.phase, version = excluded.version, \
         leader_started_at = excluded.leader_started_at, leader_version = excluded.leader_version, phase_at = excluded.phase_at, \
         started_at = iif(leader_started_at = ?3, started_at, excluded.started_at), \
         copy_since = iif(?5 <> 'dual', NULL, iif(leader_started_at = ?3, coalesce(copy_since, off_since, ?6), ?6)), \
         off_since = iif(?5 = 'dual', NULL, iif(leader_started_at = ?3, coalesce(off_since, copy_since, ?6), ?6)) \
     WHERE (leader_started_at = ?3 AND leader_version < ?4) OR (leader_started_at <> ?3 AND phase = 'finished')";

impl Sqlite {
    pub(super) async fn read_leads(&self) -> Result<Vec<Lead>, StoreError> {
        let rows: Vec<(String, String, i64, i64, i64)> =
            sqlx::query_as(LEADS).fetch_all(self.readers()).await.map_err(from_sqlite)?;
        let now = self.clock().now().as_microsecond();
        let lead = |(definition, phase, version, started_at, phase_at): (String, String, i64, i64, i64)| {
            Ok(Lead {
                definition: serde_json::from_str(&definition).map_err(unreadable)?,
                phase: read_phase(&phase)?,
                version,
                started_at: time(started_at),
                age: Duration::from_micros(u64::try_from(now - phase_at).unwrap_or(0)),
            })
        };
        rows.into_iter().map(lead).collect()
    }

    pub(super) async fn read_there(&self) -> Result<There, StoreError> {
        let now = self.clock().now();
        let row: Option<(String, i64, i64, String)> =
            sqlx::query_as(THERE).fetch_optional(self.readers()).await.map_err(from_sqlite)?;
        let followed = |(name, started_at, version, phase): (String, i64, i64, String)| {
            Ok::<_, StoreError>(Followed {
                name: MigrationName::new(name).map_err(unreadable)?,
                leader: Leader { started_at: time(started_at), version },
                phase: read_phase(&phase)?,
            })
        };
        Ok(There { now, followed: row.map(followed).transpose()? })
    }

    pub(super) async fn take_up(&self, lead: &Lead, since: Timestamp) -> Result<(), StoreError> {
        let (lead, now) = (lead.clone(), self.clock().now().as_microsecond());
        let json = serde_json::to_string(&lead.definition).map_err(unreadable)?;
        let since = since.as_microsecond();
        self.writer().run(move |connection| follow(connection, lead, json, since, now).boxed()).await
    }
}

async fn follow(
    connection: &mut SqliteConnection,
    lead: Lead,
    definition: String,
    since: i64,
    now: i64,
) -> Result<(), StoreError> {
    let (name, started_at) = (lead.definition.name.as_str(), lead.started_at.as_microsecond());
    let look = sqlx::query_as(IN_THE_WAY).bind(name).bind(started_at);
    let in_the_way: Option<(String, String)> =
        look.fetch_optional(&mut *connection).await.map_err(from_sqlite)?;
    if let Some((other, phase)) = in_the_way {
        let text =
            format!("there is a migration {other} of its own, in the phase {phase}; nothing was changed");
        return Err(StoreError::new(StoreErrorKind::Duplicate, text));
    }
    execute(connection, sqlx::query(FORGET).bind(name).bind(started_at)).await?;
    let write = sqlx::query(FOLLOW)
        .bind(name)
        .bind(definition)
        .bind(started_at)
        .bind(lead.version)
        .bind(lead.phase.as_str())
        .bind(since)
        .bind(now);
    execute(connection, write).await.map(|_| ())
}

fn read_phase(phase: &str) -> Result<Phase, StoreError> {
    Phase::from_name(phase).ok_or_else(|| unreadable("its phase is none"))
}
