//! Relay throughput over raw publishing with confirms: the same messages, the same queue, the same run.

use std::sync::Arc;
use std::time::Duration;

use postrider::envelope::{Ordering, wire};
use postrider::relay::{Relay, RelayConfig};
use postrider::store::Backend;
use postrider::topology::{Queue, QueueName, Topology};
use postrider::{Broker, Clock, Event, Payload, WireFormat};
use tokio_util::sync::CancellationToken;

use super::{Figure, Load, Raw, per_second};

/// Events per transaction while the outbox is filled.
const CHUNK: usize = 1000;

/// Measures the rounds, raw and relay in turn.
pub(crate) async fn relay_over_raw<S: Backend>(
    store: &S,
    broker: &Arc<dyn Broker>,
    raw: &mut dyn Raw,
    clock: &Clock,
    load: Load,
    backend: String,
) -> anyhow::Result<Figure> {
    let queue = raw.queue().clone();
    broker.declare(&Topology::default().queue(Queue::quorum(queue.clone()))).await?;
    let mut rounds = Vec::new();
    for round in 1..=load.rounds {
        let messages = (0..load.events)
            .map(|number| {
                let envelope = event(number, load, &queue)?.into_envelope(clock);
                Ok(wire::encode(&envelope, WireFormat::Envelope, 0))
            })
            .collect::<anyhow::Result<Vec<_>>>()?;
        let raw_took = raw.publish(messages, clock).await?;
        raw.empty().await?;
        fill(store, load, &queue).await?;
        let relay_took = drain(store, broker, clock, load.events).await?;
        raw.empty().await?;
        let (rate, limit) = (per_second(load.events, relay_took), per_second(load.events, raw_took));
        eprintln!("round {round}: raw {limit:.0}/s, relay {rate:.0}/s");
        rounds.push((rate, limit));
    }
    Figure::median("relay over raw confirms", backend, rounds).ok_or_else(|| anyhow::anyhow!("no rounds"))
}

fn event(number: usize, load: Load, queue: &QueueName) -> anyhow::Result<Event> {
    let filling = "x".repeat(load.bytes.saturating_sub(32));
    let payload = Payload::json(&serde_json::json!({ "number": number, "filling": filling }))?;
    let mut event = Event::new("bench.item.made")?.payload(payload);
    event.target_queue = Some(queue.clone());
    event = if load.keys == 0 {
        event.ordering(Ordering::Free)
    } else {
        event.aggregate_id(format!("item-{}", number % load.keys))?
    };
    Ok(event)
}

async fn fill<S: Backend>(store: &S, load: Load, queue: &QueueName) -> anyhow::Result<()> {
    let numbers: Vec<usize> = (0..load.events).collect();
    for chunk in numbers.chunks(CHUNK) {
        let events = chunk.iter().map(|number| event(*number, load, queue)).collect::<anyhow::Result<_>>()?;
        let mut tx = store.begin().await?;
        store.append(&mut tx, events).await?;
        store.commit(tx).await?;
    }
    Ok(())
}

/// Lets a relay publish everything, from the moment it starts to the moment the last row is marked.
async fn drain<S: Backend>(
    store: &S,
    broker: &Arc<dyn Broker>,
    clock: &Clock,
    events: usize,
) -> anyhow::Result<Duration> {
    let relay = Relay::new(store.clone(), broker.clone(), clock.clone(), RelayConfig::default());
    let (status, stop) = (relay.status(), CancellationToken::new());
    let start = clock.monotonic();
    let running = tokio::spawn(relay.run(stop.clone()));
    while status.published() < events as u64 {
        anyhow::ensure!(status.failed() == 0, "the broker refuses the benchmark's messages");
        clock.sleep(Duration::from_millis(2)).await;
    }
    let took = clock.since(start);
    stop.cancel();
    running.await?;
    Ok(took)
}
