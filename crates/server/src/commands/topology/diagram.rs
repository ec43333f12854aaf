//! `postrider topology diagram`: the topology as a picture.

use clap::{Args, ValueEnum};

use super::super::Context;
use super::Which;
use crate::exit::Exit;

/// Which topology, and how it is drawn.
#[derive(Debug, Args)]
pub(super) struct DiagramArgs {
    #[command(flatten)]
    which: Which,
    /// How it is drawn
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    format: Drawing,
}

#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum Drawing {
    /// Text that many pages draw by themselves
    #[default]
    Mermaid,
    /// A picture that every browser shows, on light and on dark pages
    Svg,
}

pub(super) fn run(args: &DiagramArgs, context: &Context) -> anyhow::Result<Exit> {
    let layout = args.which.layout(context)?;
    let drawn = match args.format {
        Drawing::Mermaid => layout.to_mermaid(),
        Drawing::Svg => layout.to_svg(),
    };
    context.output.one(&drawn, drawn.trim_end())?;
    Ok(Exit::Ok)
}
