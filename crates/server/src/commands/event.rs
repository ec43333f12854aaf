//! `postrider event trace`: where one event went, as far as the store and the broker know. `event erase`: what it said, forgotten.

mod erase;

use std::fmt::Write as _;

use clap::{Args, Subcommand};
use postrider::EventId;

use super::Context;
use crate::desk::events::{Traced, trace};
use crate::exit::{Exit, absent};
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

impl OnStore for OfEvent<'_> {
    async fn run<S: WholeStore>(self, wired: Wired<S>) -> anyhow::Result<Exit> {
        wired.store.check().await?;
        let id = match self.args.what {
            What::Trace { id } => id,
            What::Erase(args) => return erase::run(args, &wired.store, self.context).await,
        };
        let broker = wired.broker.look().await.ok();
        let usual = self.context.config.settings.ledger.tenant()?;
        let traced = trace(&wired.store, broker.as_ref(), &id, usual).await?;
        if let Some(broker) = broker {
            broker.close().await;
        }
        let traced = traced.ok_or_else(|| {
            absent(format!("neither the outbox nor an inbox nor a dead letter here knows the event {id}"))
        })?;
        self.context.output.one(&traced, &told(&traced))?;
        Ok(Exit::Ok)
    }
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
        let behind = at.behind.as_ref().map_or_else(String::new, |head| format!(" behind {head}"));
        let _ = write!(text, "\n{}: {}{behind}{waiting}", at.consumer, at.state);
    }
    text
}
