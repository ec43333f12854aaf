//! Dead letters by the hundred thousand: how fast they are collected, found and sent again.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use postrider::broker::{Headers, Outgoing, Properties, Published};
use postrider::dead_letter::{Collector, header};
use postrider::envelope::{EventId, OrderingKey, TenantId, wire};
use postrider::operation::{LetterPlan, LetterWork, Runner, RunnerConfig, start};
use postrider::relay::{Relay, RelayConfig};
use postrider::settlement::RetryPolicy;
use postrider::store::{Backend, DeadLetter, GroupQuery, LetterFilter, LetterQuery, OperationKind, Turn};
use postrider::topology::{ConsumerName, QueueName, ServiceQueue};
use postrider::{Clock, Payload, WireFormat};
use tokio_util::sync::CancellationToken;

use super::desk::Desk;
use super::relay::until_published;
use super::{Figure, Load, Raw, per_second};

/// Letters stored at a time, as the collector does.
const BATCH: usize = 500;
/// Questions asked of each kind, of which the median counts.
const QUESTIONS: usize = 21;
/// What a page may take.
pub(super) const ALLOWED_MS: f64 = 200.0;
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
        let collected = self.collect_letters(0..letters).await?;
        eprintln!("{letters} dead letters are stored, {collected:.0} a second");
        let mut figures = Vec::new();
        let name = format!("dead letters stored, up to {letters}, over raw consume and ack");
        figures.extend(Figure::median(name, self.backend, "/s", vec![(collected, consumed)]));
        let (from_queue, events) = (self.collect_from_queue(load).await?, load.events);
        let name = format!("dead letters collected from their queue, {events}, over raw consume and ack");
        figures.extend(Figure::median(name, self.backend, "/s", vec![(from_queue, consumed)]));
        for (name, took) in self.ask(letters).await? {
            let name = format!("{name}, {letters} dead letters, over the {ALLOWED_MS} ms allowed");
            let figure = Figure::median(name, self.backend, "ms", vec![(took, ALLOWED_MS)]);
            figures.extend(figure.map(|figure| figure.aims_at(1.0)));
        }
        let (replayed, rate) = self.replay_letters(replays).await?;
        raw.empty().await?;
        let name = format!("dead letters sent again, from plan to confirm, {replayed}, over raw confirms");
        figures.extend(Figure::median(name, self.backend, "/s", vec![(rate, published)]));
        Ok(figures)
    }

    /// Stored a second, in batches as the collector stores them; each number is a letter of its own.
    pub(super) async fn collect_letters(&self, numbers: Range<usize>) -> anyhow::Result<f64> {
        let begin = self.clock.monotonic();
        for from in numbers.clone().step_by(BATCH) {
            let batch =
                (from..(from + BATCH).min(numbers.end)).map(|number| letter(number, self.queue, self.clock));
            self.store.collect(batch.collect::<anyhow::Result<_>>()?).await?;
        }
        Ok(per_second(numbers.len(), self.clock.since(begin)))
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

    /// Collected a second, from the moment a collector starts on a full queue until all are in the table.
    async fn collect_from_queue(&self, load: Load) -> anyhow::Result<f64> {
        let events = self.envelopes(load)?;
        for chunk in events.chunks(BATCH) {
            let outgoing = chunk.iter().map(|event| {
                let mut message = wire::encode(event, WireFormat::Envelope, 0);
                let marks = [
                    (header::ORIGINAL_QUEUE, self.queue.as_str()),
                    (header::DEAD_REASON, "retries_exhausted"),
                    (header::FINAL_ERROR, "connection refused"),
                ];
                message.headers.extend(marks.map(|(name, value)| (name.to_owned(), value.into())));
                Outgoing::to_queue(self.queue, message)
            });
            let answers = self.broker.publish(outgoing.collect()).await;
            anyhow::ensure!(answers.iter().all(|answer| *answer == Published::Confirmed), "not confirmed");
        }
        let mut service = ServiceQueue::new(self.queue.as_str(), RetryPolicy::default())?;
        service.dead_letter_queue = self.queue.clone();
        let (store, broker, clock) = (self.store.clone(), self.broker.clone(), self.clock.clone());
        let (collector, stop) = (Collector::new(store, broker, clock, service), CancellationToken::new());
        let since = Some(self.clock.now());
        let mine = LetterFilter { queue: Some(self.queue.clone()), since, ..LetterFilter::open() };
        // They are collected in about the order of the queue. To count them all, over and over, would cost more than to collect them; and
        // so would anything else that is asked beside the id, where PostgreSQL has no statistics yet and walks another index for it.
        let last =
            LetterFilter { event_id: events.last().map(|event| event.id.clone()), ..LetterFilter::default() };
        let last = LetterQuery { filter: last, turn: Turn::Newest, limit: 1 };
        let begin = self.clock.monotonic();
        let running = tokio::spawn(Arc::new(collector).run(stop.clone()));
        while self.store.letters(&last).await?.letters.is_empty() {
            anyhow::ensure!(!running.is_finished(), "the collector ended");
            self.clock.sleep(Duration::from_millis(10)).await;
        }
        // The batch before may still be on its way.
        while self.store.survey(&mine).await?.letters < load.events as u64 {
            anyhow::ensure!(!running.is_finished(), "the collector ended");
            self.clock.sleep(Duration::from_millis(10)).await;
        }
        let rate = per_second(load.events, self.clock.since(begin));
        stop.cancel();
        running.await??;
        eprintln!("{} dead letters are collected from their queue, {rate:.0} a second", load.events);
        Ok(rate)
    }

    /// How many were sent again, and how many a second: from the plan to the last confirm, with a relay beside it.
    async fn replay_letters(&self, replays: u64) -> anyhow::Result<(u64, f64)> {
        let (store, clock) = (self.store, self.clock);
        let filter = LetterFilter { queue: Some(self.queue.clone()), ..LetterFilter::open() };
        let plan = LetterPlan { filter, limit: Some(replays), ..LetterPlan::default() };
        let relay = Relay::new(store.clone(), self.broker.clone(), clock.clone(), RelayConfig::default());
        let (status, stop) = (relay.status(), CancellationToken::new());
        let begin = clock.monotonic();
        let started = start(store, clock, OperationKind::ReplayLetters, &plan, None, "bench", None).await?;
        let Some(id) = started else { anyhow::bail!("there is nothing to send again") };
        let relaying = tokio::spawn(relay.run(stop.clone()));
        let runner = Runner::new(store.clone(), clock.clone(), RunnerConfig::default());
        runner.run(id, &LetterWork::new(clock.clone()), &CancellationToken::new()).await?;
        let replayed = store.operation(id).await?.map_or(0, |operation| operation.done);
        until_published(&status, usize::try_from(replayed)?, clock).await?;
        let took = clock.since(begin);
        stop.cancel();
        relaying.await?;
        Ok((replayed, per_second(usize::try_from(replayed)?, took)))
    }
}

pub(super) async fn median<E: Into<anyhow::Error>>(
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
