//! What an intake is doing, for health, metrics and whoever lists consumers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use metrics::Counter;
use postrider::broker::Verdict;
use postrider::consumer::{ConsumerState, ConsumerStatus};
use postrider::settlement::DeadReason;
use postrider::topology::ConsumerName;

use crate::refusal::{CODES, Refusal};

/// What an intake has done since it was started, and how it stands.
#[derive(Debug, Default)]
pub struct IntakeStatus {
    posted: AtomicU64,
    duplicates: AtomicU64,
    refused: AtomicU64,
    standing: Arc<ConsumerStatus>,
    meters: OnceLock<Meters>,
}

/// How an intake stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IntakeState {
    /// It takes events.
    Running,
    /// Somebody paused it.
    Paused,
    /// Its books cannot be written.
    Tripped,
    /// It has no subscription: the broker is away, or its queue.
    Disconnected,
}

/// Counters by name and label cost more to look up than to count.
struct Meters {
    applied: Counter,
    duplicates: Counter,
}

impl std::fmt::Debug for Meters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Meters")
    }
}

impl Meters {
    fn of(name: &ConsumerName) -> Self {
        let name = || name.to_string();
        // Alerts watch these grow. What comes up with its first value has not grown, so they are there from the start.
        for code in CODES {
            metrics::counter!("postrider_ledger_refused_total", "code" => code).increment(0);
        }
        let conflict = DeadReason::Conflict.as_str();
        metrics::counter!("postrider_consumer_dead_total", "consumer" => name(), "reason" => conflict)
            .increment(0);
        Self {
            applied: metrics::counter!("postrider_consumer_applied_total", "consumer" => name()),
            duplicates: metrics::counter!("postrider_consumer_duplicates_total", "consumer" => name()),
        }
    }
}

impl IntakeStatus {
    /// Events that it posted.
    pub fn posted(&self) -> u64 {
        self.posted.load(Ordering::Relaxed)
    }

    /// Deliveries of events that were in the books before.
    pub fn duplicates(&self) -> u64 {
        self.duplicates.load(Ordering::Relaxed)
    }

    /// Events that it refused.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// It as a consumer: what it has in hand, and whether it may work.
    pub fn standing(&self) -> &Arc<ConsumerStatus> {
        &self.standing
    }

    /// How it stands.
    pub fn state(&self) -> IntakeState {
        match self.standing.state() {
            ConsumerState::Paused(_) => IntakeState::Paused,
            ConsumerState::Tripped(_) => IntakeState::Tripped,
            ConsumerState::Running if !self.standing.is_subscribed() => IntakeState::Disconnected,
            ConsumerState::Running => IntakeState::Running,
        }
    }

    /// Its counters are there from now on, whatever comes first.
    pub(super) fn begin(&self, name: &ConsumerName) {
        self.meters(name);
    }

    pub(super) fn count_posted(&self, name: &ConsumerName) -> Verdict {
        self.posted.fetch_add(1, Ordering::Relaxed);
        metrics::counter!("postrider_ledger_posted_total").increment(1);
        self.meters(name).applied.increment(1);
        Verdict::Ack
    }

    pub(super) fn count_duplicate(&self, name: &ConsumerName) -> Verdict {
        self.duplicates.fetch_add(1, Ordering::Relaxed);
        metrics::counter!("postrider_ledger_duplicates_total").increment(1);
        self.meters(name).duplicates.increment(1);
        Verdict::Ack
    }

    pub(super) fn count_refused(
        &self,
        name: &ConsumerName,
        reason: DeadReason,
        refusal: &Refusal,
    ) -> Verdict {
        self.refused.fetch_add(1, Ordering::Relaxed);
        metrics::counter!("postrider_ledger_refused_total", "code" => refusal.code()).increment(1);
        let (name, reason) = (name.to_string(), reason.as_str());
        metrics::counter!("postrider_consumer_dead_total", "consumer" => name, "reason" => reason)
            .increment(1);
        Verdict::Ack
    }

    fn meters(&self, name: &ConsumerName) -> &Meters {
        self.meters.get_or_init(|| Meters::of(name))
    }
}
