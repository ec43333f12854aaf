//! The cost of an event as the tables grow, and with a transaction held open so that nothing can be cleaned up.

use postrider::consumer::ConsumerStatus;
use postrider::postgres::Postgres;
use postrider::relay::RelayMode;

use super::desk::Desk;
use super::effects::Effects as _;
use super::table::{Held, add_applied, add_letters, add_published, settle};
use super::{Figure, Load};

/// Ordering keys of the events that are relayed.
const KEYS: usize = 5000;
/// Bytes in each row of history: what is behind does not have to be read.
const HISTORY_BYTES: usize = 100;
/// What is measured with every number of rows.
const NAMES: [&str; 3] = ["relay", "consumer", "dead letters stored"];

/// Events a second of each of them.
type Rates = [f64; NAMES.len()];

impl Desk<'_, Postgres> {
    /// Relay, consumer and collecting with so many rows in the outbox, the inbox and the dead letters, over the same with the first
    /// number of rows. Before the first a round goes uncounted: it fills the caches.
    pub(super) async fn growth(&self, load: Load, rows: &[usize]) -> anyhow::Result<Vec<Figure>> {
        self.store.make_effects().await?;
        let load = Load { keys: KEYS, ..load };
        let mut figures = Vec::new();
        let (mut there, mut letters, mut first) = (0, 0, None);
        for &rows in rows {
            let (store, more) = (self.store, rows.saturating_sub(there));
            tokio::try_join!(
                add_published(store, more, HISTORY_BYTES, self.queue),
                add_applied(store, more, self.queue),
                add_letters(store, more, HISTORY_BYTES, self.queue),
            )?;
            there = rows;
            settle(self.store).await?;
            if first.is_none() {
                self.rates(Load { rounds: 1, ..load }, &mut letters).await?;
            }
            let now = self.rates(load, &mut letters).await?;
            figures.extend(self.grown(now, *first.get_or_insert(now), &format!("{rows} rows")));
        }
        let held = Held::open(self.store).await?;
        let now = self.rates(load, &mut letters).await;
        held.end().await?;
        if let Some(first) = first {
            figures.extend(self.grown(now?, first, &format!("{there} rows and a transaction held open")));
        }
        Ok(figures)
    }

    /// Medians, of a consumer with batches of 100. `letters` is how many were collected before.
    async fn rates(&self, load: Load, letters: &mut usize) -> anyhow::Result<Rates> {
        let (mut relayed, mut applied, mut collected) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..load.rounds {
            self.fill_outbox(load).await?;
            relayed.push(self.drain(load, RelayMode::Poll).await?.rate);
            // What the relay published is what the consumer gets.
            let consumer = self.consumer(&self.new_name()?, Postgres::effects(100), None)?;
            applied.push(self.consume(consumer, load.events, ConsumerStatus::applied).await?.rate);
            collected.push(self.collect_letters(*letters..*letters + load.events).await?);
            *letters += load.events;
        }
        Ok([relayed, applied, collected].map(middle))
    }

    fn grown(&self, now: Rates, first: Rates, with: &str) -> Vec<Figure> {
        let pairs = NAMES.into_iter().zip(now.into_iter().zip(first));
        let figures = pairs.filter_map(|(what, pair)| {
            eprintln!("{what} with {with}: {:.0}/s", pair.0);
            let name = format!("{what} with {with}, over the first");
            Some(Figure::median(name, self.backend, "/s", vec![pair])?.aims_at(0.9))
        });
        figures.collect()
    }
}

fn middle(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates.get(rates.len() / 2).copied().unwrap_or_default()
}
