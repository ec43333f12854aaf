//! What the account `committed = applied + waiting + dead` is drawn up from.

use std::future::Future;

use jiff::Timestamp;

use super::{Store, StoreError, StoreErrorKind};
use crate::InvalidText;
use crate::envelope::{EventId, TenantId};
use crate::topology::{ConsumerName, ExchangeName, KeyTemplate, QueueName, RoutingKey, Topology};

/// Counts, each on its own, never as a remainder.
pub trait Audit: Store {
    /// Counts what a consumer should have, by what the outbox, the inbox and the dead letters hold.
    fn count(&self, scope: &AuditScope) -> impl Future<Output = Result<ConsumerCount, StoreError>> + Send;

    /// The last position of this outbox.
    fn last_position(&self) -> impl Future<Output = Result<i64, StoreError>> + Send;

    /// Events of this outbox that reach the consumer's queue, after a position, in order, for who finds them again elsewhere: in an
    /// inbox of another database, or in the books.
    fn committed_to(
        &self,
        scope: &AuditScope,
        after: i64,
        limit: usize,
    ) -> impl Future<Output = Result<Vec<CommittedEvent>, StoreError>> + Send;

    /// Where these events, of an outbox that may be in another database, show here; in the same order. A store that has one outbox says
    /// it with the events.
    fn places_of(
        &self,
        _scope: &AuditScope,
        events: &[EventId],
    ) -> impl Future<Output = Result<Vec<Place>, StoreError>> + Send {
        std::future::ready(Ok(vec![Place::Elsewhere; events.len()]))
    }
}

/// An event of an outbox, and where it stands by what is known there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommittedEvent {
    /// Which.
    pub id: EventId,
    /// Whose.
    pub tenant: Option<TenantId>,
    /// Its place in the order of the outbox.
    pub position: i64,
    /// Dead, unpublished, early, or elsewhere; held, where that is known with it.
    pub place: Place,
}

/// Where an event shows. Of several places the first counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// In the inbox.
    Applied,
    /// A dead letter, or dead in the outbox.
    Dead,
    /// Not yet published.
    Unpublished,
    /// Held behind an earlier event of its key.
    Held,
    /// Published before the consumer's queue was bound: if it is found nowhere, it was never meant for it.
    Early,
    /// Published: at the broker, one hopes.
    Elsewhere,
}

impl Place {
    /// From the word for it in the stores' own statements.
    pub(crate) fn from_word(word: &str) -> Self {
        match word {
            "applied" => Self::Applied,
            "dead" => Self::Dead,
            "unpublished" => Self::Unpublished,
            "held" => Self::Held,
            "early" => Self::Early,
            _ => Self::Elsewhere,
        }
    }
}

/// One consumer and what reaches it.
#[derive(Debug, Clone)]
pub struct AuditScope {
    /// The consumer.
    pub consumer: ConsumerName,
    /// The name that its marks in the inbox are made under.
    pub inbox: ConsumerName,
    /// The queue it consumes.
    pub queue: QueueName,
    /// How events are routed.
    pub topology: Topology,
    /// The exchange of rows that name none.
    pub exchange: ExchangeName,
    /// How rows are routed that name no key; by their type, without it.
    pub routing_key: Option<KeyTemplate>,
    /// Since when its queue is bound as it is, if that is known.
    pub since: Option<Timestamp>,
    /// Events up to this position alone.
    pub until: i64,
    /// List at most so many ids.
    pub list: usize,
}

impl AuditScope {
    /// Whether what is published there with this key reaches the queue. What is no name reaches nothing.
    pub(crate) fn is_reached_by(&self, exchange: &str, key: &str) -> bool {
        let (Ok(exchange), Ok(key)) = (ExchangeName::new(exchange), RoutingKey::new(key)) else {
            return false;
        };
        self.topology.route(&exchange, &key).contains(&&self.queue)
    }
}

/// What was committed, as a row has it: id, tenant, position and place.
pub(crate) type CommittedRow = (String, Option<String>, i64, String);

impl CommittedEvent {
    /// An event that cannot be named must not be left out of an account, so it is an error.
    pub(crate) fn read((id, tenant, position, place): CommittedRow) -> Result<Self, StoreError> {
        let id = EventId::new(id).map_err(|error| unusable(&error))?;
        let tenant = tenant.and_then(|tenant| TenantId::new(tenant).ok());
        Ok(Self { id, tenant, position, place: Place::from_word(&place) })
    }
}

/// A row whose id is none.
pub(crate) fn unusable(error: &InvalidText) -> StoreError {
    let text = format!("a row of the outbox has no usable id: {error}");
    StoreError::new(StoreErrorKind::Invalid, text).because(error.clone())
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
    /// Of these, published before its queue was bound.
    pub early: u64,
    /// The ids of the others, the oldest first, as many as were asked for.
    pub elsewhere_ids: Vec<EventId>,
}

impl ConsumerCount {
    /// Counts so many events at a place.
    pub(crate) fn add(&mut self, place: Place, events: u64) {
        self.committed += events;
        if place == Place::Early {
            self.early += events;
        }
        *match place {
            Place::Applied => &mut self.applied,
            Place::Dead => &mut self.dead,
            Place::Unpublished => &mut self.unpublished,
            Place::Held => &mut self.held,
            Place::Early | Place::Elsewhere => &mut self.elsewhere,
        } += events;
    }

    /// Both together.
    pub(crate) fn plus(mut self, other: Self) -> Self {
        let Self { committed: _, applied, dead, unpublished, held, elsewhere, early, elsewhere_ids } = other;
        for (place, events) in [
            (Place::Applied, applied),
            (Place::Dead, dead),
            (Place::Unpublished, unpublished),
            (Place::Held, held),
            (Place::Early, early),
            (Place::Elsewhere, elsewhere - early),
        ] {
            self.add(place, events);
        }
        self.elsewhere_ids.extend(elsewhere_ids);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_that_cannot_be_named_is_not_left_out_of_an_account() {
        let row = |id: &str| (id.to_owned(), Some("acme".to_owned()), 7, "early".to_owned());
        let read = CommittedEvent::read(row("evt_1")).unwrap();
        assert_eq!((read.id.as_str(), read.position, read.place), ("evt_1", 7, Place::Early));
        let error = CommittedEvent::read(row("")).unwrap_err();
        assert!(error.to_string().contains("no usable id"), "{error}");
    }
}
