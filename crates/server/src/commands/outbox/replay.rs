//! `outbox replay`: published events sent again, a plan first, then an operation, run here and watched.

use std::path::PathBuf;

use clap::Args;
use postrider::archive::Shelf;
use postrider::broker::BrokerErrorKind;
use postrider::envelope::TenantId;
use postrider::operation::{EventPlan, EventSurvey, plan_events, shelf, start_events};
use postrider::store::EventFilter;
use postrider::topology::QueueName;

use super::Context;
use crate::commands::dlq::since;
use crate::commands::ops;
use crate::desk::operations::told_of_events;
use crate::exit::{Exit, absent, usage};
use crate::outboxes::OpenOutbox;
use crate::wiring::{WholeStore, Wired};

/// Which events, where to, and how.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    postrider outbox replay --aggregate-type shop.order --from 2026-11-01T00:00:00Z --to 2026-11-02T00:00:00Z --dry-run\n  \
    postrider outbox replay --aggregate-type shop.order --from 2d --to 1d --to-queue billing --rate 100\n\n\
    Events keep their ids, so a consumer that has one in its inbox skips it; one that is new, or was down beyond the \
    broker's keeping, catches up. --reapply makes the inboxes of the consumers that are reached forget these events, each in \
    the transaction that sends it again, so that it is applied once more: mend what they got wrong first. Consumers with a \
    database of their own have an inbox of their own, and skip what they know all the same. \
    Read are the outbox, its archive table and the archive files of outbox.archive_dir, whatever outbox.archive says now. What is in files \
    is read once, when the operation starts; it goes on without them.")]
pub(crate) struct ReplayArgs {
    /// All words of the type but the last, such as shop.order
    #[arg(long, value_name = "TYPE")]
    aggregate_type: String,
    /// Committed since then: a time, or so long ago, such as 2d
    #[arg(long, value_name = "TIME")]
    from: String,
    /// Committed before then: a time, or so long ago
    #[arg(long, value_name = "TIME")]
    to: String,
    /// Only of this type: its last word, or all of it
    #[arg(long = "type", value_name = "TYPE")]
    event_type: Option<String>,
    /// Only of this tenant
    #[arg(long, value_name = "TENANT")]
    tenant: Option<TenantId>,
    /// Read archive files of this folder, instead of outbox.archive_dir
    #[arg(long, value_name = "DIR")]
    archive_dir: Option<PathBuf>,
    /// To this queue alone, instead of where each event went
    #[arg(long, value_name = "QUEUE")]
    to_queue: Option<QueueName>,
    /// Consumers that have applied an event apply it once more
    #[arg(long)]
    reapply: bool,
    /// At most so many a second [default: no limit]
    #[arg(long, value_name = "N")]
    rate: Option<f64>,
    /// At most so many, the oldest first: a canary
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
    /// Why, for the audit log
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Print the plan, and change nothing
    #[arg(long)]
    dry_run: bool,
}

impl ReplayArgs {
    fn plan<S: WholeStore>(&self, outbox: &OpenOutbox<S>, context: &Context) -> anyhow::Result<EventPlan> {
        if self.rate.is_some_and(|rate| !rate.is_finite() || rate <= 0.0) {
            return Err(usage("--rate must be a number above 0; leave it out for no limit"));
        }
        if self.limit == Some(0) {
            return Err(usage("--limit must be at least 1; --dry-run changes nothing"));
        }
        let now = context.clock.now();
        let (from, to) = (since(&self.from, now)?, since(&self.to, now)?);
        if from >= to {
            return Err(usage(format!("--from ({from}) must be before --to ({to})")));
        }
        if self.reapply && outbox.choice.database.is_some() {
            return Err(usage(format!(
                "--reapply is not for {}: its events are in another database than the inboxes, so that both cannot change together",
                outbox.choice.label
            )));
        }
        let filter = EventFilter {
            aggregate_type: Some(self.aggregate_type.clone()),
            event_type: self.event_type.as_deref().map(|word| self.last_word(word)).transpose()?,
            tenant: self.tenant.clone(),
            from,
            to,
        };
        let (limit, to_queue, reapply) = (self.limit, self.to_queue.clone(), self.reapply);
        Ok(EventPlan { limit, to_queue, reapply, ..outbox.replay(&context.config, filter) })
    }

    /// A folder that is named must be there; the one of the configuration need not.
    fn files<S: WholeStore>(
        &self,
        outbox: &OpenOutbox<S>,
        plan: &EventPlan,
    ) -> anyhow::Result<Option<Shelf>> {
        let Some(folder) = &self.archive_dir else { return Ok(outbox.files(plan)?) };
        if !folder.is_dir() {
            return Err(usage(format!("--archive-dir {} is no folder", folder.display())));
        }
        Ok(Some(shelf(&outbox.store, plan, folder)?))
    }

    fn last_word(&self, word: &str) -> anyhow::Result<String> {
        let rest = word.strip_prefix(self.aggregate_type.as_str()).and_then(|rest| rest.strip_prefix('.'));
        let last = rest.unwrap_or(word);
        if last.contains('.') {
            return Err(usage(format!("--type {word} is not of the aggregate type {}", self.aggregate_type)));
        }
        Ok(last.to_owned())
    }
}

pub(super) async fn replay<S: WholeStore>(
    args: &ReplayArgs,
    wired: &Wired<S>,
    outbox: &OpenOutbox<S>,
    context: &Context,
) -> anyhow::Result<Exit> {
    let plan = args.plan(outbox, context)?;
    let files = args.files(outbox, &plan)?;
    let survey = plan_events(&outbox.store, &plan, files.as_ref(), args.rate).await?;
    let told = |survey: &EventSurvey| told_of_events(survey, plan.to_queue.as_ref(), plan.reapply);
    if args.dry_run {
        context.output.one(&survey, &told(&survey))?;
        return Ok(Exit::Ok);
    }
    if survey.total == 0 {
        context.output.note("no published event matches; nothing was changed");
        return Ok(Exit::Ok);
    }
    if let Some(queue) = &plan.to_queue {
        refuse_missing(queue, wired).await?;
    }
    context.output.note(&told(&survey));
    let again = if plan.reapply { ", and have them applied again" } else { "" };
    let these = if survey.total == 1 { "1 event".to_owned() } else { format!("{} events", survey.total) };
    context.output.confirm(&format!("Send {these} again{again}?"))?;
    let (by, reason) = (context.environment.actor(), args.reason.as_deref());
    let started =
        start_events(&outbox.store, &context.clock, &plan, files.as_ref(), args.rate, &by, reason).await?;
    if let Some(id) = started {
        return ops::run_here(id, &outbox.store, context).await;
    }
    context.output.note("the events left the outbox meanwhile; nothing was changed");
    Ok(Exit::Ok)
}

/// A queue that is not there, as far as the broker can be asked: a replay waits in the outbox for one that is away.
async fn refuse_missing<S: WholeStore>(queue: &QueueName, wired: &Wired<S>) -> anyhow::Result<()> {
    let Ok(broker) = wired.broker.look().await else { return Ok(()) };
    let depth = broker.depth(queue).await;
    broker.close().await;
    if depth.is_err_and(|error| error.kind == BrokerErrorKind::NotFound) {
        return Err(absent(format!(
            "there is no queue {queue}; nothing was changed. Declare it, or name another"
        )));
    }
    Ok(())
}
