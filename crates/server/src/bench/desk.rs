//! Where it is measured: a store, a broker, and a queue of the benchmark's own.

use std::sync::Arc;
use std::time::Duration;

use postrider::broker::{Outgoing, Published};
use postrider::consumer::{Consumer, ConsumerStatus};
use postrider::dedup::Accelerator;
use postrider::envelope::{Ordering, wire};
use postrider::registry::Registry;
use postrider::settlement::RetryPolicy;
use postrider::store::Backend;
use postrider::topology::{ConsumerName, QueueName, ServiceQueue};
use postrider::{Broker, Clock, Envelope, Event, Payload, WireFormat};
use tokio_util::sync::CancellationToken;

use super::processor::{Processes, Spent};
use super::{Load, per_second};

/// Events per transaction, or messages per publish, while something is filled.
const CHUNK: usize = 1000;

/// A store, a broker and a queue.
#[derive(Clone, Copy)]
pub(crate) struct Desk<'a, S> {
    pub(crate) store: &'a S,
    pub(crate) broker: &'a Arc<dyn Broker>,
    pub(crate) queue: &'a QueueName,
    pub(crate) clock: &'a Clock,
    /// What they are, for people.
    pub(crate) backend: &'a str,
    /// Their processes.
    pub(crate) processes: Processes,
}

/// A rate, and what it cost.
#[derive(Clone, Copy)]
pub(super) struct Pace {
    /// Events a second.
    pub(super) rate: f64,
    /// Processor time in all of it.
    pub(super) spent: Spent,
}

impl Pace {
    /// Tells who watches.
    pub(super) fn tell(self, round: usize, what: &str, events: usize) {
        eprintln!("round {round}: {what} {:.0}/s, {}", self.rate, self.spent.told(events));
    }
}

impl<S: Backend> Desk<'_, S> {
    /// A round's events.
    pub(super) fn envelopes(&self, load: Load) -> anyhow::Result<Vec<Envelope>> {
        (0..load.events).map(|number| Ok(self.event(number, load)?.into_envelope(self.clock))).collect()
    }

    /// One event of the load, for the queue.
    pub(super) fn event(&self, number: usize, load: Load) -> anyhow::Result<Event> {
        let filling = "x".repeat(load.bytes.saturating_sub(32));
        let payload = Payload::json(&serde_json::json!({ "number": number, "filling": filling }))?;
        let mut event = Event::new("bench.item.made")?.payload(payload);
        event.target_queue = Some(self.queue.clone());
        Ok(if load.keys == 0 {
            event.ordering(Ordering::Free)
        } else {
            event.aggregate_id(format!("item-{}", number % load.keys))?
        })
    }

    /// Commits the load's events to the outbox.
    pub(super) async fn fill_outbox(&self, load: Load) -> anyhow::Result<()> {
        let numbers: Vec<usize> = (0..load.events).collect();
        for chunk in numbers.chunks(CHUNK) {
            let events =
                chunk.iter().map(|number| self.event(*number, load)).collect::<anyhow::Result<_>>()?;
            let mut tx = self.store.begin().await?;
            self.store.append(&mut tx, events).await?;
            self.store.commit(tx).await?;
        }
        Ok(())
    }

    /// Publishes events to the queue, past the outbox.
    pub(super) async fn fill_queue(&self, events: &[Envelope]) -> anyhow::Result<()> {
        for chunk in events.chunks(CHUNK) {
            let messages = chunk.iter().map(|event| wire::encode(event, WireFormat::Envelope, 0));
            let outgoing = messages.map(|message| Outgoing::to_queue(self.queue, message)).collect();
            let answers = self.broker.publish(outgoing).await;
            anyhow::ensure!(answers.iter().all(|answer| *answer == Published::Confirmed), "not confirmed");
        }
        Ok(())
    }

    /// A consumer's name that nobody had before: every round is the first.
    pub(super) fn new_name(&self) -> anyhow::Result<ConsumerName> {
        Ok(ConsumerName::new(format!("{}.{}", self.queue, self.clock.new_id()))?)
    }

    /// A consumer of the queue.
    pub(super) fn consumer(
        &self,
        name: &ConsumerName,
        registry: Registry<S>,
        front: Option<&Accelerator>,
    ) -> anyhow::Result<Consumer<S>> {
        let service = ServiceQueue::new(self.queue.as_str(), RetryPolicy::default())?;
        let (store, broker, clock) = (self.store.clone(), self.broker.clone(), self.clock.clone());
        let consumer = Consumer::new(store, broker, clock, name.clone(), service, registry);
        Ok(match front {
            Some(front) => consumer.accelerated(front),
            None => consumer,
        })
    }

    /// Events a second, from the moment a consumer starts on a full queue until it has counted them all.
    pub(super) async fn consume(
        &self,
        consumer: Consumer<S>,
        events: usize,
        counted: fn(&ConsumerStatus) -> u64,
    ) -> anyhow::Result<Pace> {
        let (status, stop) = (consumer.status(), CancellationToken::new());
        let (start, before) = (self.clock.monotonic(), self.processes.spent());
        let running = tokio::spawn(Arc::new(consumer).run(stop.clone()));
        while counted(&status) < events as u64 {
            self.clock.sleep(Duration::from_millis(2)).await;
        }
        let (took, spent) = (self.clock.since(start), self.processes.spent() - before);
        stop.cancel();
        running.await??;
        Ok(Pace { rate: per_second(events, took), spent })
    }
}
