//! `postrider topology export`: a running broker's topology as configuration.

use std::fmt::Write as _;

use clap::Args;
use postrider::topology::export::{Export, export};
use postrider::topology::{ExchangeKind, Layout, VhostName};

use super::super::Context;
use super::live;
use crate::config::to_toml;
use crate::exit::{Exit, absent, usage};

/// Which part of the broker.
#[derive(Debug, Args)]
#[command(
    after_help = "Prints configuration that can be pasted into postrider.toml. Planned against the same broker it leaves \
    nothing to do. What it cannot hold is listed at its head and on stderr."
)]
pub(super) struct ExportArgs {
    /// Another virtual host than the connection's
    #[arg(long, value_name = "NAME")]
    vhost: Option<String>,
}

pub(super) async fn run(args: &ExportArgs, context: &Context) -> anyhow::Result<Exit> {
    let named =
        args.vhost.as_ref().map(VhostName::new).transpose().map_err(|error| usage(error.to_string()))?;
    let vhost = named.as_ref().or(context.config.own.layout.vhost.as_ref());
    let operator = live::operator(context, vhost)?;
    let observed = operator.observe().await?;
    if !observed.vhost_exists {
        return Err(absent(format!("there is no virtual host {}", observed.vhost)));
    }
    let Export { topology, left_out } = export(&observed);
    for line in &left_out {
        context.output.note(&format!("left out: {line}"));
    }
    let topic = topology.exchanges.iter().find(|exchange| exchange.kind == ExchangeKind::Topic);
    let own = &context.config.own.layout.exchange;
    let exchange = match topology.find_exchange(own).or(topic).or(topology.exchanges.first()) {
        Some(exchange) => exchange.name.clone(),
        None => own.clone(),
    };
    let vhost = VhostName::new(&observed.vhost).ok();
    let layout = Layout { vhost, collect: false, ..Layout::of(topology, Vec::new(), exchange) };
    let mut text =
        format!("# The topology of virtual host {}, RabbitMQ {}.\n", observed.vhost, observed.version);
    for line in &left_out {
        let _ = writeln!(text, "# left out: {}", line.replace('\n', " "));
    }
    context.output.one(&layout, (text + &to_toml(&layout)).trim_end())?;
    Ok(Exit::Ok)
}
