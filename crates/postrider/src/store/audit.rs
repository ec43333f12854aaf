//! What the account `committed = applied + waiting + dead` is drawn up from.

use std::future::Future;

use super::{Store, StoreError};
use crate::envelope::EventId;
use crate::topology::{ConsumerName, QueueName, Topology};

/// Counts, each on its own, never as a remainder.
pub trait Audit: Store {
    /// Counts what a consumer should have, by what the outbox, the inbox and the dead letters hold.
    fn count(&self, scope: &AuditScope) -> impl Future<Output = Result<ConsumerCount, StoreError>> + Send;
}

/// One consumer and what reaches it.
#[derive(Debug, Clone)]
pub struct AuditScope {
    /// The consumer.
    pub consumer: ConsumerName,
    /// The queue it consumes.
    pub queue: QueueName,
    /// How events are routed.
    pub topology: Topology,
    /// The exchange of rows that name none.
    pub exchange: crate::topology::ExchangeName,
    /// List at most so many ids.
    pub list: usize,
}

/// What the store knows of one consumer's events.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConsumerCount {
    /// Rows of the outbox that are routed to its queue.
    pub committed: u64,
    /// Of these, in its inbox.
    pub applied: u64,
    /// Of the rest, dead letters of its queue, or dead in the outbox.
    pub dead: u64,
    /// Of the rest, not yet published.
    pub unpublished: u64,
    /// Of the rest, held behind an earlier event of their key.
    pub held: u64,
    /// Of the rest, all published: at the broker, one hopes. How many.
    pub elsewhere: u64,
    /// Their ids, the oldest first, as many as were asked for.
    pub elsewhere_ids: Vec<EventId>,
}
