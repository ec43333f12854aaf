//! Relay throughput over raw publishing with confirms: the same messages, the same queue, the same run.

use std::sync::Arc;
use std::time::Duration;

use postrider::envelope::wire;
use postrider::relay::{Relay, RelayConfig, RelayMode, RelayStatus};
use postrider::store::Backend;
use postrider::{Clock, WireFormat};
use tokio_util::sync::CancellationToken;

use super::desk::{Desk, Pace};
use super::gate::Gate;
use super::{Figure, Load, Naive, Raw, per_second, processor};

/// Against what the relay is measured.
pub(super) struct Rival<'a> {
    /// The broker alone.
    pub(super) raw: &'a mut dyn Raw,
    /// What somebody would write in an afternoon.
    pub(super) naive: Option<&'a Naive>,
    /// Whether the store can stream, so that this is measured too.
    pub(super) streams: bool,
}

impl<S: Backend> Desk<'_, S> {
    /// Measures the rounds, raw, naive and relay in turn. One hot key is measured against one message at a time.
    pub(super) async fn relay(&self, rival: &mut Rival<'_>, load: Load) -> anyhow::Result<Vec<Figure>> {
        let (mut polled, mut naive_rounds, mut streamed) = (Vec::new(), Vec::new(), Vec::new());
        let (mut polled_costs, mut streamed_costs) = (Vec::new(), Vec::new());
        let cost = |pace: Pace| pace.spent.per_million(load.events);
        for round in 1..=load.rounds {
            let limit = self.raw_publish(rival.raw, load).await?;
            limit.tell(round, "raw", load.events);
            if let Some(naive) = rival.naive {
                naive.fill(load).await?;
                let pace = self.paced(load, naive.drain(self.clock)).await?;
                pace.tell(round, "naive poller", load.events);
                naive_rounds.push((pace.rate, limit.rate));
                rival.raw.empty().await?;
            }
            self.fill_outbox(load).await?;
            let pace = self.drain(load, RelayMode::Poll).await?;
            rival.raw.empty().await?;
            pace.tell(round, "relay", load.events);
            polled.push((pace.rate, limit.rate));
            polled_costs.push((cost(pace), cost(limit)));
            if rival.streams {
                let pace = self.drain_stream(load).await?;
                rival.raw.empty().await?;
                pace.tell(round, "relay by cdc", load.events);
                streamed.push((pace.rate, limit.rate));
                streamed_costs.push((cost(pace), cost(limit)));
            }
        }
        let keys = match load.keys {
            0 => "no keys".to_owned(),
            1 => "one hot key, over one message at a time".to_owned(),
            keys => format!("{keys} keys"),
        };
        let aims = |figure: Figure, target| if load.keys == 1 { figure } else { figure.aims_at(target) };
        let figures = [
            Figure::median(format!("relay over raw confirms, {keys}"), self.backend, "/s", polled)
                .map(|figure| aims(figure, 0.85)),
            Figure::median(format!("relay by cdc over raw confirms, {keys}"), self.backend, "/s", streamed)
                .map(|figure| aims(figure, 0.95)),
            Figure::median(
                format!("naive poller over raw confirms, {keys}"),
                self.backend,
                "/s",
                naive_rounds,
            ),
            processor::figure(&format!("relay over raw confirms, {keys}"), self.backend, polled_costs),
            processor::figure(
                &format!("relay by cdc over raw confirms, {keys}"),
                self.backend,
                streamed_costs,
            ),
        ];
        Ok(figures.into_iter().flatten().collect())
    }

    /// Messages a second of the broker's own client.
    pub(super) async fn raw_publish(&self, raw: &mut dyn Raw, load: Load) -> anyhow::Result<Pace> {
        let envelopes = self.envelopes(load)?;
        let messages = envelopes.iter().map(|event| wire::encode(event, WireFormat::Envelope, 0)).collect();
        let publishing = async {
            if load.keys == 1 {
                return Ok(raw.publish_one_by_one(messages, self.clock).await?.iter().sum());
            }
            raw.publish(messages, self.clock).await
        };
        let pace = self.paced(load, publishing).await?;
        raw.empty().await?;
        Ok(pace)
    }

    /// Messages a second that the same client consumes and acks.
    pub(super) async fn raw_consume(&self, raw: &mut dyn Raw, load: Load) -> anyhow::Result<Pace> {
        self.fill_queue(&self.envelopes(load)?).await?;
        self.paced(load, raw.consume(load.events, self.clock)).await
    }

    /// Events a second of a relay, from the moment it starts on a full outbox to the moment the last row is marked.
    pub(super) async fn drain(&self, load: Load, mode: RelayMode) -> anyhow::Result<Pace> {
        let config = RelayConfig { mode, ..RelayConfig::default() };
        let relay = Relay::new(self.store.clone(), self.broker.clone(), self.clock.clone(), config);
        let (status, stop) = (relay.status(), CancellationToken::new());
        let mut running = None;
        let draining = async {
            let start = self.clock.monotonic();
            running = Some(tokio::spawn(relay.run(stop.clone())));
            until_published(&status, load.events, self.clock).await?;
            Ok(self.clock.since(start))
        };
        let pace = self.paced(load, draining).await?;
        stop.cancel();
        if let Some(running) = running {
            running.await?;
        }
        Ok(pace)
    }

    /// The same with a relay that streams: everything is committed while the broker takes nothing, and measured from when it
    /// does.
    async fn drain_stream(&self, load: Load) -> anyhow::Result<Pace> {
        let gate = Arc::new(Gate::new(self.broker.clone()));
        let config = RelayConfig { mode: RelayMode::Cdc, ..RelayConfig::default() };
        let relay = Relay::new(self.store.clone(), gate.clone(), self.clock.clone(), config);
        let (status, stop) = (relay.status(), CancellationToken::new());
        let running = tokio::spawn(relay.run(stop.clone()));
        until_streaming(&status, self.clock).await?;
        gate.close();
        self.fill_outbox(load).await?;
        let draining = async {
            let start = self.clock.monotonic();
            gate.open();
            until_published(&status, load.events, self.clock).await?;
            Ok(self.clock.since(start))
        };
        let pace = self.paced(load, draining).await?;
        anyhow::ensure!(status.is_streaming(), "the relay ended its stream meanwhile");
        stop.cancel();
        running.await?;
        Ok(pace)
    }

    /// What took so long, as a rate, and what it cost.
    pub(super) async fn paced(
        &self,
        load: Load,
        work: impl Future<Output = anyhow::Result<Duration>>,
    ) -> anyhow::Result<Pace> {
        let before = self.processes.spent();
        let took = work.await?;
        Ok(Pace { rate: per_second(load.events, took), spent: self.processes.spent() - before })
    }
}

pub(super) async fn until_published(
    status: &RelayStatus,
    events: usize,
    clock: &Clock,
) -> anyhow::Result<()> {
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
