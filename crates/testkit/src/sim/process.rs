//! The processes of a simulation: a client that commits events, relays and consumers. All but the client are the real code.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use postrider::broker::Outgoing;
use postrider::consumer::{Concurrency, Consumer, ConsumerConfig};
use postrider::dead_letter::Collector;
use postrider::dedup::{Accelerator, AcceleratorConfig};
use postrider::envelope::{EventId, Ordering, OrderingKey, wire};
use postrider::operation::{Runner, RunnerConfig};
use postrider::relay::{Backoff, Relay, RelayConfig, RelayMode};
use postrider::settlement::RetryPolicy;
use postrider::store::{OperationKind, Outbox as _, Store as _, StoreError};
use postrider::topology::{
    ConsumerName, ExchangeKind, ExchangeName, OnDead, RoutingKey, ServiceQueue, Topology,
};
use postrider::{Broker, Event, Failure, InvalidText, WireFormat};
use tokio_util::sync::CancellationToken;

use super::broker::SimBroker;
use super::cache::SimCache;
use super::flaw::Flaw;
use super::handling::handlers;
use super::operation::Send;
use super::shape::Shape;
use super::store::SimStore;
use super::world::Port;

/// Who applies events: one as they come, one in the order of their keys.
pub(super) const CONSUMERS: [&str; 2] = ["free", "ordered"];
/// The client's writers; the last has no keys.
const WRITERS: usize = 3;

/// What runs, by its number.
pub(super) const CLIENT: usize = 0;
pub(super) const PROCESSES: usize = 5;

/// The name of a process in a history.
pub(super) fn name(process: usize) -> &'static str {
    ["client", "relay 1", "relay 2", "consumer 1", "consumer 2"].get(process).unwrap_or(&"?")
}

/// What does not change from one schedule to the next, made once.
pub(super) struct Stage {
    pub(super) topology: Topology,
    services: Vec<(ConsumerName, ServiceQueue)>,
    exchange: ExchangeName,
}

impl Stage {
    pub(super) fn new() -> Result<Self, InvalidText> {
        let exchange = ExchangeName::new("sim.events")?;
        let mut topology = Topology::default().exchange(exchange.clone(), ExchangeKind::Topic);
        let mut services = Vec::new();
        for name in CONSUMERS {
            let retry = RetryPolicy::fixed(4, Duration::from_secs(1));
            let mut service = ServiceQueue::new(format!("sim.{name}"), retry)?.bind(&exchange, "sim.#")?;
            if name == "ordered" {
                service = service.ordered(OnDead::Continue);
            }
            topology = topology.service(&service);
            services.push((ConsumerName::new(name)?, service));
        }
        Ok(Self { topology, services, exchange })
    }
}

/// What the client remembers across its own crashes, as a service's users would: what was committed for certain.
#[derive(Default)]
pub(super) struct ClientLog {
    /// How many events each writer has to commit.
    events: u64,
    /// The next number of each writer.
    next: [u64; WRITERS],
    /// Commits that were answered.
    pub(super) acked: Vec<EventId>,
}

impl ClientLog {
    pub(super) fn is_over(&self) -> bool {
        self.next.iter().all(|next| *next >= self.events)
    }
}

pub(super) type Log = Arc<Mutex<ClientLog>>;

/// A client that has written nothing yet.
pub(super) fn log(shape: Shape) -> Log {
    Arc::new(Mutex::new(ClientLog { events: shape.events, ..ClientLog::default() }))
}

fn client_log(log: &Log) -> std::sync::MutexGuard<'_, ClientLog> {
    log.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts a process.
pub(super) fn start(process: usize, port: Port, stage: &Arc<Stage>, log: &Log) {
    let stop = CancellationToken::new();
    let shape = port.world().shape;
    match process {
        CLIENT => {
            for writer in 0..WRITERS as u64 {
                tokio::spawn(write(writer, port.clone(), stage.clone(), log.clone()));
            }
        }
        1 | 2 => {
            let config = RelayConfig {
                exchange: stage.exchange.clone(),
                batch_size: shape.batch,
                lanes: 2,
                poll_interval: Duration::from_secs(5),
                lease: Duration::from_secs(10),
                mode: if shape.streams { RelayMode::Cdc } else { RelayMode::Poll },
                max_attempts: 8,
                backoff: Backoff { base: Duration::from_millis(250), max: Duration::from_secs(2) },
                ..RelayConfig::default()
            };
            let broker: Arc<dyn Broker> = Arc::new(SimBroker(port.clone()));
            let relay = Relay::new(SimStore(port.clone()), broker, port.clock.clone(), config);
            tokio::spawn(relay.run(stop));
            tokio::spawn(operate(port));
        }
        _ => {
            tokio::spawn(consume(port, stage.clone(), stop));
        }
    }
}

/// Runs the operation, if nobody else does.
async fn operate(port: Port) {
    let config = RunnerConfig { lease: Duration::from_secs(8), poll_interval: Duration::from_secs(4) };
    let runner = Runner::new(SimStore(port.clone()), port.clock, config);
    runner.serve(&[(OperationKind::ReplayOutbox, &Send)], &CancellationToken::new()).await;
}

async fn consume(port: Port, stage: Arc<Stage>, stop: CancellationToken) {
    let broker: Arc<dyn Broker> = Arc::new(SimBroker(port.clone()));
    let (store, clock) = (SimStore(port.clone()), port.clock.clone());
    // The simulated cache answers or fails; it is never late by the machine's own clock.
    let limit = Duration::from_hours(1);
    let config = AcceleratorConfig { limit, connect_limit: limit, ..AcceleratorConfig::default() };
    let accelerator = Accelerator::start(Arc::new(SimCache(port)), clock.clone(), config).await;
    let batches = store.0.world().shape.batches;
    for (name, service) in &stage.services {
        let config = ConsumerConfig {
            prefetch: 8,
            concurrency: Concurrency::fixed(4),
            max_crashes: 0,
            poll_interval: Duration::from_secs(5),
            ..ConsumerConfig::default()
        };
        let consumer = Consumer::new(
            store.clone(),
            broker.clone(),
            clock.clone(),
            name.clone(),
            service.clone(),
            handlers(&store, batches),
        );
        let consumer = Arc::new(consumer.config(config).accelerated(&accelerator));
        let collector =
            Arc::new(Collector::new(store.clone(), broker.clone(), clock.clone(), service.clone()));
        // What ends is started again, as the runtime does it.
        let (stopped, pause) = (stop.clone(), clock.clone());
        tokio::spawn(async move {
            while consumer.clone().run(stopped.clone()).await.is_err() {
                pause.sleep(Duration::from_secs(1)).await;
            }
        });
        let (stopped, pause) = (stop.clone(), clock.clone());
        tokio::spawn(async move {
            while collector.clone().run(stopped.clone()).await.is_err() {
                pause.sleep(Duration::from_secs(1)).await;
            }
        });
    }
}

fn event(writer: u64, number: u64) -> Result<Event, Failure> {
    let event = Event::new("sim.item.made").and_then(|event| event.id(format!("{writer}-{number}")));
    let event = event.map_err(Failure::permanent)?;
    let event = event.json(&serde_json::json!({ "number": number })).map_err(Failure::permanent)?;
    if writer + 1 == WRITERS as u64 {
        return Ok(event);
    }
    let key = OrderingKey::new(format!("key-{writer}")).map_err(Failure::permanent)?;
    Ok(event.ordering(Ordering::Key(key)))
}

/// One writer: its events one after the other, each committed for certain before the next, some of them together. Asks the table
/// where the outcome of a commit is unknown.
async fn write(writer: u64, port: Port, stage: Arc<Stage>, log: Log) {
    let place = usize::try_from(writer).unwrap_or(0);
    let (store, clock, shape) = (SimStore(port.clone()), port.clock.clone(), port.world().shape);
    loop {
        let number = client_log(&log).next[place];
        let end = shape.events.min(number + shape.together);
        let Ok(events) = (number..end).map(|number| event(writer, number)).collect::<Result<Vec<_>, _>>()
        else {
            return;
        };
        let ids: Vec<_> = events.iter().filter_map(|event| event.id.clone()).collect();
        let Some(first) = ids.first().cloned() else { return };
        loop {
            match commit(&store, events.clone()).await {
                Ok(()) => {
                    client_log(&log).acked.extend(ids);
                    break;
                }
                Err(_unknown) => clock.sleep(Duration::from_millis(100)).await,
            }
            if store.knows(&first).await.is_ok_and(|known| known) {
                break;
            }
        }
        client_log(&log).next[place] = end;
        if port.world().flaw == Some(Flaw::DualWrite) {
            for event in events {
                publish_second(&port, &stage, event).await;
            }
        }
    }
}

async fn commit(store: &SimStore, events: Vec<Event>) -> Result<(), StoreError> {
    let mut tx = store.begin().await?;
    store.append(&mut tx, events).await?;
    store.commit(tx).await
}

/// The second half of a dual write: the row is committed and counts as published, the message goes its own way.
async fn publish_second(port: &Port, stage: &Stage, event: Event) {
    let envelope = event.into_envelope(&port.clock);
    let message = wire::encode(&envelope, WireFormat::Envelope, 0);
    let (exchange, routing_key) = (stage.exchange.clone(), RoutingKey::from(&envelope.event_type));
    SimBroker(port.clone()).publish(vec![Outgoing { exchange, routing_key, message }]).await;
}
