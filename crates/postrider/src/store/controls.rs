//! What an operator tells consumers, wherever they run.

use std::future::Future;

use jiff::Timestamp;
use serde::Serialize;

use super::{Store, StoreError};
use crate::topology::ConsumerName;

/// Pausing and resuming consumers by name. Written once here, obeyed by every process that runs the consumer; each change is
/// in the audit log, in the same transaction.
pub trait Controls: Store {
    /// Pauses a consumer, whether it runs or not. False if it was paused already: then the first pause stands.
    fn pause(
        &self,
        consumer: &ConsumerName,
        by: &str,
        reason: &str,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Lets it go on. False if it was not paused. The reason, if there is one, is for the audit log.
    fn resume(
        &self,
        consumer: &ConsumerName,
        by: &str,
        reason: &str,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// The pause of one consumer, if it is paused. Asked when one starts.
    fn pause_of(
        &self,
        consumer: &ConsumerName,
    ) -> impl Future<Output = Result<Option<Pause>, StoreError>> + Send;

    /// Every pause, by the consumer's name. Asked about once a second by the consumers of a process together.
    fn pauses(&self) -> impl Future<Output = Result<Vec<Pause>, StoreError>> + Send;
}

/// That a consumer is paused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Pause {
    /// Which.
    pub consumer: ConsumerName,
    /// Who paused it.
    pub by: String,
    /// Why.
    pub reason: String,
    /// Since when.
    pub since: Timestamp,
}
