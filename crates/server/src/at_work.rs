//! What runs in this process: written by `serve` as parts start, read by health.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use postrider::consumer::{ConsumerState, ConsumerStatus};
use postrider::relay::RelayStatus;
use postrider::runtime::RunningConsumer;
use postrider::store::Registration;
use postrider::topology::{ConsumerName, QueueName};
use postrider_ledger::intake::IntakeStatus;

/// The parts of this process. Consumers that ended are forgotten by themselves.
#[derive(Debug, Default)]
pub(crate) struct AtWork(Mutex<Parts>);

#[derive(Debug, Default)]
struct Parts {
    relay: Relaying,
    ledger: Feeds,
    consumers: BTreeMap<ConsumerName, AtQueue>,
}

/// A consumer at its queue.
#[derive(Debug)]
struct AtQueue {
    queue: QueueName,
    status: Weak<ConsumerStatus>,
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
    /// Those that would work and have no subscription at the moment: the connection to the broker is lost, or the queue is gone.
    pub(crate) unsubscribed: u32,
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
    pub(crate) fn note_consumer(&self, name: &ConsumerName, queue: &QueueName, status: &Arc<ConsumerStatus>) {
        let consumer = AtQueue { queue: queue.clone(), status: Arc::downgrade(status) };
        self.parts().consumers.insert(name.clone(), consumer);
    }

    /// Consumers that were started.
    pub(crate) fn note_consumers(&self, started: &[RunningConsumer]) {
        for consumer in started {
            let Registration { name, service, .. } = &consumer.registration;
            self.note_consumer(name, service.name(), &consumer.status);
        }
    }

    /// How the relay stands.
    pub(crate) fn relay(&self) -> Relaying {
        self.parts().relay.clone()
    }

    /// Deliveries that a consumer of this process has in hand; nothing if it runs elsewhere.
    pub(crate) fn in_flight(&self, name: &ConsumerName) -> Option<u64> {
        Some(self.status(name)?.in_flight() as u64)
    }

    /// How a consumer of this process stands, in one word; nothing of one that runs elsewhere, or nowhere.
    pub(crate) fn state(&self, name: &ConsumerName, paused: bool) -> Option<&'static str> {
        let status = self.status(name)?;
        Some(match status.state() {
            _ if paused => "paused",
            ConsumerState::Tripped(_) => "tripped",
            ConsumerState::Running if !status.is_subscribed() => "unsubscribed",
            ConsumerState::Running | ConsumerState::Paused(_) => "active",
        })
    }

    /// The queues that a consumer of this process would take from, and has no subscription to at the moment.
    pub(crate) fn without_subscription(&self) -> Vec<QueueName> {
        let parts = self.parts();
        let lost = parts.consumers.values().filter(|consumer| {
            consumer
                .status
                .upgrade()
                .is_some_and(|status| status.state() == ConsumerState::Running && !status.is_subscribed())
        });
        lost.map(|consumer| consumer.queue.clone()).collect()
    }

    /// How the consumers stand.
    pub(crate) fn consumers(&self) -> Consuming {
        let mut parts = self.parts();
        parts.consumers.retain(|_, consumer| consumer.status.strong_count() > 0);
        let live = parts.consumers.values().filter_map(|consumer| consumer.status.upgrade());
        live.fold(Consuming::default(), |mut all, status| {
            match status.state() {
                ConsumerState::Running if !status.is_subscribed() => all.unsubscribed += 1,
                ConsumerState::Running => all.running += 1,
                ConsumerState::Paused(_) => all.paused += 1,
                ConsumerState::Tripped(_) => all.tripped += 1,
            }
            all
        })
    }

    fn status(&self, name: &ConsumerName) -> Option<Arc<ConsumerStatus>> {
        self.parts().consumers.get(name).and_then(|consumer| consumer.status.upgrade())
    }

    fn parts(&self) -> MutexGuard<'_, Parts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
