//! What runs in this process: written by `serve` as parts start, read by health.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use postrider::consumer::{ConsumerState, ConsumerStatus};
use postrider::relay::RelayStatus;
use postrider::runtime::RunningConsumer;
use postrider::topology::ConsumerName;
use postrider_ledger::intake::IntakeStatus;

/// The parts of this process. Consumers that ended are forgotten by themselves.
#[derive(Debug, Default)]
pub(crate) struct AtWork(Mutex<Parts>);

#[derive(Debug, Default)]
struct Parts {
    relay: Relaying,
    ledger: Feeds,
    consumers: BTreeMap<ConsumerName, Weak<ConsumerStatus>>,
}

/// Whether a relay runs here.
#[derive(Debug, Clone, Default)]
pub(crate) enum Relaying {
    /// No: it is not a role of this process.
    #[default]
    Elsewhere,
    /// It waits for the broker to be declared.
    Starting,
    /// Yes.
    Here(Arc<RelayStatus>),
}

/// Whether the ledger takes events here.
#[derive(Debug, Clone, Default)]
pub(crate) enum Feeds {
    /// No: it is not a role of this process.
    #[default]
    Elsewhere,
    /// It waits for the broker to be declared.
    Starting,
    /// Yes.
    Here(Arc<IntakeStatus>),
}

/// The consumers of this process, counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Consuming {
    /// Those that work.
    pub(crate) running: u32,
    /// Those that somebody paused.
    pub(crate) paused: u32,
    /// Those that left their queue alone, because everything failed.
    pub(crate) tripped: u32,
}

impl AtWork {
    /// How the relay stands now.
    pub(crate) fn note_relay(&self, relay: Relaying) {
        self.parts().relay = relay;
    }

    /// How the ledger stands now.
    pub(crate) fn note_ledger(&self, ledger: Feeds) {
        self.parts().ledger = ledger;
    }

    /// How the ledger stands.
    pub(crate) fn ledger(&self) -> Feeds {
        self.parts().ledger.clone()
    }

    /// A consumer that was started.
    pub(crate) fn note_consumer(&self, name: &ConsumerName, status: &Arc<ConsumerStatus>) {
        self.parts().consumers.insert(name.clone(), Arc::downgrade(status));
    }

    /// Consumers that were started.
    pub(crate) fn note_consumers(&self, started: &[RunningConsumer]) {
        for consumer in started {
            self.note_consumer(&consumer.registration.name, &consumer.status);
        }
    }

    /// How the relay stands.
    pub(crate) fn relay(&self) -> Relaying {
        self.parts().relay.clone()
    }

    /// Deliveries that a consumer of this process has in hand; nothing if it runs elsewhere.
    pub(crate) fn in_flight(&self, name: &ConsumerName) -> Option<u64> {
        let status = self.parts().consumers.get(name).and_then(Weak::upgrade)?;
        Some(status.in_flight() as u64)
    }

    /// How a consumer stands, in one word. That one has tripped is known of this process alone.
    pub(crate) fn state(&self, name: &ConsumerName, paused: bool) -> &'static str {
        if paused {
            return "paused";
        }
        let status = self.parts().consumers.get(name).and_then(Weak::upgrade);
        match status.map(|status| status.state()) {
            Some(ConsumerState::Tripped(_)) => "tripped",
            _ => "active",
        }
    }

    /// How the consumers stand.
    pub(crate) fn consumers(&self) -> Consuming {
        let mut parts = self.parts();
        parts.consumers.retain(|_, status| status.strong_count() > 0);
        parts.consumers.values().filter_map(Weak::upgrade).fold(Consuming::default(), |mut all, status| {
            match status.state() {
                ConsumerState::Running => all.running += 1,
                ConsumerState::Paused(_) => all.paused += 1,
                ConsumerState::Tripped(_) => all.tripped += 1,
            }
            all
        })
    }

    fn parts(&self) -> MutexGuard<'_, Parts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
