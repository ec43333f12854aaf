//! The cost of an event as the tables grow, and with a transaction held open so that nothing can be cleaned up.

use postrider::consumer::ConsumerStatus;
use postrider::postgres::Postgres;
use postrider::relay::RelayMode;

use super::desk::Desk;
use super::effects::Effects as _;
use super::table::{Held, add_applied, add_published};
use super::{Figure, Load};

/// Ordering keys of the events that are relayed.
const KEYS: usize = 5000;
/// Bytes in each row of history: what is behind does not have to be read.
const HISTORY_BYTES: usize = 100;

impl Desk<'_, Postgres> {
    /// Relay and consumer with so many rows in the outbox and the inbox, over the same with the first number of rows.
    pub(super) async fn growth(&self, load: Load, rows: &[usize]) -> anyhow::Result<Vec<Figure>> {
        self.store.make_effects().await?;
        let load = Load { keys: KEYS, ..load };
        let mut figures = Vec::new();
        let (mut there, mut first) = (0, None);
        for &rows in rows {
            add_published(self.store, rows.saturating_sub(there), HISTORY_BYTES, self.queue).await?;
            add_applied(self.store, rows.saturating_sub(there), self.queue).await?;
            there = rows;
            let now = self.rates(load).await?;
            figures.extend(self.grown(now, *first.get_or_insert(now), &format!("{rows} rows")));
        }
        let held = Held::open(self.store).await?;
        let now = self.rates(load).await;
        held.end().await?;
        if let Some(first) = first {
            figures.extend(self.grown(now?, first, &format!("{there} rows and a transaction held open")));
        }
        Ok(figures)
    }

    /// Events a second of the relay, and of a consumer with batches of 100: medians.
    async fn rates(&self, load: Load) -> anyhow::Result<(f64, f64)> {
        let (mut relayed, mut applied) = (Vec::new(), Vec::new());
        for _ in 0..load.rounds {
            self.fill_outbox(load).await?;
            relayed.push(self.drain(load, RelayMode::Poll).await?.rate);
            // What the relay published is what the consumer gets.
            let consumer = self.consumer(&self.new_name()?, Postgres::effects(100), None)?;
            applied.push(self.consume(consumer, load.events, ConsumerStatus::applied).await?.rate);
        }
        Ok((middle(relayed), middle(applied)))
    }

    fn grown(&self, now: (f64, f64), first: (f64, f64), with: &str) -> Vec<Figure> {
        eprintln!("with {with}: relay {:.0}/s, consumer {:.0}/s", now.0, now.1);
        let names = [
            (format!("relay with {with}, over the first"), (now.0, first.0)),
            (format!("consumer with {with}, over the first"), (now.1, first.1)),
        ];
        let figures = names.into_iter().filter_map(|(name, pair)| {
            Some(Figure::median(name, self.backend, "/s", vec![pair])?.aims_at(0.9))
        });
        figures.collect()
    }
}

fn middle(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates.get(rates.len() / 2).copied().unwrap_or_default()
}
