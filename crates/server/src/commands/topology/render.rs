//! `postrider topology render`: the whole topology, as configuration or as JSON.

use clap::Args;

use super::super::Context;
use super::Which;
use crate::config::to_toml;
use crate::exit::Exit;

/// Which topology.
#[derive(Debug, Args)]
pub(super) struct RenderArgs {
    #[command(flatten)]
    which: Which,
}

pub(super) fn run(args: &RenderArgs, context: &Context) -> anyhow::Result<Exit> {
    let layout = args.which.layout(context)?;
    context.output.one(&*layout, to_toml(&layout).trim_end())?;
    Ok(Exit::Ok)
}
