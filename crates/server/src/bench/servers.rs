//! PostgreSQL, RabbitMQ and Redis: queues and rows of the benchmark's own, which are removed afterwards.

use std::sync::Arc;

use postrider::Broker;
use postrider::dedup::Accelerator;
use postrider::postgres::Postgres;
use postrider::rabbitmq::RabbitMq;
use postrider::relay::RelayMode;
use postrider::settlement::RetryPolicy;
use postrider::store::{Outbox as _, Store as _};
use postrider::topology::{QueueName, ServiceQueue};
use secrecy::ExposeSecret as _;

use super::desk::Desk;
use super::ledger::LedgerBench;
use super::naive::Naive;
use super::processor::Processes;
use super::raw::RabbitRaw;
use super::relay::Rival;
use super::table::{forget, forget_inbox, forget_letters, forget_others, forget_published};
use super::{Figure, Load, Part, Sizes, http};
use crate::commands::Context;
use crate::config::Server;
use crate::exit::usage;
use crate::wiring;

/// The servers, connected.
pub(crate) struct Servers<'a> {
    context: &'a Context,
    database: &'a Server,
    store: Postgres,
    broker: Arc<dyn Broker>,
    raw: RabbitRaw,
    naive: Naive,
    accelerator: Option<Accelerator>,
    queue: QueueName,
    processes: Processes,
    /// What they are called in the table.
    name: &'a str,
}

impl<'a> Servers<'a> {
    /// Connects, and makes a queue. Refuses an outbox where others' events wait: the benchmark's relay would publish them.
    pub(crate) async fn open(
        context: &'a Context,
        database: &'a Server,
        broker: &Server,
        name: &'a str,
    ) -> anyhow::Result<Self> {
        let (config, clock) = (&context.config, &context.clock);
        let store = Postgres::connect(wiring::postgres(config, database), clock.clone()).await?;
        store.check().await?;
        let waiting = store.backlog().await?.due;
        if waiting > 0 {
            return Err(usage(format!(
                "{waiting} events wait in this outbox, and the benchmark's relay would publish them; use a database of its own"
            )));
        }
        let queue = QueueName::new(format!("postrider.bench.{}", clock.new_id()))?;
        let settings = wiring::rabbitmq(config, broker);
        let url = settings.url.expose_secret().to_owned();
        if url.starts_with("amqps:") {
            return Err(usage(
                "raw limits are measured without TLS, beside which nothing could be compared; name the broker by amqp://, or use \
                 scripts/bench",
            ));
        }
        let processes = Processes::behind(database.url.to_secret_string().expose_secret(), &url);
        let raw = RabbitRaw::open(&url, queue.clone()).await?;
        let naive = Naive::open(store.pool(), &url, queue.as_str()).await?;
        let broker = Arc::new(RabbitMq::connect(settings, clock.clone()).await?);
        let accelerator = wiring::accelerator(context).await.filter(|front| !front.is_degraded());
        Ok(Self { context, database, store, broker, raw, naive, accelerator, queue, processes, name })
    }

    /// Measures one part. What needs a server that is not there is left out, and said so.
    pub(crate) async fn measure(
        &mut self,
        part: Part,
        load: Load,
        sizes: &Sizes,
    ) -> anyhow::Result<Vec<Figure>> {
        let clock = &self.context.clock;
        let desk = Desk {
            store: &self.store,
            broker: &self.broker,
            queue: &self.queue,
            clock,
            backend: self.name,
            processes: self.processes,
        };
        let raw = &mut self.raw;
        match part {
            Part::Relay => {
                let mut figures = Vec::new();
                for &keys in &sizes.keys {
                    let naive = (keys != 1).then_some(&self.naive);
                    let mut rival = Rival { raw, naive, streams: true };
                    figures.extend(desk.relay(&mut rival, load.with_keys(keys)).await?);
                }
                Ok(figures)
            }
            Part::Delay => {
                let mut figures = desk.delay_by_hand(raw, load, sizes.rate).await?;
                figures.extend(desk.delay(raw, load, sizes.rate, RelayMode::Poll).await?);
                figures.extend(desk.delay(raw, load, sizes.rate, RelayMode::Cdc).await?);
                Ok(figures)
            }
            Part::Consumer => desk.consumers(raw, load).await,
            Part::EndToEnd => {
                let mut figures = desk.end_to_end(raw, load, 0.5).await?;
                let capacity = figures.first().map_or(0.0, |figure| figure.value);
                figures.extend(desk.latency(raw, load, capacity, sizes.lasting).await?);
                Ok(figures)
            }
            Part::Duplicates => {
                if let Some(front) = &self.accelerator {
                    return desk.duplicates(load, front).await;
                }
                self.context.output.note("no Redis answers (REDIS_URL): duplicates are not measured");
                Ok(Vec::new())
            }
            Part::Http => {
                let service = self.push_queue()?;
                let measured = http::over_http(&desk, load, &service).await;
                self.raw.remove_also(service.queues().iter().map(|queue| &queue.name)).await?;
                forget_published(&self.store).await?;
                measured
            }
            Part::Letters => {
                let measured = desk.letters(raw, load, sizes.letters, sizes.replays).await;
                forget_letters(&self.store, &self.queue).await?;
                forget(&self.store, &self.queue).await?;
                measured
            }
            Part::Dashboard => {
                let config = self.context.flags.file.as_deref();
                let measured = desk.dashboard(raw, config, load, sizes.history).await;
                forget_others(&self.store, &self.queue).await?;
                forget(&self.store, &self.queue).await?;
                measured
            }
            Part::Ledger => self.ledger(load).await,
            Part::Memory => desk.memory(load).await,
            Part::Growth => {
                let measured = desk.growth(load, &sizes.rows).await;
                forget_letters(&self.store, &self.queue).await?;
                measured
            }
            Part::Embedded => Ok(Vec::new()),
        }
    }

    /// The queue that push is measured on, beside the benchmark's own.
    fn push_queue(&self) -> anyhow::Result<ServiceQueue> {
        Ok(ServiceQueue::new(format!("{}.push", self.queue), RetryPolicy::default())?)
    }

    async fn ledger(&self, load: Load) -> anyhow::Result<Vec<Figure>> {
        let queue = ServiceQueue::new(format!("{}.ledger", self.queue), RetryPolicy::default())?;
        let database = wiring::postgres(&self.context.config, self.database);
        let clock = &self.context.clock;
        let bench = LedgerBench {
            database,
            broker: &self.broker,
            queue: &queue,
            clock,
            load,
            processes: self.processes,
        };
        let measured = bench.figures().await;
        self.raw.remove_also(queue.queues().iter().map(|queue| &queue.name)).await?;
        measured
    }

    /// Removes everything that was made.
    pub(crate) async fn remove(self) -> anyhow::Result<()> {
        self.broker.close().await;
        self.raw.remove().await?;
        self.naive.remove().await?;
        forget(&self.store, &self.queue).await?;
        forget_inbox(&self.store, &self.queue).await?;
        Ok(())
    }
}
