//! Marks after confirms, and what an outage does to both.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{Done, Pump, Step};
use crate::store::{Outbox, PublishResult, RowResult, StoreError};

/// Marks that came too early are made again after this long, doubled each time, and so often.
const MARK_AGAIN: Duration = Duration::from_millis(1);
const MARK_TIMES: u32 = 8;
/// While more is on its way, marks wait this long for company: to PostgreSQL a statement costs as much as marking 25 rows does.
const GATHER: Duration = Duration::from_millis(20);

impl<S: Outbox> Pump<S> {
    pub(super) fn settle(&mut self) {
        if self.settling || self.done.is_empty() || self.pause.is_on() || self.is_gathering() {
            return;
        }
        self.settling = true;
        self.gathering_since = None;
        let done = std::mem::take(&mut self.done);
        let (store, id) = (self.relay.store.clone(), self.relay.id.clone());
        self.start(async move {
            let recorded = store.settle(&id, results(&done)).await;
            Step::Settled { done, recorded }
        });
    }

    /// Nobody waits for a mark, and one statement for many costs little more than for one: what is left of the processors belongs to
    /// events that are not published yet. Should we die meanwhile, a few more are published twice. What failed, and what had failed
    /// before, is recorded at once: others of its key wait for that.
    fn is_gathering(&mut self) -> bool {
        let awaited = |done: &Done| done.retried || done.result != PublishResult::Published;
        let idle = self.publishing == 0;
        if idle
            || self.stopping
            || self.done.len() >= self.relay.config.batch_size
            || self.done.iter().any(awaited)
        {
            return false;
        }
        let now = self.now();
        let Some(since) = self.gathering_since else {
            self.gathering_since = Some(now);
            let clock = self.relay.clock.clone();
            self.start_here(async move {
                clock.sleep(GATHER).await;
                Step::MarksAreDue
            });
            return true;
        };
        now < since + GATHER
    }

    pub(super) fn settled(&mut self, done: Vec<Done>, recorded: Result<usize, StoreError>) {
        self.settling = false;
        match recorded {
            Ok(recorded) if recorded < done.len() && self.is_live() => self.mark_again(done, recorded, 1),
            Ok(recorded) => self.recorded(done, recorded),
            // They are confirmed; only the marks are missing. If another relay takes over first, it publishes them again.
            Err(error) => {
                let newer = std::mem::replace(&mut self.done, done);
                self.done.extend(newer);
                self.outage(&format!("the store failed: {error}"));
            }
        }
    }

    /// All of these are marked, or another relay's to mark.
    fn recorded(&mut self, done: Vec<Done>, recorded: usize) {
        if recorded < done.len() {
            tracing::info!(
                lost = done.len() - recorded,
                "another relay took over some rows meanwhile; they may be published twice, and take effect once"
            );
        }
        let published = done.iter().filter(|done| done.result == PublishResult::Published).count();
        self.relay.status.published.fetch_add(published as u64, Ordering::Relaxed);
        metrics::counter!("postrider_relay_published_total").increment(published as u64);
        for Done { row, key, retried, replay, result, .. } in done {
            let blocked = key.as_ref().filter(|_| retried || result != PublishResult::Published);
            self.flow.settled(row.position, blocked, self.claims);
            let freed = match result {
                PublishResult::Published => retried,
                PublishResult::Failed { retry_after, .. } => replay && retry_after.is_none(),
                PublishResult::Postponed { .. } => false,
            };
            if let (true, Some(key)) = (freed, key) {
                self.reading.again(row.position, row.created_at);
                self.parked.remove(&key);
                self.unpark(key);
            }
        }
    }

    /// A stream tells of a commit when it is on disk, which may be a moment before others can see it: a mark that came too early
    /// is made again. Until then the rows stay in hand, so that no claim brings them.
    fn mark_again(&mut self, done: Vec<Done>, recorded: usize, times: u32) {
        let results = results(&done);
        let (store, id, clock) = (self.relay.store.clone(), self.relay.id.clone(), self.relay.clock.clone());
        self.marking_again += 1;
        self.start(async move {
            clock.sleep(MARK_AGAIN * 2_u32.pow(times)).await;
            // A row that is marked already is not counted again.
            let more = store.settle(&id, results).await.unwrap_or_default();
            Step::MarkedAgain { done, recorded: recorded + more, times }
        });
    }

    pub(super) fn marked_again(&mut self, done: Vec<Done>, recorded: usize, times: u32) {
        self.marking_again -= 1;
        if recorded < done.len() && times < MARK_TIMES {
            self.mark_again(done, recorded, times + 1);
        } else {
            self.recorded(done, recorded);
        }
    }

    /// Pauses. Says so once, and once that it goes on.
    pub(super) fn outage(&mut self, reason: &str) {
        if !self.relay.status.paused.swap(true, Ordering::Relaxed) {
            let relay = &self.relay.id;
            tracing::warn!(%relay, %reason, "the relay pauses; nothing is lost, it goes on by itself");
        }
        if let Some(pause) = self.pause.begin() {
            let clock = self.relay.clock.clone();
            self.start_here(async move {
                clock.sleep(pause).await;
                Step::PauseIsOver
            });
        }
    }

    /// The store has answered. Where nothing is in hand that the broker would have to take, nobody waits for anything: without this, a relay
    /// whose store was away said that it pauses until somebody committed the next event.
    pub(super) fn store_works(&mut self) {
        let in_hand = self.flow.len() + self.publishing + self.done.len();
        if in_hand == 0 && !self.settling && !self.pause.is_on() {
            self.works();
        }
    }

    pub(super) fn works(&mut self) {
        self.pause.reset();
        if self.relay.status.paused.swap(false, Ordering::Relaxed) {
            tracing::info!(relay = %self.relay.id, "the relay goes on");
        }
    }
}

fn results(done: &[Done]) -> Vec<RowResult> {
    let result = |done: &Done| RowResult {
        row: done.row,
        result: done.result.clone(),
        delivered: done.delivered.clone(),
    };
    done.iter().map(result).collect()
}
