//! Relay throughput over raw publishing with confirms: the same messages, the same queue, the same run.

use std::sync::Arc;
use std::time::Duration;

use postrider::envelope::{Ordering, wire};
use postrider::relay::{Relay, RelayConfig};
use postrider::store::Backend;
use postrider::topology::{Queue, QueueName, Topology};
use postrider::{Broker, Clock, Event, Payload, WireFormat};
use tokio_util::sync::CancellationToken;

use super::{Figure, Load, Naive, Raw, per_second};

/// Events per transaction while the outbox is filled.
const CHUNK: usize = 1000;

/// Against what the relay is measured.
pub(crate) struct Rival<'a> {
    /// The broker alone.
    pub(crate) raw: &'a mut dyn Raw,
    /// What somebody would write in an afternoon.
    pub(crate) naive: Option<&'a Naive>,
}

/// Measures the rounds, raw, naive and relay in turn. One hot key is measured against one message at a time.
pub(crate) async fn relay_over_raw<S: Backend>(
    store: &S,
    broker: &Arc<dyn Broker>,
    rival: &mut Rival<'_>,
    clock: &Clock,
    load: Load,
    backend: &str,
) -> anyhow::Result<Vec<Figure>> {
    let queue = rival.raw.queue().clone();
    broker.declare(&Topology::default().queue(Queue::quorum(queue.clone()))).await?;
    let (mut relay_rounds, mut naive_rounds) = (Vec::new(), Vec::new());
    for round in 1..=load.rounds {
        let messages = (0..load.events)
            .map(|number| {
                let envelope = event(number, load, &queue)?.into_envelope(clock);
                Ok(wire::encode(&envelope, WireFormat::Envelope, 0))
            })
            .collect::<anyhow::Result<Vec<_>>>()?;
        let raw_took = if load.keys == 1 {
            rival.raw.publish_one_by_one(messages, clock).await?.iter().sum()
        } else {
            rival.raw.publish(messages, clock).await?
        };
        rival.raw.empty().await?;
        let limit = per_second(load.events, raw_took);
        if let Some(naive) = rival.naive {
            naive.fill(load).await?;
            naive_rounds.push((per_second(load.events, naive.drain(clock).await?), limit));
            rival.raw.empty().await?;
        }
        fill(store, load, &queue).await?;
        let rate = per_second(load.events, drain(store, broker, clock, load.events).await?);
        rival.raw.empty().await?;
        eprintln!("round {round}: raw {limit:.0}/s, relay {rate:.0}/s");
        relay_rounds.push((rate, limit));
    }
    let keys = match load.keys {
        0 => "no keys".to_owned(),
        1 => "one hot key, over one message at a time".to_owned(),
        keys => format!("{keys} keys"),
    };
    let figures = [
        Figure::median(format!("relay over raw confirms, {keys}"), backend, "/s", relay_rounds),
        Figure::median("naive poller over raw confirms", backend, "/s", naive_rounds),
    ];
    Ok(figures.into_iter().flatten().collect())
}

/// One event of the load.
pub(super) fn event(number: usize, load: Load, queue: &QueueName) -> anyhow::Result<Event> {
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
