//! From commit to confirm: how late an event is, at a steady rate, over the raw confirm of one message at a time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use postrider::broker::{BrokerError, Outgoing, Published, Subscription};
use postrider::envelope::wire;
use postrider::relay::{Relay, RelayConfig, RelayMode};
use postrider::store::Backend;
use postrider::topology::{QueueName, Topology};
use postrider::{Broker, Clock, WireFormat};
use tokio_util::sync::CancellationToken;

use super::relay::{event, until_streaming};
use super::{Figure, Load, Raw};

/// Services that commit side by side.
const WRITERS: usize = 4;
/// Commits before the clock counts: connections, plans and caches.
const WARM_UP: usize = 200;

/// Commits `rate` events a second, one by one, and measures each from its commit to its confirm.
#[expect(clippy::too_many_arguments, reason = "each is one thing that is measured or measured against")]
pub(crate) async fn delay_over_raw<S: Backend>(
    store: &S,
    broker: &Arc<dyn Broker>,
    raw: &mut dyn Raw,
    clock: &Clock,
    load: Load,
    rate: u32,
    mode: RelayMode,
    backend: &str,
) -> anyhow::Result<Vec<Figure>> {
    let queue = raw.queue().clone();
    let (mut medians, mut tails) = (Vec::new(), Vec::new());
    for round in 1..=load.rounds {
        let messages = (0..load.events.min(2_000))
            .map(|number| {
                Ok(wire::encode(&event(number, load, &queue)?.into_envelope(clock), WireFormat::Envelope, 0))
            })
            .collect::<anyhow::Result<Vec<_>>>()?;
        let limits = sorted(raw.publish_one_by_one(messages, clock).await?);
        raw.empty().await?;
        let delays = sorted(delays(store, broker, &queue, clock, load, rate, mode).await?);
        raw.empty().await?;
        let (p50, p99) = ((at(&delays, 50), at(&limits, 50)), (at(&delays, 99), at(&limits, 99)));
        eprintln!(
            "round {round}: p50 {:.2} ms (raw {:.2}), p99 {:.2} ms (raw {:.2})",
            p50.0, p50.1, p99.0, p99.1
        );
        medians.push(p50);
        tails.push(p99);
    }
    let by = if mode == RelayMode::Cdc { " by cdc" } else { "" };
    let figures = [
        Figure::median(format!("commit to confirmed{by} at {rate}/s, p50"), backend, "ms", medians),
        Figure::median(format!("commit to confirmed{by} at {rate}/s, p99"), backend, "ms", tails),
    ];
    Ok(figures.into_iter().flatten().collect())
}

async fn delays<S: Backend>(
    store: &S,
    broker: &Arc<dyn Broker>,
    queue: &QueueName,
    clock: &Clock,
    load: Load,
    rate: u32,
    mode: RelayMode,
) -> anyhow::Result<Vec<Duration>> {
    let watched =
        Arc::new(Watched { inner: broker.clone(), clock: clock.clone(), confirmed: Mutex::default() });
    let config = RelayConfig { mode, ..RelayConfig::default() };
    let relay = Relay::new(store.clone(), watched.clone(), clock.clone(), config);
    let (status, stop) = (relay.status(), CancellationToken::new());
    let running = tokio::spawn(relay.run(stop.clone()));
    if mode == RelayMode::Cdc {
        until_streaming(&status, clock).await?;
    }
    let start = clock.monotonic();
    let writers = (0..WRITERS).map(|writer| {
        let (store, queue, clock) = (store.clone(), queue.clone(), clock.clone());
        tokio::spawn(async move {
            let mut committed = Vec::new();
            for number in (writer..load.events).step_by(WRITERS) {
                let due = start + Duration::from_secs(1) * u32::try_from(number)? / rate;
                clock.sleep(due.saturating_sub(clock.monotonic())).await;
                let event = event(number, load, &queue)?;
                let mut tx = store.begin().await?;
                let ids = store.append(&mut tx, vec![event]).await?;
                store.commit(tx).await?;
                let now = clock.monotonic();
                committed.extend(ids.into_iter().map(|id| (number, id.to_string(), now)));
            }
            anyhow::Ok(committed)
        })
    });
    let mut committed = Vec::new();
    for writer in writers.collect::<Vec<_>>() {
        committed.extend(writer.await??);
    }
    while status.published() < load.events as u64 {
        anyhow::ensure!(status.failed() == 0, "the broker refuses the benchmark's messages");
        clock.sleep(Duration::from_millis(2)).await;
    }
    stop.cancel();
    running.await?;
    let confirmed = watched.confirmed.lock().unwrap_or_else(PoisonError::into_inner);
    let late = committed.into_iter().filter(|(number, ..)| *number >= WARM_UP.min(load.events / 2));
    Ok(late.filter_map(|(_, id, at)| Some(confirmed.get(&id)?.saturating_sub(at))).collect())
}

fn sorted(mut durations: Vec<Duration>) -> Vec<Duration> {
    durations.sort_unstable();
    durations
}

/// A percentile, in milliseconds.
fn at(sorted: &[Duration], percent: usize) -> f64 {
    sorted.get(sorted.len() * percent / 100).map_or(0.0, |duration| duration.as_secs_f64() * 1000.0)
}

/// A broker that remembers when each message was confirmed.
struct Watched {
    inner: Arc<dyn Broker>,
    clock: Clock,
    confirmed: Mutex<HashMap<String, Duration>>,
}

#[async_trait]
impl Broker for Watched {
    async fn declare(&self, topology: &Topology) -> Result<(), BrokerError> {
        self.inner.declare(topology).await
    }

    async fn publish(&self, batch: Vec<Outgoing>) -> Vec<Published> {
        let ids: Vec<_> =
            batch.iter().map(|outgoing| outgoing.message.properties.message_id.clone()).collect();
        let answers = self.inner.publish(batch).await;
        let now = self.clock.monotonic();
        let mut confirmed = self.confirmed.lock().unwrap_or_else(PoisonError::into_inner);
        for (id, answer) in ids.into_iter().zip(&answers) {
            if let (Some(id), Published::Confirmed) = (id, answer) {
                confirmed.entry(id).or_insert(now);
            }
        }
        answers
    }

    async fn subscribe(
        &self,
        queue: &QueueName,
        prefetch: u16,
    ) -> Result<Box<dyn Subscription>, BrokerError> {
        self.inner.subscribe(queue, prefetch).await
    }

    async fn depth(&self, queue: &QueueName) -> Result<u64, BrokerError> {
        self.inner.depth(queue).await
    }

    async fn ping(&self) -> Result<(), BrokerError> {
        self.inner.ping().await
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}
