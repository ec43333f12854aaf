//! From commit to effect: outbox, relay, queue, consumer, inbox and a row, all at once, over the slowest of the raw stages.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;
use postrider::WireFormat;
use postrider::consumer::ConsumerStatus;
use postrider::envelope::wire;
use postrider::relay::{Relay, RelayConfig, RelayStatus};
use postrider::{Broker, Clock};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::desk::{Desk, Pace};
use super::effects::Effects;
use super::{Figure, Load, Raw, per_second, processor};

/// Services that commit side by side, and what each commits at a time.
const WRITERS: usize = 4;
const BATCH: usize = 100;

/// A relay and a consumer at work.
pub(super) struct Line {
    pub(super) relayed: Arc<RelayStatus>,
    pub(super) consumed: Arc<ConsumerStatus>,
    stop: CancellationToken,
    relay: JoinHandle<()>,
    consumer: JoinHandle<Result<(), postrider::broker::BrokerError>>,
}

impl Line {
    /// Waits until so many events had their effect.
    pub(super) async fn applied(&self, events: usize, clock: &Clock) -> anyhow::Result<()> {
        while self.consumed.applied() < events as u64 {
            anyhow::ensure!(self.relayed.failed() == 0, "the broker refuses the benchmark's messages");
            anyhow::ensure!(!self.consumer.is_finished(), "the consumer ended");
            clock.sleep(Duration::from_millis(2)).await;
        }
        Ok(())
    }

    pub(super) async fn end(self) -> anyhow::Result<()> {
        self.stop.cancel();
        self.relay.await?;
        self.consumer.await??;
        Ok(())
    }
}

impl<S: Effects> Desk<'_, S> {
    /// Throughput over the slowest of the raw stages, and what it costs in processor time over all of them.
    pub(super) async fn end_to_end(
        &self,
        raw: &mut dyn Raw,
        load: Load,
        target: f64,
    ) -> anyhow::Result<Vec<Figure>> {
        self.store.make_effects().await?;
        let (mut rates, mut costs) = (Vec::new(), Vec::new());
        for round in 1..=load.rounds {
            let before = self.processes.spent();
            let inserted = self.bare_transactions(load, BATCH, load.bytes).await?;
            let messages = self.envelopes(load)?;
            let messages = messages.iter().map(|event| wire::encode(event, WireFormat::Envelope, 0));
            let published = per_second(load.events, raw.publish(messages.collect(), self.clock).await?);
            let consumed = per_second(load.events, raw.consume(load.events, self.clock).await?);
            let raw_spent = self.processes.spent() - before;
            eprintln!(
                "round {round}: raw stages: insert {inserted:.0}/s, publish {published:.0}/s, consume {consumed:.0}/s"
            );
            let pace = self.commit_to_effect(load).await?;
            pace.tell(round, "commit to effect", load.events);
            rates.push((pace.rate, inserted.min(published).min(consumed)));
            costs.push((pace.spent.per_million(load.events), raw_spent.per_million(load.events)));
        }
        let figures = [
            Figure::median("commit to effect over the slowest raw stage", self.backend, "/s", rates)
                .map(|figure| figure.aims_at(target)),
            processor::figure("commit to effect over all raw stages", self.backend, costs),
        ];
        Ok(figures.into_iter().flatten().collect())
    }

    /// Throughput of a store without a broker's own limits, over rows of the same size alone: many in a statement, and one by one.
    pub(super) async fn end_to_end_of_rows(&self, load: Load, target: f64) -> anyhow::Result<Vec<Figure>> {
        self.store.make_effects().await?;
        let (mut over_batches, mut over_rows) = (Vec::new(), Vec::new());
        for round in 1..=load.rounds {
            let batched = self.plain_inserts(load, BATCH).await?;
            let one_by_one = self.plain_inserts(load, 1).await?;
            let pace = self.commit_to_effect(load).await?;
            eprintln!(
                "round {round}: rows in statements of {BATCH} {batched:.0}/s, one by one {one_by_one:.0}/s"
            );
            pace.tell(round, "commit to effect", load.events);
            over_batches.push((pace.rate, batched));
            over_rows.push((pace.rate, one_by_one));
        }
        let figure = |limit: &str, rounds| {
            let name =
                format!("commit to effect over raw inserts of the same size, {limit}, 100 in a transaction");
            Figure::median(name, self.backend, "/s", rounds)
        };
        let figures = [
            figure("100 in a statement", over_batches).map(|figure| figure.aims_at(target)),
            figure("one in a statement", over_rows),
        ];
        Ok(figures.into_iter().flatten().collect())
    }

    async fn commit_to_effect(&self, load: Load) -> anyhow::Result<Pace> {
        let before = self.processes.spent();
        let line = self.line(self.broker.clone(), S::effects(BATCH))?;
        let start = self.clock.monotonic();
        self.commit_all(load).await?;
        line.applied(load.events, self.clock).await?;
        let rate = per_second(load.events, self.clock.since(start));
        line.end().await?;
        Ok(Pace { rate, spent: self.processes.spent() - before })
    }

    /// Rows a second of one writer that inserts so many in a statement, and as many in a transaction as services do here.
    async fn plain_inserts(&self, load: Load, statement: usize) -> anyhow::Result<f64> {
        let start = self.clock.monotonic();
        for _ in 0..load.events.div_ceil(BATCH) {
            let mut tx = self.store.begin().await?;
            for _ in 0..BATCH / statement {
                let ids = (0..statement).map(|_| self.clock.new_id().to_string()).collect();
                let written = S::write_effects(&mut tx, ids, load.bytes).await;
                written.map_err(|failure| anyhow::anyhow!("{failure:?}"))?;
            }
            self.store.commit(tx).await?;
        }
        Ok(per_second(load.events.div_ceil(BATCH) * BATCH, self.clock.since(start)))
    }

    /// Starts a relay and a consumer.
    pub(super) fn line(
        &self,
        broker: Arc<dyn Broker>,
        handlers: postrider::registry::Registry<S>,
    ) -> anyhow::Result<Line> {
        let stop = CancellationToken::new();
        let relay = Relay::new(self.store.clone(), broker, self.clock.clone(), RelayConfig::default());
        let consumer = self.consumer(&self.new_name()?, handlers, None)?;
        Ok(Line {
            relayed: relay.status(),
            consumed: consumer.status(),
            relay: tokio::spawn(relay.run(stop.clone())),
            consumer: tokio::spawn(Arc::new(consumer).run(stop.clone())),
            stop,
        })
    }

    /// As fast as it goes.
    pub(super) async fn commit_all(&self, load: Load) -> anyhow::Result<()> {
        let writers = (0..WRITERS).map(|writer| async move {
            let numbers: Vec<usize> = (writer..load.events).step_by(WRITERS).collect();
            for chunk in numbers.chunks(BATCH) {
                let events = chunk.iter().map(|number| self.event(*number, load));
                let events = events.collect::<anyhow::Result<_>>()?;
                let mut tx = self.store.begin().await?;
                self.store.append(&mut tx, events).await?;
                self.store.commit(tx).await?;
            }
            anyhow::Ok(())
        });
        try_join_all(writers).await?;
        Ok(())
    }
}
