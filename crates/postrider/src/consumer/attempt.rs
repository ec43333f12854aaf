//! One attempt at one delivery or at a batch of them: admit, handle, commit.

use std::borrow::Cow;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio_util::sync::CancellationToken;

use super::Consumer;
use super::arrived::Arrived;
use super::pace::Pace;
use crate::handler::{Failure, FailureKind, Incoming};
use crate::registry::Entry;
use crate::settlement::Outcome;
use crate::store::{Admission, Arrival, ConsumerStore, StoreError, StoreErrorKind};

/// An attempt that other transactions were in the way of is repeated so often, uncounted; then it has failed.
const MOST_COLLISIONS: u32 = 10;

/// What became of a transaction.
pub(super) enum Tried {
    /// An outcome for each event, in their order.
    Done(Vec<Outcome>),
    /// The handler failed, and nothing is committed.
    Failed(Failure),
}

impl<S: ConsumerStore> Consumer<S> {
    /// Attempts one event. Nothing when it was told to stop while the store was away.
    pub(super) async fn attempt(
        &self,
        entry: &Entry<S>,
        arrived: &Arrived,
        incoming: &Incoming,
        stop: &CancellationToken,
    ) -> Option<Outcome> {
        if let Some(handler) = entry.handler.outside() {
            let outcome = self.attempt_outside(handler, arrived, incoming, stop).await?;
            self.tell_breaker(incoming, &outcome);
            return Some(outcome);
        }
        // In a box: those that work outside need none of it, and a task that is larger than it has to be is copied with all its room.
        let trying = Box::pin(self.try_on(entry, std::slice::from_ref(incoming), arrived.held, stop));
        let outcome = match trying.await? {
            Tried::Done(mut outcomes) => outcomes.pop().unwrap_or(Outcome::Duplicate),
            Tried::Failed(failure) => Outcome::Failed(failure),
        };
        self.tell_breaker(incoming, &outcome);
        Some(outcome)
    }

    /// Attempts events together, in one transaction. While the store is away it waits: an outage costs no event an attempt.
    /// Nothing when it was told to stop while waiting.
    pub(super) async fn try_on(
        &self,
        entry: &Entry<S>,
        events: &[Incoming],
        held: bool,
        stop: &CancellationToken,
    ) -> Option<Tried> {
        let start = self.clock.monotonic();
        let mut pause = Duration::from_millis(100);
        let mut collisions = 0;
        loop {
            match self.apply(entry, events, held).await {
                Ok(tried) => {
                    let now = self.clock.monotonic();
                    let took = now.saturating_sub(start);
                    self.note_latency(took, now);
                    return Some(tried);
                }
                Err(error) if error.kind == StoreErrorKind::Contended => {
                    self.pace().contended();
                    collisions += 1;
                    if collisions == MOST_COLLISIONS {
                        return Some(Tried::Failed(Failure::from(error).class("contended")));
                    }
                }
                // Handlers have them all: that is no outage, and fewer at a time are no slower.
                Err(error) if error.kind == StoreErrorKind::Busy => {
                    tracing::warn!(consumer = %self.name, %error, "an attempt waits for a connection");
                    self.pace().contended();
                }
                Err(error) => {
                    tracing::debug!(consumer = %self.name, %error, "the store failed under an attempt; it is repeated");
                    self.store_away();
                }
            }
            tokio::select! {
                () = stop.cancelled() => return None,
                () = self.clock.sleep(pause) => pause = (pause * 2).min(Duration::from_secs(5)),
            }
        }
    }

    pub(super) fn note_latency(&self, took: Duration, now: Duration) {
        self.meters().attempt_seconds.record(took.as_secs_f64());
        self.keep_pace(|pace, in_hand| pace.attempted(took, in_hand, now));
    }

    /// Lets the pace know that time has passed, whether or not anything was attempted.
    pub(super) fn note_time(&self) {
        let now = self.clock.monotonic();
        self.keep_pace(|pace, in_hand| pace.passed(in_hand, now));
    }

    fn keep_pace(&self, tell: impl FnOnce(&mut Pace, usize)) {
        let limit = {
            let mut pace = self.pace();
            tell(&mut pace, self.status.in_flight());
            pace.limit()
        };
        self.status.concurrency.store(limit, Ordering::Relaxed);
        self.meters().concurrency.set(u32::try_from(limit).unwrap_or(u32::MAX));
    }

    /// Inbox marks, effects and outgoing events commit together. An error is the store's, not the events'.
    async fn apply(&self, entry: &Entry<S>, events: &[Incoming], held: bool) -> Result<Tried, StoreError> {
        let arrivals: Vec<_> = events.iter().map(arrival).collect();
        let mut tx = self.store.begin().await?;
        let admissions = self.store.admit(&mut tx, self.inbox(), &arrivals).await?;
        let judged = events.iter().zip(admissions.into_iter().map(|admission| self.admitted(admission)));
        let outcomes: Vec<_> = judged.map(|(event, admission)| outcome(event, admission)).collect();
        let fresh = fresh(events, &outcomes);
        let done = outcomes.iter().all(|outcome| matches!(outcome, Outcome::Applied | Outcome::Duplicate));
        let lets_go = held && done;
        if fresh.is_empty() && !lets_go {
            self.store.rollback(tx).await?;
            return Ok(Tried::Done(outcomes));
        }
        if !fresh.is_empty()
            && let Err(failure) = self.guarded(entry, &mut tx, &fresh).await
        {
            // Where even the rollback cannot be said, the store is away and the handler is not to blame.
            self.store.rollback(tx).await?;
            return Ok(Tried::Failed(failure));
        }
        let answers = |event: &Incoming| Some((event.envelope.id.clone(), event.answered()?));
        let answers: Vec<_> = fresh.iter().filter_map(answers).collect();
        if !answers.is_empty() {
            self.store.keep_answers(&mut tx, self.inbox(), &answers).await?;
        }
        if lets_go {
            for event in events {
                self.store.let_go(&mut tx, &self.name, &event.envelope.id).await?;
            }
        }
        match self.store.commit(tx).await {
            Ok(()) => {
                answer_repeats(events, &outcomes, &fresh);
                Ok(Tried::Done(outcomes))
            }
            Err(error) if is_ours(&error) => Ok(Tried::Failed(error.into())),
            Err(error) => Err(error),
        }
    }

    /// A panic is a failure of this attempt, and so is taking too long.
    async fn guarded(&self, entry: &Entry<S>, tx: &mut S::Tx, events: &[Incoming]) -> Result<(), Failure> {
        let handling = AssertUnwindSafe(entry.handler.handle(tx, events)).catch_unwind();
        tokio::select! {
            biased;
            answer = handling => answer.unwrap_or_else(|panic| Err(panicked(panic.as_ref()))),
            () = self.clock.sleep(self.config.handler_limit) => Err(too_slow(self.config.handler_limit)),
        }
    }

    pub(super) fn tell_breaker(&self, incoming: &Incoming, outcome: &Outcome) {
        match outcome {
            Outcome::Applied | Outcome::Duplicate => self.with_breaker(super::Breaker::succeeded),
            Outcome::Failed(failure) if failure.kind == FailureKind::Transient => {
                let mut hash = DefaultHasher::new();
                incoming.envelope.id.hash(&mut hash);
                let (event, now) = (hash.finish(), self.clock.monotonic());
                self.with_breaker(|breaker| breaker.failed(event, now));
            }
            // These are about the event, but whoever can say so is there: refused for good, asked to come later.
            Outcome::Failed(failure)
                if matches!(failure.kind, FailureKind::Permanent | FailureKind::Deferred { .. }) =>
            {
                self.with_breaker(super::Breaker::answered);
            }
            // And these say nothing of the handler.
            _ => {}
        }
    }
}

pub(super) fn arrival(incoming: &Incoming) -> Arrival {
    let envelope = &incoming.envelope;
    Arrival {
        event_id: envelope.id.clone(),
        tenant: envelope.tenant.group.clone(),
        payload_hash: incoming.hash(),
    }
}

/// Those that are new: as a rule all of them.
fn fresh<'a>(events: &'a [Incoming], outcomes: &[Outcome]) -> Cow<'a, [Incoming]> {
    if outcomes.iter().all(|outcome| *outcome == Outcome::Applied) {
        return Cow::Borrowed(events);
    }
    let is_new =
        |(event, outcome): (&Incoming, &Outcome)| (*outcome == Outcome::Applied).then(|| event.clone());
    events.iter().zip(outcomes).filter_map(is_new).collect()
}

/// What it will be, once the transaction is committed. A duplicate has the first answer; everything else has none yet.
pub(super) fn outcome(event: &Incoming, admission: Admission) -> Outcome {
    event.set_answer(None);
    match admission {
        Admission::New => Outcome::Applied,
        Admission::Duplicate(answer) => {
            event.set_answer(answer);
            Outcome::Duplicate
        }
        Admission::Conflict => Outcome::Conflict,
    }
}

/// An event that was twice in a batch has the answer of the first.
fn answer_repeats(events: &[Incoming], outcomes: &[Outcome], fresh: &[Incoming]) {
    let repeats = events.iter().zip(outcomes).filter(|(_, outcome)| **outcome == Outcome::Duplicate);
    for (repeat, _) in repeats {
        if let Some(first) = fresh.iter().find(|first| first.envelope.id == repeat.envelope.id) {
            repeat.set_answer(first.answered());
        }
    }
}

/// Whether a refused commit is the fault of what was written, as a constraint that is checked at the end.
fn is_ours(error: &StoreError) -> bool {
    matches!(error.kind, StoreErrorKind::Invalid | StoreErrorKind::OutOfRange | StoreErrorKind::Duplicate)
}

pub(super) fn too_slow(limit: Duration) -> Failure {
    Failure::transient(format_args!("the handler took longer than {limit:?}")).class("timeout")
}

pub(super) fn panicked(panic: &(dyn std::any::Any + Send)) -> Failure {
    let said = panic.downcast_ref::<&str>().map(ToString::to_string);
    let said = said.or_else(|| panic.downcast_ref::<String>().cloned());
    Failure::transient(format_args!("the handler panicked: {}", said.unwrap_or_default())).class("panic")
}
