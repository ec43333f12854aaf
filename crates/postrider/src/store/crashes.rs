//! Events under which a process died: counted, so that one of them cannot take it down for ever.

use std::future::Future;

use super::{Store, StoreError};
use crate::envelope::EventId;
use crate::topology::ConsumerName;

/// How often handling of an event began and never ended. Written only for deliveries that may have been delivered before, so
/// an event that is handled at its first delivery costs nothing.
///
/// The mark is committed before the handler is called and taken away when the delivery is settled. Only a crash in
/// between leaves it behind.
pub trait Crashes: Store {
    /// How many marks a crash left.
    fn unfinished(
        &self,
        consumer: &ConsumerName,
        event: &EventId,
    ) -> impl Future<Output = Result<u32, StoreError>> + Send;

    /// Adds a mark.
    fn begun(
        &self,
        consumer: &ConsumerName,
        event: &EventId,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Takes all marks of an event away.
    fn ended(
        &self,
        consumer: &ConsumerName,
        event: &EventId,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;
}
