//! Relay throughput over raw publishing with confirms: the same messages, the same queue, the same run.

use std::sync::Arc;
use std::time::Duration;

use postrider::envelope::{Ordering, wire};
use postrider::relay::{Relay, RelayConfig, RelayMode, RelayStatus};
use postrider::store::Backend;
use postrider::topology::{Queue, QueueName, Topology};
use postrider::{Broker, Clock, Event, Payload, WireFormat};
use tokio_util::sync::CancellationToken;

use super::gate::Gate;
use super::{Figure, Load, Naive, Raw, per_second};

/// Events per transaction while the outbox is filled.
const CHUNK: usize = 1000;

/// Against what the relay is measured.
pub(crate) struct Rival<'a> {
    /// The broker alone.
    pub(crate) raw: &'a mut dyn Raw,
    /// What somebody would write in an afternoon.
    pub(crate) naive: Option<&'a Naive>,
    /// Whether the store can stream, so that this is measured too.
    pub(crate) streams: bool,
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
    let (mut relay_rounds, mut naive_rounds, mut stream_rounds) = (Vec::new(), Vec::new(), Vec::new());
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
        if rival.streams {
            let rate = per_second(load.events, drain_stream(store, broker, clock, load, &queue).await?);
            rival.raw.empty().await?;
            eprintln!("round {round}: raw {limit:.0}/s, relay by cdc {rate:.0}/s");
            stream_rounds.push((rate, limit));
        }
    }
    let keys = match load.keys {
        0 => "no keys".to_owned(),
        1 => "one hot key, over one message at a time".to_owned(),
        keys => format!("{keys} keys"),
    };
    let figures = [
        Figure::median(format!("relay over raw confirms, {keys}"), backend, "/s", relay_rounds),
        Figure::median(format!("relay by cdc over raw confirms, {keys}"), backend, "/s", stream_rounds),
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
    let config = RelayConfig { mode: RelayMode::Poll, ..RelayConfig::default() };
    let relay = Relay::new(store.clone(), broker.clone(), clock.clone(), config);
    let (status, stop) = (relay.status(), CancellationToken::new());
    let start = clock.monotonic();
    let running = tokio::spawn(relay.run(stop.clone()));
    until_published(&status, events, clock).await?;
    let took = clock.since(start);
    stop.cancel();
    running.await?;
    Ok(took)
}

/// The same with a relay that streams: everything is committed while the broker takes nothing, and measured from when it does.
async fn drain_stream<S: Backend>(
    store: &S,
    broker: &Arc<dyn Broker>,
    clock: &Clock,
    load: Load,
    queue: &QueueName,
) -> anyhow::Result<Duration> {
    let gate = Arc::new(Gate::new(broker.clone()));
    let config = RelayConfig { mode: RelayMode::Cdc, ..RelayConfig::default() };
    let relay = Relay::new(store.clone(), gate.clone(), clock.clone(), config);
    let (status, stop) = (relay.status(), CancellationToken::new());
    let running = tokio::spawn(relay.run(stop.clone()));
    until_streaming(&status, clock).await?;
    gate.close();
    fill(store, load, queue).await?;
    let start = clock.monotonic();
    gate.open();
    until_published(&status, load.events, clock).await?;
    let took = clock.since(start);
    anyhow::ensure!(status.is_streaming(), "the relay ended its stream meanwhile");
    stop.cancel();
    running.await?;
    Ok(took)
}

async fn until_published(status: &RelayStatus, events: usize, clock: &Clock) -> anyhow::Result<()> {
    while status.published() < events as u64 {
        anyhow::ensure!(status.failed() == 0, "the broker refuses the benchmark's messages");
        clock.sleep(Duration::from_millis(2)).await;
    }
    Ok(())
}

/// Waits until the relay streams.
pub(super) async fn until_streaming(status: &RelayStatus, clock: &Clock) -> anyhow::Result<()> {
    let start = clock.monotonic();
    while !status.is_streaming() {
        let patient = clock.since(start) < Duration::from_secs(20);
        anyhow::ensure!(patient, "the relay does not come to stream; the log says why");
        clock.sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}
