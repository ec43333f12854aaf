//! Events under which a process died: counted, so that one of them cannot take it down for ever.

use std::future::Future;

use super::{Store, StoreError};
use crate::topology::ConsumerName;

/// How often handling of an event began and never ended. Written only for deliveries that may have been delivered before, so
/// an event that is handled at its first delivery costs nothing.
///
/// The mark is committed before the handler is called and taken away when the delivery is settled. Only a crash in
/// between leaves it behind. It is named by the event and, for a replay, by that too: a replay begins anew.
pub trait Crashes: Store {
    /// The names of all marks of a consumer, so that even a copy of an event that was never delivered before is recognised.
    /// Forgets those of a month ago.
    fn crash_marks(
        &self,
        consumer: &ConsumerName,
    ) -> impl Future<Output = Result<Vec<String>, StoreError>> + Send;

    /// How often it was marked since it last ended.
    fn unfinished(
        &self,
        consumer: &ConsumerName,
        mark: &str,
    ) -> impl Future<Output = Result<u32, StoreError>> + Send;

    /// Marks it once more.
    fn begun(
        &self,
        consumer: &ConsumerName,
        mark: &str,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Takes its mark away.
    fn ended(
        &self,
        consumer: &ConsumerName,
        mark: &str,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;
}
