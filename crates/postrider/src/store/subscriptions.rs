//! Push subscriptions that were made over the API, what signs their requests, and what their attempts came to.

use std::future::Future;

use jiff::Timestamp;

use super::{Store, StoreError};
use crate::envelope::EventId;
use crate::push::{Attempt, SigningSecret, Subscription};
use crate::topology::ConsumerName;

/// The table of subscriptions. Each change is in the audit log, in the same transaction.
pub trait Subscriptions: Store {
    /// Stores a new one, with what signs its requests. False if one of this name is there: then nothing is changed. The reason, if
    /// there is one, is for the audit log.
    fn create_subscription(
        &self,
        subscription: &Subscription,
        secret: Option<&SigningSecret>,
        by: &str,
        reason: &str,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Removes one with its secrets. Its queue, and what is in it, stays. False if there is none of this name. The reason, if there is
    /// one, is for the audit log.
    fn remove_subscription(
        &self,
        name: &ConsumerName,
        by: &str,
        reason: &str,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// All of them, by name, without their secrets.
    fn subscriptions(&self) -> impl Future<Output = Result<Vec<StoredSubscription>, StoreError>> + Send;

    /// Puts a new secret beside those there are, which end at this time. False if there is no such subscription. The reason, if
    /// there is one, is for the audit log.
    fn rotate_secret(
        &self,
        name: &ConsumerName,
        secret: &SigningSecret,
        old_until: Timestamp,
        by: &str,
        reason: &str,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// What signs its requests now, the newest first. For who sends them, never to be shown.
    fn signing_secrets(
        &self,
        name: &ConsumerName,
    ) -> impl Future<Output = Result<Vec<SigningSecret>, StoreError>> + Send;

    /// Remembers attempts. The oldest beyond a thousand a consumer are forgotten; those that failed are counted apart, so that no
    /// number of successes drives them out.
    fn record_attempts(
        &self,
        consumer: &ConsumerName,
        attempts: Vec<Attempt>,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// The last attempts, at one event or at all, the newest first.
    fn attempts(
        &self,
        consumer: &ConsumerName,
        event: Option<&EventId>,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<Attempt>, StoreError>> + Send;

    /// The last attempt of each of these consumers that has one, in any order: one question, for a list of them.
    fn last_attempts(
        &self,
        consumers: &[ConsumerName],
    ) -> impl Future<Output = Result<Vec<Attempt>, StoreError>> + Send;
}

/// So many attempts are remembered for each consumer that failed, and as many that did not.
pub(crate) const KEPT_ATTEMPTS: usize = 1000;

/// A subscription as it is stored.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredSubscription {
    /// What it says.
    pub subscription: Subscription,
    /// Grows with every change of it.
    pub version: u64,
    /// How many secrets sign its requests now.
    pub secrets: u32,
    /// Who made it.
    pub created_by: String,
    /// When.
    pub created_at: Timestamp,
}
