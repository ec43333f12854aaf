//! Dead letters by the hundred thousand: how fast they are collected, found and sent again.

use std::time::Duration;

use postrider::broker::{Headers, Properties};
use postrider::envelope::{EventId, OrderingKey, TenantId};
use postrider::operation::{LetterPlan, LetterWork, Runner, RunnerConfig, start};
use postrider::store::{Backend, DeadLetter, GroupQuery, LetterFilter, LetterQuery, OperationKind, Turn};
use postrider::topology::{ConsumerName, QueueName};
use postrider::{Clock, Payload};
use tokio_util::sync::CancellationToken;

use super::desk::Desk;
use super::{Figure, Load, Raw, per_second};

/// Letters stored at a time, as the collector does.
const BATCH: usize = 500;
/// Questions asked of each kind, of which the median counts.
const QUESTIONS: usize = 21;
/// What a page may take.
const ALLOWED_MS: f64 = 200.0;
/// Different groups of letters.
const GROUPS: usize = 200;

impl<S: Backend> Desk<'_, S> {
    /// Fills the table, asks, and sends some again.
    pub(super) async fn letters(
        &self,
        raw: &mut dyn Raw,
        load: Load,
        letters: usize,
        replays: u64,
    ) -> anyhow::Result<Vec<Figure>> {
        let (published, consumed) =
            (self.raw_publish(raw, load).await?.rate, self.raw_consume(raw, load).await?.rate);
        let collected = self.collect_letters(letters).await?;
        let mut figures = Vec::new();
        let name = format!("dead letters stored, up to {letters}, over raw consume and ack");
        figures.extend(Figure::median(name, self.backend, "/s", vec![(collected, consumed)]));
        for (name, took) in self.ask(letters).await? {
            let name = format!("{name}, {letters} dead letters, over the {ALLOWED_MS} ms allowed");
            let figure = Figure::median(name, self.backend, "ms", vec![(took, ALLOWED_MS)]);
            figures.extend(figure.map(|figure| figure.aims_at(1.0)));
        }
        let (replayed, rate) = self.replay_letters(replays).await?;
        let name = format!("dead letters sent again through the outbox, {replayed}, over raw confirms");
        figures.extend(Figure::median(name, self.backend, "/s", vec![(rate, published)]));
        Ok(figures)
    }

    /// Stored a second, in batches as the collector stores them.
    async fn collect_letters(&self, letters: usize) -> anyhow::Result<f64> {
        let begin = self.clock.monotonic();
        for from in (0..letters).step_by(BATCH) {
            let batch =
                (from..(from + BATCH).min(letters)).map(|number| letter(number, self.queue, self.clock));
            self.store.collect(batch.collect::<anyhow::Result<_>>()?).await?;
        }
        let rate = per_second(letters, self.clock.since(begin));
        eprintln!("{letters} dead letters are stored, {rate:.0} a second");
        Ok(rate)
    }

    /// Questions, and how many milliseconds each answer took.
    async fn ask(&self, letters: usize) -> anyhow::Result<Vec<(&'static str, f64)>> {
        let (store, clock, open) = (self.store, self.clock, LetterFilter::open);
        let newest = LetterQuery { filter: open(), turn: Turn::Newest, limit: 50 };
        let mut middle = newest.clone();
        // They died a second apart.
        let half = Duration::from_secs(letters as u64 / 2);
        let half = LetterFilter { until: Some(clock.now() - half), ..open() };
        let page = store.letters(&LetterQuery { filter: half, ..newest.clone() }).await?;
        if let Some(next) = page.next {
            middle.turn = Turn::Before(next);
        }
        let group = page.letters.first().map(|letter| letter.fingerprint.clone());
        let of_group =
            LetterQuery { filter: LetterFilter { fingerprint: group, ..open() }, ..newest.clone() };
        let text = LetterFilter { text: Some("no such text anywhere".to_owned()), ..open() };
        let by_text = LetterQuery { filter: text, ..newest.clone() };
        let groups = GroupQuery { filter: open(), after: None, limit: 20, hours: 24, now: clock.now() };
        Ok(vec![
            ("the newest page", median(clock, async || store.letters(&newest).await.map(drop)).await?),
            ("a page from the middle", median(clock, async || store.letters(&middle).await.map(drop)).await?),
            ("a page of one group", median(clock, async || store.letters(&of_group).await.map(drop)).await?),
            ("a page of groups", median(clock, async || store.groups(&groups).await.map(drop)).await?),
            (
                "a search for a text that is nowhere, to where it stops",
                median(clock, async || store.letters(&by_text).await.map(drop)).await?,
            ),
        ])
    }

    /// How many were sent again, and how many a second: resolved, logged and in the outbox.
    async fn replay_letters(&self, replays: u64) -> anyhow::Result<(u64, f64)> {
        let (store, clock) = (self.store, self.clock);
        let filter = LetterFilter { queue: Some(self.queue.clone()), ..LetterFilter::open() };
        let plan = LetterPlan { filter, limit: Some(replays), ..LetterPlan::default() };
        let begin = clock.monotonic();
        let started = start(store, clock, OperationKind::ReplayLetters, &plan, None, "bench", None).await?;
        let Some(id) = started else { anyhow::bail!("there is nothing to send again") };
        let runner = Runner::new(store.clone(), clock.clone(), RunnerConfig::default());
        runner.run(id, &LetterWork::new(clock.clone()), &CancellationToken::new()).await?;
        let replayed = store.operation(id).await?.map_or(0, |operation| operation.done);
        Ok((replayed, per_second(usize::try_from(replayed)?, clock.since(begin))))
    }
}

async fn median<E: Into<anyhow::Error>>(
    clock: &Clock,
    mut ask: impl AsyncFnMut() -> Result<(), E>,
) -> anyhow::Result<f64> {
    let mut took = Vec::new();
    for _ in 0..QUESTIONS {
        let begin = clock.monotonic();
        ask().await.map_err(Into::into)?;
        took.push(clock.since(begin));
    }
    took.sort_unstable();
    Ok((took[QUESTIONS / 2].as_secs_f64() * 10_000.0).round() / 10.0)
}

/// A letter a second, back from now; 1 KiB of body.
fn letter(number: usize, queue: &QueueName, clock: &Clock) -> anyhow::Result<DeadLetter> {
    let dead_at = clock.now() - Duration::from_secs(number as u64);
    let payload = Payload::json(&serde_json::json!({ "number": number, "filling": "x".repeat(990) }))?;
    Ok(DeadLetter {
        key: format!("{queue}/{number}"),
        event_id: Some(EventId::new(format!("{queue}/{number}"))?),
        event_type: Some("bench.item.made".to_owned()),
        tenant: Some(TenantId::new(format!("tenant-{}", number % 50))?),
        aggregate_id: None,
        ordering_key: Some(OrderingKey::new(format!("item/{}", number % 1000))?),
        consumer: Some(ConsumerName::new("bench")?),
        queue: queue.clone(),
        exchange: "bench".to_owned(),
        routing_key: "bench.item.made".to_owned(),
        reason: "retries_exhausted".to_owned(),
        error: format!("connection to host-{number} refused after {number} ms"),
        error_class: Some(format!("class-{}", number % GROUPS)),
        attempts: 11,
        first_failed_at: dead_at,
        dead_at,
        properties: Properties::default(),
        headers: Headers::new(),
        body: payload.bytes().clone(),
    })
}
