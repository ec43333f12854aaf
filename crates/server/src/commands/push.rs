//! `postrider push`: subscriptions whose events are POSTed to endpoints.

mod adding;

use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Subcommand};
use postrider::envelope::EventId;
use postrider::push::Source;
use postrider::topology::{ConsumerName, QueueName};

use self::adding::Add;
use super::Context;
use crate::config::OLD_SECRET_STAYS;
use crate::exit::{Exit, usage};
use crate::push_desk::{DeskError, PushDesk, Shown, Signing};
use crate::wiring::{BrokerDoor, OnStore, WholeStore, Wired};

/// What to do with push subscriptions.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    postrider push add erp --url https://erp.example.com/hooks --keys 'shop.order.*'\n  \
    postrider push test erp\n  \
    postrider push attempts erp --limit 10\n  \
    postrider push rotate-secret erp --old-stays 24h\n\n\
    Requests are signed as Standard Webhooks has it. A subscription of the configuration ([[push]]) is changed there.")]
pub(crate) struct PushArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// List the subscriptions, without their secrets
    Ls,
    /// Make a subscription and show its secret, once
    #[command(after_help = "Examples:\n  \
        postrider push add erp --url https://erp.example.com/hooks --keys 'shop.order.*'\n  \
        postrider push add mail --url http://127.0.0.1:8080/events --queue mail --form cloudevents\n\n\
        Only public https is allowed, unless egress.allow says otherwise. `postrider serve` takes it up within seconds; \
        this waits for that, so that what is published afterwards reaches it.")]
    Add(Add),
    /// Send an event of its own to the endpoint, past the queue, and show the answer
    Test {
        /// The subscription
        name: ConsumerName,
    },
    /// Pause a subscription: its events wait in their queue
    Pause {
        /// The subscription
        name: ConsumerName,
        /// Why, for those who find it paused
        #[arg(long, default_value = "", hide_default_value = true, value_name = "TEXT")]
        reason: String,
        /// Say what would be paused, and pause nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// Let a paused subscription go on
    Resume {
        /// The subscription
        name: ConsumerName,
        /// Why, for the audit log
        #[arg(long, default_value = "", hide_default_value = true, value_name = "TEXT")]
        reason: String,
        /// Say what would be resumed, and resume nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// Make a new secret and show it, once; the old one signs too for a while
    RotateSecret {
        /// The subscription
        name: ConsumerName,
        /// What signs from now on; unless given, what signs now
        #[arg(long, value_enum)]
        signing: Option<Signing>,
        /// How long the old secret signs still, such as 24h or 0s
        #[arg(long, value_name = "DURATION", value_parser = duration)]
        old_stays: Option<Duration>,
        /// Why, for the audit log
        #[arg(long, default_value = "", hide_default_value = true, value_name = "TEXT")]
        reason: String,
        /// Say what would be done, and do nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// List the last attempts: status, time, and the beginning of the answer
    Attempts {
        /// The subscription
        name: ConsumerName,
        /// Those at this event alone
        #[arg(long)]
        event: Option<EventId>,
        /// At most so many
        #[arg(long, default_value_t = 50, value_name = "N")]
        limit: u32,
    },
    /// Remove a subscription; its queue gets no more, and keeps what is in it
    #[command(
        after_help = "`postrider serve` unbinds a queue of the subscription's own within seconds. What waits there is kept: add a subscription of \
        the same name again and it is sent, or look at it first. Events that come meanwhile are not kept for it. A queue of the \
        configuration (--queue) stays bound. A queue left by a [[push]] that is in no configuration any more is removed in the same way."
    )]
    Rm {
        /// The subscription
        name: ConsumerName,
        /// Why, for the audit log
        #[arg(long, default_value = "", hide_default_value = true, value_name = "TEXT")]
        reason: String,
        /// Say what would be removed, and remove nothing
        #[arg(long)]
        dry_run: bool,
    },
}

/// The command, on a store.
pub(crate) struct ToEndpoints<'a> {
    pub(crate) args: PushArgs,
    pub(crate) context: &'a Context,
}

impl OnStore for ToEndpoints<'_> {
    async fn run<S: WholeStore>(self, wired: Wired<S>) -> anyhow::Result<Exit> {
        wired.store.check().await?;
        let context = self.context;
        let config = context.live.clone();
        let (clock, at_work) = (context.clock.clone(), Arc::default());
        let desk = PushDesk { store: wired.store, config, clock, at_work };
        let by = context.environment.actor();
        match self.args.what {
            What::Ls => list(&desk, context).await,
            What::Add(given) => adding::run(&desk, &given, context).await,
            What::Test { name } => test(&desk, &name, context).await,
            What::Pause { name, reason, dry_run } => {
                known(&desk, &name).await?;
                let doing = async || desk.store.pause(&name, &by, &reason).await;
                change(context, dry_run, &format!("pause {name}"), "it is paused already", doing).await
            }
            What::Resume { name, reason, dry_run } => {
                known(&desk, &name).await?;
                let doing = async || desk.store.resume(&name, &by, &reason).await;
                change(context, dry_run, &format!("resume {name}"), "it is not paused", doing).await
            }
            What::RotateSecret { name, signing, old_stays, reason, dry_run } => {
                known(&desk, &name).await?;
                if dry_run {
                    context.output.note(&format!("would make a new secret for {name}; nothing was changed"));
                    return Ok(Exit::Ok);
                }
                let stays = old_stays.unwrap_or(OLD_SECRET_STAYS);
                let shown = desk.rotate(&name, signing, stays, &by, &reason).await.map_err(told)?;
                show_secret(&shown, context)
            }
            What::Attempts { name, event, limit } => {
                attempts(&desk, &name, event.as_ref(), limit, context).await
            }
            What::Rm { name, reason, dry_run } => {
                let kept = left_behind(&desk, &name, &wired.broker).await?;
                if !dry_run {
                    context.output.confirm(&format!("remove the push subscription {name}? {kept}"))?;
                }
                let doing = async || match desk.remove(&name, &by, &reason).await {
                    Ok(()) => Ok(true),
                    Err(DeskError::Unknown(_)) => Ok(false),
                    Err(error) => Err(error),
                };
                context.output.note(&kept);
                change(context, dry_run, &format!("remove {name}"), "it is gone already", doing).await
            }
        }
    }
}

/// What becomes of a subscription's queue when it is removed, in a sentence.
async fn left_behind<S: WholeStore>(
    desk: &PushDesk<S>,
    name: &ConsumerName,
    broker: &BrokerDoor,
) -> anyhow::Result<String> {
    let own = match desk.left(name).await.map_err(told)? {
        Some(left) => left.service.name().clone(),
        None => match desk.find(name).await.map_err(told)?.subscription.source {
            Source::Queue(queue) => {
                return Ok(format!(
                    "its queue {queue} is one of the configuration: it stays bound, and keeps what comes"
                ));
            }
            Source::Keys { .. } => QueueName::new(name.as_str())?,
        },
    };
    let registered = desk.store.registrations().await?;
    let service = registered.iter().map(|one| &one.service).find(|service| *service.name() == own);
    // What waits for a retry comes back to the queue, and stays there with the rest.
    let wait_queues =
        service.into_iter().flat_map(|service| service.wait_queues.iter().map(|wait| &wait.name));
    let waiting = match broker.look().await {
        Ok(broker) => {
            let mut waiting = broker.depth(&own).await.ok();
            for queue in wait_queues {
                let more = broker.depth(queue).await.unwrap_or(0);
                waiting = waiting.map(|waiting| waiting + more);
            }
            broker.close().await;
            waiting
        }
        Err(_) => None,
    };
    let waiting = waiting.map_or_else(|| "what waits".to_owned(), |waiting| format!("{waiting} that wait"));
    Ok(format!(
        "its queue {own} gets no more events once `postrider serve` has unbound it; {waiting} there stay, and are sent if a \
         subscription of this name is added again"
    ))
}

async fn known<S: WholeStore>(desk: &PushDesk<S>, name: &ConsumerName) -> anyhow::Result<()> {
    desk.find(name).await.map(|_| ()).map_err(told)
}

/// Does something that can be said in a few words, or says that it would.
async fn change<E: Into<anyhow::Error>>(
    context: &Context,
    dry_run: bool,
    what: &str,
    otherwise: &str,
    doing: impl AsyncFnOnce() -> Result<bool, E>,
) -> anyhow::Result<Exit> {
    if dry_run {
        context.output.note(&format!("would {what}; nothing was changed"));
        return Ok(Exit::Ok);
    }
    let changed = doing().await.map_err(Into::into)?;
    let said =
        if changed { format!("{what}: done") } else { format!("{what}: {otherwise}; nothing was changed") };
    context.output.note(&said);
    if !context.output.is_for_people() {
        context.output.one(&serde_json::json!({ "changed": changed }), "")?;
    }
    Ok(Exit::Ok)
}

async fn list<S: WholeStore>(desk: &PushDesk<S>, context: &Context) -> anyhow::Result<Exit> {
    let rows = desk.rows().await.map_err(told)?;
    let header = ["NAME", "STATE", "FROM", "URL", "FORM", "SECRETS", "MADE BY", "LAST"];
    context.output.rows(&header, &rows, |row| {
        let from = if row.keys.is_empty() { row.queue.clone() } else { row.keys.join(", ") };
        vec![
            row.name.clone(),
            row.state.to_owned(),
            from,
            row.url.clone(),
            format!("{:?}", row.form).to_lowercase(),
            row.secrets.to_string(),
            row.made_by.clone(),
            row.last.clone().unwrap_or_default(),
        ]
    })?;
    Ok(Exit::Ok)
}

fn show_secret(shown: &Shown, context: &Context) -> anyhow::Result<Exit> {
    let text = shown.secret.clone().or_else(|| shown.public_key.clone()).unwrap_or_default();
    context.output.one(shown, &text)?;
    for note in shown.notes() {
        context.output.note(&note);
    }
    Ok(Exit::Ok)
}

async fn test<S: WholeStore>(
    desk: &PushDesk<S>,
    name: &ConsumerName,
    context: &Context,
) -> anyhow::Result<Exit> {
    let tested = desk.test(name, &context.environment.actor()).await.map_err(told)?;
    let said = match (&tested.error, tested.status) {
        (None, Some(status)) => format!("{name} took it: {status} in {} ms", tested.took_ms),
        (error, _) => format!("{name} did not take it: {}", error.clone().unwrap_or_default()),
    };
    context.output.one(&tested, format!("{said}\n{}", tested.answer).trim_end())?;
    Ok(if tested.taken { Exit::Ok } else { Exit::Unhealthy })
}

async fn attempts<S: WholeStore>(
    desk: &PushDesk<S>,
    name: &ConsumerName,
    event: Option<&EventId>,
    limit: u32,
    context: &Context,
) -> anyhow::Result<Exit> {
    let rows = desk.attempts(name, event, limit).await.map_err(told)?;
    let header = ["AT", "EVENT", "ATTEMPT", "STATUS", "MS", "ERROR", "ANSWER"];
    context.output.rows(&header, &rows, |row| {
        vec![
            row.at.to_string(),
            row.event_id.to_string(),
            row.attempt.to_string(),
            row.status.map_or_else(String::new, |status| status.to_string()),
            row.took_ms.to_string(),
            row.error.clone().unwrap_or_default(),
            row.answer.chars().take(60).collect(),
        ]
    })?;
    Ok(Exit::Ok)
}

/// What the person at the keyboard got wrong is a usage error.
fn told(error: DeskError) -> anyhow::Error {
    match error {
        DeskError::Store(error) => error.into(),
        DeskError::Invalid(why) => usage(why),
        other => anyhow::anyhow!(other.to_string()),
    }
}

fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || "write a time with its unit, such as 24h".to_owned();
    let read: jiff::SignedDuration = text.parse().map_err(|_| wrong())?;
    Duration::try_from(read).map_err(|_| wrong())
}
