//! `postrider topology plan`: what an apply would do, without doing it.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;
use postrider::topology::Topology;
use postrider::topology::plan::Plan;
use serde::{Deserialize, Serialize};

use super::super::Context;
use super::{Which, live, show};
use crate::exit::Exit;

/// Which topology, and what may be removed.
#[derive(Debug, Args)]
#[command(after_help = "Changes nothing. Exit code 3 if there is something to do, 0 if there is not.\n\n\
    Signs: + is added, ~ is changed, -/+ is replaced without losing a message, - is removed, ! stands in the way.")]
pub(super) struct PlanArgs {
    /// Also remove bindings on these queues that nobody wants, wait queues of an earlier ladder, and our own policies
    /// whose queue is gone
    #[arg(long)]
    prune: bool,
    /// Save the plan for `apply FILE`, which refuses it once the broker has changed
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    which: Which,
}

/// A plan in a file.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Saved {
    /// The version of this form.
    pub(super) format: u32,
    /// What is wanted.
    pub(super) wanted: Topology,
    /// Whether it prunes.
    pub(super) prune: bool,
    /// What it says.
    pub(super) plan: Plan,
}

/// The form that this version writes. Another one, too, where what the fingerprint is made of is another.
pub(super) const FORMAT: u32 = 2;

pub(super) async fn run(args: &PlanArgs, context: &Context) -> anyhow::Result<Exit> {
    let layout = live::layout(&args.which, context).await?;
    let operator = live::operator(context, layout.vhost.as_ref())?;
    let plan = operator.plan(&layout.topology, args.prune).await?;
    context.output.one(&plan, &show::plan(&plan, context))?;
    let exit = if plan.is_empty() { Exit::Ok } else { Exit::Unhealthy };
    if let Some(file) = &args.out {
        let saved = Saved { format: FORMAT, wanted: layout.topology.clone(), prune: args.prune, plan };
        let text = serde_json::to_string_pretty(&saved)?;
        std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))?;
        context
            .output
            .note(&format!("saved; carry it out with: postrider topology apply {}", file.display()));
    }
    Ok(exit)
}
