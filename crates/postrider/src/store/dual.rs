//! A migration between two buses, as the store keeps it.

use std::future::Future;
use std::time::Duration;

use jiff::Timestamp;

use super::{OutboxRow, RelayId, Store, StoreError, StoreErrorKind};
use crate::envelope::EventId;
use crate::migration::{
    Course, Definition, DeliveryResult, Halves, Lead, MigrationName, P99, Parity, Phase, Standing, There,
};

/// Publishing to two buses while a migration runs: which phase it is in, and what became of every copy.
///
/// A store that knows nothing of it need say nothing: then no migration ever runs there.
///
/// What became of a row at both destinations is recorded by [`Outbox::settle`](super::Outbox::settle), in the transaction that marks
/// the row.
pub trait DualPublishing: Store {
    /// What relays obey now. Asked about once a second by each of them.
    fn course(&self) -> impl Future<Output = Result<Option<Course>, StoreError>> + Send {
        std::future::ready(Ok(None))
    }

    /// This relay obeys this version from now on: nothing that it published under another one is unmarked.
    fn obeys(
        &self,
        _relay: &RelayId,
        _version: i64,
        _latency: P99,
    ) -> impl Future<Output = Result<(), StoreError>> + Send {
        std::future::ready(Ok(()))
    }

    /// If every relay that lives obeys the newest version, makes up for copies that are missing, and calls it settled. A relay that
    /// was gone for longer than its lease loses its slots here, so that what it still has in hand cannot be marked. Says
    /// whether it is settled.
    fn settle_course(&self) -> impl Future<Output = Result<bool, StoreError>> + Send {
        std::future::ready(Ok(true))
    }

    /// Takes copies that are due, for this long: rows of this outbox, whose `attempts` are those of the copy.
    fn claim_copies(
        &self,
        _limit: usize,
        _lease: Duration,
    ) -> impl Future<Output = Result<Vec<OutboxRow>, StoreError>> + Send {
        std::future::ready(Ok(Vec::new()))
    }

    /// Records what became of copies, by the positions of their rows.
    fn settle_copies(
        &self,
        _results: Vec<(i64, CopyResult)>,
    ) -> impl Future<Output = Result<(), StoreError>> + Send {
        std::future::ready(Ok(()))
    }

    /// Which halves of these rows are confirmed already. Rows of which nothing is known are left out.
    fn confirmed_halves(
        &self,
        _positions: Vec<i64>,
    ) -> impl Future<Output = Result<Vec<(i64, Halves)>, StoreError>> + Send {
        std::future::ready(Ok(Vec::new()))
    }

    /// The rows after one position and up to another that went to an exchange, in order, with what became of their copies: nothing
    /// where no relay recorded one.
    fn published_rows(
        &self,
        _after: i64,
        _up_to: i64,
        _limit: usize,
    ) -> impl Future<Output = Result<Vec<(OutboxRow, Option<DeliveryResult>)>, StoreError>> + Send {
        std::future::ready(Ok(Vec::new()))
    }

    /// Of these rows, those that were published since a time and of which no relay recorded a copy.
    fn uncopied_rows(
        &self,
        _since: Timestamp,
        _after: i64,
        _up_to: i64,
        _limit: usize,
    ) -> impl Future<Output = Result<Vec<OutboxRow>, StoreError>> + Send {
        std::future::ready(Ok(Vec::new()))
    }

    /// Copies of these rows are to be made, where there are none yet.
    fn owe_copies(&self, _rows: Vec<(i64, EventId)>) -> impl Future<Output = Result<(), StoreError>> + Send {
        std::future::ready(Ok(()))
    }

    /// Starts a migration, in the phase `dual`, and writes it into the audit log. Refused as
    /// [`Duplicate`](super::StoreErrorKind::Duplicate) while another one is not finished, or if this one ever was started.
    fn start_migration(
        &self,
        _definition: &Definition,
        _by: &str,
        _reason: &str,
    ) -> impl Future<Output = Result<(), StoreError>> + Send {
        std::future::ready(Err(none_here()))
    }

    /// Moves a migration on from the version that the caller knows, and writes it into the audit log in the same transaction.
    /// False if somebody else moved it meanwhile.
    fn turn_migration(&self, _turn: &PhaseTurn) -> impl Future<Output = Result<bool, StoreError>> + Send {
        std::future::ready(Err(none_here()))
    }

    /// Keeps the report of a comparison.
    fn keep_parity(
        &self,
        _name: &MigrationName,
        _parity: &Parity,
    ) -> impl Future<Output = Result<(), StoreError>> + Send {
        std::future::ready(Err(none_here()))
    }

    /// Every migration, the newest first.
    fn migrations_of_buses(&self) -> impl Future<Output = Result<Vec<Standing>, StoreError>> + Send {
        std::future::ready(Ok(Vec::new()))
    }

    /// The migrations that this database keeps itself, the newest first: what others follow.
    fn leads(&self) -> impl Future<Output = Result<Vec<Lead>, StoreError>> + Send {
        std::future::ready(Ok(Vec::new()))
    }

    /// What this database follows, and what time it is there.
    fn there(&self) -> impl Future<Output = Result<There, StoreError>> + Send {
        std::future::ready(Err(none_here()))
    }

    /// Follows a migration of another database into its phase, which began at this time by the clock of this one. Nothing changes if
    /// it is there already, or further. Refused as [`Duplicate`](super::StoreErrorKind::Duplicate) while another one is not finished
    /// here, or if one of this name was kept here.
    fn follow(&self, _lead: &Lead, _since: Timestamp) -> impl Future<Output = Result<(), StoreError>> + Send {
        std::future::ready(Err(none_here()))
    }

    /// Forgets confirmed deliveries from before this time, so many at most. Returns how many.
    fn forget_deliveries(
        &self,
        _before: Timestamp,
        _limit: u32,
    ) -> impl Future<Output = Result<u64, StoreError>> + Send {
        std::future::ready(Ok(0))
    }
}

/// The answer of a store that keeps no migrations.
fn none_here() -> StoreError {
    StoreError::new(
        StoreErrorKind::Invalid,
        "this store keeps no migrations between buses; nothing was changed",
    )
}

/// What became of a copy that was tried again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CopyResult {
    /// The broker has it.
    Confirmed,
    /// It failed, for this reason, and is tried again after so long.
    Failed(String, Duration),
    /// The broker was away: tried again after so long, and not counted.
    Unknown(Duration),
    /// The event is none of those that are copied.
    NotWanted,
}

/// A step from one phase to the next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PhaseTurn {
    /// Which migration.
    pub name: MigrationName,
    /// The version that the decision was made on.
    pub from_version: i64,
    /// The next phase.
    pub to: Phase,
    /// Who.
    pub by: String,
    /// Why.
    pub reason: String,
    /// What stood against it and was overruled.
    pub forced: Vec<String>,
}
