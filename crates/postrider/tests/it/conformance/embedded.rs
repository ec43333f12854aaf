//! The embedded broker under the broker suite.

use std::sync::Arc;

use postrider::Clock;
use postrider::broker::Broker;
use postrider::embedded::EmbeddedBroker;
use postrider::topology::Topology;
use postrider_testkit::conformance::Crash;
use postrider_testkit::conformance::broker::{BrokerFixture, PolicedFixture};
use postrider_testkit::conformance::store::StoreFixture as _;
use tokio::sync::Mutex;

use super::sqlite::File;

postrider_testkit::broker_conformance!(async { Process::new() }, async { Process::new() });

/// A process that has the broker's file open.
struct Process {
    file: File,
    broker: Mutex<Option<EmbeddedBroker>>,
}

impl Process {
    fn new() -> Self {
        Self { file: File::new(), broker: Mutex::new(None) }
    }
}

impl BrokerFixture for Process {
    /// One broker at a time may be open on a file: a new one only when the one before was closed.
    async fn broker(&self) -> Arc<dyn Broker> {
        let mut current = self.broker.lock().await;
        let open = match &*current {
            Some(broker) => broker.ping().await.is_ok(),
            None => false,
        };
        if !open {
            *current = Some(EmbeddedBroker::open(self.file.store().await, Clock::system()).await.unwrap());
        }
        Arc::new(current.clone().unwrap())
    }
}

impl PolicedFixture for Process {
    /// The embedded broker takes policies from what is declared.
    async fn apply(&self, broker: &dyn Broker, topology: &Topology) {
        broker.declare(topology).await.unwrap();
    }
}

impl Crash for Process {
    /// The file is as a killed process would leave it; closing what is left of that process comes after, and is seen by
    /// its subscriptions alone.
    async fn restart(&self) {
        self.file.crash();
        if let Some(ghost) = self.broker.lock().await.take() {
            ghost.close().await;
        }
    }
}
