//! The embedded broker seen from outside: what waits in its queues, while another process may be serving the file.

use async_trait::async_trait;

use super::catalog::no_queue;
use super::state::from_store;
use super::{declared, tables};
use crate::broker::{Broker, BrokerError, BrokerErrorKind, Outgoing, Published, Removal, Subscription};
use crate::sqlite::Sqlite;
use crate::topology::{QueueName, Topology};

/// Reads queues and changes nothing: it delivers, expires and declares nothing, so any number of them may look at a file.
///
/// What another process is handling at the moment counts as waiting: only that process knows better.
#[derive(Clone)]
pub struct EmbeddedView(Sqlite);

impl EmbeddedView {
    /// A view of the broker in this file.
    pub fn new(store: Sqlite) -> Self {
        Self(store)
    }
}

#[async_trait]
impl Broker for EmbeddedView {
    async fn declare(&self, _: &Topology) -> Result<(), BrokerError> {
        Err(only_reads())
    }

    async fn publish(&self, batch: Vec<Outgoing>) -> Vec<Published> {
        batch.iter().map(|_| Published::Unknown(only_reads().message)).collect()
    }

    async fn subscribe(&self, _: &QueueName, _: u16) -> Result<Box<dyn Subscription>, BrokerError> {
        Err(only_reads())
    }

    /// What is with consumers is among it: only the process that serves the file knows which it is.
    async fn depth(&self, queue: &QueueName) -> Result<u64, BrokerError> {
        let declared = declared::read(self.0.readers()).await.map_err(from_store)?;
        let mut known = declared.topology.queues.iter().zip(&declared.queues);
        let (_, (id, _)) = known.find(|(known, _)| known.name == *queue).ok_or_else(|| no_queue(queue))?;
        tables::count(self.0.readers(), *id).await.map_err(from_store)
    }

    async fn remove(&self, _: &Removal) -> Result<(), BrokerError> {
        Err(only_reads())
    }

    async fn ping(&self) -> Result<(), BrokerError> {
        tables::ping(self.0.readers()).await.map_err(from_store)
    }

    async fn close(&self) {}
}

fn only_reads() -> BrokerError {
    BrokerError::new(
        BrokerErrorKind::Closed,
        "this view of the embedded broker only reads; open the broker itself",
    )
}
