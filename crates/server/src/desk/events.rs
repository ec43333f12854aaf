//! One event: where it is for each consumer, and everything that happened to it, in order.

use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;
use postrider::envelope::TenantId;
use postrider::push::Attempt;
use postrider::store::{LetterStatus, OutboxStatus, OutboxStep, Registration, RowView, StoreError, Trace};
use postrider::topology::{ConsumerName, RoutingKey};
use postrider::{Broker, EventId};
use serde::Serialize;

use super::{Answer, StoreDesk, journal};
use crate::config::Config;
use crate::outboxes::OpenOutbox;
use crate::wiring::WholeStore;

/// Attempts at one endpoint that a timeline has.
const ATTEMPTS: u32 = 50;

/// Kept back by a consumer, so that the order of its key holds.
const HELD: &str = "held";

/// Where an event stands for one consumer.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct AtConsumer {
    pub(crate) consumer: String,
    pub(crate) queue: String,
    pub(crate) state: &'static str,
    /// Messages in its queue and its wait queues; the event may be among them.
    pub(crate) waiting_there: Option<u64>,
    /// The event of its key that it is held behind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) behind: Option<String>,
}

/// All that is known of an event.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Traced {
    pub(crate) id: String,
    pub(crate) consumers: Vec<AtConsumer>,
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
    /// The story of an event of an outbox, the default one where none is named; nothing if it is known nowhere here.
    async fn timeline(&self, outbox: Option<&str>, id: &EventId) -> Answer<Option<Timeline>>;
}

#[async_trait]
impl<S: WholeStore> Events for StoreDesk<S> {
    async fn timeline(&self, outbox: Option<&str>, id: &EventId) -> Answer<Option<Timeline>> {
        let outboxes = match outbox {
            Some(_) => std::slice::from_ref(self.named(outbox)?),
            None => &self.outboxes,
        };
        let look = Look { store: &self.store, broker: Some(&self.broker), outboxes, config: &self.config };
        let Some((traced, tenant)) = look.at(id, outbox.is_some()).await? else { return Ok(None) };
        let Traced { id, consumers, steps, .. } = traced;
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
}

impl<S: WholeStore> Look<'_, S> {
    /// All that is known of an event, and whose it is; nothing if it never was here. With `alone` rows of the default outbox do not count.
    pub(crate) async fn at(
        &self,
        id: &EventId,
        alone: bool,
    ) -> Result<Option<(Traced, Option<String>)>, StoreError> {
        let mut known = self.store.trace(id).await?;
        let is_default =
            |outbox: &OpenOutbox<S>| outbox.choice.table.is_none() && outbox.choice.database.is_none();
        if alone && !self.outboxes.iter().any(is_default) {
            known.outbox.clear();
        }
        let mut row: Option<RowView> = None;
        for outbox in self.outboxes {
            // A database that is away knows nothing now; the others do.
            let Ok(Some(found)) = outbox.store.find(id).await else { continue };
            // Another tenant's event may have the same id, and its story is nobody else's business.
            if row.as_ref().is_some_and(|first| first.group_id != found.group_id) {
                continue;
            }
            if !is_default(outbox) {
                known.outbox.push(step(&found));
            }
            row.get_or_insert(found);
        }
        let tenant = whose(row.as_ref(), &known, self.config.settings.ledger.tenant().ok().flatten());
        journal::add_entry(self.store, tenant.as_ref(), id, &mut known).await?;
        let of_letters = known.dead_letters.iter().find_map(|letter| letter.tenant.clone());
        let Some(traced) = self.follow(id, known).await? else { return Ok(None) };
        Ok(Some((traced, row.and_then(|row| row.group_id).or(of_letters))))
    }

    async fn follow(&self, id: &EventId, trace: Trace) -> Result<Option<Traced>, StoreError> {
        if trace == Trace::default() {
            return Ok(None);
        }
        let mut consumers = Vec::new();
        for consumer in self.store.registrations().await? {
            if let Some(state) = state(&consumer, &trace) {
                let waiting_there = match (self.broker, state) {
                    (Some(broker), "published, not applied yet") => depth(broker, &consumer).await,
                    _ => None,
                };
                let (name, queue) = (consumer.name.to_string(), consumer.service.name().to_string());
                let held = trace.held.iter().find(|held| state == HELD && held.consumer == name);
                let behind = held.map(|held| held.head.clone()).filter(|head| head != id.as_str());
                consumers.push(AtConsumer { consumer: name, queue, state, waiting_there, behind });
            }
        }
        let steps = story(&trace, &self.attempts(id).await?);
        Ok(Some(Traced { id: id.to_string(), consumers, steps, trace }))
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

/// Whose event it is, as the ledger has it: events that name nobody are the usual tenant's.
fn whose(row: Option<&RowView>, known: &Trace, usual: Option<TenantId>) -> Option<TenantId> {
    let of_letters = || known.dead_letters.iter().find_map(|letter| letter.tenant.clone());
    let named = row.and_then(|row| row.group_id.clone()).or_else(of_letters);
    named.and_then(|tenant| TenantId::new(tenant).ok()).or(usual)
}

/// An event's own row in an outbox beside the default one.
fn step(row: &RowView) -> OutboxStep {
    OutboxStep {
        row_id: row.id.clone(),
        event_type: row.event_type.clone(),
        status: OutboxStatus::from_name(&row.status).unwrap_or(OutboxStatus::Pending),
        target_queue: None,
        created_at: row.created_at,
        published_at: row.published_at,
        attempts: row.attempts.unsigned_abs(),
        last_error: row.last_error.clone(),
    }
}

async fn depth(broker: &Arc<dyn Broker>, consumer: &Registration) -> Option<u64> {
    let service = &consumer.service;
    let mut waiting = broker.depth(service.name()).await.ok()?;
    for wait in &service.wait_queues {
        waiting += broker.depth(&wait.name).await.unwrap_or(0);
    }
    Some(waiting)
}

/// Where an event stands for a consumer; nothing if it is not routed there. Applied goes before dead before waiting.
fn state(consumer: &Registration, trace: &Trace) -> Option<&'static str> {
    let (name, queue) = (consumer.name.as_str(), consumer.service.name());
    if trace.applied.iter().any(|mark| mark.consumer == name) {
        return Some("applied");
    }
    let letters = trace.dead_letters.iter().filter(|letter| letter.queue == queue.as_str());
    if let Some(last) = letters.clone().next_back() {
        let pending = |row: &&OutboxStep| {
            row.target_queue.as_deref() == Some(queue.as_str()) && row.status != OutboxStatus::Published
        };
        return Some(match last.status {
            LetterStatus::Open => "dead",
            LetterStatus::Discarded => "discarded",
            LetterStatus::Replayed if trace.outbox.iter().any(|row| pending(&row)) => {
                "replayed, not published yet"
            }
            LetterStatus::Replayed if is_held(trace, name) => HELD,
            LetterStatus::Replayed => "published, not applied yet",
        });
    }
    if is_held(trace, name) {
        return Some(HELD);
    }
    let row = trace.outbox.iter().find(|row| {
        let routed = || {
            let key = RoutingKey::new(&row.event_type).ok();
            key.is_some_and(|key| consumer.topology.route(&consumer.exchange, &key).contains(&queue))
        };
        row.target_queue.as_deref().map_or_else(routed, |target| target == queue.as_str())
    })?;
    Some(match row.status {
        OutboxStatus::Published => "published, not applied yet",
        OutboxStatus::Dead => "dead in the outbox",
        OutboxStatus::Pending | OutboxStatus::Failed => "not published yet",
    })
}

fn is_held(trace: &Trace, consumer: &str) -> bool {
    trace.held.iter().any(|held| held.consumer == consumer)
}

fn tries(count: u32) -> String {
    if count == 1 { "1 attempt".to_owned() } else { format!("{count} attempts") }
}

/// Everything that happened, the oldest first.
fn story(trace: &Trace, attempts: &[Attempt]) -> Vec<Happened> {
    let mut steps = Vec::new();
    let mut tell = |at, place, mood, what: String, detail: Option<String>| {
        steps.push(Happened { at, place, mood, what, detail, letter: None });
    };
    for row in &trace.outbox {
        let again = row.target_queue.as_ref().map(|queue| format!("sent again, to {queue} alone"));
        let what = again.unwrap_or_else(|| format!("{} committed to the outbox", row.event_type));
        tell(row.created_at, "outbox", "ok", what, None);
        match (row.published_at, row.status) {
            (Some(at), _) => {
                let told = "published; the broker confirmed it".to_owned();
                tell(at, "exchange", "ok", told, None);
            }
            (None, OutboxStatus::Dead) => {
                let told = format!("given up after {} to publish it", tries(row.attempts));
                tell(row.created_at, "exchange", "failed", told, row.last_error.clone());
            }
            (None, _) if row.attempts > 0 => {
                let told = format!("{} to publish it failed; it is tried again", tries(row.attempts));
                tell(row.created_at, "exchange", "waiting", told, row.last_error.clone());
            }
            (None, _) => {}
        }
    }
    for attempt in attempts {
        let number = attempt.attempt;
        let (mood, what) = match (attempt.status, &attempt.error) {
            (Some(status), None) => ("ok", format!("attempt {number} at {}: {status}", attempt.consumer)),
            (Some(status), Some(_)) => {
                ("failed", format!("attempt {number} at {}: {status}", attempt.consumer))
            }
            (None, _) => ("failed", format!("attempt {number} at {}: no answer", attempt.consumer)),
        };
        let said = [attempt.error.as_deref().unwrap_or_default(), attempt.answer.as_str()];
        let said: Vec<&str> = said.into_iter().filter(|text| !text.is_empty()).collect();
        tell(attempt.at, "push", mood, what, (!said.is_empty()).then(|| said.join("\n")));
    }
    for mark in &trace.applied {
        tell(mark.at, "inbox", "ok", format!("applied by {}", mark.consumer), None);
    }
    for letter in &trace.dead_letters {
        let who = letter.consumer.as_deref().unwrap_or(&letter.queue);
        let number = Some(letter.id.to_string());
        steps.push(Happened {
            at: letter.dead_at,
            place: "dead_letter",
            mood: "failed",
            what: format!("{who} gave up after {}: {}", tries(letter.attempts), letter.reason),
            detail: Some(letter.error.clone()),
            letter: number.clone(),
        });
        if let Some(at) = letter.resolved_at {
            let what = format!("the dead letter of {who} was {}", letter.status.as_str());
            steps.push(Happened { at, place: "operation", mood: "ok", what, detail: None, letter: number });
        }
    }
    steps.sort_by_key(|step| step.at);
    steps
}

#[cfg(test)]
mod tests {
    use super::*;
    use postrider::store::AppliedStep;

    #[test]
    fn a_story_is_told_in_the_order_of_time() {
        let at = |second: i64| Timestamp::from_second(second).unwrap();
        let row = OutboxStep {
            row_id: "evt_1".to_owned(),
            event_type: "shop.order.placed".to_owned(),
            status: OutboxStatus::Published,
            target_queue: None,
            created_at: at(1),
            published_at: Some(at(2)),
            attempts: 0,
            last_error: None,
        };
        let mark = AppliedStep { consumer: "billing".to_owned(), at: at(3) };
        let trace =
            Trace { outbox: vec![row], applied: vec![mark], dead_letters: Vec::new(), held: Vec::new() };
        let places: Vec<_> = story(&trace, &[]).into_iter().map(|step| step.place).collect();
        assert_eq!(places, ["outbox", "exchange", "inbox"]);
    }
}
