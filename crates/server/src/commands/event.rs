//! `postrider event trace`: where one event went, as far as the store and the broker know. `event erase`: what it said, forgotten.

mod erase;

use std::fmt::Write as _;
use std::sync::Arc;

use clap::{Args, Subcommand};
use postrider::store::{OutboxStatus, Registration, Trace};
use postrider::topology::RoutingKey;
use postrider::{Broker, EventId};
use serde::Serialize;

use super::Context;
use crate::exit::{Exit, usage};
use crate::wiring::{OnStore, WholeStore, Wired};

/// What to ask of an event.
#[derive(Debug, Args)]
pub(crate) struct EventArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Where it went, queue by queue
    Trace {
        /// The id of the event
        id: EventId,
    },
    /// Erase what events said, and keep that they happened
    Erase(erase::EraseArgs),
}

/// The command, on a store.
pub(crate) struct OfEvent<'a> {
    pub(crate) args: EventArgs,
    pub(crate) context: &'a Context,
}

/// Where it stands for one consumer.
#[derive(Serialize)]
struct AtConsumer {
    consumer: String,
    queue: String,
    state: &'static str,
    /// Messages in its queue and its wait queues; the event may be among them.
    waiting_there: Option<u64>,
}

#[derive(Serialize)]
struct Traced {
    id: String,
    consumers: Vec<AtConsumer>,
    #[serde(flatten)]
    trace: Trace,
}

impl OnStore for OfEvent<'_> {
    async fn run<S: WholeStore>(self, wired: Wired<S>) -> anyhow::Result<Exit> {
        wired.store.check().await?;
        let id = match self.args.what {
            What::Trace { id } => id,
            What::Erase(args) => return erase::run(args, &wired.store, self.context).await,
        };
        let trace = wired.store.trace(&id).await?;
        if trace == Trace::default() {
            return Err(usage(format!(
                "neither the outbox nor an inbox nor a dead letter here knows the event {id}"
            )));
        }
        let broker = wired.broker.look().await.ok();
        let mut consumers = Vec::new();
        for consumer in wired.store.registrations().await? {
            if let Some(state) = state(&consumer, &trace) {
                let waiting_there = match (&broker, state) {
                    (Some(broker), "published, not applied yet") => depth(broker, &consumer).await,
                    _ => None,
                };
                let (name, queue) = (consumer.name.to_string(), consumer.service.name().to_string());
                consumers.push(AtConsumer { consumer: name, queue, state, waiting_there });
            }
        }
        if let Some(broker) = broker {
            broker.close().await;
        }
        let traced = Traced { id: id.to_string(), consumers, trace };
        self.context.output.one(&traced, &told(&traced))?;
        Ok(Exit::Ok)
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
        let pending = |row: &&postrider::store::OutboxStep| {
            row.target_queue.as_deref() == Some(queue.as_str()) && row.status != OutboxStatus::Published
        };
        return Some(match last.status {
            postrider::store::LetterStatus::Open => "dead",
            postrider::store::LetterStatus::Discarded => "discarded",
            postrider::store::LetterStatus::Replayed if trace.outbox.iter().any(|row| pending(&row)) => {
                "replayed, not published yet"
            }
            postrider::store::LetterStatus::Replayed => "published, not applied yet",
        });
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

fn told(traced: &Traced) -> String {
    let mut text = format!("event {}", traced.id);
    for step in &traced.trace.outbox {
        let to = step.target_queue.as_ref().map_or_else(String::new, |queue| format!(" to {queue} alone"));
        let _ = write!(text, "\n{}  committed {}{to} as {}", step.created_at, step.event_type, step.row_id);
        match (step.published_at, &step.last_error) {
            (Some(at), _) => {
                let _ = write!(text, "\n{at}  published, confirmed by the broker");
            }
            (None, error) => {
                let why = error.as_ref().map_or_else(String::new, |error| format!(": {error}"));
                let _ =
                    write!(text, "\n  {} after {} failed attempts{why}", step.status.as_str(), step.attempts);
            }
        }
    }
    for letter in &traced.trace.dead_letters {
        let _ = write!(
            text,
            "\n{}  dead letter {} of {}: {} after {} attempts, {}: {}",
            letter.dead_at,
            letter.id,
            letter.queue,
            letter.reason,
            letter.attempts,
            letter.status.as_str(),
            letter.error.lines().next().unwrap_or_default()
        );
    }
    for mark in &traced.trace.applied {
        let _ = write!(text, "\n{}  applied by {}", mark.at, mark.consumer);
    }
    for at in &traced.consumers {
        let waiting =
            at.waiting_there.map_or_else(String::new, |count| format!(" ({count} messages wait there)"));
        let _ = write!(text, "\n{}: {}{waiting}", at.consumer, at.state);
    }
    text
}
