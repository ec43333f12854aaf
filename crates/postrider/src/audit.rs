//! The account: committed = applied + waiting + dead, for every consumer, at any moment.

use std::sync::Arc;

use async_trait::async_trait;
use serde::Serialize;

use crate::broker::{Broker, BrokerError, BrokerErrorKind};
use crate::envelope::EventId;
use crate::store::{Audit, AuditScope, CommittedEvent, ConsumerCount, Place, Registration, StoreError};
use crate::topology::{ExchangeName, KeyTemplate, QueueName, ServiceQueue};

/// List at most so many ids that were found nowhere.
const LISTED: usize = 1000;
/// Events of another database that are looked for at a time.
const STEP: usize = 50_000;

/// An outbox whose events are accounted for.
#[derive(Debug, Clone)]
pub struct Source<S> {
    /// Its database, at this outbox.
    pub store: S,
    /// The exchange of rows that name none; absent: the one that the consumer knew when it registered.
    pub exchange: Option<ExchangeName>,
    /// How rows are routed that name no key; by their type, without it.
    pub routing_key: Option<KeyTemplate>,
    /// It is in another database than the inbox and the dead letters.
    pub elsewhere: bool,
    /// Events up to this position alone ([`Audit::last_position`]): whoever asks again while more are committed asks about the same ones.
    pub until: i64,
}

/// One consumer's account. Every term is counted on its own, never as what remains.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Account {
    /// The consumer.
    pub name: String,
    /// Events committed to the outbox that are routed to its queue.
    pub committed: u64,
    /// Of these, applied: in its inbox, or wherever it keeps what it has applied.
    pub applied: u64,
    /// Not published yet, in its queue, with it and not settled, in one of its wait queues, or held behind an earlier event of its key.
    pub waiting: u64,
    /// Dead letters, collected or still in their queue, and events that are dead in the outbox.
    pub dead: u64,
    /// Found nowhere.
    #[serde(skip_serializing_if = "is_zero")]
    pub unaccounted: u64,
    /// Ids among which the unaccounted ones are: published, neither applied nor dead.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unaccounted_ids: Vec<EventId>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl Account {
    /// Whether every committed event was found.
    pub fn holds(&self) -> bool {
        self.committed == self.applied + self.waiting + self.dead
    }
}

/// Why an account could not be drawn up.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// The store failed.
    #[error("the store could not be counted: {0}")]
    Store(#[from] StoreError),
    /// The broker failed.
    #[error("the broker could not be counted: {0}")]
    Broker(#[from] BrokerError),
}

/// Draws up one consumer's account from what is stored.
///
/// On RabbitMQ, deliveries that are being handled at this moment are in no queue and in no inbox yet; the management API, if the broker
/// knows one, tells of them some seconds later. Ask again about the same events then: what is moving is elsewhere by then, and what is
/// lost is not. For three minutes at most after RabbitMQ was killed, retries whose time came while it was down are nowhere, too.
pub async fn account<S: Audit>(
    store: &S,
    broker: &Arc<dyn Broker>,
    consumer: &Registration,
) -> Result<Account, AuditError> {
    let source =
        Source { store: store.clone(), exchange: None, routing_key: None, elsewhere: false, until: i64::MAX };
    account_of(store, &[source], broker, consumer, None).await
}

/// Where a consumer keeps what it has applied, if that is not the inbox: the ledger has its books.
#[async_trait]
pub trait Effects: Sync {
    /// Which of these events it has applied, in the same order.
    async fn applied(&self, events: &[CommittedEvent]) -> Result<Vec<bool>, StoreError>;
}

/// The same over the events of several outboxes. Inbox, dead letters and held events are those of `store`. What a consumer has applied
/// is asked of its effects, where it has no marks in the inbox.
pub async fn account_of<S: Audit>(
    store: &S,
    sources: &[Source<S>],
    broker: &Arc<dyn Broker>,
    consumer: &Registration,
    effects: Option<&dyn Effects>,
) -> Result<Account, AuditError> {
    let Registration { name, service, topology, exchange, .. } = consumer;
    // The broker first: what is applied while we count then shows in both places, and applied goes before waiting.
    let in_queues = in_queues(broker, service).await?;
    let dead_in_queue = depth(broker, &service.dead_letter_queue).await?;
    let mut count = ConsumerCount::default();
    for source in sources {
        let scope = AuditScope {
            consumer: name.clone(),
            inbox: consumer.inbox().clone(),
            queue: service.name().clone(),
            topology: topology.clone(),
            exchange: source.exchange.as_ref().unwrap_or(exchange).clone(),
            routing_key: source.routing_key.clone(),
            since: consumer.since,
            until: source.until,
            list: LISTED.saturating_sub(count.elsewhere_ids.len()),
        };
        let of_one = if source.elsewhere || effects.is_some() {
            count_apart(store, &source.store, &scope, effects).await?
        } else {
            source.store.count(&scope).await?
        };
        count = count.plus(of_one);
    }
    // A queue may hold more than is elsewhere: duplicates of applied events. They count as applied.
    let dead = dead_in_queue.min(count.elsewhere);
    let waiting = in_queues.min(count.elsewhere - dead);
    let nowhere = count.elsewhere - dead - waiting;
    // Some of these never were for it: they were published before its queue was bound.
    let unmeant = nowhere.min(count.early);
    let unaccounted = nowhere - unmeant;
    Ok(Account {
        name: name.to_string(),
        committed: count.committed - unmeant,
        applied: count.applied,
        waiting: count.unpublished + count.held + waiting,
        dead: count.dead + dead,
        unaccounted,
        unaccounted_ids: if unaccounted > 0 { count.elsewhere_ids } else { Vec::new() },
    })
}

/// Counts the events of an outbox apart from what became of them: a page of events there, then where they show here, and what the effects
/// say. What is applied meanwhile counts as applied.
async fn count_apart<S: Audit>(
    here: &S,
    outbox: &S,
    scope: &AuditScope,
    effects: Option<&dyn Effects>,
) -> Result<ConsumerCount, StoreError> {
    let (mut count, mut after) = (ConsumerCount::default(), i64::MIN);
    loop {
        let events = outbox.committed_to(scope, after, STEP).await?;
        let Some(last) = events.last() else { return Ok(count) };
        after = last.position;
        let ids: Vec<EventId> = events.iter().map(|event| event.id.clone()).collect();
        let places = here.places_of(scope, &ids).await?;
        let applied = match effects {
            Some(effects) => effects.applied(&events).await?,
            None => vec![false; events.len()],
        };
        for ((event, place), applied) in events.into_iter().zip(places).zip(applied) {
            let place = if applied { Place::Applied } else { place.min(event.place) };
            count.add(place, 1);
            if place == Place::Elsewhere && count.elsewhere_ids.len() < scope.list {
                count.elsewhere_ids.push(event.id);
            }
        }
    }
}

/// What waits in a consumer's queue and its wait queues, or is with it.
///
/// Messages move while we look. The queue is looked at before its wait queues and once more after them, and the greater answer counts:
/// what comes out of a wait queue meanwhile was seen there or shows in the second look, and what goes into one was seen in the first.
/// The dead-letter queue comes after all of them, for the same reason. What moves may so be counted twice: in doubt it is on its way,
/// and not lost.
async fn in_queues(broker: &Arc<dyn Broker>, service: &ServiceQueue) -> Result<u64, BrokerError> {
    let before = ready(broker, service.name()).await?;
    let mut waiting = 0;
    for wait in &service.wait_queues {
        waiting += depth(broker, &wait.name).await?;
    }
    let after = ready(broker, service.name()).await?;
    Ok(waiting + before.max(after) + unsettled(broker, service.name()).await)
}

/// What waits in a queue or is with its consumers.
async fn depth(broker: &Arc<dyn Broker>, queue: &QueueName) -> Result<u64, BrokerError> {
    Ok(ready(broker, queue).await? + unsettled(broker, queue).await)
}

/// What waits in a queue. One that is not there holds nothing: not declared yet, or deleted with what was in it, which then shows as
/// unaccounted.
async fn ready(broker: &Arc<dyn Broker>, queue: &QueueName) -> Result<u64, BrokerError> {
    match broker.depth(queue).await {
        Err(error) if error.kind == BrokerErrorKind::NotFound => Ok(0),
        answer => answer,
    }
}

/// What is with a queue's consumers, as far as the broker can tell. What is settled meanwhile shows as applied.
async fn unsettled(broker: &Arc<dyn Broker>, queue: &QueueName) -> u64 {
    broker.unsettled(queue).await.unwrap_or_else(|error| {
        tracing::debug!(queue = queue.as_str(), %error, "what is with consumers cannot be counted");
        0
    })
}

#[cfg(test)]
mod tests;
