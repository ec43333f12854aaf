//! All databases whose outboxes go to the buses: the one that keeps the migration, and those that follow it.
//!
//! A phase is carried from the first to the others about once a second, by every process that relays and by whoever waits for a step. A
//! crash in between leaves it to the next look. A database that is away follows when it is back, and makes up for copies that are
//! missing by then; until it has, nothing is settled.

use std::time::Duration;

use futures_util::future::join_all;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use super::lead::{Next, next};
use super::{DeliveryCounts, Lead, Phase, RelayStanding, Source, Standing, There};
use crate::clock::Clock;
use crate::store::{DualPublishing, PhaseTurn, StoreError, StoreErrorKind};

/// How often a phase is carried over.
const EVERY: Duration = Duration::from_secs(1);
/// A database that says nothing for so long is away.
const ANSWERS: Duration = Duration::from_secs(5);

/// The database that keeps a migration, and all others that have outboxes.
#[derive(Debug, Clone)]
pub struct Databases<S> {
    main: S,
    others: Vec<Follower<S>>,
    clock: Clock,
}

#[derive(Debug, Clone)]
struct Follower<S> {
    name: String,
    store: S,
}

/// Where a database stands that follows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DatabaseStanding {
    /// Which.
    pub database: String,
    /// Whether every relay there obeys the newest phase, and what went out before without a copy has got one.
    pub settled: bool,
    /// Why it does not follow, if it does not: what comes after its name in a sentence.
    pub error: Option<String>,
    /// Its deliveries to the new bus.
    pub new: DeliveryCounts,
    /// Its copies to the old one.
    pub legacy: DeliveryCounts,
}

impl<S: DualPublishing> Databases<S> {
    /// The one that keeps the migration, alone.
    pub fn new(main: S, clock: Clock) -> Self {
        Self { main, others: Vec::new(), clock }
    }

    /// And one that follows, under the name by which people know it. What is named already stays as it is.
    #[must_use]
    pub fn and(mut self, name: &str, store: S) -> Self {
        if !self.others.iter().any(|other| other.name == name) {
            self.others.push(Follower { name: name.to_owned(), store });
        }
        self
    }

    /// And those of these outboxes.
    #[must_use]
    pub fn with(self, sources: &[Source<S>]) -> Self {
        let elsewhere =
            sources.iter().filter_map(|source| Some((source.database.as_deref()?, &source.store)));
        elsewhere.fold(self, |all, (name, store)| all.and(name, store.clone()))
    }

    /// The one that keeps the migration.
    pub fn main(&self) -> &S {
        &self.main
    }

    pub(super) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Every migration, the newest first. Of the one that is not finished, what all databases have of it, added up: it is settled when
    /// it is in each of them, and never while one cannot be asked.
    pub async fn standings(&self) -> Result<Vec<Standing>, StoreError> {
        let mut standings = self.main.migrations_of_buses().await?;
        let kept = |one: &&mut Standing| one.phase != Phase::Finished && one.follows.is_none();
        let Some(running) = standings.iter_mut().find(kept) else { return Ok(standings) };
        let ask = |other: &Follower<S>| {
            let store = other.store.clone();
            self.within(async move { store.migrations_of_buses().await })
        };
        let answers = join_all(self.others.iter().map(ask)).await;
        let (version, settled) = (running.version, running.settled);
        for (other, answer) in self.others.iter().zip(answers) {
            running.take_in(&other.name, answer, version, settled);
        }
        Ok(standings)
    }

    /// Carries the newest phase to all databases, and settles it wherever every relay obeys. Says whether it is settled everywhere.
    pub async fn settle(&self) -> Result<bool, StoreError> {
        let followed = self.carry_over().await?;
        let mut settled = self.main.settle_course().await?;
        for (other, followed) in self.others.iter().zip(followed) {
            let there = match followed {
                Ok(true) => self.within(other.store.settle_course()).await,
                behind => behind,
            };
            settled &= there.unwrap_or(false);
        }
        Ok(settled)
    }

    /// Carries every phase over until told to stop.
    pub(crate) async fn lead(self, stop: CancellationToken) {
        let mut behind = vec![false; self.others.len()];
        while !self.others.is_empty() {
            match self.carry_over().await {
                Ok(followed) => {
                    for ((other, followed), behind) in self.others.iter().zip(followed).zip(&mut behind) {
                        note(&other.name, followed.err(), behind);
                    }
                }
                Err(error) => tracing::debug!(%error, "the migration cannot be looked at; trying again"),
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.clock.sleep(EVERY) => {}
            }
        }
    }

    /// One look at all of them: whether each follows the newest phase now, or why not.
    async fn carry_over(&self) -> Result<Vec<Result<bool, StoreError>>, StoreError> {
        // Those who follow are asked for the time first: see Lead::since.
        let there = join_all(self.others.iter().map(|other| self.within(other.store.there()))).await;
        if there.is_empty() {
            return Ok(Vec::new());
        }
        let leads = self.main.leads().await?;
        let mut followed = Vec::with_capacity(there.len());
        for (other, there) in self.others.iter().zip(there) {
            followed.push(match there {
                Ok(there) => self.go(other, &there, &leads).await,
                // Nothing is to be followed, so nothing is amiss.
                Err(_) if leads.first().is_none_or(|newest| newest.phase == Phase::Finished) => Ok(true),
                Err(error) => Err(error),
            });
        }
        Ok(followed)
    }

    async fn go(&self, other: &Follower<S>, there: &There, leads: &[Lead]) -> Result<bool, StoreError> {
        match next(there, leads) {
            Next::Nothing => Ok(true),
            Next::Follow(lead) => {
                self.within(other.store.follow(lead, lead.since(there))).await?;
                Ok(leads.first() == Some(lead))
            }
            Next::Suspend(lead) => {
                let turn = PhaseTurn {
                    name: lead.definition.name.clone(),
                    from_version: lead.version,
                    to: Phase::Suspended,
                    by: "relay".to_owned(),
                    reason: format!(
                        "a relay of the database {} turned copies off: publishing took too long",
                        other.name
                    ),
                    forced: Vec::new(),
                };
                self.main.turn_migration(&turn).await?;
                Ok(false)
            }
            Next::Wait(name) => Err(StoreError::new(
                StoreErrorKind::Duplicate,
                format!("it has a migration {name} of its own, which is to be finished first"),
            )),
        }
    }

    async fn within<T>(&self, asking: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        tokio::select! {
            answer = asking => answer,
            () = self.clock.sleep(ANSWERS) => {
                let text = format!("it did not answer within {} s", ANSWERS.as_secs());
                Err(StoreError::new(StoreErrorKind::Unavailable, text))
            }
        }
    }
}

/// Says once that a database does not follow, and once that it does again.
fn note(database: &str, error: Option<StoreError>, behind: &mut bool) {
    let before = std::mem::replace(behind, error.is_some());
    metrics::gauge!("postrider_migration_behind", "database" => database.to_owned()).set(if *behind {
        1.0
    } else {
        0.0
    });
    match error {
        Some(error) if !before => tracing::warn!(
            database,
            %error,
            "a database does not follow the migration; it does when it can, and nothing is settled before"
        ),
        None if before => tracing::info!(database, "the database follows the migration again"),
        Some(_) | None => {}
    }
}

impl Standing {
    /// Adds what another database has of this migration. `version` and `settled` are those of the database that keeps it.
    fn take_in(
        &mut self,
        database: &str,
        answer: Result<Vec<Self>, StoreError>,
        version: i64,
        settled: bool,
    ) {
        let mut there = DatabaseStanding {
            database: database.to_owned(),
            settled: false,
            error: None,
            new: DeliveryCounts::default(),
            legacy: DeliveryCounts::default(),
        };
        match answer.map(|all| all.into_iter().find(|one| one.phase != Phase::Finished)) {
            Err(error) => there.error = Some(format!("cannot be asked: {error}")),
            // The same database by another name: everything of it is known.
            Ok(Some(same)) if same.follows.is_none() && same.is(self, same.started_at) => {
                there.settled = settled;
            }
            Ok(Some(other)) if !other.follows.is_some_and(|leader| other.is(self, leader.started_at)) => {
                there.error = Some(format!("has a migration {} of its own", other.definition.name));
            }
            Ok(None) => there.error = Some(format!("does not follow the phase {} yet", self.phase)),
            Ok(Some(found)) => {
                let follows = found.follows.is_some_and(|leader| leader.version == version)
                    && found.phase == self.phase;
                there.settled = follows && found.settled;
                (there.new, there.legacy) = (found.new, found.legacy);
                self.new.take_in(found.new);
                self.legacy.take_in(found.legacy);
                self.legacy_error = self.legacy_error.take().or(found.legacy_error);
                if !follows {
                    there.error = Some(format!("does not follow the phase {} yet", self.phase));
                }
                let obeys = |relay: &RelayStanding| follows && relay.version == Some(found.version);
                self.relays.extend(found.relays.into_iter().map(|relay| RelayStanding {
                    // What they obey is numbered otherwise there.
                    version: obeys(&relay).then_some(version),
                    ..relay
                }));
            }
        }
        self.settled &= there.settled;
        self.databases.push(there);
    }

    /// Whether it is this migration, which was started then.
    fn is(&self, other: &Self, started_at: jiff::Timestamp) -> bool {
        self.definition.name == other.definition.name && other.started_at == started_at
    }
}

#[cfg(test)]
mod tests {
    use super::super::definition::tests::definition;
    use super::super::{Leader, MigrationName};
    use super::*;

    fn standing(version: i64, follows: Option<i64>) -> Standing {
        let started_at = jiff::Timestamp::from_second(if follows.is_some() { 50 } else { 5 }).unwrap();
        Standing {
            definition: definition(),
            phase: Phase::Dual,
            version,
            settled: true,
            started_at,
            phase_at: started_at,
            new: DeliveryCounts { confirmed: 3, ..DeliveryCounts::default() },
            legacy: DeliveryCounts { confirmed: 2, failed: 1, ..DeliveryCounts::default() },
            legacy_error: follows.map(|_| "no queue".to_owned()),
            relays: vec![RelayStanding {
                relay: format!("relay-{version}"),
                version: Some(version),
                new_p99_ms: None,
                legacy_p99_ms: None,
            }],
            databases: Vec::new(),
            follows: follows
                .map(|version| Leader { started_at: jiff::Timestamp::from_second(5).unwrap(), version }),
            parity: None,
        }
    }

    fn with(answer: Result<Vec<Standing>, StoreError>) -> Standing {
        let mut all = standing(7, None);
        all.take_in("eu", answer, 7, true);
        all
    }

    #[test]
    fn what_another_database_has_is_added() {
        let all = with(Ok(vec![standing(90, Some(7))]));
        assert!(all.settled, "{all:#?}");
        assert_eq!((all.new.confirmed, all.legacy.confirmed, all.legacy.failed), (6, 4, 2));
        assert_eq!((all.relays.len(), all.obedient()), (2, 2), "numbered otherwise there");
        assert_eq!(all.legacy_error.as_deref(), Some("no queue"));
        assert_eq!(all.databases[0].error, None);
    }

    #[test]
    fn nothing_is_settled_while_one_does_not_follow() {
        let away = StoreError::new(StoreErrorKind::Unavailable, "connection refused");
        let mut foreign = standing(1, None);
        foreign.definition.name = MigrationName::new("chat").unwrap();
        // Of the same name, and still another.
        let mut namesake = standing(7, None);
        namesake.started_at = jiff::Timestamp::from_second(6).unwrap();
        for (answer, why) in [
            (Err(away), "cannot be asked: connection refused"),
            (Ok(Vec::new()), "does not follow the phase dual yet"),
            (Ok(vec![standing(89, Some(6))]), "does not follow the phase dual yet"),
            (Ok(vec![foreign]), "has a migration chat of its own"),
            (Ok(vec![namesake]), "has a migration smap of its own"),
        ] {
            let all = with(answer);
            assert_eq!((all.settled, all.databases[0].error.as_deref()), (false, Some(why)));
        }
    }

    #[test]
    fn the_same_database_by_another_name_is_counted_once() {
        let all = with(Ok(vec![standing(7, None)]));
        assert!(all.settled, "{all:#?}");
        assert_eq!((all.new.confirmed, all.relays.len()), (3, 1));
    }
}
