//! `postrider event trace`: where one event went, as far as the store and the broker know. `event erase`: what it said, forgotten.

mod erase;

use std::fmt::Write as _;

use clap::{Args, Subcommand};
use postrider::EventId;

use super::Context;
use crate::desk::events::{DeadThere, InQueue, Look, Traced};
use crate::exit::{Exit, absent};
use crate::outboxes;
use crate::wiring::{OnStore, WholeStore, Wired};

/// What to ask of an event.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    postrider event trace evt_1\n  \
    postrider event erase evt_1 --reason 'request 4711' --dry-run\n\n\
    An event is found by its id in the outbox, in inboxes, among dead letters and in the books, also where it came from elsewhere.")]
pub(crate) struct EventArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Where it went, queue by queue, attempt by attempt
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

impl OnStore for OfEvent<'_> {
    async fn run<S: WholeStore>(self, wired: Wired<S>) -> anyhow::Result<Exit> {
        wired.store.check().await?;
        let id = match self.args.what {
            What::Trace { id } => id,
            What::Erase(args) => return erase::run(args, &wired.store, self.context).await,
        };
        let broker = wired.broker.look().await.ok();
        let config = &self.context.config;
        let outboxes = outboxes::open(&wired.store, config, &self.context.clock)?;
        let look =
            Look { store: &wired.store, broker: broker.as_ref(), outboxes: &outboxes, config, whose: None };
        let traced = look.at(&id, false).await?;
        if let Some(broker) = broker {
            broker.close().await;
        }
        let traced = traced.ok_or_else(|| {
            absent(format!(
                "neither an outbox nor an inbox nor a dead letter nor the books here know the event {id}"
            ))
        })?;
        self.context.output.one(&traced, &told(&traced))?;
        Ok(Exit::Ok)
    }
}

fn told(traced: &Traced) -> String {
    let mut text = format!("event {}", traced.id);
    for step in &traced.steps {
        let letter = step.letter.as_ref().map_or_else(String::new, |id| format!(" (dead letter {id})"));
        let _ = write!(text, "\n{:.6}  {}{letter}", step.at, step.what);
        if let Some(said) = step.detail.as_ref().and_then(|detail| detail.lines().next()) {
            let _ = write!(text, "\n  {said}");
        }
    }
    for at in &traced.consumers {
        let waiting = at.waiting_there.map_or_else(String::new, |count| format!(" (waiting there: {count})"));
        let behind = at.behind.as_ref().map_or_else(String::new, |head| format!(" behind {head}"));
        let _ = write!(text, "\n{}: {}{behind}{waiting}", at.consumer, at.state);
        if let Some(DeadThere { queue, messages }) = &at.may_lie_in {
            let there = messages.map_or_else(String::new, |count| format!(" (messages there: {count})"));
            let _ = write!(
                text,
                "; it may lie in {queue}{there}: postrider dlq show --in-queue {} {}",
                at.queue, traced.id
            );
        }
    }
    for InQueue { queue, waiting_there } in &traced.queues {
        let waiting = waiting_there.map_or_else(String::new, |count| format!(" (waiting there: {count})"));
        let _ = write!(text, "\n{queue}: published; no consumer of this queue has started here{waiting}");
    }
    text
}
