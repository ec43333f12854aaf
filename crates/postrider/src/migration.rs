//! From an old bus to a new one without downtime: every event goes to both while consumers move, and it is proven that both
//! had the same before the old one is left.
//!
//! ```text
//!  start ──▶ dual ──cutover──▶ cutover ──finish──▶ finished
//!             ▲ │                 │
//!             │ └─(too slow)─▶ suspended
//!             └────rollback───────┴┘
//! ```
//!
//! The phase is kept in the store, and all relays obey it within a second or so. One outbox row has a delivery at each destination
//! (`event_delivery`), recorded with the mark of the row: a copy to the old bus that fails is counted, tried again and shown apart,
//! and holds up nothing unless asked to. Whatever was published while a relay did not know yet, or while copies were off, gets
//! its copy when they are on again: no event is missing on the old bus after a start or a rollback.
//!
//! Where outboxes are in several databases, one of them keeps the migration, and the others follow it ([`Databases`]).

mod compare;
mod copier;
mod databases;
mod definition;
mod errands;
mod latency;
mod lead;
mod parity;
mod source;
mod steps;
mod template;

pub use compare::{Comparing, compare, remove_taps};
pub(crate) use copier::Copier;
pub use databases::{DatabaseStanding, Databases};
pub use definition::{Definition, LatencyRule, Legacy, LegacyFormat, MigrationName, OnLatency};
pub use errands::{Errand, Errands, ask};
pub use latency::{Latencies, P99};
pub use lead::{Followed, Lead, Leader, There};
pub use parity::{Difference, Parity, Side};
pub use source::Source;
pub use steps::{
    MigrationError, Taken, cut_over, finish, obstacles_to_cutover, obstacles_to_finish, roll_back, settled,
    start,
};
pub use template::{Template, TemplateError};

use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Where a migration stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Every event goes to both buses.
    Dual,
    /// Copies to the old bus were turned off because publishing took too long; they are made up for later.
    Suspended,
    /// Events go to the new bus alone; the old one is still there.
    Cutover,
    /// The old bus is gone.
    Finished,
}

impl Phase {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Dual, Self::Suspended, Self::Cutover, Self::Finished];

    /// The word for it, in tables, metrics and on pages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Dual => "dual",
            Self::Suspended => "suspended",
            Self::Cutover => "cutover",
            Self::Finished => "finished",
        }
    }

    /// The phase with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|phase| phase.as_str() == name)
    }

    /// Whether it may follow this one.
    pub fn may_become(self, next: Self) -> bool {
        matches!(
            (self, next),
            (Self::Dual, Self::Suspended | Self::Cutover)
                | (Self::Suspended, Self::Dual | Self::Cutover)
                | (Self::Cutover, Self::Dual | Self::Finished)
        )
    }
}

impl std::fmt::Display for Phase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What relays obey: a migration that is not finished.
#[derive(Debug, Clone, PartialEq)]
pub struct Course {
    /// Changes with every phase.
    pub version: i64,
    /// Where it stands.
    pub phase: Phase,
    /// What goes where.
    pub definition: Arc<Definition>,
    /// Whether every relay obeys this version, and what went out before without a copy has got one.
    pub settled: bool,
    /// Since when it is in this phase.
    pub since: Timestamp,
}

/// A migration as people see it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Standing {
    /// What goes where.
    pub definition: Definition,
    /// Where it stands.
    pub phase: Phase,
    /// Changes with every phase.
    pub version: i64,
    /// Whether every relay obeys this version.
    pub settled: bool,
    /// When it began.
    pub started_at: Timestamp,
    /// Since when it is in this phase.
    pub phase_at: Timestamp,
    /// Deliveries to the new bus since it began, as far as they are remembered.
    pub new: DeliveryCounts,
    /// Copies to the old bus.
    pub legacy: DeliveryCounts,
    /// Why copies fail, if some do: the newest reason.
    pub legacy_error: Option<String>,
    /// The relays that run, or ran not long ago.
    pub relays: Vec<RelayStanding>,
    /// The other databases that follow it, where it was asked for all of them: what they have is in the figures above.
    pub databases: Vec<DatabaseStanding>,
    /// What is followed here, if another database keeps the migration.
    pub follows: Option<Leader>,
    /// The last comparison of both buses.
    pub parity: Option<Parity>,
}

impl Standing {
    /// How long publishes take on either path, by the slowest relay.
    pub fn slowest(&self) -> P99 {
        let slowest =
            |of: fn(&RelayStanding) -> Option<f64>| self.relays.iter().filter_map(of).max_by(f64::total_cmp);
        P99 { new: slowest(|relay| relay.new_p99_ms), legacy: slowest(|relay| relay.legacy_p99_ms) }
    }

    /// Takes in what a store has counted: destination, status, how many, and whether it ended early.
    pub(crate) fn count(&mut self, counted: Vec<(String, String, i64, bool)>) {
        for (destination, status, count, ended_early) in counted {
            let counts = if destination == "new" { &mut self.new } else { &mut self.legacy };
            counts.add(&status, count.unsigned_abs());
            // What was not looked at may be of either.
            self.new.at_least |= ended_early;
            self.legacy.at_least |= ended_early;
        }
    }

    /// Whether the last comparison is of an earlier phase, and says nothing of this one.
    pub fn is_parity_outdated(&self) -> bool {
        self.phase == Phase::Dual && self.parity.as_ref().is_some_and(|parity| parity.version != self.version)
    }

    /// What the counts are of, for people: after a rollback the old bus has copies of events whose way to the new one nobody counted.
    pub fn counted(&self) -> String {
        let Self { started_at, phase_at, .. } = self;
        match self.phase {
            Phase::Dual if phase_at > started_at => format!(
                "since {started_at}; since {phase_at} the old bus is also owed what went to the new one alone before that, so it \
                 has more than the new one counts"
            ),
            Phase::Dual => format!("since {started_at}, of what goes to both buses"),
            Phase::Suspended | Phase::Cutover | Phase::Finished => format!(
                "from {started_at} to {phase_at}; since then events go to the new bus alone and neither side counts them. A rollback has \
                 them copied"
            ),
        }
    }

    /// Relays that obey this version.
    pub fn obedient(&self) -> usize {
        self.relays.iter().filter(|relay| relay.version == Some(self.version)).count()
    }
}

/// How many deliveries there are in each state. Nobody waits for a long count: it ends at some number of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct DeliveryCounts {
    /// Still to be tried, or the answer is unknown.
    pub pending: u64,
    /// Failed at least once, and tried again.
    pub failed: u64,
    /// The broker has it.
    pub confirmed: u64,
    /// The count ended early: there are at least so many in each state.
    pub at_least: bool,
}

impl DeliveryCounts {
    /// A count ends when it has looked at so many deliveries.
    pub(crate) const LOOKED_AT: i64 = 100_000;

    /// Adds what another database has counted.
    fn take_in(&mut self, other: Self) {
        self.pending += other.pending;
        self.failed += other.failed;
        self.confirmed += other.confirmed;
        self.at_least |= other.at_least;
    }

    /// Counts deliveries of this status.
    pub(crate) fn add(&mut self, status: &str, count: u64) {
        match status {
            "confirmed" => self.confirmed += count,
            "failed" => self.failed += count,
            _ => self.pending += count,
        }
    }
}

/// What a relay makes of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RelayStanding {
    /// Which.
    pub relay: String,
    /// The version it obeys; absent: it has not said so yet.
    pub version: Option<i64>,
    /// How long its publishes to the new bus take, 99 of 100, in milliseconds.
    pub new_p99_ms: Option<f64>,
    /// The same for copies to the old bus.
    pub legacy_p99_ms: Option<f64>,
}

/// What became of one outbox row at both destinations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivered {
    /// The event, for people who look at deliveries.
    pub event_id: crate::envelope::EventId,
    /// On the new bus.
    pub new: DeliveryResult,
    /// On the old one.
    pub legacy: DeliveryResult,
}

/// What became of a delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeliveryResult {
    /// The broker has it.
    Confirmed,
    /// It failed by its own fault, for this reason.
    Failed(String),
    /// Not tried, or nobody knows.
    Pending,
}

impl DeliveryResult {
    /// The word for it, in tables.
    pub(crate) fn status(&self) -> &'static str {
        match self {
            Self::Confirmed => "confirmed",
            Self::Failed(_) => "failed",
            Self::Pending => "pending",
        }
    }

    /// What a table says of it.
    pub(crate) fn from_columns(status: &str, error: Option<String>) -> Self {
        match status {
            "confirmed" => Self::Confirmed,
            "failed" => Self::Failed(error.unwrap_or_default()),
            _ => Self::Pending,
        }
    }

    /// Why it failed, if it did.
    pub(crate) fn error(&self) -> Option<&str> {
        match self {
            Self::Failed(error) => Some(error),
            Self::Confirmed | Self::Pending => None,
        }
    }
}

/// The halves of a row that are known to be confirmed: need not be sent again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Halves {
    /// The new bus has it.
    pub new: bool,
    /// The old one has it.
    pub legacy: bool,
}
