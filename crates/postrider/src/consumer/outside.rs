//! An attempt without an open transaction, for handlers that work outside of the database: look, handle, mark.
//!
//! A crash after the handler and before the mark makes it happen again, under the same event id. What many deliveries ask of
//! the inbox at the same time is asked in one statement, and their marks commit together. Copies of one event that came together
//! take turns: the second looks when the first is marked, and is known.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures_util::FutureExt as _;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::Consumer;
use super::arrived::Arrived;
use super::attempt::{arrival, outcome, panicked, too_slow};
use crate::handler::{Failure, Incoming};
use crate::registry::ErasedOutside;
use crate::settlement::Outcome;
use crate::store::{Admission, Arrival, ConsumerStore, StoreError};

impl<S: ConsumerStore> Consumer<S> {
    /// Attempts one event. Nothing when it was told to stop before it was done.
    pub(super) async fn attempt_outside(
        &self,
        handler: &dyn ErasedOutside,
        arrived: &Arrived,
        incoming: &Incoming,
        stop: &CancellationToken,
    ) -> Option<Outcome> {
        let held = arrived.held;
        let _turn = self.turns.take(&incoming.envelope.id, stop).await?;
        let arrival = arrival(incoming);
        let looking = || self.looks.call(arrival.clone(), |arrivals| self.look(arrivals));
        match self.surely(stop, looking).await? {
            Admission::New => {
                let call = self.call(arrived.leased, stop).await?;
                let start = self.clock.monotonic();
                let answer = self.guarded_outside(handler, incoming, stop).await?;
                drop(call);
                let now = self.clock.monotonic();
                self.note_latency(now.saturating_sub(start), now);
                if let Err(failure) = answer {
                    return Some(Outcome::Failed(failure));
                }
                let done = Worked { arrival, held, answer: incoming.answered() };
                return self.mark_surely(incoming, done, stop).await;
            }
            Admission::Conflict => return Some(Outcome::Conflict),
            known @ Admission::Duplicate(_) if !held => return Some(outcome(incoming, known)),
            // It was applied, and has to leave the table of held events still.
            Admission::Duplicate(_) => {}
        }
        self.mark_surely(incoming, Worked { arrival, held, answer: None }, stop).await
    }

    /// Marks what is done. Nothing when it was told to stop before that.
    async fn mark_surely(
        &self,
        incoming: &Incoming,
        done: Worked,
        stop: &CancellationToken,
    ) -> Option<Outcome> {
        let marking = || self.marks.call(done.clone(), |all| self.mark(all));
        let outcome = self.surely(stop, marking).await.map(|admission| outcome(incoming, admission))?;
        if outcome == Outcome::Applied {
            incoming.set_answer(done.answer);
        }
        Some(outcome)
    }

    /// Waits until one more may be with the handler. Those whose mark is being written are not: the next can begin meanwhile.
    /// Nothing when told to stop, or when the consumer is paused or its breaker opened before: then it is left to the broker. One that is
    /// leased from the held events goes on.
    async fn call(&self, leased: bool, stop: &CancellationToken) -> Option<Call<'_>> {
        loop {
            let freed = self.calls_ended.notified();
            if !leased && self.status.is_held_up() {
                return None;
            }
            if let Some(call) = Call::begin(self, self.pace().limit()) {
                return Some(call);
            }
            self.pace().backed_up();
            tokio::select! {
                () = stop.cancelled() => return None,
                () = self.status.held_up(), if !leased => return None,
                () = freed => {}
            }
        }
    }

    async fn look(&self, arrivals: Vec<Arrival>) -> Result<Vec<Admission>, StoreError> {
        let known = self.store.look(self.inbox(), &arrivals).await?;
        Ok(known.into_iter().map(|admission| self.admitted(admission)).collect())
    }

    /// Marks events as applied, and keeps their answers; those that were held leave their table in the same transaction.
    async fn mark(&self, done: Vec<Worked>) -> Result<Vec<Admission>, StoreError> {
        let arrivals: Vec<_> = done.iter().map(|done| done.arrival.clone()).collect();
        let mut tx = self.store.begin().await?;
        let admissions = self.store.admit(&mut tx, self.inbox(), &arrivals).await?;
        let new = done.iter().zip(&admissions).filter(|(_, admission)| **admission == Admission::New);
        let answers: Vec<_> =
            new.filter_map(|(done, _)| Some((done.arrival.event_id.clone(), done.answer.clone()?))).collect();
        if !answers.is_empty() {
            self.store.keep_answers(&mut tx, self.inbox(), &answers).await?;
        }
        for held in done.iter().filter(|done| done.held) {
            self.store.let_go(&mut tx, &self.name, &held.arrival.event_id).await?;
        }
        self.store.commit(tx).await?;
        Ok(admissions.into_iter().map(|admission| self.admitted(admission)).collect())
    }

    /// A panic is a failure of this attempt, and so is taking too long.
    async fn guarded_outside(
        &self,
        handler: &dyn ErasedOutside,
        incoming: &Incoming,
        stop: &CancellationToken,
    ) -> Option<Result<(), Failure>> {
        let handling = AssertUnwindSafe(handler.handle_outside(incoming, stop)).catch_unwind();
        tokio::select! {
            biased;
            answer = handling => answer.unwrap_or_else(|panic| Some(Err(panicked(panic.as_ref())))),
            () = self.clock.sleep(self.config.handler_limit) => Some(Err(too_slow(self.config.handler_limit))),
        }
    }
}

/// An event whose handler is done with it, to be marked.
#[derive(Clone)]
pub(super) struct Worked {
    arrival: Arrival,
    /// It is in the table of held events.
    held: bool,
    /// What the handler answered.
    answer: Option<Bytes>,
}

/// A place with the handler, given back when it is dropped.
struct Call<'a> {
    under_way: &'a AtomicUsize,
    ended: &'a Notify,
}

impl<'a> Call<'a> {
    /// Unless there are as many already.
    fn begin<S: ConsumerStore>(consumer: &'a Consumer<S>, limit: usize) -> Option<Self> {
        let under_way = &consumer.calls;
        let one_more = |calls| (calls < limit).then_some(calls + 1);
        under_way.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok()?;
        Some(Self { under_way, ended: &consumer.calls_ended })
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.under_way.fetch_sub(1, Ordering::Relaxed);
        self.ended.notify_one();
    }
}
