//! More than one outbox: a service, or a shard, each.

use std::future::Future;

use super::{Store, StoreError};

/// The outboxes of a database.
pub trait Outboxes: Store {
    /// The same database with another of its outboxes: what is appended, claimed and counted is of that one.
    fn outbox(&self, name: &str) -> Result<Self, StoreError>;

    /// Makes an outbox of this name, `table` or `schema.table`. Says whether it was made now.
    fn create_outbox(&self, name: &str) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Takes over a table that is there already, with additive columns and without a long lock; its project's own INSERTs
    /// go on as they are. Returns how many rows were in it. May be repeated; a crash leaves the rest to the next time.
    /// Refuses a table of another shape, and one with rows whose status no relay knows: they would lie there for ever.
    fn adopt_outbox(&self, name: &str) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// How many rows would get their places by that. Refuses what it refuses, and changes nothing.
    fn would_adopt_outbox(&self, name: &str) -> impl Future<Output = Result<u64, StoreError>> + Send;
}
