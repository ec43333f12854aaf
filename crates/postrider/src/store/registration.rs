//! Which consumers there are: written when they start, so that any process can draw up their account.

use std::future::Future;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Store, StoreError};
use crate::topology::{ConsumerName, ExchangeName, ServiceQueue, Topology};

/// The clocks of this machine and of the store may be that far apart, so a queue is dated that much later than it was bound.
pub(crate) const SKEW: Duration = Duration::from_secs(2);

/// The consumers that have ever started on this store.
pub trait Registrations: Store {
    /// Remembers consumers; the newest registration of a name replaces the one before.
    fn register(&self, consumers: Vec<Registration>) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Forgets one that is gone for good: it has no account any more. What it applied stays in the inbox. False if it is not known.
    fn unregister(
        &self,
        name: &ConsumerName,
        by: &str,
        reason: &str,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// All of them, by name.
    fn registrations(&self) -> impl Future<Output = Result<Vec<Registration>, StoreError>> + Send;
}

/// A consumer, its queue, and how events reach it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registration {
    /// The consumer.
    pub name: ConsumerName,
    /// The name that its marks in the inbox are made under, if it is not its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inbox: Option<ConsumerName>,
    /// Where it is kept what it has applied.
    #[serde(default, skip_serializing_if = "AppliedIn::is_usual")]
    pub applied_in: AppliedIn,
    /// Its queue and what belongs to it.
    pub service: ServiceQueue,
    /// The topology it was started with: what leads there, and what does not.
    pub topology: Topology,
    /// The exchange of outbox rows that name none.
    pub exchange: ExchangeName,
    /// Since when its queue is bound as it is: what was published before was not meant for it. Absent: from the beginning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// For a push subscription: where it was made. Who finds it gone from there takes its queue's bindings away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub push: Option<MadeIn>,
}

/// Where it is kept what a consumer has applied.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AppliedIn {
    /// In the inbox, as marks under its name.
    #[default]
    Inbox,
    /// In the books of the ledger, as entries, which never forget. Who draws up its account asks them.
    Books,
}

impl AppliedIn {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
    fn is_usual(&self) -> bool {
        *self == Self::Inbox
    }
}

/// Where a push subscription was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MadeIn {
    /// In the table of subscriptions: once it is not there, it is nowhere.
    Store,
    /// In the configuration of a process, which others need not have.
    Configuration,
}

impl Registration {
    /// The name that its marks in the inbox are made under.
    pub fn inbox(&self) -> &ConsumerName {
        self.inbox.as_ref().unwrap_or(&self.name)
    }

    /// Whether its queue is bound already: a consumer is registered a moment before, dated far ahead.
    pub fn is_bound(&self, now: Timestamp) -> bool {
        let soon = now.checked_add(SKEW * 2).unwrap_or(Timestamp::MAX);
        self.since.is_none_or(|since| since <= soon)
    }

    /// Whether an event that was published then came before its queue was bound as it is, and so never reached it this way.
    pub fn is_later_than(&self, published: Timestamp) -> bool {
        let latest = published.checked_add(SKEW).unwrap_or(Timestamp::MAX);
        self.since.is_some_and(|since| since > latest)
    }

    /// Whether its queue is bound by no more than it was for another one, the one before it.
    pub fn is_bound_like(&self, before: &Self) -> bool {
        let queue = self.service.name();
        let mut own = self.topology.bindings.iter().filter(|binding| binding.queue == *queue);
        before.service.name() == queue && own.all(|binding| before.topology.bindings.contains(binding))
    }

    /// The same with nothing bound to its queue: from now on no event is meant for it.
    #[must_use]
    pub fn unbound(mut self) -> Self {
        let queue = self.service.name().clone();
        self.service.bindings.clear();
        self.topology.bindings.retain(|binding| binding.queue != queue);
        self
    }
}
