//! A migration as people see it, and its steps.

use futures_util::FutureExt as _;
use sqlx::SqliteConnection;

use super::{execute, unreadable};
use crate::migration::{Definition, DeliveryCounts, Leader, Phase, RelayStanding, Standing};
use crate::sqlite::outbox::time;
use crate::sqlite::{Sqlite, from_sqlite};
use crate::store::{PhaseTurn, StoreError, StoreErrorKind};

/// What is owed is found by its index; of what is confirmed only so much is looked at.
const COUNTS: &str = "WITH owed AS MATERIALIZED ( \
         SELECT destination, status FROM event_delivery WHERE status <> 'confirmed' LIMIT ?1), \
     seen AS MATERIALIZED (SELECT destination, status FROM event_delivery LIMIT ?1) \
     SELECT destination, status, count(*), (SELECT count(*) >= ?1 FROM owed) FROM owed GROUP BY destination, status \
     UNION ALL \
     SELECT destination, status, count(*), (SELECT count(*) >= ?1 FROM seen) FROM seen WHERE status = 'confirmed' \
     GROUP BY destination, status";

/// How long a relay counts as one that runs after it said something, in microseconds.
const RUNS: i64 = 60 * 1_000_000;

type Row = (String, String, i64, bool, i64, i64, Option<String>, Option<i64>, Option<i64>);

impl Sqlite {
    pub(super) async fn insert_migration(
        &self,
        definition: &Definition,
        by: &str,
        reason: &str,
    ) -> Result<(), StoreError> {
        let json = serde_json::to_string(definition).map_err(unreadable)?;
        let (name, by, reason) = (definition.name.to_string(), by.to_owned(), reason.to_owned());
        let now = self.clock().now().as_microsecond();
        let start =
            self.writer().run(move |connection| start(connection, name, json, by, reason, now).boxed());
        start.await
    }

    pub(super) async fn change_phase(&self, turn: &PhaseTurn) -> Result<bool, StoreError> {
        let (turn, now) = (turn.clone(), self.clock().now().as_microsecond());
        self.writer().run(move |connection| change(connection, turn, now).boxed()).await
    }

    pub(super) async fn read_standings(&self) -> Result<Vec<Standing>, StoreError> {
        let select = "SELECT definition, phase, version, settled_version >= version, started_at, phase_at, parity, \
                      leader_started_at, leader_version FROM bus_migration ORDER BY started_at DESC, name";
        let rows: Vec<Row> = sqlx::query_as(select).fetch_all(self.readers()).await.map_err(from_sqlite)?;
        let mut standings = rows.into_iter().map(standing).collect::<Result<Vec<_>, StoreError>>()?;
        let Some(running) = standings.iter_mut().find(|one| one.phase != Phase::Finished) else {
            return Ok(standings);
        };
        let counted = sqlx::query_as(COUNTS).bind(DeliveryCounts::LOOKED_AT).fetch_all(self.readers());
        running.count(counted.await.map_err(from_sqlite)?);
        let why = "SELECT error FROM event_delivery WHERE destination = 'legacy' AND status = 'failed' \
                   ORDER BY next_attempt_at DESC LIMIT 1";
        running.legacy_error = sqlx::query_scalar::<_, Option<String>>(why)
            .fetch_optional(self.readers())
            .await
            .map_err(from_sqlite)?
            .flatten();
        let relays = "SELECT relay, version, new_p99_ms, legacy_p99_ms FROM bus_migration_relay WHERE seen_at > ? ORDER BY relay";
        let relays: Vec<(String, i64, Option<f64>, Option<f64>)> = sqlx::query_as(relays)
            .bind(self.clock().now().as_microsecond() - RUNS)
            .fetch_all(self.readers())
            .await
            .map_err(from_sqlite)?;
        let relay = |(relay, version, new_p99_ms, legacy_p99_ms)| RelayStanding {
            relay,
            version: Some(version),
            new_p99_ms,
            legacy_p99_ms,
        };
        running.relays = relays.into_iter().map(relay).collect();
        Ok(standings)
    }
}

fn standing(
    (definition, phase, version, settled, started_at, phase_at, parity, leader, leader_version): Row,
) -> Result<Standing, StoreError> {
    Ok(Standing {
        definition: serde_json::from_str(&definition).map_err(unreadable)?,
        phase: Phase::from_name(&phase).ok_or_else(|| unreadable("its phase is none"))?,
        version,
        settled,
        started_at: time(started_at),
        phase_at: time(phase_at),
        new: DeliveryCounts::default(),
        legacy: DeliveryCounts::default(),
        legacy_error: None,
        relays: Vec::new(),
        databases: Vec::new(),
        follows: leader
            .zip(leader_version)
            .map(|(started_at, version)| Leader { started_at: time(started_at), version }),
        parity: parity.as_deref().map(serde_json::from_str).transpose().map_err(unreadable)?,
    })
}

async fn start(
    connection: &mut SqliteConnection,
    name: String,
    definition: String,
    by: String,
    reason: String,
    now: i64,
) -> Result<(), StoreError> {
    let look = sqlx::query_as("SELECT name, phase FROM bus_migration WHERE phase <> 'finished' OR name = ?")
        .bind(&name);
    let in_the_way: Option<(String, String)> =
        look.fetch_optional(&mut *connection).await.map_err(from_sqlite)?;
    if let Some((other, phase)) = in_the_way {
        let text = format!("there is a migration {other} already, in the phase {phase}; nothing was changed");
        return Err(StoreError::new(StoreErrorKind::Duplicate, text));
    }
    // Deliveries of an earlier migration say nothing of this one.
    execute(connection, sqlx::query("DELETE FROM event_delivery")).await?;
    let insert = "INSERT INTO bus_migration (name, definition, phase, version, phase_at, started_at, copy_since) \
                  SELECT ?1, ?2, 'dual', coalesce(max(version), 0) + 1, ?3, ?3, ?3 FROM bus_migration";
    execute(connection, sqlx::query(insert).bind(&name).bind(&definition).bind(now)).await?;
    log(connection, "start", &name, &by, &reason, Some(definition), now).await
}

/// What has no copy is owed since copies ended, or since they began and the relay did not know.
async fn change(connection: &mut SqliteConnection, turn: PhaseTurn, now: i64) -> Result<bool, StoreError> {
    const TURN: &str = "UPDATE bus_migration SET phase = ?3, version = (SELECT max(version) + 1 FROM bus_migration), phase_at = ?4, \
        copy_since = iif(?3 = 'dual', coalesce(copy_since, off_since, ?4), NULL), \
        off_since = iif(?3 = 'dual', NULL, coalesce(off_since, copy_since, ?4)) \
        WHERE name = ?1 AND version = ?2";
    let update =
        sqlx::query(TURN).bind(turn.name.as_str()).bind(turn.from_version).bind(turn.to.as_str()).bind(now);
    if execute(connection, update).await? == 0 {
        return Ok(false);
    }
    let detail = (!turn.forced.is_empty()).then(|| serde_json::json!({ "forced": turn.forced }).to_string());
    log(connection, turn.to.as_str(), turn.name.as_str(), &turn.by, &turn.reason, detail, now).await?;
    Ok(true)
}

async fn log(
    connection: &mut SqliteConnection,
    action: &str,
    name: &str,
    by: &str,
    reason: &str,
    detail: Option<String>,
    now: i64,
) -> Result<(), StoreError> {
    let insert = "INSERT INTO audit_log (at, actor, action, subject, reason, detail) VALUES (?, ?, ?, ?, nullif(?, ''), ?)";
    let insert = sqlx::query(insert)
        .bind(now)
        .bind(by)
        .bind(format!("migration.{action}"))
        .bind(format!("migration/{name}"))
        .bind(reason)
        .bind(detail);
    execute(connection, insert).await.map(|_| ())
}
