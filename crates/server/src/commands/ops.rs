//! `postrider ops`: long work in progress. The rows are the truth; whoever looks sees the same.

mod watch;

use std::time::Duration;

use clap::{Args, Subcommand};
use postrider::operation::{EditWork, Ended, EventWork, LetterWork, Runner, RunnerConfig, Work};
use postrider::store::{Operation, OperationKind, Operations};
use serde::Serialize;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use self::watch::{Progress, watch};
use super::Context;
use crate::exit::{Exit, absent, usage};
use crate::outboxes;
use crate::wiring::{OnStore, WholeStore, Wired};

/// How often progress is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How often an operation that another process runs is asked for.
const CLAIM_EVERY: Duration = Duration::from_secs(1);
/// Entries of its log that are looked at for what an operation left.
const LOGGED: usize = 50;

/// What to do with operations.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    postrider ops ls\n  \
    postrider ops watch 0192f5c0-7d2e-7000-8000-000000000001\n  \
    postrider ops cancel 0192f5c0-7d2e-7000-8000-000000000001 --reason 'the wrong group'\n\n\
    An operation is a replay, a discard, an edit or a step of a migration: work that goes on when nobody watches. `postrider serve` \
    runs what is waiting; where nobody serves, `ops resume` does.")]
pub(crate) struct OpsArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// List operations, the newest first
    Ls {
        /// At most so many
        #[arg(long, default_value_t = 20, value_parser = super::rows, value_name = "N")]
        limit: usize,
    },
    /// Show one operation
    Get {
        /// Its id, as `postrider ops ls` shows it
        #[arg(value_parser = super::id)]
        id: Uuid,
    },
    /// Watch an operation until it is over; Ctrl-C stops watching, not the operation
    Watch {
        /// Its id, as `postrider ops ls` shows it
        #[arg(value_parser = super::id)]
        id: Uuid,
    },
    /// Run an operation here that nobody runs
    Resume {
        /// Its id, as `postrider ops ls` shows it
        #[arg(value_parser = super::id)]
        id: Uuid,
        /// Say what would be run, and run nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// End an operation before its time; what is done stays done
    Cancel {
        /// Its id, as `postrider ops ls` shows it
        #[arg(value_parser = super::id)]
        id: Uuid,
        /// Why, for the audit log
        #[arg(long, default_value = "", hide_default_value = true, value_name = "TEXT")]
        reason: String,
        /// Say what would be cancelled, and cancel nothing
        #[arg(long)]
        dry_run: bool,
    },
}

impl OpsArgs {
    /// Whether Ctrl-C detaches from it rather than cutting it off.
    pub(crate) fn detaches(&self) -> bool {
        matches!(self.what, What::Watch { .. } | What::Resume { .. })
    }
}

/// The command, on a store.
pub(crate) struct Ops<'a> {
    pub(crate) args: OpsArgs,
    pub(crate) context: &'a Context,
}

impl OnStore for Ops<'_> {
    async fn run<S: WholeStore>(self, wired: Wired<S>) -> anyhow::Result<Exit> {
        let context = self.context;
        wired.store.check().await?;
        let open = outboxes::open(&wired.store, &context.config, &context.clock)?;
        let stores: Vec<S> = outboxes::databases(open).into_iter().map(|outbox| outbox.store).collect();
        match self.args.what {
            What::Ls { limit } => {
                let mut rows = Vec::new();
                for store in &stores {
                    rows.extend(store.operations(None, limit).await?);
                }
                rows.sort_by_key(|operation| std::cmp::Reverse((operation.created_at, operation.id)));
                rows.truncate(limit);
                let header = ["ID", "KIND", "STATE", "DONE", "SKIPPED", "TOTAL", "BY", "CREATED"];
                context.output.rows(&header, &rows, row)?;
                Ok(Exit::Ok)
            }
            What::Get { id } => {
                let store = place(&stores, id).await?;
                let operation = find(store, id).await?;
                let left = left(store, id).await?;
                let text = format!("{}{}", told(&operation), told_left(&left));
                context.output.one(&Shown { operation: &operation, left: &left }, &text)?;
                Ok(Exit::Ok)
            }
            What::Watch { id } => watch(place(&stores, id).await?, id, context).await,
            What::Resume { id, dry_run } => {
                let store = place(&stores, id).await?;
                let operation = find(store, id).await?;
                if dry_run {
                    context.output.one(&operation, &told(&operation))?;
                    context.output.note(
                        "this would be run here, unless it ended or somebody runs it; nothing was changed",
                    );
                    return Ok(Exit::Ok);
                }
                run_here(id, store, context).await
            }
            What::Cancel { id, reason, dry_run } => {
                cancel(place(&stores, id).await?, id, &reason, dry_run, context).await
            }
        }
    }
}

/// The database that has an operation: that of its outbox, or the first. Those that are away are left out.
async fn place<S: Operations>(stores: &[S], id: Uuid) -> anyhow::Result<&S> {
    for store in stores {
        if matches!(store.operation(id).await, Ok(Some(_))) {
            return Ok(store);
        }
    }
    stores.first().ok_or_else(|| usage("there is no database"))
}

async fn find<S: Operations>(store: &S, id: Uuid) -> anyhow::Result<Operation> {
    let found = store.operation(id).await?;
    found.ok_or_else(|| absent(format!("there is no operation {id}; `postrider ops ls` lists them")))
}

/// An operation, and what it left as it was.
#[derive(Serialize)]
struct Shown<'a> {
    #[serde(flatten)]
    operation: &'a Operation,
    /// The newest items that it left, and why.
    left: &'a [serde_json::Value],
}

/// What an operation left as it was, as the log has it: the newest of them.
async fn left<S: Operations>(store: &S, id: Uuid) -> anyhow::Result<Vec<serde_json::Value>> {
    let log = store.log_of(&format!("operation/{id}"), LOGGED).await?;
    let of_items = log.into_iter().filter(|entry| entry.action.starts_with("operation.item_"));
    Ok(of_items.filter_map(|entry| entry.detail).collect())
}

fn told_left(left: &[serde_json::Value]) -> String {
    let word = |detail: &serde_json::Value, name: &str| match &detail[name] {
        serde_json::Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    left.iter().fold(String::new(), |text, detail| {
        format!("{text}\nleft       {}: {}", word(detail, "item"), word(detail, "error"))
    })
}

fn row(operation: &Operation) -> Vec<String> {
    vec![
        operation.id.to_string(),
        operation.kind.as_str().to_owned(),
        operation.state.as_str().to_owned(),
        operation.done.to_string(),
        operation.skipped.to_string(),
        operation.total.to_string(),
        operation.created_by.clone(),
        operation.created_at.to_string(),
    ]
}

fn told(operation: &Operation) -> String {
    let mut text = format!(
        "operation  {}\nkind       {}\nstate      {}\ndone       {} of {}, {} skipped\nby         {}\ncreated    {}",
        operation.id,
        operation.kind.as_str(),
        operation.state.as_str(),
        operation.done,
        operation.total,
        operation.skipped,
        operation.created_by,
        operation.created_at,
    );
    let more = [
        ("reason     ", operation.reason.clone()),
        ("rate       ", operation.rate.map(|rate| format!("{rate} a second"))),
        ("started    ", operation.started_at.map(|at| at.to_string())),
        ("finished   ", operation.finished_at.map(|at| at.to_string())),
        ("run by     ", operation.runner.clone()),
        ("error      ", operation.error.clone()),
        ("plan       ", Some(operation.plan.to_string())),
    ];
    for (name, value) in more {
        if let Some(value) = value {
            text = format!("{text}\n{name}{value}");
        }
    }
    text
}

async fn cancel<S: Operations>(
    store: &S,
    id: Uuid,
    reason: &str,
    dry_run: bool,
    context: &Context,
) -> anyhow::Result<Exit> {
    let operation = find(store, id).await?;
    if operation.state.is_over() {
        return Err(usage(format!(
            "operation {id} is {} already; nothing was changed",
            operation.state.as_str()
        )));
    }
    let rest = operation.total.saturating_sub(operation.done + operation.skipped);
    if dry_run {
        context.output.note(&format!("would cancel {id} with {rest} items to go; nothing was changed"));
        return Ok(Exit::Ok);
    }
    context.output.confirm(&format!("Cancel {id} with {rest} items to go?"))?;
    if !store.cancel_operation(id, &context.environment.actor(), reason).await? {
        return Err(usage(format!("operation {id} was over before it could be cancelled")));
    }
    let operation = find(store, id).await?;
    context.output.one(&operation, &format!("cancelled; {} items are done and stay so", operation.done))?;
    Ok(Exit::Ok)
}

/// Runs an operation in this process and shows how it goes. Where another process was faster it is only watched, for as long as
/// that process lives. Ctrl-C detaches: the operation waits for whoever serves.
pub(crate) async fn run_here<S: WholeStore>(id: Uuid, store: &S, context: &Context) -> anyhow::Result<Exit> {
    let operation = find(store, id).await?;
    let runner = Runner::new(store.clone(), context.clock.clone(), RunnerConfig::default());
    let (letters, events) = (LetterWork::new(context.clock.clone()), EventWork::new(context.clock.clone()));
    let edits = EditWork::new(context.clock.clone());
    let work: &dyn Work<S> = match operation.kind {
        OperationKind::ReplayLetters | OperationKind::DiscardLetters => &letters,
        OperationKind::EditLetters => &edits,
        OperationKind::ReplayOutbox => &events,
        OperationKind::CompareBuses | OperationKind::FinishMigration => {
            return Err(usage(
                "a migration's work is done by `postrider serve`, or by `postrider migration` itself",
            ));
        }
    };
    let stop = CancellationToken::new();
    let running = run_or_wait(id, store, &runner, work, &stop, context);
    let mut progress = Progress::new(context);
    tokio::pin!(running);
    let interrupted = tokio::signal::ctrl_c();
    tokio::pin!(interrupted);
    let mut detached = false;
    loop {
        tokio::select! {
            ended = &mut running => {
                if !ended? {
                    break;
                }
                return watch(store, id, context).await;
            }
            _ = &mut interrupted, if !detached => {
                detached = true;
                stop.cancel();
            }
            () = context.clock.sleep(LOOK_EVERY) => progress.show(&find(store, id).await?),
        }
    }
    progress.end();
    context.output.note(&format!(
        "detached; operation {id} waits for `postrider serve`, or for `postrider ops resume {id}`"
    ));
    Ok(Exit::Interrupted)
}

/// Until the operation is over: true, or nobody wants to wait for that any more. Who has it may die with it, and then its lease runs out.
async fn run_or_wait<S: WholeStore>(
    id: Uuid,
    store: &S,
    runner: &Runner<S>,
    work: &dyn Work<S>,
    stop: &CancellationToken,
    context: &Context,
) -> anyhow::Result<bool> {
    let mut told = false;
    loop {
        match runner.run(id, work, stop).await? {
            Some(Ended::Detached) => return Ok(false),
            Some(Ended::Done | Ended::Failed) => return Ok(true),
            Some(Ended::TakenAway) | None => {}
        }
        let operation = find(store, id).await?;
        if operation.state.is_over() {
            return Ok(true);
        }
        if let Some(other) = operation.runner.filter(|_| !told) {
            told = true;
            context.output.note(&format!("{other} runs it; should that end, it goes on here"));
        }
        tokio::select! {
            () = stop.cancelled() => return Ok(false),
            () = context.clock.sleep(CLAIM_EVERY) => {}
        }
    }
}
