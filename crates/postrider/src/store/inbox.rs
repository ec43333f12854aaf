//! Events that a consumer has applied.

use std::future::Future;

use bytes::Bytes;

use super::{Store, StoreError};
use crate::envelope::{EventId, PayloadHash, TenantId};
use crate::topology::ConsumerName;

/// The inbox: decides, in the handler's own transaction, whether an event is new to a consumer.
pub trait Inbox: Store {
    /// Marks arrivals as applied by this consumer, and says of each whether it was new. One statement a batch.
    ///
    /// The marks commit with the effects. Of two transactions that mark the same event one commits: the other waits for
    /// it here, or fails as [`Contended`](super::StoreErrorKind::Contended) when it writes and finds a duplicate next time.
    fn admit(
        &self,
        tx: &mut Self::Tx,
        consumer: &ConsumerName,
        arrivals: &[Arrival],
    ) -> impl Future<Output = Result<Vec<Admission>, StoreError>> + Send;

    /// Keeps answers beside marks that this transaction made: whoever comes with the same event later gets them. One statement a
    /// batch.
    fn keep_answers(
        &self,
        tx: &mut Self::Tx,
        consumer: &ConsumerName,
        answers: &[(EventId, Bytes)],
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Which history of which database this is. Another one after a failover, after a restore, and in
    /// every other database; so what was noted elsewhere under this name is known to be about what this inbox has.
    fn lineage(&self) -> impl Future<Output = Result<String, StoreError>> + Send;

    /// What the inbox knows of these arrivals now. Marks nothing: for work outside of the database, which is marked when it
    /// is done.
    fn look(
        &self,
        consumer: &ConsumerName,
        arrivals: &[Arrival],
    ) -> impl Future<Output = Result<Vec<Admission>, StoreError>> + Send;
}

/// An event at the door.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arrival {
    /// Which event.
    pub event_id: EventId,
    /// Whose it is.
    pub tenant: Option<TenantId>,
    /// What it says.
    pub payload_hash: PayloadHash,
}

/// What the inbox knew.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Admission {
    /// Never seen: handle it now.
    New,
    /// Applied before, with the same payload; the answer that was kept then, if one was.
    Duplicate(Option<Bytes>),
    /// Applied before, with another payload or for another tenant.
    Conflict,
}

/// A mark as the inbox keeps it.
#[derive(Debug, Clone)]
pub(crate) struct Mark {
    /// What the event said. A hash that nobody can read is absent, and equal to none.
    pub(crate) payload_hash: Option<PayloadHash>,
    /// Whose it was.
    pub(crate) tenant: Option<String>,
    /// What was answered, once it is.
    pub(crate) answer: Option<Bytes>,
}

impl Mark {
    /// The mark of an event that is only being admitted.
    pub(crate) fn of(arrival: &Arrival) -> Self {
        let tenant = arrival.tenant.as_ref().map(|tenant| tenant.as_str().to_owned());
        Self { payload_hash: Some(arrival.payload_hash), tenant, answer: None }
    }

    /// What an arrival with the same id is. Two tenants that number their events alike are a conflict, which somebody sees, and no
    /// duplicate, which nobody does. Where one of them names no tenant that says nothing: the same event can come in another format.
    pub(crate) fn judge(&self, arrival: &Arrival) -> Admission {
        let same_payload = self.payload_hash == Some(arrival.payload_hash);
        let other_tenant = match (&self.tenant, &arrival.tenant) {
            (Some(before), Some(now)) => before != now.as_str(),
            _ => false,
        };
        if same_payload && !other_tenant {
            Admission::Duplicate(self.answer.clone())
        } else {
            Admission::Conflict
        }
    }
}
