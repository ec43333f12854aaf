//! What Redis in front of the inbox costs new events, and what it spares duplicates: the same deliveries, with it and without.

use std::sync::Arc;
use std::time::Duration;

use postrider::broker::Outgoing;
use postrider::consumer::{Consumer, ConsumerStatus};
use postrider::dedup::Accelerator;
use postrider::envelope::wire;
use postrider::handler::{BatchLimits, batch_handler_fn, handler_fn};
use postrider::registry::Registry;
use postrider::settlement::RetryPolicy;
use postrider::store::Backend;
use postrider::topology::{ConsumerName, Queue, QueueName, ServiceQueue, Topology};
use postrider::{Broker, Clock, Envelope, Failure, WireFormat};
use tokio_util::sync::CancellationToken;

use super::relay::event;
use super::{Figure, Load, per_second};

/// Messages published at a time.
const CHUNK: usize = 1000;

/// A desk to measure at: a store, a broker and a queue.
pub(crate) struct DedupBench<'a, S> {
    pub(crate) store: &'a S,
    pub(crate) broker: &'a Arc<dyn Broker>,
    pub(crate) accelerator: &'a Accelerator,
    pub(crate) queue: &'a QueueName,
    pub(crate) clock: &'a Clock,
    pub(crate) load: Load,
    pub(crate) backend: &'a str,
}

impl<S: Backend> DedupBench<'_, S> {
    /// New events and then their duplicates, with Redis and without in turn; one event a transaction, and a hundred.
    pub(crate) async fn figures(&self) -> anyhow::Result<Vec<Figure>> {
        let service = ServiceQueue::new(self.queue.as_str(), RetryPolicy::default())?;
        // Nothing fails here, so wait queues and dead letters are left out.
        self.broker.declare(&Topology::default().queue(Queue::quorum(self.queue.clone()))).await?;
        let mut figures = Vec::new();
        for batch in [1, 100] {
            let (mut new, mut again) = (Vec::new(), Vec::new());
            for round in 1..=self.load.rounds {
                let (plain, front) =
                    (self.round(&service, batch, false).await?, self.round(&service, batch, true).await?);
                eprintln!(
                    "batches of {batch}, round {round}: new {:.0}/s with Redis, {:.0}/s without; duplicates {:.0}/s with, {:.0}/s without",
                    front.0, plain.0, front.1, plain.1
                );
                new.push((front.0, plain.0));
                again.push((front.1, plain.1));
            }
            let of =
                if batch == 1 { "one event a transaction".to_owned() } else { format!("batches of {batch}") };
            let names = [
                format!("new events with Redis in front of the inbox, over the inbox alone, {of}"),
                format!("duplicates with Redis warm, over the inbox alone, {of}"),
            ];
            for (name, rounds) in names.into_iter().zip([new, again]) {
                figures.extend(Figure::median(name, self.backend, "/s", rounds));
            }
        }
        Ok(figures)
    }

    /// Events a second when they are new, and when they come again. Under a name of its own: every round is the first.
    async fn round(&self, service: &ServiceQueue, batch: usize, front: bool) -> anyhow::Result<(f64, f64)> {
        let events = (0..self.load.events)
            .map(|number| Ok(event(number, self.load, self.queue)?.into_envelope(self.clock)))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let name = ConsumerName::new(format!("{}.{}", self.queue, self.clock.new_id()))?;
        let new = self.consume(service, &name, &events, batch, front, ConsumerStatus::applied).await?;
        let again = self.consume(service, &name, &events, batch, front, ConsumerStatus::duplicates).await?;
        Ok((new, again))
    }

    /// From the moment a consumer starts on a full queue until it has counted them all.
    async fn consume(
        &self,
        service: &ServiceQueue,
        name: &ConsumerName,
        events: &[Envelope],
        batch: usize,
        front: bool,
        counted: fn(&ConsumerStatus) -> u64,
    ) -> anyhow::Result<f64> {
        for chunk in events.chunks(CHUNK) {
            let outgoing = chunk
                .iter()
                .map(|event| Outgoing::to_queue(self.queue, wire::encode(event, WireFormat::Envelope, 0)));
            self.broker.publish(outgoing.collect()).await;
        }
        let registry = if batch == 1 {
            Registry::new().on("#", handler_fn::<S, _>(|_, _| Box::pin(async { Ok::<(), Failure>(()) })))
        } else {
            let limits = BatchLimits { max_size: batch, ..BatchLimits::default() };
            let nothing = batch_handler_fn::<S, _>(|_, _| Box::pin(async { Ok::<(), Failure>(()) }));
            Registry::new().on_batch("#", limits, nothing)
        };
        let (store, broker, clock) = (self.store.clone(), self.broker.clone(), self.clock.clone());
        let mut consumer = Consumer::new(store, broker, clock, name.clone(), service.clone(), registry);
        if front {
            consumer = consumer.accelerated(self.accelerator);
        }
        let (status, stop) = (consumer.status(), CancellationToken::new());
        let start = self.clock.monotonic();
        let running = tokio::spawn(Arc::new(consumer).run(stop.clone()));
        while counted(&status) < events.len() as u64 {
            self.clock.sleep(Duration::from_millis(2)).await;
        }
        let took = self.clock.since(start);
        stop.cancel();
        running.await??;
        Ok(per_second(events.len(), took))
    }
}
