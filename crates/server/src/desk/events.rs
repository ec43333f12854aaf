//! One event: where it is for each consumer, and everything that happened to it, in order.

mod standing;
mod story;

use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;
use postrider::envelope::{Tenant, TenantId};
use postrider::push::Attempt;
use postrider::store::{OutboxStatus, OutboxStep, RowView, StoreError, Trace};
use postrider::topology::ConsumerName;
use postrider::{Broker, EventId};
use serde::Serialize;

use self::standing::{HELD, Standing};
use self::story::{Origin, Story};
use super::{Answer, StoreDesk, journal};
use crate::config::{Config, OutboxChoice};
use crate::outboxes::OpenOutbox;
use crate::wiring::WholeStore;

/// Attempts at one endpoint that a timeline has.
const ATTEMPTS: u32 = 50;

/// Entries of the audit log that are looked at.
const LOGGED: usize = 50;

/// Where an event stands for one consumer.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct AtConsumer {
    pub(crate) consumer: String,
    pub(crate) queue: String,
    pub(crate) state: &'static str,
    /// Messages in its queue and its wait queues; the event may be among them.
    pub(crate) waiting_there: Option<u64>,
    /// The queue of its dead letters, which nobody collects; the event may be there as well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) may_lie_in: Option<DeadThere>,
    /// The event of its key that it is held behind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) behind: Option<String>,
}

/// A queue that an event was routed to, of which no consumer has ever started here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct InQueue {
    pub(crate) queue: String,
    /// How many wait there, where the broker can be asked; the event may be among them.
    pub(crate) waiting_there: Option<u64>,
}

/// A dead-letter queue in which nobody can look for an event without taking messages out of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct DeadThere {
    pub(crate) queue: String,
    /// How many there are, where the broker can be asked.
    pub(crate) messages: Option<u64>,
}

/// All that is known of an event.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Traced {
    pub(crate) id: String,
    /// Whose it is.
    pub(crate) tenant: Option<String>,
    pub(crate) consumers: Vec<AtConsumer>,
    /// Where else it is routed to: queues of the configuration whose consumers are not known here.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) queues: Vec<InQueue>,
    /// Everything that happened to it, the oldest first.
    pub(crate) steps: Vec<Happened>,
    #[serde(flatten)]
    pub(crate) trace: Trace,
}

/// One thing that happened to an event.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Happened {
    pub(crate) at: Timestamp,
    /// Where: `outbox`, `exchange`, `push`, `dead_letter`, `inbox`, `operation`.
    pub(crate) place: &'static str,
    /// How it went: `ok`, `waiting`, `failed`.
    pub(crate) mood: &'static str,
    pub(crate) what: String,
    /// More about it, as it was said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) detail: Option<String>,
    /// The dead letter it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) letter: Option<String>,
}

/// An event and its story.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Timeline {
    pub(crate) id: String,
    pub(crate) tenant: Option<String>,
    pub(crate) steps: Vec<Happened>,
    pub(crate) consumers: Vec<AtConsumer>,
}

#[async_trait]
pub(crate) trait Events {
    /// The story of an event of an outbox, the default one where none is named; nothing if it is known nowhere here. For a tenant, of what
    /// is its own.
    async fn timeline(
        &self,
        outbox: Option<&str>,
        id: &EventId,
        whose: Option<&TenantId>,
    ) -> Answer<Option<Timeline>>;
}

#[async_trait]
impl<S: WholeStore> Events for StoreDesk<S> {
    async fn timeline(
        &self,
        outbox: Option<&str>,
        id: &EventId,
        whose: Option<&TenantId>,
    ) -> Answer<Option<Timeline>> {
        let outboxes = match outbox {
            Some(_) => std::slice::from_ref(self.named(outbox)?),
            None => &self.outboxes,
        };
        let (store, broker, config) = (&self.store, Some(&self.broker), &self.config);
        let look = Look { store, broker, outboxes, config, whose };
        let Some(traced) = look.at(id, outbox.is_some()).await? else { return Ok(None) };
        let Traced { id, tenant, consumers, steps, .. } = traced;
        Ok(Some(Timeline { id, tenant, steps, consumers }))
    }
}

/// Where an event is looked for.
pub(crate) struct Look<'a, S> {
    pub(crate) store: &'a S,
    pub(crate) broker: Option<&'a Arc<dyn Broker>>,
    /// Inboxes and dead letters are in the store, whichever database an outbox is in.
    pub(crate) outboxes: &'a [OpenOutbox<S>],
    pub(crate) config: &'a Config,
    /// The one tenant who asks, if it is one: events of others may have the same id, and their dead letters, too.
    pub(crate) whose: Option<&'a TenantId>,
}

impl<S: WholeStore> Look<'_, S> {
    fn may_tell(&self, tenant: Option<&str>) -> bool {
        self.whose.is_none_or(|own| tenant == Some(own.as_str()))
    }

    /// All that is known of an event; nothing if it never was here. With `alone` rows of the default outbox do not count.
    pub(crate) async fn at(&self, id: &EventId, alone: bool) -> Result<Option<Traced>, StoreError> {
        let mut known = self.store.trace(id).await?;
        let is_default =
            |outbox: &OpenOutbox<S>| outbox.choice.table.is_none() && outbox.choice.database.is_none();
        if alone && !self.outboxes.iter().any(is_default) {
            known.outbox.clear();
        }
        known.outbox.retain(|row| self.may_tell(row.tenant.as_deref()));
        known.dead_letters.retain(|letter| self.may_tell(letter.tenant.as_deref()));
        let mut row: Option<RowView> = None;
        for outbox in self.outboxes {
            // A database that is away knows nothing now; the others do.
            let Ok(Some(found)) = outbox.store.find(id).await else { continue };
            // Another tenant's event may have the same id, and its story is nobody else's business.
            let is_others = row.as_ref().is_some_and(|first| first.group_id != found.group_id);
            if is_others || !self.may_tell(found.group_id.as_deref()) {
                continue;
            }
            if !is_default(outbox) {
                known.outbox.push(step(&found, &outbox.choice));
            }
            row.get_or_insert(found);
        }
        let tenant = row.and_then(|row| row.group_id).or_else(|| told_of(&known));
        // As the ledger has it: events that name nobody are the usual tenant's. A tenant is told of its own books alone, also where others
        // have an entry of the same id.
        let usual = self.config.settings.ledger.tenant().ok().flatten();
        let named = tenant.as_ref().and_then(|tenant| TenantId::new(tenant).ok());
        let keeper = self.whose.cloned().or(named).or(usual);
        let from_elsewhere = self.whose.is_none() && known.outbox.is_empty() && known.dead_letters.is_empty();
        let unknown = known == Trace::default();
        let posted = journal::add_entry(self.store, keeper, from_elsewhere, id, &mut known).await?;
        let posted = posted.filter(|_| unknown).map(|tenant| tenant.to_string());
        self.follow(id, tenant.or(posted), known).await
    }

    async fn follow(
        &self,
        id: &EventId,
        tenant: Option<String>,
        trace: Trace,
    ) -> Result<Option<Traced>, StoreError> {
        if trace == Trace::default() {
            return Ok(None);
        }
        let log = self.store.log_of(&format!("event/{id}"), LOGGED).await?;
        let mut consumers = Vec::new();
        let registered = self.store.registrations().await?;
        let queues = standing::unclaimed(&trace, &registered, self.broker, self.config).await;
        for consumer in registered {
            let Some(state) = standing::state(&consumer, &trace, &log) else { continue };
            let Standing { state, waiting_there, may_lie_in } =
                standing::at_broker(state, &consumer, self.broker, self.config).await;
            let (name, queue) = (consumer.name.to_string(), consumer.service.name().to_string());
            let held = trace.held.iter().find(|held| state == HELD && held.consumer == name);
            let behind = held.map(|held| held.head.clone()).filter(|head| head != id.as_str());
            consumers.push(AtConsumer { consumer: name, queue, state, waiting_there, may_lie_in, behind });
        }
        let (origin, attempts) = (self.origin(id, &trace).await?, self.attempts(id).await?);
        let steps = Story { id, trace: &trace, log: &log, attempts: &attempts, origin }.told();
        Ok(Some(Traced { id: id.to_string(), tenant, consumers, queues, steps, trace }))
    }

    /// What an event was corrected from: it says which event, whose dead letter says which of them.
    async fn origin(&self, id: &EventId, trace: &Trace) -> Result<Option<Origin>, StoreError> {
        let Some(event) = trace.outbox.iter().find_map(|row| row.replaces.clone()) else { return Ok(None) };
        let letters = match EventId::new(&event) {
            Ok(event) => self.store.trace(&event).await?.dead_letters,
            Err(_) => Vec::new(),
        };
        let mut letters = letters.into_iter();
        let letter = letters.find(|letter| letter.replaced_by.as_deref() == Some(id.as_str()));
        Ok(Some(Origin { event, letter: letter.map(|letter| letter.id.to_string()) }))
    }

    /// The attempts at endpoints, as far as they are remembered.
    async fn attempts(&self, id: &EventId) -> Result<Vec<Attempt>, StoreError> {
        let stored = self.store.subscriptions().await?.into_iter().map(|stored| stored.subscription.name);
        let configured = self.config.push.iter().map(|pushed| pushed.subscription.name.clone());
        let mut names: Vec<ConsumerName> = stored.chain(configured).collect();
        names.sort();
        names.dedup();
        let mut attempts = Vec::new();
        for name in &names {
            attempts.extend(self.store.attempts(name, Some(id), ATTEMPTS).await?);
        }
        Ok(attempts)
    }
}

/// Whose event it is, by what is left of it: its own row may be archived, those that sent it again are there.
fn told_of(known: &Trace) -> Option<String> {
    let of_rows = known.outbox.iter().find_map(|row| row.tenant.clone());
    of_rows.or_else(|| known.dead_letters.iter().find_map(|letter| letter.tenant.clone()))
}

/// An event's own row in an outbox beside the default one, which has an exchange and keys of its own for rows that name none.
fn step(row: &RowView, outbox: &OutboxChoice) -> OutboxStep {
    let name = |id: Option<&str>| id.and_then(|id| TenantId::new(id).ok());
    let of_outbox = || {
        let tenant =
            Tenant { group: name(row.group_id.as_deref()), subsidiary: name(row.subsidiary_id.as_deref()) };
        let key = outbox.routing_key.as_ref()?.fill_for(&row.event_type.parse().ok()?, &tenant);
        Some(key.to_string())
    };
    OutboxStep {
        row_id: row.id.clone(),
        tenant: row.group_id.clone(),
        event_type: row.event_type.clone(),
        status: OutboxStatus::from_name(&row.status).unwrap_or(OutboxStatus::Pending),
        target_queue: row.target_queue.clone(),
        exchange: Some(row.exchange.clone().unwrap_or_else(|| outbox.exchange.to_string())),
        routing_key: row.routing_key.clone().or_else(of_outbox),
        created_at: row.created_at,
        published_at: row.published_at,
        attempts: row.attempts.unsigned_abs(),
        last_error: row.last_error.clone(),
        replaces: None,
    }
}
