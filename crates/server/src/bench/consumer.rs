//! Consumers whose handlers write a row each: over raw consuming with acks, and over the same transactions with nothing around.

use futures_util::future::try_join_all;
use postrider::consumer::ConsumerStatus;

use super::desk::{Desk, Pace};
use super::effects::Effects;
use super::{Figure, Load, Raw, per_second, processor};

/// Transactions side by side, as a consumer has deliveries.
const SIDE_BY_SIDE: usize = 16;

impl<S: Effects> Desk<'_, S> {
    /// One event a transaction, and a hundred.
    pub(super) async fn consumers(&self, raw: &mut dyn Raw, load: Load) -> anyhow::Result<Vec<Figure>> {
        self.store.make_effects().await?;
        let (mut single, mut bare, mut batch) = (Vec::new(), Vec::new(), Vec::new());
        let (mut bare_batch, mut costs) = (Vec::new(), Vec::new());
        for round in 1..=load.rounds {
            let limit = self.raw_consume(raw, load).await?;
            let fewer = Load { events: load.events.div_ceil(4), ..load };
            let transactions = self.bare_transactions(fewer, 1, 0).await?;
            let of_hundred = self.bare_transactions(load, 100, 0).await?;
            let one = self.consume_effects(fewer, 1).await?;
            let hundred = self.consume_effects(load, 100).await?;
            eprintln!(
                "round {round}: bare transactions {transactions:.0}/s, of 100 rows {of_hundred:.0} rows/s"
            );
            limit.tell(round, "raw consume", load.events);
            one.tell(round, "one event a transaction", fewer.events);
            hundred.tell(round, "batches of 100", load.events);
            single.push((one.rate, limit.rate));
            bare.push((one.rate, transactions));
            bare_batch.push((hundred.rate, of_hundred));
            batch.push((hundred.rate, limit.rate));
            costs.push((hundred.spent.per_million(load.events), limit.spent.per_million(load.events)));
        }
        let figures = [
            Figure::median("consumer over raw consume and ack, batches of 100", self.backend, "/s", batch)
                .map(|figure| figure.aims_at(0.6)),
            Figure::median(
                "consumer over raw consume and ack, one event a transaction",
                self.backend,
                "/s",
                single,
            ),
            Figure::median("consumer over the bare transactions, one event each", self.backend, "/s", bare),
            Figure::median(
                "consumer over the bare transactions, 100 events each",
                self.backend,
                "/s",
                bare_batch,
            ),
            processor::figure("consumer over raw consume and ack, batches of 100", self.backend, costs),
        ];
        Ok(figures.into_iter().flatten().collect())
    }

    /// Events a second with handlers that write so many rows a transaction.
    async fn consume_effects(&self, load: Load, batch: usize) -> anyhow::Result<Pace> {
        self.fill_queue(&self.envelopes(load)?).await?;
        let consumer = self.consumer(&self.new_name()?, S::effects(batch), None)?;
        self.consume(consumer, load.events, ConsumerStatus::applied).await
    }

    /// Rows a second of transactions that write so many, and do nothing else.
    pub(super) async fn bare_transactions(
        &self,
        load: Load,
        batch: usize,
        bytes: usize,
    ) -> anyhow::Result<f64> {
        let each = load.events.div_ceil(batch).div_ceil(SIDE_BY_SIDE);
        let start = self.clock.monotonic();
        let tasks = (0..SIDE_BY_SIDE).map(|_| async {
            for _ in 0..each {
                let ids = (0..batch).map(|_| self.clock.new_id().to_string()).collect();
                let mut tx = self.store.begin().await?;
                let written = S::write_effects(&mut tx, ids, bytes).await;
                written.map_err(|failure| anyhow::anyhow!("{failure:?}"))?;
                self.store.commit(tx).await?;
            }
            anyhow::Ok(())
        });
        try_join_all(tasks).await?;
        Ok(per_second(each * SIDE_BY_SIDE * batch, self.clock.since(start)))
    }
}
