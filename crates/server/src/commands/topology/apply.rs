//! `postrider topology apply`: gives the broker what the topology says, after asking.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use postrider::rabbitmq::Operator;
use postrider::rabbitmq::management::{ManagementError, ManagementErrorKind};
use postrider::store::LogEntry;
use postrider::topology::Topology;
use postrider::topology::plan::Plan;
use serde_json::json;

use super::super::Context;
use super::plan::{FORMAT, Saved};
use super::{Which, live, show};
use crate::config::Backends;
use crate::desk::write_down;
use crate::exit::{Exit, usage};
use crate::wiring::{self, OnStore, WholeStore, Wired};

/// Which topology or saved plan, and how.
#[derive(Debug, Args)]
#[command(
    after_help = "Can be repeated: what is there already is left as it is. A queue whose arguments differ is replaced: its \
    messages wait in NAME.postrider-replacing, publishers go on, consumers are away for a moment and come back. If that is \
    interrupted, apply again and it goes on.\n\n\
    Without the management plugin everything is declared, and policies, which need it, are not set.\n\n\
    Exit codes: 0 applied or nothing to do, 1 failed before a step was done, 3 refused, 5 declined, 6 partly done."
)]
pub(super) struct ApplyArgs {
    /// A plan that `plan --out` saved
    #[arg(value_name = "FILE", conflicts_with_all = ["preset", "prune"])]
    file: Option<PathBuf>,
    /// Also remove what `plan --prune` shows
    #[arg(long)]
    prune: bool,
    /// Show the plan and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Why, for the audit log
    #[arg(long, default_value = "", hide_default_value = true, value_name = "TEXT")]
    reason: String,
    /// How long consumers of a queue that is replaced may take to settle what they have, such as 90s
    #[arg(long, value_name = "TIME", default_value = "60s")]
    wait: String,
    #[command(flatten)]
    which: Which,
}

pub(super) async fn run(args: &ApplyArgs, context: &Context) -> anyhow::Result<Exit> {
    let wait = patience(&args.wait)?;
    let (operator, wanted, plan) = if let Some(file) = &args.file {
        match saved(file, context).await? {
            Ok(all) => all,
            Err(exit) => return Ok(exit),
        }
    } else {
        let layout = live::layout(&args.which, context).await?;
        let operator = live::operator(context, layout.vhost.as_ref())?;
        match operator.plan(&layout.topology, args.prune).await {
            Ok(plan) => (operator, layout.topology.clone(), plan),
            Err(error) => {
                let absent = error.source.as_ref().and_then(|cause| cause.downcast_ref::<ManagementError>());
                return match absent {
                    Some(cause) if cause.kind == ManagementErrorKind::Absent => {
                        context.output.note(&cause.message);
                        declare(args, &layout.topology, layout.vhost.as_ref(), context).await
                    }
                    _ => Err(error.into()),
                };
            }
        }
    };
    context.output.note(show::plan(&plan, context).trim_end());
    if !plan.blocked.is_empty() {
        context.output.note("nothing was changed: mend what stands in the way first");
        return Ok(Exit::Unhealthy);
    }
    if plan.is_empty() || args.dry_run {
        context.output.one(&json!({ "applied": 0, "plan": plan }), &show::counts(&plan))?;
        return Ok(Exit::Ok);
    }
    context.output.confirm("apply this?")?;
    write_down_here(args, &plan.vhost, context).await;
    let output = context.output;
    operator.apply(&plan, wait, &move |text| output.note(&text)).await.map_err(|error| {
        let (done, of) = (error.done, error.of);
        anyhow::Error::new(error)
            .context(format!("{done} of {of} steps are done, nothing is lost; apply again to go on"))
    })?;
    let left = operator.plan(&wanted, false).await?;
    if !left.is_empty() {
        context.output.note(&format!("somebody changed the broker meanwhile; {}", show::counts(&left)));
        return Ok(Exit::Partly);
    }
    let text = format!("applied {} steps in virtual host {}", plan.steps.len(), plan.vhost);
    context.output.one(&json!({ "applied": plan.steps.len(), "plan": plan }), &text)?;
    Ok(Exit::Ok)
}

/// Puts it into the audit log, where there is one: a topology may be applied before there is a database.
async fn write_down_here(args: &ApplyArgs, vhost: &str, context: &Context) {
    let entry = context.log_entry("topology.applied", format!("topology/{vhost}"), &args.reason);
    if matches!(context.config.backends, Backends::Networked { .. })
        && let Err(error) = wiring::open(context, WriteDown(entry)).await
    {
        context.output.note(&format!("this is not in the audit log: {error:#}"));
    }
}

/// An entry of the audit log, on whatever store.
struct WriteDown(LogEntry);

impl OnStore for WriteDown {
    async fn run<S: WholeStore>(self, wired: Wired<S>) -> anyhow::Result<Exit> {
        write_down(&wired.store, self.0).await?;
        Ok(Exit::Ok)
    }
}

/// A saved plan, if the broker is still as it was then.
async fn saved(
    file: &PathBuf,
    context: &Context,
) -> anyhow::Result<Result<(Operator, Topology, Plan), Exit>> {
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let Saved { format, wanted, prune, plan } = serde_json::from_str(&text)
        .map_err(|error| usage(format!("{} is no saved plan: {error}", file.display())))?;
    if format != FORMAT {
        return Err(usage(format!(
            "{} was saved by another version of postrider; plan again",
            file.display()
        )));
    }
    let vhost = postrider::topology::VhostName::new(&plan.vhost)?;
    let operator = live::operator(context, Some(&vhost))?;
    let now = operator.plan(&wanted, prune).await?;
    if now.fingerprint != plan.fingerprint {
        context.output.note(&format!(
            "the broker has changed since {} was saved, or another user saved it; nothing was changed. Plan again: {}",
            file.display(),
            show::counts(&now)
        ));
        return Ok(Err(Exit::Unhealthy));
    }
    Ok(Ok((operator, wanted, now)))
}

/// Without the management API: declare everything, and say what that leaves unprotected.
async fn declare(
    args: &ApplyArgs,
    wanted: &Topology,
    vhost: Option<&postrider::topology::VhostName>,
    context: &Context,
) -> anyhow::Result<Exit> {
    let count = wanted.exchanges.len() + wanted.queues.len() + wanted.bindings.len();
    let text = format!("{count} exchanges, queues and bindings are declared without it");
    if args.dry_run {
        context.output.one(&json!({ "declared": 0 }), &format!("{text}; nothing was changed"))?;
        return Ok(Exit::Ok);
    }
    context.output.note(&text);
    context.output.confirm("declare them?")?;
    write_down_here(args, vhost.map_or("", postrider::topology::VhostName::as_str), context).await;
    let broker = wiring::topology_broker(context, vhost).await?;
    let declared = broker.declare(wanted).await;
    broker.close().await;
    declared?;
    let unset: Vec<_> = wanted.policies(true).into_iter().map(|policy| policy.name).collect();
    if !unset.is_empty() {
        context.output.note(&format!(
            "warning: policies need the management API, so these are not set: {}. Until they are, dead letters may be lost when \
             their target is away, and unroutable messages vanish",
            unset.join(", ")
        ));
    }
    context
        .output
        .one(&json!({ "declared": count, "policies_not_set": unset }), &format!("declared {count}"))?;
    Ok(Exit::Ok)
}

fn patience(text: &str) -> anyhow::Result<Duration> {
    let wrong = || usage(format!("--wait {text}: write a time with its unit, such as 90s or 5m"));
    let wait = text.parse::<jiff::SignedDuration>().map_err(|_| wrong())?;
    Duration::try_from(wait).map_err(|_| wrong())
}
