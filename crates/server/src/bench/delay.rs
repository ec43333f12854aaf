//! From commit to confirm: how late an event is, at a steady rate, over the raw confirm of one message at a time.

use std::sync::Arc;
use std::time::Duration;

use postrider::WireFormat;
use postrider::envelope::wire;
use postrider::relay::{Relay, RelayConfig, RelayMode};
use postrider::store::Backend;
use tokio_util::sync::CancellationToken;

use super::desk::Desk;
use super::relay::until_streaming;
use super::watched::Watched;
use super::{Figure, Load, Raw, per_mille};

/// Services that commit side by side.
const WRITERS: usize = 4;
/// Commits before the clock counts: connections, plans and caches.
const WARM_UP: usize = 200;
/// Messages that the raw confirm is measured with.
const RAW_MESSAGES: usize = 2_000;

/// The places that are told, of 1000, and the most that each should be over raw.
const PLACES: [(usize, &str, Option<f64>); 3] =
    [(500, "p50", Some(3.0)), (990, "p99", Some(5.0)), (999, "p99.9", None)];

impl<S: Backend> Desk<'_, S> {
    /// Commits `rate` events a second, one by one, and measures each from its commit to its confirm.
    pub(super) async fn delay(
        &self,
        raw: &mut dyn Raw,
        load: Load,
        rate: u32,
        mode: RelayMode,
    ) -> anyhow::Result<Vec<Figure>> {
        let mut rounds = [const { Vec::new() }; PLACES.len()];
        for round in 1..=load.rounds {
            let limits = self.raw_confirms(raw, load).await?;
            let mut delays = self.delays(load, rate, mode).await?;
            raw.empty().await?;
            delays.sort_unstable();
            for (rounds, (place, name, _)) in rounds.iter_mut().zip(PLACES) {
                let (value, limit) = (per_mille(&delays, place), per_mille(&limits, place));
                eprintln!("round {round}: {name} {value:.2} ms (raw {limit:.2})");
                rounds.push((value, limit));
            }
        }
        let by = if mode == RelayMode::Cdc { " by cdc" } else { "" };
        let figures = rounds.into_iter().zip(PLACES).filter_map(|(rounds, (_, place, target))| {
            let name = format!("commit to confirmed{by} at {rate}/s, {place}, over one raw confirm");
            let figure = Figure::median(name, self.backend, "ms", rounds)?;
            Some(Figure { target, ..figure })
        });
        Ok(figures.collect())
    }

    /// How long raw confirms take, one message at a time, in order of length.
    pub(super) async fn raw_confirms(&self, raw: &mut dyn Raw, load: Load) -> anyhow::Result<Vec<Duration>> {
        let few = Load { events: load.events.min(RAW_MESSAGES), ..load };
        let messages = self.envelopes(few)?;
        let messages = messages.iter().map(|event| wire::encode(event, WireFormat::Envelope, 0)).collect();
        let mut took = raw.publish_one_by_one(messages, self.clock).await?;
        raw.empty().await?;
        took.sort_unstable();
        Ok(took)
    }

    async fn delays(&self, load: Load, rate: u32, mode: RelayMode) -> anyhow::Result<Vec<Duration>> {
        let clock = self.clock;
        let watched = Arc::new(Watched::new(self.broker.clone(), clock.clone()));
        let config = RelayConfig { mode, ..RelayConfig::default() };
        let relay = Relay::new(self.store.clone(), watched.clone(), clock.clone(), config);
        let (status, stop) = (relay.status(), CancellationToken::new());
        let running = tokio::spawn(relay.run(stop.clone()));
        if mode == RelayMode::Cdc {
            until_streaming(&status, clock).await?;
        }
        let start = clock.monotonic();
        let writers = (0..WRITERS).map(|writer| async move {
            let mut committed = Vec::new();
            for number in (writer..load.events).step_by(WRITERS) {
                let due = start + Duration::from_secs(1) * u32::try_from(number)? / rate;
                clock.sleep(due.saturating_sub(clock.monotonic())).await;
                let mut tx = self.store.begin().await?;
                let ids = self.store.append(&mut tx, vec![self.event(number, load)?]).await?;
                self.store.commit(tx).await?;
                let now = clock.monotonic();
                committed.extend(ids.into_iter().map(|id| (number, id.to_string(), now)));
            }
            anyhow::Ok(committed)
        });
        let committed = futures_util::future::try_join_all(writers).await?.into_iter().flatten();
        while status.published() < load.events as u64 {
            anyhow::ensure!(status.failed() == 0, "the broker refuses the benchmark's messages");
            clock.sleep(Duration::from_millis(2)).await;
        }
        stop.cancel();
        running.await?;
        let confirmed = watched.take();
        let counted = committed.filter(|(number, ..)| *number >= WARM_UP.min(load.events / 2));
        Ok(counted.filter_map(|(_, id, at)| Some(confirmed.get(&id)?.saturating_sub(at))).collect())
    }
}
