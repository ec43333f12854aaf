//! What Redis in front of the inbox costs new events, and what it spares duplicates: the same deliveries, with it and without.

use postrider::Failure;
use postrider::consumer::ConsumerStatus;
use postrider::dedup::Accelerator;
use postrider::handler::{BatchLimits, batch_handler_fn, handler_fn};
use postrider::registry::Registry;
use postrider::store::Backend;

use super::desk::Desk;
use super::{Figure, Load};

impl<S: Backend> Desk<'_, S> {
    /// New events and then their duplicates, with Redis and without in turn; one event a transaction, and a hundred.
    pub(super) async fn duplicates(
        &self,
        load: Load,
        accelerator: &Accelerator,
    ) -> anyhow::Result<Vec<Figure>> {
        let mut figures = Vec::new();
        for batch in [1, 100] {
            let (mut new, mut again) = (Vec::new(), Vec::new());
            for round in 1..=load.rounds {
                let plain = self.first_and_again(load, batch, None).await?;
                let front = self.first_and_again(load, batch, Some(accelerator)).await?;
                eprintln!(
                    "batches of {batch}, round {round}: new {:.0}/s with Redis, {:.0}/s without; duplicates {:.0}/s with, {:.0}/s without",
                    front.0, plain.0, front.1, plain.1
                );
                new.push((front.0, plain.0));
                again.push((front.1, plain.1));
            }
            let of =
                if batch == 1 { "one event a transaction".to_owned() } else { format!("batches of {batch}") };
            let name = format!("new events with Redis in front of the inbox, over the inbox alone, {of}");
            figures.extend(Figure::median(name, self.backend, "/s", new).map(|figure| figure.aims_at(0.9)));
            let name = format!("duplicates with Redis warm, over the inbox alone, {of}");
            figures.extend(Figure::median(name, self.backend, "/s", again));
        }
        Ok(figures)
    }

    /// Events a second when they are new, and when they come again.
    async fn first_and_again(
        &self,
        load: Load,
        batch: usize,
        front: Option<&Accelerator>,
    ) -> anyhow::Result<(f64, f64)> {
        let (events, name) = (self.envelopes(load)?, self.new_name()?);
        let counts: [fn(&ConsumerStatus) -> u64; 2] = [ConsumerStatus::applied, ConsumerStatus::duplicates];
        let mut rates = [0.0; 2];
        for (rate, counted) in rates.iter_mut().zip(counts) {
            self.fill_queue(&events).await?;
            let consumer = self.consumer(&name, no_effect(batch), front)?;
            *rate = self.consume(consumer, events.len(), counted).await?.rate;
        }
        Ok(rates.into())
    }
}

/// Handlers that do nothing: what is left is what deduplication costs.
fn no_effect<S: Backend>(batch: usize) -> Registry<S> {
    if batch == 1 {
        return Registry::new().on("#", handler_fn::<S, _>(|_, _| Box::pin(async { Ok::<(), Failure>(()) })));
    }
    let limits = BatchLimits { max_size: batch, ..BatchLimits::default() };
    let nothing = batch_handler_fn::<S, _>(|_, _| Box::pin(async { Ok::<(), Failure>(()) }));
    Registry::new().on_batch("#", limits, nothing)
}
