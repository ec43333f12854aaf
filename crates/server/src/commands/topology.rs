//! `postrider topology`: see what a topology is, before and beside any broker, and give it to a running RabbitMQ.

mod apply;
mod diagram;
mod drift;
mod export;
mod live;
mod plan;
mod presets;
mod render;
mod route;
mod show;

pub(crate) use self::show::counts;

use std::borrow::Cow;

use clap::{Args, Subcommand};
use postrider::topology::{Layout, Preset};

use super::Context;
use crate::config::check_topology;
use crate::exit::{Exit, usage};

/// What to do with a topology.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    postrider topology presets\n  \
    postrider topology render --preset event-bus --set service=wms-cincout --set service=wms-stock\n  \
    postrider topology diagram --preset fis --format svg > fis.svg\n  \
    postrider topology route shop.order.placed\n  \
    postrider topology plan --preset fis --out fis.plan && postrider topology apply fis.plan\n  \
    postrider topology drift\n\n\
    Without --preset it is the topology of the configuration.")]
pub(crate) struct TopologyArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// List the presets and their parameters
    Presets(presets::PresetsArgs),
    /// Print a topology as configuration that can be pasted into postrider.toml, or as JSON
    Render(render::RenderArgs),
    /// Draw it, as mermaid or as SVG
    Diagram(diagram::DiagramArgs),
    /// Say what a running RabbitMQ lacks, and what an apply would do about it
    Plan(plan::PlanArgs),
    /// Give a running RabbitMQ what the topology says; queues are replaced without losing a message
    Apply(apply::ApplyArgs),
    /// Check that a running RabbitMQ still has what the topology says, and nothing more
    Drift(drift::DriftArgs),
    /// Print a running RabbitMQ's topology as configuration
    Export(export::ExportArgs),
    /// Say which queues a key reaches, and why
    Route(route::RouteArgs),
}

/// Which topology.
#[derive(Debug, Args)]
pub(crate) struct Which {
    /// A preset instead of the topology of the configuration
    #[arg(long, value_name = "NAME")]
    preset: Option<String>,
    /// A parameter of the preset; some may be given more than once
    #[arg(long, value_name = "NAME=VALUE", requires = "preset")]
    set: Vec<String>,
}

impl Which {
    /// The layout, and what is doubtful about it on stderr.
    pub(crate) fn layout<'a>(&self, context: &'a Context) -> anyhow::Result<Cow<'a, Layout>> {
        let layout = match &self.preset {
            None => Cow::Borrowed(&context.config.own.layout),
            Some(name) => {
                let preset = Preset::find(name).map_err(|error| usage(error.to_string()))?;
                let set = self.set.iter().map(|text| parameter(text)).collect::<Result<Vec<_>, _>>()?;
                let layout = preset.layout(&set).map_err(|error| usage(error.to_string()))?;
                // Names that parameters make may meet others of the preset, or the broker's own.
                let checked = check_topology(&layout.topology);
                checked.map_err(|(of, problem)| usage(format!("{of}: {problem}")))?;
                Cow::Owned(layout)
            }
        };
        for doubt in layout.topology.doubts() {
            context.output.note(&format!("warning: {doubt}"));
        }
        Ok(layout)
    }
}

fn parameter(text: &str) -> anyhow::Result<(String, String)> {
    match text.split_once('=') {
        Some((name, value)) => Ok((name.trim().to_owned(), value.trim().to_owned())),
        None => Err(usage(format!(
            "--set {text}: write NAME=VALUE; `postrider topology presets` lists the names"
        ))),
    }
}

/// Runs one of them.
pub(crate) async fn run(args: &TopologyArgs, context: &Context) -> anyhow::Result<Exit> {
    match &args.what {
        What::Presets(args) => presets::run(args, context),
        What::Render(args) => render::run(args, context),
        What::Diagram(args) => diagram::run(args, context),
        What::Plan(args) => plan::run(args, context).await,
        What::Apply(args) => apply::run(args, context).await,
        What::Drift(args) => drift::run(args, context).await,
        What::Export(args) => export::run(args, context).await,
        What::Route(args) => route::run(args, context).await,
    }
}
