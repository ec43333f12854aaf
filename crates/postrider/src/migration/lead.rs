//! A migration of several databases: one keeps it, the others follow it phase by phase. What a follower has to do next. Pure.
//!
//! A follower has the migration as a row of its own, so its relays obey it, record their copies and make up for what is missing as
//! if it had been started there, also while the database that keeps it is away.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use super::{Definition, MigrationName, Phase};

/// A migration, for those who follow it.
#[derive(Debug, Clone, PartialEq)]
pub struct Lead {
    /// What goes where.
    pub definition: Definition,
    /// Where it stands.
    pub phase: Phase,
    /// Changes with every phase.
    pub version: i64,
    /// When it began: with its name, which one it is.
    pub started_at: Timestamp,
    /// How long it has been in this phase, by the clock of the database that keeps it.
    pub age: Duration,
}

/// Which step of which migration a database has followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Leader {
    /// When the migration began, where it is kept.
    pub started_at: Timestamp,
    /// Its version there.
    pub version: i64,
}

/// What a database follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Followed {
    /// Which migration.
    pub name: MigrationName,
    /// Which step of it; of one that is kept there, its own.
    pub leader: Leader,
    /// Where it stands there.
    pub phase: Phase,
}

/// A database that follows, and the time by its clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct There {
    /// What time it is there.
    pub now: Timestamp,
    /// The migration that is not finished there, else the last that was followed.
    pub followed: Option<Followed>,
}

/// What a follower has to do.
#[derive(Debug, PartialEq)]
pub(super) enum Next<'a> {
    /// Nothing: it is where it should be.
    Nothing,
    /// Take up this phase.
    Follow(&'a Lead),
    /// It has turned copies off by itself, and so should all others.
    Suspend(&'a Lead),
    /// Nothing, before a migration of its own is finished.
    Wait(&'a MigrationName),
}

impl Lead {
    /// When this phase began by the clock of a follower, who was asked for the time before this was read: rather too early than too
    /// late, so that nothing which needs a copy is passed over.
    pub(super) fn since(&self, there: &There) -> Timestamp {
        let age = SignedDuration::try_from(self.age).unwrap_or(SignedDuration::MAX);
        there.now.checked_sub(age).unwrap_or(Timestamp::MIN)
    }
}

/// What a database has to do that follows the first of these, the newest.
pub(super) fn next<'a>(there: &'a There, leads: &'a [Lead]) -> Next<'a> {
    let Some(newest) = leads.first() else { return Next::Nothing };
    if let Some(followed) = &there.followed {
        let of = |lead: &&Lead| {
            (&lead.definition.name, lead.started_at) == (&followed.name, followed.leader.started_at)
        };
        match leads.iter().find(of) {
            Some(lead) if followed.leader.version < lead.version => return Next::Follow(lead),
            Some(lead) if followed.phase == Phase::Suspended && lead.phase == Phase::Dual => {
                return Next::Suspend(lead);
            }
            Some(lead) if lead == newest => return Next::Nothing,
            None if followed.phase != Phase::Finished => return Next::Wait(&followed.name),
            Some(_) | None => {}
        }
    }
    // Whoever had no part in it need not know that it is over.
    if newest.phase == Phase::Finished { Next::Nothing } else { Next::Follow(newest) }
}

#[cfg(test)]
mod tests {
    use super::super::definition::tests::definition;
    use super::*;

    fn second(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn lead(name: &str, began: i64, version: i64, phase: Phase) -> Lead {
        let definition = Definition { name: MigrationName::new(name).unwrap(), ..definition() };
        Lead { definition, phase, version, started_at: second(began), age: Duration::from_secs(5) }
    }

    fn there(name: &str, began: i64, version: i64, phase: Phase) -> There {
        let leader = Leader { started_at: second(began), version };
        let followed = Followed { name: MigrationName::new(name).unwrap(), leader, phase };
        There { now: second(1000), followed: Some(followed) }
    }

    const NOWHERE: There = There { now: Timestamp::UNIX_EPOCH, followed: None };

    #[test]
    fn a_phase_is_followed_once() {
        let leads = [lead("mail", 1, 7, Phase::Cutover)];
        assert_eq!(next(&NOWHERE, &leads), Next::Follow(&leads[0]));
        assert_eq!(next(&there("mail", 1, 6, Phase::Dual), &leads), Next::Follow(&leads[0]));
        assert_eq!(next(&there("mail", 1, 7, Phase::Cutover), &leads), Next::Nothing);
        assert_eq!(next(&NOWHERE, &[]), Next::Nothing);
    }

    #[test]
    fn its_end_is_followed_by_those_who_had_part_in_it() {
        let leads = [lead("mail", 1, 8, Phase::Finished)];
        assert_eq!(next(&there("mail", 1, 7, Phase::Cutover), &leads), Next::Follow(&leads[0]));
        assert_eq!(next(&there("mail", 1, 8, Phase::Finished), &leads), Next::Nothing);
        assert_eq!(next(&NOWHERE, &leads), Next::Nothing);
    }

    #[test]
    fn who_missed_the_end_of_one_ends_it_before_the_next() {
        let leads = [lead("chat", 50, 9, Phase::Dual), lead("mail", 1, 8, Phase::Finished)];
        assert_eq!(next(&there("mail", 1, 7, Phase::Cutover), &leads), Next::Follow(&leads[1]));
        assert_eq!(next(&there("mail", 1, 8, Phase::Finished), &leads), Next::Follow(&leads[0]));
    }

    #[test]
    fn a_migration_of_its_own_goes_first() {
        let leads = [lead("mail", 1, 7, Phase::Dual)];
        let other = there("mail", 2, 3, Phase::Dual);
        assert_eq!(next(&other, &leads), Next::Wait(&leads[0].definition.name));
        assert_eq!(next(&there("chat", 2, 3, Phase::Finished), &leads), Next::Follow(&leads[0]));
    }

    #[test]
    fn copies_that_one_turned_off_are_turned_off_everywhere() {
        let leads = [lead("mail", 1, 7, Phase::Dual)];
        assert_eq!(next(&there("mail", 1, 7, Phase::Suspended), &leads), Next::Suspend(&leads[0]));
        let later = [lead("mail", 1, 8, Phase::Dual)];
        assert_eq!(next(&there("mail", 1, 7, Phase::Suspended), &later), Next::Follow(&later[0]));
    }

    #[test]
    fn the_clocks_of_two_databases_need_not_agree() {
        assert_eq!(lead("mail", 1, 7, Phase::Dual).since(&there("mail", 1, 6, Phase::Dual)), second(995));
    }
}
