//! What is done once for every event, without any server, over and over: `postrider-hot-paths NAME TIMES`.
//!
//! Run by the test that counts its instructions; the count of none is taken off the count of many.

use std::hint::black_box;

use anyhow::Context as _;
use jiff::Timestamp;
use postrider::broker::Message;
use postrider::envelope::wire::{self, Identity};
use postrider::handler::Failure;
use postrider::settlement::{Outcome, RetryPolicy, decide};
use postrider::topology::{ExchangeName, Preset, RoutingKey, Topology};
use postrider::{Clock, Envelope, Event, Payload, WireFormat};

fn main() -> anyhow::Result<()> {
    let mut words = std::env::args().skip(1);
    let (name, times) = (words.next().context("which path?")?, words.next().context("how often?")?);
    let times: usize = times.parse()?;
    let envelope = event()?;
    let message = wire::encode(&envelope, WireFormat::Envelope, 0);
    let key = RoutingKey::new("shop.order.placed")?;
    let (topology, exchange) = topology()?;
    for _ in 0..times {
        match name.as_str() {
            "encode" => drop(black_box(wire::encode(black_box(&envelope), WireFormat::Envelope, 0))),
            "decode" => drop(black_box(decode(black_box(&message), &key)?)),
            "hash" => drop(black_box(black_box(&envelope.payload).hash())),
            "decide" => drop(black_box(decided(black_box(3)))),
            "route" => drop(black_box(topology.route(&exchange, black_box(&key)))),
            other => anyhow::bail!("there is no path {other}"),
        }
    }
    Ok(())
}

/// An event of a kilobyte, as shops have them. The same each time: its ids are given.
fn event() -> anyhow::Result<Envelope> {
    let items: Vec<_> = (0..12)
        .map(|number| serde_json::json!({ "sku": format!("item-{number}"), "count": number, "price": "12.50" }))
        .collect();
    let order = serde_json::json!({ "items": items, "customer": "customer-7", "note": "x".repeat(400) });
    let event = Event::new("shop.order.placed")?.id("018f0000-0000-7000-8000-000000000001")?;
    let event = event.aggregate_id("order-42")?.payload(Payload::json(&order)?);
    let (clock, _hands) = Clock::manual(Timestamp::UNIX_EPOCH);
    Ok(event.into_envelope(&clock))
}

fn decode(message: &Message, key: &RoutingKey) -> anyhow::Result<Envelope> {
    Ok(wire::decode(message, key, &Identity::default(), Timestamp::UNIX_EPOCH)?)
}

fn decided(attempt: u32) -> postrider::settlement::Settlement {
    let failed = Outcome::Failed(Failure::transient("the other side is away"));
    decide(&failed, attempt, &RetryPolicy::default(), Timestamp::UNIX_EPOCH, 0.5)
}

/// The five queues of the HoldCo document, and which of them want an event.
fn topology() -> anyhow::Result<(Topology, ExchangeName)> {
    let layout = Preset::find("holdco")?.layout(&[])?;
    Ok((layout.topology, layout.exchange))
}
