//! Replay, discard and correct: a plan first, then an operation, run here and watched.

use clap::Args;
use postrider::operation::{LetterPlan, plan, start};
use postrider::store::{LetterFilter, LetterId, LetterStatus, OperationKind};
use postrider::topology::QueueName;

use super::Context;
use super::filter::FilterArgs;
use super::in_queue;
use crate::commands::ops;
use crate::desk::operations::told;
use crate::exit::{Exit, absent, usage};
use crate::wiring::{WholeStore, Wired};

/// Which letters, and how.
#[derive(Debug, Args)]
pub(super) struct Which {
    /// Their numbers
    #[arg(value_name = "ID")]
    pub(super) ids: Vec<LetterId>,
    #[command(flatten)]
    pub(super) filter: FilterArgs,
    /// Everything that is open
    #[arg(long)]
    pub(super) all: bool,
    /// At most so many, those first that failed first: a canary
    #[arg(long, value_name = "N")]
    pub(super) limit: Option<u64>,
    /// At most so many a second [default: no limit]
    #[arg(long, value_name = "N")]
    pub(super) rate: Option<f64>,
    /// Why, for the audit log
    #[arg(long, value_name = "TEXT")]
    pub(super) reason: Option<String>,
    /// Print the plan, and change nothing
    #[arg(long)]
    pub(super) dry_run: bool,
    /// Work on the dead-letter queue of this queue itself, where it is not collected
    #[arg(long, value_name = "QUEUE")]
    pub(super) in_queue: Option<QueueName>,
}

#[derive(Debug, Args)]
pub(super) struct ReplayArgs {
    #[command(flatten)]
    pub(super) which: Which,
    /// Another queue than the one each came from
    #[arg(long, value_name = "QUEUE")]
    pub(super) to_queue: Option<QueueName>,
    /// Go on with the old count of attempts, instead of a fresh budget
    #[arg(long)]
    keep_count: bool,
}

#[derive(Debug, Args)]
pub(super) struct DiscardArgs {
    #[command(flatten)]
    pub(super) which: Which,
}

pub(super) async fn replay<S: WholeStore>(
    args: ReplayArgs,
    wired: &Wired<S>,
    context: &Context,
) -> anyhow::Result<Exit> {
    if args.which.in_queue.is_some() {
        args.which.fits_a_queue(context)?;
        if args.keep_count {
            return Err(usage(
                "--keep-count is not for --in-queue: a message goes back as it is, with its own count",
            ));
        }
        return in_queue::replay(args, wired, context).await;
    }
    let (to_queue, keep_count) = (args.to_queue, args.keep_count);
    let plan = LetterPlan { to_queue, keep_count, ..args.which.plan(context)? };
    run(OperationKind::ReplayLetters, &plan, &args.which, wired, context).await
}

pub(super) async fn discard<S: WholeStore>(
    args: DiscardArgs,
    wired: &Wired<S>,
    context: &Context,
) -> anyhow::Result<Exit> {
    if args.which.in_queue.is_some() {
        args.which.fits_a_queue(context)?;
        return in_queue::discard(args, wired, context).await;
    }
    let plan = args.which.plan(context)?;
    run(OperationKind::DiscardLetters, &plan, &args.which, wired, context).await
}

impl Which {
    /// A queue's own messages have no numbers, and no operation works them off.
    fn fits_a_queue(&self, context: &Context) -> anyhow::Result<()> {
        if !self.ids.is_empty() {
            return Err(usage(
                "messages in a queue have no numbers: with --in-queue choose them by a filter, or give --all",
            ));
        }
        if self.rate.is_some() {
            return Err(usage(
                "--rate is for collected dead letters: what is done with --in-queue is done at once",
            ));
        }
        self.check_limit()?;
        let filter = self.filter.clone().into_filter(Some(LetterStatus::Open), context.clock.now())?;
        if filter == LetterFilter::open() && !self.all && self.limit.is_none() && !self.dry_run {
            return Err(usage("say which messages: a filter such as --type, --limit, or --all"));
        }
        Ok(())
    }

    fn check_limit(&self) -> anyhow::Result<()> {
        match self.limit {
            Some(0) => Err(usage("--limit must be at least 1; --dry-run changes nothing")),
            _ => Ok(()),
        }
    }

    pub(super) fn plan(&self, context: &Context) -> anyhow::Result<LetterPlan> {
        if self.rate.is_some_and(|rate| !rate.is_finite() || rate <= 0.0) {
            return Err(usage("--rate must be a number above 0; leave it out for no limit"));
        }
        self.check_limit()?;
        let filter = self.filter.clone().into_filter(Some(LetterStatus::Open), context.clock.now())?;
        if self.ids.is_empty() && filter == LetterFilter::open() && !self.all {
            return Err(usage("say which dead letters: their numbers, a filter such as --group, or --all"));
        }
        // What dies after the plan was shown is not in it. Who gives numbers has frozen them himself.
        let now = context.clock.now();
        let until = filter.until.map_or(now, |until| until.min(now));
        let until = if self.ids.is_empty() { Some(until) } else { filter.until };
        let filter = LetterFilter { ids: self.ids.clone(), until, ..filter };
        Ok(LetterPlan { filter, limit: self.limit, ..LetterPlan::default() })
    }
}

/// A number that is none is a slip of the pen; of one that is resolved already it is said what became of it.
async fn named_letters_are_there<S: WholeStore>(
    ids: &[LetterId],
    wired: &Wired<S>,
    context: &Context,
) -> anyhow::Result<()> {
    for id in ids {
        let Some(stored) = wired.store.letter(*id).await? else {
            return Err(absent(format!(
                "there is no dead letter {id}; nothing was changed. `postrider dlq ls --status all` lists them"
            )));
        };
        let status = stored.summary.status;
        if status != LetterStatus::Open {
            context.output.note(&format!("dead letter {id} is {} already", status.as_str()));
        }
    }
    Ok(())
}

pub(super) async fn run<S: WholeStore>(
    kind: OperationKind,
    letters: &LetterPlan,
    which: &Which,
    wired: &Wired<S>,
    context: &Context,
) -> anyhow::Result<Exit> {
    named_letters_are_there(&which.ids, wired, context).await?;
    let sends = kind != OperationKind::DiscardLetters;
    // Only to see whether the queues exist: a replay waits in the outbox for a broker that is away.
    let broker = if sends { wired.broker.look().await.ok() } else { None };
    let drawn = plan(&wired.store, broker.as_deref(), letters, which.rate).await?;
    if let Some(broker) = broker {
        broker.close().await;
    }
    if which.dry_run {
        context.output.one(&drawn, &told(&drawn, letters, kind))?;
        return Ok(Exit::Ok);
    }
    if drawn.total == 0 {
        context.output.note("no open dead letter matches; nothing was changed");
        return Ok(Exit::Ok);
    }
    if let Some(missing) = drawn.missing_queues.first() {
        return Err(absent(format!(
            "there is no queue {missing}, so its dead letters cannot go back there; nothing was changed. Declare it, or give \
             --to-queue"
        )));
    }
    context.output.note(&told(&drawn, letters, kind));
    let verb = match kind {
        OperationKind::DiscardLetters => "Discard",
        OperationKind::EditLetters => "Correct and send",
        _ => "Replay",
    };
    let these =
        if drawn.total == 1 { "1 dead letter".to_owned() } else { format!("{} dead letters", drawn.total) };
    context.output.confirm(&format!("{verb} {these}?"))?;
    let by = context.environment.actor();
    let frozen = LetterPlan { expects: Some(drawn.total), ..letters.clone() };
    let id =
        start(&wired.store, &context.clock, kind, &frozen, which.rate, &by, which.reason.as_deref()).await?;
    if let Some(id) = id {
        ops::run_here(id, &wired.store, context).await
    } else {
        context.output.note("somebody else resolved them meanwhile; nothing was changed");
        Ok(Exit::Ok)
    }
}
