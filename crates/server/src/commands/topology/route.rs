//! `postrider topology route`: which queues a key reaches, and why; by the topology, or by a broker's bindings.

use std::fmt::Write as _;

use clap::Args;
use postrider::topology::export::{Export, in_effect};
use postrider::topology::{DeathStep, ExchangeName, ExchangeStep, Explanation, ReachedQueue, RoutingKey};

use super::super::Context;
use super::{Which, live};
use crate::exit::{Exit, absent, usage};

/// A key, and where it is published to.
#[derive(Debug, Args)]
pub(super) struct RouteArgs {
    /// The routing key, such as shop.order.placed
    #[arg(value_name = "KEY")]
    key: String,
    /// The exchange it is published to; "" is the default exchange [default: the one that events go to]
    #[arg(long, value_name = "NAME")]
    exchange: Option<String>,
    /// By what a running RabbitMQ has, not by what the topology says
    #[arg(long)]
    live: bool,
    #[command(flatten)]
    which: Which,
}

pub(super) async fn run(args: &RouteArgs, context: &Context) -> anyhow::Result<Exit> {
    let mut layout = live::layout(&args.which, context).await?;
    if args.live {
        let operator = live::operator(context, layout.vhost.as_ref())?;
        let Export { topology, left_out } = in_effect(&operator.observe().await?);
        for line in left_out.iter().filter(|line| !line.starts_with("policy")) {
            context.output.note(&format!("not looked at: {line}"));
        }
        layout.to_mut().topology = topology;
    }
    let key = RoutingKey::new(&args.key).map_err(|error| usage(error.to_string()))?;
    let exchange = match &args.exchange {
        Some(name) => ExchangeName::new(name).map_err(|error| usage(error.to_string()))?,
        None => layout.exchange.clone(),
    };
    if !exchange.is_default() && layout.topology.find_exchange(&exchange).is_none() {
        let known: Vec<_> = layout.topology.exchanges.iter().map(|exchange| exchange.name.as_str()).collect();
        return Err(absent(format!("there is no exchange {exchange} here; there are {}", known.join(", "))));
    }
    let told = layout.topology.explain(&exchange, &key);
    context.output.one(&told, for_people(&told).trim_end())?;
    Ok(Exit::Ok)
}

fn for_people(told: &Explanation) -> String {
    let mut text = String::new();
    for step in &told.steps {
        write_step(&mut text, step, told.routing_key.as_str());
    }
    if told.queues.is_empty() {
        text +=
            "it reaches no queue: a mandatory message is returned to its publisher, any other is dropped\n";
    }
    for reached in &told.queues {
        write_queue(&mut text, reached);
    }
    text
}

fn write_step(text: &mut String, step: &ExchangeStep, key: &str) {
    let kind = step.kind.map_or("the default exchange", |kind| kind.as_str());
    let _ = writeln!(text, "exchange {:?} ({kind}), key {key:?}", step.exchange.as_str());
    for binding in &step.bindings {
        let (sign, verb) = if binding.matches { ("✓", "wants it") } else { ("✗", "does not") };
        let _ = writeln!(text, "  {sign} {:?} for queue {} {verb}", binding.key.as_str(), binding.queue);
    }
    if step.bindings.is_empty() {
        let _ = writeln!(text, "  no queue is bound");
    }
    let wanted = step.bindings.iter().any(|binding| binding.matches);
    if let Some(alternate) = step.alternate.as_ref().filter(|_| !wanted) {
        let _ = writeln!(text, "  nobody wants it: on to the alternate exchange {alternate}");
    }
}

fn write_queue(text: &mut String, reached: &ReachedQueue) {
    let _ = writeln!(text, "it reaches queue {}", reached.queue);
    for DeathStep { from, exchange, routing_key, queues, after_ms } in &reached.deaths {
        let when = after_ms.map_or("rejected".to_owned(), |ms| format!("after {ms} ms"));
        let names: Vec<_> = queues.iter().map(ToString::to_string).collect();
        let to = if names.is_empty() { "no queue, and is lost".to_owned() } else { names.join(", ") };
        let way = if exchange.is_default() {
            String::new()
        } else {
            format!(" through {exchange} as {:?}", routing_key.as_str())
        };
        let _ = writeln!(text, "  in {from}, {when}: it goes{way} to {to}");
    }
}
