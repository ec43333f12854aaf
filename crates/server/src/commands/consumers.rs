//! `postrider consumers`: which there are, and pausing and resuming them, wherever they run.

use clap::{Args, Subcommand};
use postrider::envelope::OrderingKey;
use postrider::store::Registrations;
use postrider::topology::ConsumerName;

use super::Context;
use crate::desk::consumers::{LISTED, is_parked, known, rows};
use crate::exit::{Exit, absent};
use crate::wiring::{OnStore, WholeStore, Wired};

/// What to do with consumers.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    postrider consumers ls\n  \
    postrider consumers pause billing --reason 'the bank is down until 14:00'\n  \
    postrider consumers held billing\n  \
    postrider consumers release billing shop.order/42\n  \
    postrider consumers forget billing-old\n\n\
    A consumer is known once it has started on this store, or is named in the configuration. The ledger is the consumer `ledger`.")]
pub(crate) struct ConsumersArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// List the consumers: whether each is paused, and what waits for it
    Ls,
    /// Pause a consumer in every process that runs it, within a second or so
    #[command(
        after_help = "What is in hand is finished; everything else stays in the queue. Nothing is lost and no retry is used up.\n\n\
        Example:\n  postrider consumers pause billing --reason 'the bank is down until 14:00'"
    )]
    Pause {
        /// The consumer, as `postrider consumers ls` shows it
        name: ConsumerName,
        /// Why, for those who find it paused
        #[arg(long, default_value = "", hide_default_value = true, value_name = "TEXT")]
        reason: String,
        /// Say what would be paused, and pause nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// Let a paused consumer go on
    Resume {
        /// The consumer
        name: ConsumerName,
        /// Why, for the audit log
        #[arg(long, default_value = "", hide_default_value = true, value_name = "TEXT")]
        reason: String,
        /// Say what would be resumed, and resume nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// List the ordering keys whose events are held behind an earlier one
    Held {
        /// Those of this consumer, as `postrider consumers ls` shows it [default: of all]
        name: Option<ConsumerName>,
    },
    /// Forget a consumer that is gone for good: it is listed no more and has no account
    #[command(
        after_help = "Its queue and what it has applied stay. A consumer that starts again is known again. Asks first.\n\n\
        Example:\n  postrider consumers forget billing-old --reason 'renamed to billing'"
    )]
    Forget {
        /// The consumer
        name: ConsumerName,
        /// Why, for the audit log
        #[arg(long, default_value = "", hide_default_value = true, value_name = "TEXT")]
        reason: String,
        /// Say what would be forgotten, and forget nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// Let the events behind a parked one go on without it
    #[command(
        after_help = "The event it was parked for stays a dead letter. If it is replayed later, it comes after those that went on.\n\n\
        Example:\n  postrider consumers release billing shop.order/42 --reason 'the order was cancelled'"
    )]
    Release {
        /// The consumer
        name: ConsumerName,
        /// The ordering key, as `postrider consumers held` shows it
        key: OrderingKey,
        /// Why, for the audit log
        #[arg(long, default_value = "", hide_default_value = true, value_name = "TEXT")]
        reason: String,
        /// Say what would be released, and release nothing
        #[arg(long)]
        dry_run: bool,
    },
}

/// The command, on a store.
pub(crate) struct Consumers<'a> {
    pub(crate) args: ConsumersArgs,
    pub(crate) context: &'a Context,
}

impl OnStore for Consumers<'_> {
    async fn run<S: WholeStore>(self, wired: Wired<S>) -> anyhow::Result<Exit> {
        wired.store.check().await?;
        let (store, context) = (&wired.store, self.context);
        match self.args.what {
            What::Ls => list(&wired, context).await,
            What::Held { name } => held(store, name.as_ref(), context).await,
            What::Pause { name, reason, dry_run } => pause(store, &name, &reason, dry_run, context).await,
            What::Resume { name, reason, dry_run } => resume(store, &name, &reason, dry_run, context).await,
            What::Forget { name, reason, dry_run } => forget(store, &name, &reason, dry_run, context).await,
            What::Release { name, key, reason, dry_run } => {
                release(store, &name, &key, &reason, dry_run, context).await
            }
        }
    }
}

async fn list<S: WholeStore>(wired: &Wired<S>, context: &Context) -> anyhow::Result<Exit> {
    let (store, broker) = (&wired.store, wired.broker.look().await);
    if let Err(error) = &broker {
        context.output.note(&format!("what waits in queues is not known: {error}"));
    }
    let rows = rows(store, broker.as_ref().ok(), &context.config.own.consumers).await?;
    if let Ok(broker) = &broker {
        broker.close().await;
    }
    let header = ["CONSUMER", "QUEUE", "STATE", "READY", "WAITING", "HELD", "PAUSED BY", "REASON"];
    context.output.rows(&header, &rows, |row| {
        let count = |count: Option<u64>| count.map_or_else(|| "?".to_owned(), |count| count.to_string());
        let pause = row.pause.as_ref();
        vec![
            row.name.clone(),
            row.queue.clone(),
            row.state.to_owned(),
            count(row.ready),
            count(row.waiting),
            row.held.to_string(),
            pause.map(|pause| format!("{} since {}", pause.by, pause.since)).unwrap_or_default(),
            pause.map(|pause| pause.reason.clone()).unwrap_or_default(),
        ]
    })?;
    if rows.is_empty() {
        context.output.note("no consumer has started on this store yet, and the configuration names none");
    }
    Ok(Exit::Ok)
}

async fn held<S: WholeStore>(
    store: &S,
    name: Option<&ConsumerName>,
    context: &Context,
) -> anyhow::Result<Exit> {
    let keys = store.held_keys(name, LISTED).await?;
    // A name that nobody knows any more may still hold keys.
    if let Some(name) = name.filter(|_| keys.is_empty()) {
        expect_known(store, name, context).await?;
    }
    let header = ["CONSUMER", "ORDERING KEY", "STATE", "EVENTS", "HEAD", "ATTEMPT", "DUE", "ERROR"];
    context.output.rows(&header, &keys, |key| {
        let due = if is_parked(key) { "when released".to_owned() } else { key.due_at.to_string() };
        vec![
            key.consumer.to_string(),
            key.key.to_string(),
            key.state.as_str().to_owned(),
            key.events.to_string(),
            key.head.to_string(),
            key.attempt.to_string(),
            due,
            key.error.chars().take(80).collect(),
        ]
    })?;
    if keys.len() == LISTED {
        context.output.note(&format!("only the {LISTED} keys that were held first are listed"));
    }
    if keys.is_empty() {
        context.output.note("no key is held");
    }
    Ok(Exit::Ok)
}

async fn pause<S: WholeStore>(
    store: &S,
    name: &ConsumerName,
    reason: &str,
    dry_run: bool,
    context: &Context,
) -> anyhow::Result<Exit> {
    expect_known(store, name, context).await?;
    if dry_run {
        context.output.note(&format!("would pause {name}; nothing was changed"));
        return Ok(Exit::Ok);
    }
    let paused = store.pause(name, &context.environment.actor(), reason).await?;
    context.output.note(&if paused {
        format!(
            "{name} is paused; what is in hand is finished. Go on with: postrider consumers resume {name}"
        )
    } else {
        format!("{name} was paused already; nothing was changed")
    });
    Ok(Exit::Ok)
}

async fn resume<S: WholeStore>(
    store: &S,
    name: &ConsumerName,
    reason: &str,
    dry_run: bool,
    context: &Context,
) -> anyhow::Result<Exit> {
    if dry_run {
        let paused = store.pause_of(name).await?.is_some();
        if !paused {
            expect_known(store, name, context).await?;
        }
        let told = if paused { format!("would resume {name}") } else { format!("{name} is not paused") };
        context.output.note(&format!("{told}; nothing was changed"));
        return Ok(Exit::Ok);
    }
    // A name that nobody knows any more may still be paused.
    if store.resume(name, &context.environment.actor(), reason).await? {
        context.output.note(&format!("{name} goes on"));
        return Ok(Exit::Ok);
    }
    expect_known(store, name, context).await?;
    context.output.note(&format!("{name} was not paused; nothing was changed"));
    Ok(Exit::Ok)
}

async fn forget<S: WholeStore>(
    store: &S,
    name: &ConsumerName,
    reason: &str,
    dry_run: bool,
    context: &Context,
) -> anyhow::Result<Exit> {
    if !store.registrations().await?.iter().any(|known| known.name == *name) {
        expect_known(store, name, context).await?;
        let told =
            format!("{name} has never started on this store: the configuration names it; take it out there");
        return Err(absent(told));
    }
    if dry_run {
        context.output.note(&format!("would forget {name}; nothing was changed"));
        return Ok(Exit::Ok);
    }
    context.output.confirm(&format!("forget {name}? What was meant for it is not accounted for any more"))?;
    store.unregister(name, &context.environment.actor(), reason).await?;
    context.output.note(&format!("{name} is forgotten; its queue is left as it is"));
    Ok(Exit::Ok)
}

async fn release<S: WholeStore>(
    store: &S,
    name: &ConsumerName,
    key: &OrderingKey,
    reason: &str,
    dry_run: bool,
    context: &Context,
) -> anyhow::Result<Exit> {
    let keys = store.held_keys(Some(name), usize::MAX).await?;
    let Some(found) = keys.iter().find(|held| held.key == *key && is_parked(held)) else {
        return Err(absent(format!(
            "{name} has no parked key {key}; `postrider consumers held {name}` lists them"
        )));
    };
    let what = format!("{} events behind {} of {name}", found.events - 1, found.head);
    if dry_run {
        context.output.note(&format!("would release {what}; nothing was changed"));
        return Ok(Exit::Ok);
    }
    context.output.confirm(&format!("let {what} go on without it?"))?;
    store.release_key(name, key, &context.environment.actor(), reason).await?;
    context.output.note(&format!("released {what}"));
    Ok(Exit::Ok)
}

async fn expect_known<S: Registrations>(
    store: &S,
    name: &ConsumerName,
    context: &Context,
) -> anyhow::Result<()> {
    if known(store, &context.config.own.consumers).await?.iter().any(|consumer| consumer.name == *name) {
        return Ok(());
    }
    Err(absent(format!("there is no consumer {name}; `postrider consumers ls` lists them")))
}
