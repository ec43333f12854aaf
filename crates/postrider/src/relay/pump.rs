//! Keeps claims, publishes and marks going at the same time, as a pipeline: while some batches wait for their confirms,
//! the next rows are claimed and the last ones are marked. One claim and one mark are under way at a time, so each takes
//! whatever has come together meanwhile: single rows when it is quiet, hundreds when it is busy.
//!
//! All decisions are taken here, one after the other; what waits is spawned and answers with a [`Step`].

mod course;
mod declining;
mod lease;
mod marks;
mod parked;
mod publishing;
mod streaming;

use std::collections::HashSet;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::{BoxFuture, FutureExt as _};
use futures_util::stream::FuturesUnordered;
use tokio_util::sync::CancellationToken;

use self::course::Obeyed;
use self::declining::Declined;
use self::parked::Parked;
use self::streaming::{News, Streaming};
use super::Relay;
use super::both::Sent;
use super::flow::Flow;
use super::pause::Pause;
use super::reading::{Reading, Seen};
use crate::envelope::OrderingKey;
use crate::migration::{Course, Delivered};
use crate::store::{Horizon, Outbox, OutboxRow, PublishResult, RowId, SlotLease, StoreError, Wanted};

/// The payloads in hand may take so many bytes, give or take a claim.
const MOST_BYTES: usize = 64 << 20;
/// How often to see how far the outbox is written, while there is something to do.
const HORIZON: Duration = Duration::from_millis(250);

/// What was waited for.
enum Step {
    Leased {
        until: Duration,
        slots: Result<Vec<SlotLease>, StoreError>,
    },
    LeaseIsDue,
    Claimed(Result<Vec<OutboxRow>, StoreError>),
    Seen(Result<Horizon, StoreError>),
    Published(Sent),
    /// Rows that a queue declined have waited long enough to go out again.
    Again(Vec<OutboxRow>),
    Settled {
        done: Vec<Done>,
        recorded: Result<usize, StoreError>,
    },
    /// Marks that had come too early, this many times, were made again.
    MarkedAgain {
        done: Vec<Done>,
        recorded: usize,
        times: u32,
    },
    /// Marks have waited long enough for company.
    MarksAreDue,
    Woken,
    /// Time passed while nobody listens for news.
    Tick,
    /// Of the stream.
    Stream(News),
    Parked(Result<Vec<OrderingKey>, StoreError>),
    /// The migration that runs, if one does.
    Course(Result<Option<Course>, StoreError>),
    /// What was recorded again, or given back: nothing follows from it.
    Over,
    PauseIsOver,
    /// A task of ours was cancelled with the whole process, or it panicked.
    Gone(String),
}

/// A row whose fate is known and still has to be recorded.
struct Done {
    row: RowId,
    key: Option<OrderingKey>,
    /// It was tried before: others may have waited for it.
    retried: bool,
    /// It is a dead letter that is sent again: if it dies here, nobody waits for it any more.
    replay: bool,
    result: PublishResult,
    /// What became of it at both destinations, where it is copied.
    delivered: Option<Delivered>,
}

/// The state of a relay at work.
#[allow(clippy::struct_excessive_bools, reason = "each says whether one kind of step is under way")]
pub(super) struct Pump<S> {
    relay: Relay<S>,
    /// A store remembers what news it has heard, so the same one always waits for them.
    ear: Arc<S>,
    flow: Flow,
    reading: Reading,
    done: Vec<Done>,
    steps: FuturesUnordered<BoxFuture<'static, Step>>,
    held: HashSet<SlotLease>,
    /// What it held when the claim under way was asked for.
    asked_of: HashSet<SlotLease>,
    /// Until when, on the monotonic clock, the slots are surely ours.
    leased_until: Duration,
    /// Keys that the claim under way leaves out, if it is one for new rows.
    asked_without: Option<Vec<OrderingKey>>,
    /// Claims asked for so far.
    claims: u64,
    claiming: bool,
    /// How large the payloads of the last claim were; before the first, as large as they may be.
    size: usize,
    publishing: usize,
    settling: bool,
    /// Since when marks wait for company.
    gathering_since: Option<Duration>,
    /// Marks that had come too early and are made again.
    marking_again: usize,
    waiting: bool,
    /// Something may have been appended.
    news: bool,
    horizon_at: Option<Duration>,
    pause: Pause,
    declined: Declined,
    parked: Parked,
    streaming: Streaming,
    obeyed: Obeyed,
    stopping: bool,
}

impl<S: Outbox> Pump<S> {
    pub(super) fn new(relay: Relay<S>) -> Self {
        Self {
            ear: Arc::new(relay.store.clone()),
            flow: Flow::new(relay.config.batch_size),
            reading: Reading::new(relay.store.is_in_commit_order()),
            relay,
            done: Vec::new(),
            steps: FuturesUnordered::new(),
            held: HashSet::new(),
            asked_of: HashSet::new(),
            leased_until: Duration::ZERO,
            asked_without: None,
            claims: 0,
            claiming: false,
            size: crate::envelope::MAX_PAYLOAD_BYTES,
            publishing: 0,
            settling: false,
            gathering_since: None,
            marking_again: 0,
            waiting: false,
            news: true,
            horizon_at: None,
            pause: Pause::default(),
            declined: Declined::default(),
            parked: Parked::default(),
            streaming: Streaming::default(),
            obeyed: Obeyed::default(),
            stopping: false,
        }
    }

    /// Works until told to stop, then until everything in flight is answered and recorded.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        self.renew_lease();
        loop {
            if self.stopping {
                let marking = self.settling || self.marking_again > 0;
                if self.publishing == 0 && !marking && (self.done.is_empty() || self.pause.is_on()) {
                    return;
                }
            } else {
                self.look_at_course();
                self.look_at_parked();
                self.stream();
                self.claim();
                self.publish();
                self.wait();
            }
            self.settle();
            tokio::select! {
                biased;
                () = stop.cancelled(), if !self.stopping => self.stopping = true,
                next = self.steps.next() => match next {
                    Some(done) => self.take(done),
                    None => return,
                },
            }
        }
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Leased { until, slots } => self.leased(until, slots),
            Step::LeaseIsDue => self.renew_lease(),
            Step::Claimed(rows) => self.claimed(rows),
            Step::Seen(horizon) => {
                // Without it the mark stays where it is, which only costs time.
                if let Ok(horizon) = horizon {
                    self.reading.see(horizon);
                }
            }
            Step::Published(sent) => self.published(sent),
            Step::Again(rows) => self.again(rows),
            Step::Course(course) => self.told(course),
            Step::Settled { done, recorded } => self.settled(done, recorded),
            Step::MarkedAgain { done, recorded, times } => self.marked_again(done, recorded, times),
            Step::Woken => (self.waiting, self.news) = (false, true),
            Step::Tick => self.waiting = false,
            Step::Stream(news) => self.heard(news),
            Step::Parked(keys) => self.seen_parked(keys),
            Step::Over | Step::MarksAreDue => {}
            Step::PauseIsOver => self.pause.end(),
            Step::Gone(why) => {
                self.begin_again();
                self.outage(&format!("a task ended: {why}"));
            }
        }
    }

    /// Lets go of everything: rows that were in hand are claimed again, and perhaps published twice.
    fn begin_again(&mut self) {
        self.flow = Flow::new(self.relay.config.batch_size);
        self.reading = Reading::new(self.relay.store.is_in_commit_order());
        self.done.clear();
        self.steps.clear();
        self.held.clear();
        (self.claiming, self.settling, self.waiting, self.news) = (false, false, false, true);
        (self.publishing, self.marking_again) = (0, 0);
        self.gathering_since = None;
        self.pause = Pause::default();
        (self.declined, self.parked) = (Declined::default(), Parked::default());
        self.streaming = Streaming::default();
        self.obeyed.begin_again();
        self.relay.status.set_streaming(false);
        self.renew_lease();
    }

    // ── Claims ──

    fn claim(&mut self) {
        let now = self.now();
        // While something is under way, more is worth waiting for.
        let idle = self.publishing == 0 && !self.flow.is_ready();
        let unsure = self.flow.unsure() > 0 && (idle || self.reading.is_unsure_due(now));
        let wanted = unsure
            || self.reading.is_due(now)
            || self.streaming_wants_claim()
            || self.news && !self.is_live();
        let (mut room, step) = self.room();
        if unsure {
            room = room.max(step);
        }
        if self.claiming || !wanted || room < step || self.pause.is_on() || !self.is_leased() {
            return;
        }
        self.claiming = true;
        self.claims += 1;
        // What a stream brings goes out at once, so nothing that was read ahead may wait beside it.
        let mut ask = self.reading.ask(now, room, unsure || self.is_joined(), &self.flow);
        ask.held = Some(self.held.iter().copied().collect());
        self.asked_of.clone_from(&self.held);
        self.asked_without = None;
        if ask.wanted != Wanted::Timed {
            self.parked.asked(&ask.wanted);
            self.news = false;
            self.asked_without = Some(ask.without.clone());
            self.asked_for_new();
        }
        let (store, id) = (self.relay.store.clone(), self.relay.id.clone());
        self.start(async move { Step::Claimed(store.claim(&id, ask).await) });
    }

    /// How many rows may be claimed now, and how many are worth a claim.
    fn room(&self) -> (usize, usize) {
        let batch = self.relay.config.batch_size.max(1);
        let most = batch * (usize::from(self.relay.config.lanes.max(1)) + 2);
        // What only waits to be sure of its order does not keep the others from flowing.
        let in_flow = self.flow.len() - self.flow.unsure().min(most);
        let rows = most.saturating_sub(in_flow).min(2 * batch);
        let fit = fit(self.size, self.flow.len(), self.flow.bytes());
        (rows.min(fit), (batch / 2).clamp(1, fit.max(1)))
    }

    fn claimed(&mut self, rows: Result<Vec<OutboxRow>, StoreError>) {
        self.claiming = false;
        match rows {
            Ok(mut rows) => {
                let seen = self.reading.found(self.now(), &rows);
                // What was lost or taken over meanwhile is not ours to publish: what was before these rows is gone.
                let kept: HashSet<_> =
                    self.asked_of.intersection(&self.held).map(|lease| lease.slot).collect();
                rows.retain(|row| row.slot.is_none_or(|slot| kept.contains(&slot)));
                if !rows.is_empty() {
                    self.measure(&rows);
                    self.look_at_horizon();
                }
                if let Some(without) = self.asked_without.take() {
                    self.take_out_parked(&mut rows);
                    self.found_new(&mut rows, &without);
                }
                let (claim, low) = (self.claims, self.reading.low());
                match seen {
                    Seen::Ahead if !self.relay.store.is_in_commit_order() => {
                        self.flow.take_unsure(claim, low, rows);
                    }
                    Seen::Ahead | Seen::Timed => self.flow.take(claim, low, rows),
                    Seen::All(up_to) => self.flow.take_sure(claim, low, up_to, rows),
                }
                self.store_works();
            }
            Err(error) => {
                self.reading.failed();
                self.outage(&format!("the store failed: {error}"));
            }
        }
    }

    /// Remembers how large payloads are.
    fn measure(&mut self, rows: &[OutboxRow]) {
        self.size =
            rows.iter().map(|row| row.envelope.payload.bytes().len()).sum::<usize>() / rows.len().max(1);
    }

    fn look_at_horizon(&mut self) {
        let now = self.now();
        if self.horizon_at.is_none_or(|at| now >= at + HORIZON) {
            self.horizon_at = Some(now);
            let store = self.relay.store.clone();
            self.start(async move { Step::Seen(store.horizon().await) });
        }
    }

    /// Waits for news, unless somebody does already.
    fn wait(&mut self) {
        if self.waiting {
            return;
        }
        self.waiting = true;
        if self.is_live() {
            let (clock, interval) = (self.relay.clock.clone(), self.relay.config.poll_interval.min(HORIZON));
            self.start_here(async move {
                clock.sleep(interval).await;
                Step::Tick
            });
        } else {
            let (ear, interval) = (self.ear.clone(), self.relay.config.poll_interval);
            self.start_here(async move {
                ear.wait(interval).await;
                Step::Woken
            });
        }
    }

    // ── Tasks ──

    /// Starts work in a task of its own, so that it can use another core.
    fn start(&mut self, work: impl Future<Output = Step> + Send + 'static) {
        let task = tokio::spawn(work);
        self.start_here(async move { task.await.unwrap_or_else(|error| Step::Gone(error.to_string())) });
    }

    /// Starts what only waits.
    fn start_here(&mut self, work: impl Future<Output = Step> + Send + 'static) {
        self.steps.push(work.boxed());
    }

    fn now(&self) -> Duration {
        self.relay.clock.monotonic()
    }
}

/// How many payloads of this size fit beside those in hand. One does where there are none, however large it is: else a single event that a
/// plain INSERT made larger than all of them may be together would be the last that is ever claimed.
fn fit(size: usize, in_hand: usize, bytes: usize) -> usize {
    (MOST_BYTES.saturating_sub(bytes) / size.max(1)).max(usize::from(in_hand == 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fits_goes_by_size_and_one_does_however_large_it_is() {
        assert_eq!(fit(1 << 10, 0, 0), MOST_BYTES >> 10);
        assert_eq!(fit(1 << 20, 60, 60 << 20), 4);
        assert_eq!(fit(1 << 20, 64, 64 << 20), 0);
        let large = MOST_BYTES + 1;
        assert_eq!((fit(large, 0, 0), fit(large, 1, large)), (1, 0));
    }
}
