//! From commit to confirm and to effect, under load that does not wait for anybody: events are due by the clock, however late
//! the ones before them are, and each is counted from when it was due.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::try_join_all;
use postrider::handler::{BatchLimits, batch_handler_fn};
use postrider::registry::Registry;

use super::desk::Desk;
use super::effects::Effects;
use super::watched::Watched;
use super::{Figure, Load, Raw, per_mille};

/// Services that commit side by side.
const WRITERS: usize = 4;
/// Transactions a second of all of them; with more events a second, each has more.
const TRANSACTIONS: u32 = 200;
/// Which parts of the capacity.
const PERCENT: [u32; 3] = [10, 50, 90];
const PLACES: [(usize, &str); 3] = [(500, "p50"), (990, "p99"), (999, "p99.9")];

/// When each event was confirmed, or had its effect.
type Moments = HashMap<String, Duration>;

impl<S: Effects> Desk<'_, S> {
    /// At parts of a capacity in events a second, over the raw confirm of one message.
    pub(super) async fn latency(
        &self,
        raw: &mut dyn Raw,
        load: Load,
        capacity: f64,
        lasting: Duration,
    ) -> anyhow::Result<Vec<Figure>> {
        let limits = self.raw_confirms(raw, load).await?;
        let mut figures = Vec::new();
        for percent in PERCENT {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a rate of a benchmark"
            )]
            let rate = (capacity * f64::from(percent) / 100.0) as u32;
            let (confirmed, applied) = self.under_load(load, rate.max(1), lasting).await?;
            for (what, late) in [("commit to confirmed", confirmed), ("commit to handled", applied)] {
                for (place, name) in PLACES {
                    let pair = (per_mille(&late, place), per_mille(&limits, place));
                    eprintln!(
                        "{what} at {percent} % ({rate}/s), {name}: {:.1} ms (raw confirm {:.1})",
                        pair.0, pair.1
                    );
                    let name = format!("{what} at {percent} % of capacity, {name}, over one raw confirm");
                    figures.extend(Figure::median(name, self.backend, "ms", vec![pair]));
                }
            }
        }
        Ok(figures)
    }

    /// How late each event was confirmed and handled, in order.
    async fn under_load(
        &self,
        load: Load,
        rate: u32,
        lasting: Duration,
    ) -> anyhow::Result<(Vec<Duration>, Vec<Duration>)> {
        let clock = self.clock;
        let handled = Arc::new(Mutex::new(Moments::new()));
        let watched = Arc::new(Watched::new(self.broker.clone(), clock.clone()));
        let line = self.line(watched.clone(), noting(handled.clone(), clock.clone()))?;
        let each = rate.div_ceil(TRANSACTIONS).max(1);
        let transactions = u32::try_from(lasting.as_millis())? * rate / each / 1000;
        let pause = Duration::from_secs(1) * each / rate;
        let start = clock.monotonic() + Duration::from_millis(200);
        let writers = (0..WRITERS).map(|writer| async move {
            let mut due_of = Vec::new();
            for number in (writer..usize::try_from(transactions)?).step_by(WRITERS) {
                let due = start + pause * u32::try_from(number)?;
                clock.sleep(due.saturating_sub(clock.monotonic())).await;
                let numbers = number * each as usize..(number + 1) * each as usize;
                let events = numbers.map(|number| self.event(number, load)).collect::<anyhow::Result<_>>()?;
                let mut tx = self.store.begin().await?;
                let ids = self.store.append(&mut tx, events).await?;
                self.store.commit(tx).await?;
                due_of.extend(ids.into_iter().map(|id| (id.to_string(), due)));
            }
            anyhow::Ok(due_of)
        });
        let due_of: Vec<_> = try_join_all(writers).await?.into_iter().flatten().collect();
        line.applied(due_of.len(), clock).await?;
        line.end().await?;
        let handled = std::mem::take(&mut *handled.lock().unwrap_or_else(PoisonError::into_inner));
        Ok((late(&due_of, &watched.take()), late(&due_of, &handled)))
    }
}

fn late(due_of: &[(String, Duration)], moments: &Moments) -> Vec<Duration> {
    let late = due_of.iter().filter_map(|(id, due)| Some(moments.get(id)?.saturating_sub(*due)));
    let mut late: Vec<_> = late.collect();
    late.sort_unstable();
    late
}

/// Handlers that write rows, and note when each event's was written.
fn noting<S: Effects>(handled: Arc<Mutex<Moments>>, clock: postrider::Clock) -> Registry<S> {
    let limits = BatchLimits { max_size: 100, ..BatchLimits::default() };
    let noting = batch_handler_fn::<S, _>(move |tx, events| {
        let (handled, clock) = (handled.clone(), clock.clone());
        Box::pin(async move {
            let ids: Vec<_> = events.iter().map(|event| event.envelope.id.to_string()).collect();
            S::write_effects(tx, ids.clone(), 0).await?;
            let now = clock.monotonic();
            let mut handled = handled.lock().unwrap_or_else(PoisonError::into_inner);
            for id in ids {
                handled.entry(id).or_insert(now);
            }
            Ok(())
        })
    });
    Registry::new().on_batch("#", limits, noting)
}
