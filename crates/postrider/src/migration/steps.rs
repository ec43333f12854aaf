//! From phase to phase: what stands against a step, and taking it.
//!
//! A step is one transaction of the store. What follows from it, relays do by themselves and in any order: a crash after the step
//! loses nothing, whoever waits for it can stop waiting.

use std::time::Duration;

use jiff::Timestamp;

use super::{Databases, Definition, MigrationName, Phase, Standing, remove_taps};
use crate::broker::{Broker, BrokerError, Removal};
use crate::store::{DualPublishing, PhaseTurn, StoreError};

/// A comparison is good for this long.
const PARITY_LASTS: Duration = Duration::from_hours(24);
/// How often to look whether relays obey.
const LOOK: Duration = Duration::from_millis(200);

/// Why a step was not taken. Nothing has changed.
#[derive(Debug, thiserror::Error)]
pub enum MigrationError {
    /// There is no migration that is not finished.
    #[error("no migration runs; `postrider migration start` begins one")]
    NoneRuns,
    /// The step does not follow from where it stands.
    #[error("the migration {name} is in the phase {phase}: {why}")]
    NotNow {
        /// Which.
        name: MigrationName,
        /// Where it stands.
        phase: Phase,
        /// What to do.
        why: &'static str,
    },
    /// Something stands against it.
    #[error("not now: {}", .0.join("; "))]
    Obstacles(Vec<String>),
    /// Somebody else took a step at the same moment.
    #[error("somebody else moved the migration on at the same moment; look at its status and try again")]
    Moved,
    /// One of the databases that follow cannot be asked.
    #[error("the database {database} cannot be asked: {cause}")]
    Away {
        /// Which.
        database: String,
        /// Why.
        cause: StoreError,
    },
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The broker failed.
    #[error(transparent)]
    Broker(#[from] BrokerError),
}

/// Who takes a step, and why.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Taken {
    /// Who.
    pub by: String,
    /// Why.
    pub reason: String,
    /// Whatever stands against it.
    pub forced: bool,
}

/// The migration that runs, and is kept here.
pub(super) async fn running<S: DualPublishing>(databases: &Databases<S>) -> Result<Standing, MigrationError> {
    let all = databases.standings().await?;
    let running = all.into_iter().find(|one| one.phase != Phase::Finished);
    let running = running.ok_or(MigrationError::NoneRuns)?;
    if running.follows.is_some() {
        return Err(not_now(
            &running,
            "another database keeps it, and this one follows; take its steps there",
        ));
    }
    Ok(running)
}

/// Begins: from now on every event goes to both buses. The old exchange and its queue must be there. Other databases follow.
pub async fn start<S: DualPublishing>(
    databases: &Databases<S>,
    definition: &Definition,
    step: &Taken,
) -> Result<(), MigrationError> {
    Ok(databases.main().start_migration(definition, &step.by, &step.reason).await?)
}

/// Why a phase is not settled; nothing if it is. Pure.
pub(super) fn obstacles_to_settling(standing: &Standing) -> Vec<String> {
    let of_databases = standing.databases.iter();
    let told =
        of_databases.filter_map(|one| Some(format!("the database {} {}", one.database, one.error.as_ref()?)));
    let mut obstacles: Vec<_> = told.collect();
    let behind = standing.relays.len() - standing.obedient();
    if !standing.settled && (behind > 0 || obstacles.is_empty()) {
        obstacles.push(format!("{behind} relays do not obey the phase {} yet", standing.phase));
    }
    obstacles
}

/// What stands against a cutover. Pure.
pub fn obstacles_to_cutover(standing: &Standing, now: Timestamp) -> Vec<String> {
    let mut obstacles = obstacles_to_settling(standing);
    let waiting = standing.legacy.pending + standing.legacy.failed;
    if waiting > 0 {
        let why = standing.legacy_error.as_deref().unwrap_or("they wait for their turn");
        obstacles.push(format!("{waiting} copies have not reached the old bus: {why}"));
    }
    match &standing.parity {
        None => {
            obstacles.push("both buses were never compared; run `postrider migration compare`".to_owned());
        }
        Some(parity) if !parity.holds => obstacles.push(format!(
            "the last comparison found {} missing, {} extra and {} different among {} events",
            parity.missing, parity.extra, parity.different, parity.compared
        )),
        Some(parity) if parity.version != standing.version => {
            obstacles.push("the last comparison is of an earlier phase; compare again".to_owned());
        }
        Some(parity)
            if now.duration_since(parity.at)
                > jiff::SignedDuration::try_from(PARITY_LASTS).unwrap_or_default() =>
        {
            obstacles.push("the last comparison is more than a day old; compare again".to_owned());
        }
        Some(_) => {}
    }
    obstacles
}

/// Publishes to the new bus alone from now on. Refused while parity is not proven, unless forced: then what stood against it is in
/// the audit log.
pub async fn cut_over<S: DualPublishing>(
    databases: &Databases<S>,
    step: &Taken,
) -> Result<Vec<String>, MigrationError> {
    let standing = running(databases).await?;
    if !standing.phase.may_become(Phase::Cutover) {
        return Err(not_now(&standing, "it is cut over already; `rollback` goes back, `finish` ends it"));
    }
    let obstacles = obstacles_to_cutover(&standing, databases.clock().now());
    if !obstacles.is_empty() && !step.forced {
        return Err(MigrationError::Obstacles(obstacles));
    }
    turn(databases.main(), &standing, Phase::Cutover, step, obstacles.clone()).await?;
    Ok(obstacles)
}

/// Publishes to both buses again. What went to the new one alone meanwhile is copied to the old one, so that it has everything.
/// A database that is away is no reason to wait: it follows when it is back.
pub async fn roll_back<S: DualPublishing>(
    databases: &Databases<S>,
    step: &Taken,
) -> Result<(), MigrationError> {
    let standing = running(databases).await?;
    if !standing.phase.may_become(Phase::Dual) {
        return Err(not_now(&standing, "both buses are published to; there is nothing to go back from"));
    }
    turn(databases.main(), &standing, Phase::Dual, step, Vec::new()).await
}

/// What stands against removing the old bus, as far as the store knows; the broker knows whether messages or consumers remain. Pure.
pub fn obstacles_to_finish(standing: &Standing) -> Vec<String> {
    let mut obstacles = obstacles_to_settling(standing);
    let waiting = standing.legacy.pending + standing.legacy.failed;
    if waiting > 0 {
        obstacles.push(format!("{waiting} copies have not reached the old bus"));
    }
    obstacles
}

/// Removes the old exchange and its queue, and ends the migration. Refused while copies, messages or consumers remain. A crash after
/// the removal leaves the migration unfinished, and finishing it again is fine.
pub async fn finish<S: DualPublishing>(
    databases: &Databases<S>,
    broker: &dyn Broker,
    step: &Taken,
) -> Result<Definition, MigrationError> {
    let standing = running(databases).await?;
    if !standing.phase.may_become(Phase::Finished) {
        return Err(not_now(&standing, "cut over first"));
    }
    let obstacles = obstacles_to_finish(&standing);
    if !obstacles.is_empty() && !step.forced {
        return Err(MigrationError::Obstacles(obstacles));
    }
    let legacy = &standing.definition.legacy;
    let removal = Removal {
        queues: legacy.waits.iter().chain(&legacy.queue).cloned().collect(),
        exchanges: vec![legacy.exchange.clone()],
        only_unused: true,
    };
    // What a comparison that died has left behind is bound to the old exchange, too.
    remove_taps(broker, &standing.definition.name).await?;
    broker.remove(&removal).await?;
    turn(databases.main(), &standing, Phase::Finished, step, obstacles).await?;
    // Perhaps nobody relays any more who would tell those that follow.
    if let Err(error) = databases.settle().await {
        tracing::debug!(%error, "that the migration is over is carried on by whoever relays next");
    }
    Ok(standing.definition)
}

/// Waits until every relay of every database obeys the newest phase, for so long. Says whether they do.
pub async fn settled<S: DualPublishing>(
    databases: &Databases<S>,
    at_most: Duration,
) -> Result<bool, StoreError> {
    let clock = databases.clock();
    let start = clock.monotonic();
    loop {
        if databases.settle().await? {
            return Ok(true);
        }
        if clock.since(start) >= at_most {
            return Ok(false);
        }
        clock.sleep(LOOK).await;
    }
}

async fn turn<S: DualPublishing>(
    store: &S,
    standing: &Standing,
    to: Phase,
    step: &Taken,
    forced: Vec<String>,
) -> Result<(), MigrationError> {
    let turn = PhaseTurn {
        name: standing.definition.name.clone(),
        from_version: standing.version,
        to,
        by: step.by.clone(),
        reason: step.reason.clone(),
        forced,
    };
    if store.turn_migration(&turn).await? { Ok(()) } else { Err(MigrationError::Moved) }
}

fn not_now(standing: &Standing, why: &'static str) -> MigrationError {
    MigrationError::NotNow { name: standing.definition.name.clone(), phase: standing.phase, why }
}

#[cfg(test)]
mod tests {
    use super::super::definition::tests::definition;
    use super::*;
    use crate::migration::{DeliveryCounts, Parity};

    fn standing() -> Standing {
        Standing {
            definition: definition(),
            phase: Phase::Dual,
            version: 7,
            settled: true,
            started_at: Timestamp::UNIX_EPOCH,
            phase_at: Timestamp::UNIX_EPOCH,
            new: DeliveryCounts::default(),
            legacy: DeliveryCounts::default(),
            legacy_error: None,
            relays: Vec::new(),
            databases: Vec::new(),
            follows: None,
            parity: Some(Parity { holds: true, version: 7, compared: 10, ..Parity::default() }),
        }
    }

    #[test]
    fn proven_parity_lets_it_through() {
        assert_eq!(obstacles_to_cutover(&standing(), Timestamp::UNIX_EPOCH), Vec::<String>::new());
    }

    #[test]
    fn everything_that_stands_against_it_is_said() {
        let mut doubtful = standing();
        doubtful.settled = false;
        doubtful.legacy.failed = 3;
        doubtful.parity = Some(Parity { missing: 2, version: 7, ..Parity::default() });
        let obstacles = obstacles_to_cutover(&doubtful, Timestamp::UNIX_EPOCH);
        assert_eq!(obstacles.len(), 3, "{obstacles:?}");
    }

    #[test]
    fn a_comparison_is_of_this_phase_and_of_today() {
        let mut old = standing();
        let tomorrow = Timestamp::from_second(86_401).unwrap();
        assert_eq!(obstacles_to_cutover(&old, tomorrow).len(), 1);
        old.version = 8;
        assert_eq!(obstacles_to_cutover(&old, Timestamp::UNIX_EPOCH).len(), 1);
        old.parity = None;
        assert_eq!(obstacles_to_cutover(&old, Timestamp::UNIX_EPOCH).len(), 1);
    }
}
