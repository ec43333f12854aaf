//! `postrider publish`: commits one event to the outbox and prints its id.

use std::io::Read as _;

use anyhow::Context as _;
use clap::Args;
use jiff::Timestamp;
use postrider::envelope::EventType;
use postrider::store::Registration;
use postrider::topology::{ExchangeName, RoutingKey, Topology};
use postrider::{Envelope, Event};
use serde::Serialize;
use serde_json::value::RawValue;

use super::Context;
use crate::api::append;
use crate::event_input::EventInput;
use crate::exit::{Exit, usage};
use crate::wiring::{self, OnStore, WholeStore, Wired};

/// An event, by flags.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    postrider publish shop.order.placed --data '{\"total\": \"12.50\"}'\n  \
    postrider publish shop.order.placed --data @order.json --aggregate shop.order/42 --tenant acme\n  \
    jq .payload in.json | postrider publish shop.order.placed --data - --id evt_987654321\n\n\
    The event is committed to the outbox; the relay of `postrider serve` publishes it. A second event with the same --id \
    is refused, so a repeat is safe.")]
pub(crate) struct PublishArgs {
    /// What happened, two words or more: shop.order.placed
    #[arg(value_name = "TYPE")]
    event_type: String,
    /// The payload: JSON, @FILE, or - for stdin
    #[arg(long, value_name = "JSON|@FILE|-")]
    data: String,
    /// The entity it happened to, such as shop.order/42; its events keep their order
    #[arg(long, value_name = "TYPE/ID")]
    aggregate: Option<String>,
    /// Whose it is
    #[arg(long, value_name = "GROUP[/SUBSIDIARY]")]
    tenant: Option<String>,
    /// Events of one key keep their order [default: that of the aggregate]
    #[arg(long)]
    key: Option<String>,
    /// Its id [default: a new one]
    #[arg(long)]
    id: Option<String>,
    /// Publish it not before this time, such as 2026-12-24T18:00:00Z
    #[arg(long, value_name = "TIME", value_parser = time)]
    at: Option<Timestamp>,
    /// When it happened [default: now]
    #[arg(long, value_name = "TIME", value_parser = time)]
    occurred_at: Option<Timestamp>,
    /// Another exchange than the outbox's own
    #[arg(long)]
    exchange: Option<String>,
    /// Check it and show what would be committed, and commit nothing
    #[arg(long)]
    dry_run: bool,
}

struct Append<'a> {
    event: Event,
    context: &'a Context,
}

#[derive(Serialize)]
struct Committed {
    id: String,
}

/// Checks the event before any server is asked.
pub(crate) async fn run(args: PublishArgs, context: &Context) -> anyhow::Result<Exit> {
    let dry_run = args.dry_run;
    let limits = context.config.settings.limits;
    let event = args
        .into_input(limits.max_payload_bytes)?
        .into_event(limits)
        .map_err(|error| usage(error.to_string()))?;
    if dry_run {
        warn_unroutable(&event, &[], context);
        return show(event, context);
    }
    wiring::open(context, Append { event, context }).await
}

impl OnStore for Append<'_> {
    async fn run<S: WholeStore>(self, wired: Wired<S>) -> anyhow::Result<Exit> {
        wired.store.check().await?;
        // Who may only publish cannot read them, and is warned by the configuration alone.
        let known = wired.store.registrations().await.unwrap_or_default();
        warn_unroutable(&self.event, &known, self.context);
        let id = append(&wired.store, self.event).await?.to_string();
        self.context.output.one(&Committed { id: id.clone() }, &id)?;
        Ok(Exit::Ok)
    }
}

impl PublishArgs {
    fn into_input(self, max: usize) -> anyhow::Result<EventInput> {
        let aggregate_id =
            self.aggregate.as_deref().map(|given| aggregate_id(&self.event_type, given)).transpose()?;
        Ok(EventInput {
            data: payload(&self.data, max)?,
            event_type: self.event_type,
            aggregate_id,
            tenant: self.tenant,
            key: self.key,
            id: self.id,
            at: self.at,
            occurred_at: self.occurred_at,
            exchange: self.exchange,
        })
    }
}

/// `shop.order/42` of a `shop.order.placed` is 42. Another aggregate is a mistake: the type says which one it is.
fn aggregate_id(event_type: &str, given: &str) -> anyhow::Result<String> {
    let event_type = EventType::new(event_type)?;
    let aggregate = event_type.aggregate_type();
    match given.split_once('/') {
        Some((named, id)) if named == aggregate => Ok(id.to_owned()),
        None => Ok(given.to_owned()),
        Some(_) => Err(usage(format!(
            "--aggregate {given}: an event of the type {event_type} happens to a {aggregate}, all words of its type but \
             the last; write --aggregate {aggregate}/ID"
        ))),
    }
}

/// Reads the payload, at most one byte more than allowed, and checks that it is JSON.
fn payload(data: &str, max: usize) -> anyhow::Result<Box<RawValue>> {
    let limit = u64::try_from(max).unwrap_or(u64::MAX).saturating_add(1);
    let mut bytes = Vec::new();
    let place = match data.strip_prefix('@') {
        Some(path) => {
            let file = std::fs::File::open(path).with_context(|| format!("cannot read {path}"))?;
            let size = file.metadata().map_or(0, |metadata| metadata.len());
            if size > limit {
                return Err(too_large(&format!("{size} bytes, more than the {max} allowed")));
            }
            file.take(limit).read_to_end(&mut bytes).with_context(|| format!("cannot read {path}"))?;
            path
        }
        None if data == "-" => {
            std::io::stdin().take(limit).read_to_end(&mut bytes).context("cannot read stdin")?;
            if bytes.len() > max {
                return Err(too_large(&format!("more than the {max} bytes allowed")));
            }
            "stdin"
        }
        None => {
            bytes.extend_from_slice(data.as_bytes());
            "--data"
        }
    };
    serde_json::from_slice(&bytes).map_err(|error| usage(format!("{place} is not JSON: {error}")))
}

fn too_large(size: &str) -> anyhow::Error {
    usage(format!(
        "the payload has {size} (limits.max_payload_bytes); store the body elsewhere, such as in an object store, and send a \
         reference to it"
    ))
}

/// The exchange without a name is called what it is.
fn spoken(exchange: &ExchangeName) -> &str {
    if exchange.as_str().is_empty() { "the default exchange" } else { exchange.as_str() }
}

fn time(text: &str) -> Result<Timestamp, String> {
    text.parse().map_err(|_| "write a time with its zone, such as 2026-12-24T18:00:00Z".to_owned())
}

/// An event that no queue wants, of the configuration or of a consumer that has started here, becomes a dead letter where the
/// exchange has an alternate, and is kept as failed where it has none.
fn warn_unroutable(event: &Event, known: &[Registration], context: &Context) {
    let layout = &context.config.own.layout;
    let exchange = event.exchange.as_ref().unwrap_or(&layout.exchange);
    let key = RoutingKey::from(&event.event_type);
    let told = layout.topology.explain(exchange, &key);
    let configured = told.queues.iter().any(|queue| queue.through == *exchange);
    let wants = |one: &Registration| one.topology.route(exchange, &key).contains(&one.service.name());
    if configured || known.iter().any(wants) {
        return;
    }
    let otherwise = match told.queues.first() {
        Some(caught) => format!("it goes to {}, as a dead letter", caught.queue),
        None => "the relay cannot publish it".to_owned(),
    };
    let elsewhere = match wanted_elsewhere(&layout.topology, exchange, &key) {
        Some(other) => {
            format!(". A queue of {other} wants it: set outbox.exchange, or name it with --exchange")
        }
        None => String::new(),
    };
    context.output.note(&format!(
        "warning: no [[queue]] of the configuration is bound to {} for {}; unless another service binds one, \
         {otherwise}{elsewhere}",
        spoken(exchange),
        event.event_type
    ));
}

/// The exchange by which a queue would get it, where that is another one: the outbox's own was forgotten.
fn wanted_elsewhere<'a>(
    topology: &'a Topology,
    exchange: &ExchangeName,
    key: &RoutingKey,
) -> Option<&'a ExchangeName> {
    // Fanouts have no keys: they take what nobody wants, and dead letters.
    let others =
        topology.bindings.iter().filter(|one| one.exchange != *exchange && !one.key.as_str().is_empty());
    let mut wanting = others.filter(|one| topology.route(&one.exchange, key).contains(&&one.queue));
    wanting.next().map(|binding| &binding.exchange)
}

fn show(event: Event, context: &Context) -> anyhow::Result<Exit> {
    let exchange = event.exchange.clone().unwrap_or_else(|| context.config.own.layout.exchange.clone());
    let envelope: Envelope = event.into_envelope(&context.clock);
    let shown = serde_json::json!({
        "dry_run": true,
        "type": envelope.event_type,
        "exchange": exchange,
        "aggregate_id": envelope.aggregate_id,
        "ordering_key": envelope.ordering_key,
        "occurred_at": envelope.occurred_at,
        "payload_bytes": envelope.payload.bytes().len(),
        "payload_hash": envelope.payload.hash().to_string(),
    });
    let (what, to) = (&envelope.event_type, spoken(&exchange));
    let text = format!("would commit {what} to {to}; nothing was committed");
    context.output.one(&shown, &text)?;
    Ok(Exit::Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_aggregate_is_the_one_of_the_type() {
        assert_eq!(aggregate_id("shop.order.placed", "shop.order/42").unwrap(), "42");
        assert_eq!(aggregate_id("shop.order.placed", "shop.order/a/b").unwrap(), "a/b");
        assert_eq!(aggregate_id("shop.order.placed", "42").unwrap(), "42");
        let wrong = aggregate_id("shop.order.placed", "invoice/42").unwrap_err().to_string();
        assert!(wrong.contains("write --aggregate shop.order/ID"), "{wrong}");
    }

    #[test]
    fn bad_json_is_shown_with_line_and_column() {
        let bad = payload("{\n  \"a\": nope\n}", 100).unwrap_err().to_string();
        assert!(bad.contains("--data is not JSON") && bad.contains("line 2 column"), "{bad}");
    }
}
