//! How everything goes, looked at once a second for whoever watches: twenty open pages cost what one costs.
//!
//! One task looks; everybody else gets what it saw. It spends at most a twentieth of its time looking, so that a store that is slow
//! to count is asked less often. While nobody watches it looks now and then, so that a page has something to show at once.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use metrics_exporter_prometheus::PrometheusHandle;
use postrider::Clock;
use postrider::dedup::CacheHealth;
use postrider::store::{Backlog, GroupQuery, LetterFilter, LetterGroup, OperationState, RowFilter};
use serde::Serialize;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::consumers::ConsumerRow;
use super::{Answer, Desk};
use crate::api::{ApiBackend, Once};

/// While somebody watches.
const BUSY: Duration = Duration::from_secs(1);
/// While nobody does.
const IDLE: Duration = Duration::from_secs(10);
/// So many looks are remembered.
const REMEMBERED: usize = 120;
/// Queues are asked for their depths this often, and the broker for its topology less often still.
const DEPTHS: Duration = Duration::from_secs(5);
const DRIFT: Duration = Duration::from_mins(1);
/// The most groups that are read.
const GROUPS: usize = 200;
/// A part that does not answer within this is away.
const PATIENCE: Duration = Duration::from_secs(3);

/// What was seen in one look.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Beat {
    pub(crate) at: Timestamp,
    pub(crate) health: BTreeMap<&'static str, &'static str>,
    /// How the outbox is read: `cdc` or `poll`.
    pub(crate) relay: &'static str,
    pub(crate) committed_per_second: f64,
    pub(crate) published_per_second: f64,
    /// By the consumers of this process.
    pub(crate) applied_per_second: f64,
    pub(crate) retried_per_second: f64,
    pub(crate) due: u64,
    pub(crate) later: u64,
    pub(crate) dead_in_outbox: u64,
    pub(crate) parked_keys: u64,
    pub(crate) oldest_due: Option<Timestamp>,
    pub(crate) failure_groups: usize,
    pub(crate) open_dead_letters: u64,
    pub(crate) running_operations: usize,
}

impl Beat {
    /// Nothing moves, and nothing waits.
    pub(crate) fn still(at: Timestamp, health: BTreeMap<&'static str, &'static str>) -> Self {
        Self {
            at,
            health,
            relay: "poll",
            committed_per_second: 0.0,
            published_per_second: 0.0,
            applied_per_second: 0.0,
            retried_per_second: 0.0,
            due: 0,
            later: 0,
            dead_in_outbox: 0,
            parked_keys: 0,
            oldest_due: None,
            failure_groups: 0,
            open_dead_letters: 0,
            running_operations: 0,
        }
    }
}

/// Everything that is known now, and what was seen before.
#[derive(Debug, Clone, Default)]
pub(crate) struct Moment {
    pub(crate) beats: VecDeque<Beat>,
    /// Those with the newest letters first.
    pub(crate) groups: Vec<LetterGroup>,
    pub(crate) consumers: Vec<ConsumerRow>,
    /// Applied a second, by consumer.
    pub(crate) rates: BTreeMap<String, f64>,
    /// How many things of the topology differ; nothing where there is no broker to differ.
    pub(crate) drift: Option<Result<usize, String>>,
}

impl Moment {
    /// The last look.
    pub(crate) fn now(&self) -> Option<&Beat> {
        self.beats.back()
    }
}

/// The one who looks.
pub(crate) struct Pulse {
    seen: watch::Sender<Arc<Moment>>,
    asked: Notify,
    clock: Clock,
    stop: CancellationToken,
}

impl Pulse {
    /// Looks until `stop`. Then everybody's watch ends.
    pub(crate) fn start(
        desk: Arc<dyn Desk>,
        backend: Arc<dyn ApiBackend>,
        once: Arc<dyn Once>,
        metrics: PrometheusHandle,
        clock: Clock,
        stop: CancellationToken,
    ) -> Arc<Self> {
        let (seen, asked) = (watch::Sender::new(Arc::default()), Notify::new());
        let pulse = Arc::new(Self { seen, asked, clock, stop: stop.clone() });
        let look = Look { desk, backend, once, metrics, before: Before::default() };
        let looking = pulse.clone();
        tokio::spawn(async move { stop.run_until_cancelled(looking.run(look)).await });
        pulse
    }

    /// Everything from now on.
    pub(crate) fn watch(&self) -> watch::Receiver<Arc<Moment>> {
        self.asked.notify_one();
        self.seen.subscribe()
    }

    /// What this comes to; nothing when the process stops.
    pub(crate) async fn until_stopped<F: Future>(&self, doing: F) -> Option<F::Output> {
        self.stop.run_until_cancelled(doing).await
    }

    /// The next look; nothing when the process stops.
    pub(crate) async fn next(&self, seen: &mut watch::Receiver<Arc<Moment>>) -> Option<Arc<Moment>> {
        self.until_stopped(seen.changed()).await?.ok()?;
        Some(seen.borrow_and_update().clone())
    }

    /// What was seen last, however long ago that is.
    pub(crate) fn last(&self) -> Arc<Moment> {
        self.seen.borrow().clone()
    }

    /// What is known now; looks first if that is old.
    pub(crate) async fn fresh(&self) -> Arc<Moment> {
        let old = |moment: &Arc<Moment>| {
            let age = moment.now().map(|beat| self.clock.now().duration_since(beat.at).as_secs());
            age.is_none_or(|seconds| seconds >= 2)
        };
        if old(&self.seen.borrow()) {
            let mut seen = self.watch();
            seen.mark_unchanged();
            let _late = tokio::time::timeout(PATIENCE, seen.changed()).await;
        }
        self.seen.borrow().clone()
    }

    async fn run(&self, mut look: Look) {
        let mut moment = Moment::default();
        loop {
            let start = self.clock.monotonic();
            look.at(&self.clock, &mut moment).await;
            self.seen.send_replace(Arc::new(moment.clone()));
            let took = self.clock.since(start);
            let least = took * 20;
            if self.seen.receiver_count() > 0 {
                self.clock.sleep(least.max(BUSY)).await;
            } else {
                self.clock.sleep(least).await;
                tokio::select! {
                    () = self.clock.sleep(IDLE) => {}
                    () = self.asked.notified() => {}
                }
            }
        }
    }
}

/// What was counted at the last look, to tell how fast it grows.
#[derive(Default)]
struct Before {
    at: Option<Duration>,
    position: i64,
    unpublished: u64,
    applied: BTreeMap<String, f64>,
    retried: f64,
    depths_at: Option<Duration>,
    drift_at: Option<Duration>,
}

struct Look {
    desk: Arc<dyn Desk>,
    backend: Arc<dyn ApiBackend>,
    once: Arc<dyn Once>,
    metrics: PrometheusHandle,
    before: Before,
}

impl Look {
    async fn at(&mut self, clock: &Clock, moment: &mut Moment) {
        let (mut beat, backlog) = self.health(clock.now()).await;
        if let Some(backlog) = backlog
            && let Err(problem) = self.count(clock, &backlog, &mut beat, moment).await
        {
            tracing::debug!(problem = problem.detail(), "the dashboard cannot count for a moment");
        }
        let now = clock.monotonic();
        let due = |last: Option<Duration>, every| last.is_none_or(|at| now.saturating_sub(at) >= every);
        if due(self.before.depths_at, DEPTHS)
            && let Ok(consumers) = self.desk.consumers().await
        {
            moment.consumers = consumers;
            self.before.depths_at = Some(now);
        }
        if due(self.before.drift_at, DRIFT) {
            let drift = self.desk.drift().await;
            moment.drift = match drift {
                Ok(plan) => plan.map(|plan| Ok(plan.drift())),
                Err(problem) => Some(Err(problem.detail().to_owned())),
            };
            self.before.drift_at = Some(now);
        }
        moment.beats.push_back(beat);
        if moment.beats.len() > REMEMBERED {
            moment.beats.pop_front();
        }
    }

    async fn health(&self, at: Timestamp) -> (Beat, Option<Backlog>) {
        let within = |works: bool| if works { "ok" } else { "unavailable" };
        let store = tokio::time::timeout(PATIENCE, self.backend.check_store());
        let broker = tokio::time::timeout(PATIENCE, self.backend.check_broker());
        let (store, broker, redis) = tokio::join!(store, broker, self.once.cache_health());
        let mut health = BTreeMap::from([
            ("store", within(matches!(store, Ok(Ok(()))))),
            ("broker", within(matches!(broker, Ok(Ok(()))))),
        ]);
        if let Some(redis) = redis {
            health.insert("redis", if redis == CacheHealth::Ok { "ok" } else { "degraded" });
        }
        let outbox = tokio::time::timeout(PATIENCE, self.backend.outbox()).await;
        let (backlog, streamed) =
            outbox.ok().and_then(Result::ok).map(|found| (found.together, found.streamed)).unzip();
        let relay = if streamed == Some(true) { "cdc" } else { "poll" };
        let beat = Beat { relay, ..Beat::still(at, health) };
        (beat, backlog)
    }

    async fn count(
        &mut self,
        clock: &Clock,
        backlog: &Backlog,
        beat: &mut Beat,
        moment: &mut Moment,
    ) -> Answer<()> {
        let newest = self.desk.rows(None, &RowFilter::default(), 1).await?.rows;
        let position = newest.first().and_then(|row| row.position.parse().ok()).unwrap_or(0);
        (beat.due, beat.later) = (backlog.due, backlog.later);
        (beat.dead_in_outbox, beat.parked_keys) = (backlog.dead, backlog.parked_keys);
        beat.oldest_due = backlog.oldest_due;
        let query = GroupQuery {
            filter: LetterFilter::open(),
            after: None,
            limit: GROUPS,
            hours: 24,
            now: clock.now(),
        };
        moment.groups = self.desk.groups(&query).await?.groups;
        beat.failure_groups = moment.groups.len();
        beat.open_dead_letters = moment.groups.iter().map(|group| group.open).sum();
        if moment.groups.len() >= GROUPS {
            // There are more than were read.
            let (letters, groups) = self.desk.open_letters().await?;
            beat.open_dead_letters = letters;
            beat.failure_groups = usize::try_from(groups).unwrap_or(usize::MAX);
        }
        let operations = self.desk.operations(None, 20).await?;
        beat.running_operations =
            operations.iter().filter(|one| one.state == OperationState::Running).count();

        let unpublished = backlog.due + backlog.later + backlog.dead;
        let measured = self.metrics.render();
        let applied = counted(&measured, "postrider_consumer_applied_total");
        let retried: f64 = counted(&measured, "postrider_consumer_retried_total").values().sum();
        let (now, before) = (clock.monotonic(), &mut self.before);
        if let Some(seconds) = before.at.map(|at| now.saturating_sub(at).as_secs_f64()).filter(|s| *s > 0.0) {
            let per_second = |count: f64| (count / seconds).max(0.0);
            #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
            let (committed, left) =
                ((position - before.position) as f64, unpublished as f64 - before.unpublished as f64);
            beat.committed_per_second = per_second(committed);
            beat.published_per_second = per_second(committed - left);
            let grown = |(name, count): (&String, &f64)| {
                let earlier = before.applied.get(name).copied().unwrap_or(0.0);
                (name.clone(), per_second(count - earlier))
            };
            moment.rates = applied.iter().map(grown).collect();
            beat.applied_per_second = moment.rates.values().sum();
            beat.retried_per_second = per_second(retried - before.retried);
        }
        before.at = Some(now);
        (before.position, before.unpublished) = (position, unpublished);
        (before.applied, before.retried) = (applied, retried);
        Ok(())
    }
}

/// The values of a counter by its consumer, out of what Prometheus reads.
fn counted(text: &str, name: &str) -> BTreeMap<String, f64> {
    let mut found = BTreeMap::new();
    for line in text.lines().filter(|line| line.starts_with(name)) {
        let Some((labels, value)) = line.rsplit_once(' ') else { continue };
        let consumer = labels.split_once("consumer=\"").and_then(|(_, rest)| rest.split('"').next());
        if let (Some(consumer), Ok(value)) = (consumer, value.parse::<f64>()) {
            *found.entry(consumer.to_owned()).or_insert(0.0) += value;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read_by_their_consumer() {
        let text = "# HELP x\npostrider_consumer_applied_total{consumer=\"a\"} 3\n\
            postrider_consumer_applied_total{consumer=\"b\"} 4\nother{consumer=\"a\"} 9\n";
        let found = counted(text, "postrider_consumer_applied_total");
        assert_eq!(found, BTreeMap::from([("a".to_owned(), 3.0), ("b".to_owned(), 4.0)]));
    }
}
