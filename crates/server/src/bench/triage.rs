//! Dead letters by the hundred thousand: how fast they are collected, found and sent again.

use std::time::Duration;

use postrider::broker::{Headers, Properties};
use postrider::envelope::{EventId, OrderingKey, TenantId};
use postrider::operation::{LetterPlan, LetterWork, Runner, RunnerConfig, start};
use postrider::store::{Backend, DeadLetter, GroupQuery, LetterFilter, LetterQuery, OperationKind, Turn};
use postrider::topology::{ConsumerName, QueueName};
use postrider::{Clock, Payload};
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use super::per_second;

/// Letters stored at a time, as the collector does.
const BATCH: usize = 500;
/// Questions asked of each kind, of which the median counts.
const QUESTIONS: usize = 21;
/// Different groups of letters.
const GROUPS: usize = 200;

/// What was measured. Milliseconds are medians.
#[derive(Debug, Serialize)]
pub(crate) struct TriageFigures {
    pub(crate) backend: String,
    pub(crate) letters: usize,
    /// Stored a second, in batches as the collector stores them.
    pub(crate) collected_per_second: f64,
    /// The newest page of the list.
    pub(crate) list_ms: f64,
    /// A page from the middle of the list.
    pub(crate) page_ms: f64,
    /// A page of one group's letters.
    pub(crate) group_letters_ms: f64,
    /// A page of groups, with counts by hour and samples.
    pub(crate) groups_ms: f64,
    /// A search for a text that is nowhere, to where it stops.
    pub(crate) text_ms: f64,
    /// Letters that were sent again, and how many a second: resolved, logged and in the outbox.
    pub(crate) replayed: u64,
    pub(crate) replayed_per_second: f64,
}

/// Fills the table, asks, and replays some.
pub(crate) async fn triage<S: Backend>(
    store: &S,
    clock: &Clock,
    queue: &QueueName,
    letters: usize,
    replays: u64,
    backend: String,
) -> anyhow::Result<TriageFigures> {
    let begin = clock.monotonic();
    for from in (0..letters).step_by(BATCH) {
        let batch = (from..(from + BATCH).min(letters)).map(|number| letter(number, queue, clock));
        store.collect(batch.collect::<anyhow::Result<_>>()?).await?;
    }
    let collected_per_second = per_second(letters, clock.since(begin));
    eprintln!("{letters} dead letters are stored, {collected_per_second:.0} a second");

    let open = LetterFilter::open;
    let newest = LetterQuery { filter: open(), turn: Turn::Newest, limit: 50 };
    let mut middle = newest.clone();
    let half = LetterFilter { until: Some(clock.now() - Duration::from_secs(letters as u64 / 2)), ..open() };
    let page = store.letters(&LetterQuery { filter: half, ..newest.clone() }).await?;
    if let Some(next) = page.next {
        middle.turn = Turn::Before(next);
    }
    let group = page.letters.first().map(|letter| letter.fingerprint.clone());
    let of_group = LetterQuery { filter: LetterFilter { fingerprint: group, ..open() }, ..newest.clone() };
    let text = LetterFilter { text: Some("no such text anywhere".to_owned()), ..open() };
    let by_text = LetterQuery { filter: text, ..newest.clone() };
    let groups = GroupQuery { filter: open(), after: None, limit: 20, hours: 24, now: clock.now() };

    let list_ms = median(clock, async || store.letters(&newest).await.map(drop)).await?;
    let page_ms = median(clock, async || store.letters(&middle).await.map(drop)).await?;
    let group_letters_ms = median(clock, async || store.letters(&of_group).await.map(drop)).await?;
    let groups_ms = median(clock, async || store.groups(&groups).await.map(drop)).await?;
    let text_ms = median(clock, async || store.letters(&by_text).await.map(drop)).await?;

    let plan = LetterPlan {
        filter: LetterFilter { queue: Some(queue.clone()), ..open() },
        limit: Some(replays),
        ..LetterPlan::default()
    };
    let begin = clock.monotonic();
    let started = start(store, clock, OperationKind::ReplayLetters, &plan, None, "bench", None).await?;
    let mut replayed = 0;
    if let Some(id) = started {
        let runner = Runner::new(store.clone(), clock.clone(), RunnerConfig::default());
        runner.run(id, &LetterWork::new(clock.clone()), &CancellationToken::new()).await?;
        replayed = store.operation(id).await?.map_or(0, |operation| operation.done);
    }
    let replayed_per_second = per_second(usize::try_from(replayed)?, clock.since(begin));
    Ok(TriageFigures {
        backend,
        letters,
        collected_per_second,
        list_ms,
        page_ms,
        group_letters_ms,
        groups_ms,
        text_ms,
        replayed,
        replayed_per_second,
    })
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
