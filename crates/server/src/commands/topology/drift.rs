//! `postrider topology drift`: whether the broker still has what the topology says, and nothing more.

use clap::Args;

use super::super::Context;
use super::{Which, live, show};
use crate::exit::Exit;

/// Which topology.
#[derive(Debug, Args)]
#[command(
    after_help = "Changes nothing. Exit code 3 if something differs: what is missing (policies that you may not set, \
    too), what has other settings, and what is there beyond it on these queues (bindings, wait queues of an earlier ladder)."
)]
pub(super) struct DriftArgs {
    #[command(flatten)]
    which: Which,
}

pub(super) async fn run(args: &DriftArgs, context: &Context) -> anyhow::Result<Exit> {
    let layout = live::layout(&args.which, context).await?;
    let operator = live::operator(context, layout.vhost.as_ref())?;
    let plan = operator.plan(&layout.topology, false).await?;
    let drifted = plan.drift() > 0;
    let text = if drifted {
        show::plan(&plan, context)
    } else {
        format!("virtual host {} has what it should have", plan.vhost)
    };
    context.output.one(&plan, &text)?;
    Ok(if drifted { Exit::Unhealthy } else { Exit::Ok })
}
