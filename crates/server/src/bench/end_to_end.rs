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

use super::desk::Desk;
use super::effects::Effects;
use super::{Figure, Load, Raw, per_second};

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
    /// Throughput, and what it costs in processor time. Without a broker's own limits, over the rows alone.
    pub(super) async fn end_to_end(
        &self,
        mut raw: Option<&mut dyn Raw>,
        load: Load,
        target: f64,
    ) -> anyhow::Result<Vec<Figure>> {
        self.store.make_effects().await?;
        let (mut rates, mut costs) = (Vec::new(), Vec::new());
        for round in 1..=load.rounds {
            let before = processor_time();
            let mut limit = if raw.is_some() {
                self.bare_transactions(load, BATCH, load.bytes).await?
            } else {
                self.plain_inserts(load, BATCH).await?
            };
            if let Some(raw) = &mut raw {
                let messages = self.envelopes(load)?;
                let messages = messages.iter().map(|event| wire::encode(event, WireFormat::Envelope, 0));
                let published = raw.publish(messages.collect(), self.clock).await?;
                let consumed = raw.consume(load.events, self.clock).await?;
                limit = limit.min(per_second(load.events, published)).min(per_second(load.events, consumed));
            }
            let raw_cost = processor_time().saturating_sub(before);
            let before = processor_time();
            let line = self.line(self.broker.clone(), S::effects(BATCH))?;
            let start = self.clock.monotonic();
            self.commit_all(load).await?;
            line.applied(load.events, self.clock).await?;
            let rate = per_second(load.events, self.clock.since(start));
            line.end().await?;
            let cost = processor_time().saturating_sub(before);
            eprintln!("round {round}: slowest raw stage {limit:.0}/s, commit to effect {rate:.0}/s");
            rates.push((rate, limit));
            costs.push((per_million(cost, load.events), per_million(raw_cost, load.events)));
        }
        let over = if raw.is_some() {
            "the slowest raw stage"
        } else {
            "raw inserts of the same size, 100 in a transaction"
        };
        let figures = [
            Figure::median(format!("commit to effect over {over}"), self.backend, "/s", rates)
                .map(|figure| figure.aims_at(target)),
            Figure::median(
                "processor seconds of a million events, commit to effect, over the raw stages (client side)",
                self.backend,
                "s",
                costs,
            ),
        ];
        Ok(figures.into_iter().flatten().collect())
    }

    /// Rows a second of one writer that inserts them one by one, so many in a transaction.
    async fn plain_inserts(&self, load: Load, batch: usize) -> anyhow::Result<f64> {
        let start = self.clock.monotonic();
        for _ in 0..load.events.div_ceil(batch) {
            let mut tx = self.store.begin().await?;
            for _ in 0..batch {
                let written =
                    S::write_effects(&mut tx, vec![self.clock.new_id().to_string()], load.bytes).await;
                written.map_err(|failure| anyhow::anyhow!("{failure:?}"))?;
            }
            self.store.commit(tx).await?;
        }
        Ok(per_second(load.events.div_ceil(batch) * batch, self.clock.since(start)))
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
    async fn commit_all(&self, load: Load) -> anyhow::Result<()> {
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

/// Processor time of this process so far, where the system tells it as Linux does: what the client side costs.
fn processor_time() -> Duration {
    const TICK: Duration = Duration::from_millis(10);
    let Ok(stat) = std::fs::read_to_string("/proc/self/stat") else { return Duration::ZERO };
    // The second field is a name in brackets and may have blanks; user and system time are 12 and 13 fields after it.
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks = after_name.split_whitespace().skip(11).take(2).filter_map(|ticks| ticks.parse::<u32>().ok());
    TICK * ticks.sum::<u32>()
}

#[expect(clippy::cast_precision_loss, reason = "counts of a benchmark are far below 2^53")]
fn per_million(cost: Duration, events: usize) -> f64 {
    cost.as_secs_f64() * 1_000_000.0 / events as f64
}
