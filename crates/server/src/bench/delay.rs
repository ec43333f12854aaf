//! From commit to confirm: how late an event is, at a steady rate, over the raw confirm of one message at a time.

use std::sync::Arc;
use std::time::Duration;

use postrider::WireFormat;
use postrider::broker::{Outgoing, Published};
use postrider::envelope::wire;
use postrider::relay::{Relay, RelayConfig, RelayMode};
use tokio_util::sync::CancellationToken;

use super::desk::Desk;
use super::effects::Effects;
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

impl<S: Effects> Desk<'_, S> {
    /// The same without an outbox: who has committed a row publishes by hand, and loses the event if he dies in between. What of the time
    /// from commit to confirm is the servers' own at that rate.
    pub(super) async fn delay_by_hand(
        &self,
        raw: &mut dyn Raw,
        load: Load,
        rate: u32,
    ) -> anyhow::Result<Vec<Figure>> {
        self.store.make_effects().await?;
        let mut rounds = [const { Vec::new() }; PLACES.len()];
        for round in 1..=load.rounds {
            let limits = self.raw_confirms(raw, load).await?;
            let delays = self.delays_by_hand(load, rate).await?;
            raw.empty().await?;
            note(&mut rounds, round, "by hand", &delays, &limits);
        }
        Ok(self.figures(rounds, &format!("commit to confirmed by hand at {rate}/s"), false))
    }

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
            note(
                &mut rounds,
                round,
                if mode == RelayMode::Cdc { "by cdc" } else { "polling" },
                &delays,
                &limits,
            );
        }
        let by = if mode == RelayMode::Cdc { " by cdc" } else { "" };
        Ok(self.figures(rounds, &format!("commit to confirmed{by} at {rate}/s"), true))
    }

    fn figures(&self, rounds: Rounds, what: &str, aims: bool) -> Vec<Figure> {
        let figures = rounds.into_iter().zip(PLACES).filter_map(|(rounds, (_, place, target))| {
            let name = format!("{what}, {place}, over one raw confirm");
            let figure = Figure::median(name, self.backend, "ms", rounds)?;
            Some(Figure { target: target.filter(|_| aims), ..figure })
        });
        figures.collect()
    }

    async fn delays_by_hand(&self, load: Load, rate: u32) -> anyhow::Result<Vec<Duration>> {
        let (clock, start) = (self.clock, self.clock.monotonic());
        let writers = (0..WRITERS).map(|writer| async move {
            let mut publishing = Vec::new();
            for number in (writer..load.events).step_by(WRITERS) {
                let due = start + Duration::from_secs(1) * u32::try_from(number)? / rate;
                clock.sleep(due.saturating_sub(clock.monotonic())).await;
                let envelope = self.event(number, load)?.into_envelope(clock);
                let mut tx = self.store.begin().await?;
                let written = S::write_effects(&mut tx, vec![envelope.id.to_string()], load.bytes).await;
                written.map_err(|failure| anyhow::anyhow!("{failure:?}"))?;
                self.store.commit(tx).await?;
                let (committed, broker, clock) = (clock.monotonic(), self.broker.clone(), clock.clone());
                let message = wire::encode(&envelope, WireFormat::Envelope, 0);
                let outgoing = Outgoing::to_queue(self.queue, message);
                let sent = tokio::spawn(async move {
                    let confirmed = broker.publish(vec![outgoing]).await == [Published::Confirmed];
                    (confirmed, clock.since(committed))
                });
                publishing.push((number, sent));
            }
            let mut delays = Vec::with_capacity(publishing.len());
            for (number, sent) in publishing {
                let (confirmed, delay) = sent.await?;
                anyhow::ensure!(confirmed, "the broker refuses the benchmark's messages");
                delays.extend((number >= WARM_UP.min(load.events / 2)).then_some(delay));
            }
            anyhow::Ok(delays)
        });
        let mut delays = futures_util::future::try_join_all(writers).await?.concat();
        delays.sort_unstable();
        Ok(delays)
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

/// For each of [`PLACES`], what was measured in each round, and raw.
type Rounds = [Vec<(f64, f64)>; PLACES.len()];

fn note(rounds: &mut Rounds, round: usize, what: &str, delays: &[Duration], limits: &[Duration]) {
    for (rounds, (place, name, _)) in rounds.iter_mut().zip(PLACES) {
        let (value, limit) = (per_mille(delays, place), per_mille(limits, place));
        eprintln!("round {round}: {what} {name} {value:.2} ms (raw {limit:.2})");
        rounds.push((value, limit));
    }
}
