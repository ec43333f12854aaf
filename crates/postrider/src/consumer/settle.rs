//! Carries a settlement out: publish with confirm, or hold, first; then the delivery may be acked.
//!
//! A crash between the two leaves the message in both places; the inbox knows the one that was applied.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::Consumer;
use super::arrived::{Arrived, Errand};
use super::crash::Turn;
use crate::broker::{Message, Outgoing, Published};
use crate::dead_letter::{self, Death, FailedAttempt};
use crate::envelope::wire::header;
use crate::settlement::{DeadReason, Outcome, Settlement, decide};
use crate::spans::{Operation, Span};
use crate::store::ConsumerStore;
use crate::topology::OnDead;

/// A direct publish is tried again after this long, doubled each time, so many times, before it is said to fail.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const TRIES: u32 = 3;
/// After that the delivery is kept, and tried again this often.
pub(super) const KEPT_PAUSE: Duration = Duration::from_secs(10);
/// A time to wait that is shorter than this is none.
const AT_ONCE: Duration = Duration::from_millis(100);

/// What a delivery that may be acked means to those behind it on an ordered queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// They may go on.
    Done,
    /// It waits, or is parked, and they have to be held.
    Waits,
}

/// What a dead letter is made of, beside the delivery.
pub(super) struct Dying<'a> {
    pub(super) outcome: &'a Outcome,
    pub(super) reason: DeadReason,
    pub(super) error: String,
}

impl<S: ConsumerStore> Consumer<S> {
    /// One delivery, from who handles it until it may be acked. Nothing when it was told to stop before that, or was not begun before the
    /// consumer was paused or its breaker opened: then the broker takes the delivery back.
    pub(super) async fn deliver(&self, arrived: &Arrived, stop: &CancellationToken) -> Option<Fate> {
        let span = self.span(arrived);
        let (outcome, turn) = self.outcome(arrived, stop).await?;
        self.end_span(span, arrived, &outcome);
        let Some(fate) = self.carry_out(arrived, &outcome, stop).await else {
            if let Some(turn) = &turn {
                Box::pin(self.left_alive(arrived, turn)).await;
            }
            return None;
        };
        if !matches!(outcome, Outcome::Crashed { .. }) {
            self.over(arrived).await;
        }
        drop(turn);
        Some(fate)
    }

    /// Begins the span of a delivery that is traced.
    pub(super) fn span(&self, arrived: &Arrived) -> Option<Span> {
        Span::begin(&arrived.read.as_ref().ok()?.envelope, &self.clock)
    }

    /// Ends it with what came of it. A delivery that came too early was not handled.
    pub(super) fn end_span(&self, span: Option<Span>, arrived: &Arrived, outcome: &Outcome) {
        let (Some(span), Some(id)) = (span, arrived.event_id()) else { return };
        let error = match outcome {
            Outcome::Applied | Outcome::Duplicate => None,
            Outcome::Early { .. } => return,
            Outcome::Failed(failure) => Some(failure.class.as_deref().unwrap_or("failed")),
            Outcome::Malformed(_) => Some("malformed"),
            Outcome::NoHandler => Some("no_handler"),
            Outcome::Conflict => Some("conflict"),
            Outcome::Crashed { .. } => Some("crashed"),
        };
        span.end(Operation::Process, self.service.name().as_str(), id.as_str(), error, &self.clock);
    }

    /// What comes of it. A delivery that is marked keeps its turn until its mark is taken away: whoever is alone next may take the process
    /// down, and the mark would count against this one.
    async fn outcome(
        &self,
        arrived: &Arrived,
        stop: &CancellationToken,
    ) -> Option<(Outcome, Option<Turn<'_>>)> {
        let number = match self.errand(arrived) {
            Errand::Known(outcome) => return Some((outcome, None)),
            Errand::Handle(number) => number,
        };
        let (entry, incoming) = (self.registry.entry(number)?, arrived.read.as_ref().ok()?);
        match self.turn(arrived, stop).await? {
            Err(outcome) => Some((outcome, None)),
            Ok(turn) => {
                let Some(outcome) = self.attempt(entry, arrived, incoming, stop).await else {
                    Box::pin(self.left_alive(arrived, &turn)).await;
                    return None;
                };
                Some((outcome, Some(turn).filter(|_| self.is_marked(arrived))))
            }
        }
    }

    /// Decides and does it. Nothing when it was told to stop before it was done.
    pub(super) async fn carry_out(
        &self,
        arrived: &Arrived,
        outcome: &Outcome,
        stop: &CancellationToken,
    ) -> Option<Fate> {
        let now = self.clock.now();
        let settlement = decide(outcome, arrived.attempt, &self.service.retry, now, self.clock.random());
        self.count(outcome, &settlement);
        self.note(arrived, outcome);
        self.tell_repeats(arrived, outcome);
        if settlement == Settlement::Ack {
            return Some(Fate::Done);
        }
        // Few go elsewhere, and that takes much room: in a box, so that not every attempt is as large.
        Box::pin(self.send_elsewhere(arrived, outcome, &settlement, now, stop)).await
    }

    /// To its wait queue, to the dead letters, or to those that are held. Nothing when it was told to stop before it was done.
    async fn send_elsewhere(
        &self,
        arrived: &Arrived,
        outcome: &Outcome,
        settlement: &Settlement,
        now: jiff::Timestamp,
        stop: &CancellationToken,
    ) -> Option<Fate> {
        let on_dead = arrived.key().and(self.service.order);
        let (retries, delay) = match *settlement {
            Settlement::Ack => return Some(Fate::Done),
            Settlement::DeadLetter { reason } => {
                let dying = Dying { outcome, reason, error: error_of(outcome) };
                let letter = self.bury(arrived, &dying, stop).await?;
                return match on_dead {
                    Some(OnDead::Park) => self.park(arrived, outcome, letter, stop).await,
                    Some(OnDead::Continue) if arrived.held => self.forget(arrived, stop).await,
                    _ => Some(Fate::Done),
                };
            }
            Settlement::Retry { delay } => (arrived.attempt, delay),
            Settlement::Defer { delay } => (arrived.attempt - 1, self.patience(outcome, delay)),
        };
        let mut message = arrived.delivery.message.clone();
        mark_waiting(&mut message, arrived, retries);
        if retries == arrived.attempt {
            dead_letter::remember_first_failure(&mut message, now);
            let failure = if let Outcome::Failed(failure) = outcome { Some(failure) } else { None };
            let failed = FailedAttempt {
                attempt: arrived.attempt,
                at: now,
                class: failure.and_then(|failure| failure.class.clone()),
                error: error_of(outcome),
            };
            dead_letter::remember_attempt(&mut message, &failed);
        }
        if on_dead.is_some() {
            return self.wait_in_order(arrived, outcome, message, delay, stop).await;
        }
        if self.service.wait_queues.is_empty() {
            self.wait_in_hand(delay, stop).await?;
        }
        let outgoing = self.to_wait_queue(message, delay);
        if let Err(why) = self.publish(&outgoing, stop).await? {
            self.without_room(arrived, outcome, outgoing, &why, stop).await?;
        }
        Some(Fate::Done)
    }

    /// Who only says "later" is asked again after the shortest wait there is, and not at once, over and over.
    fn patience(&self, outcome: &Outcome, delay: Duration) -> Duration {
        let shortest = self.service.wait_queues.first().map_or(FIRST_PAUSE, |wait| wait.delay);
        let says_when = delay >= AT_ONCE || !matches!(outcome, Outcome::Failed(_));
        if says_when { delay } else { shortest }
    }

    /// Publishes until confirmed; says why not where it never would be. Nothing when told to stop before that.
    pub(super) async fn publish(
        &self,
        outgoing: &Outgoing,
        stop: &CancellationToken,
    ) -> Option<Result<(), String>> {
        let mut pause = FIRST_PAUSE;
        for tried in 1_u32.. {
            let answer = self.broker.publish(vec![outgoing.clone()]).await.pop();
            let why = match answer {
                Some(Published::Confirmed) => return Some(Ok(())),
                Some(Published::Unfit(why)) => return Some(Err(why)),
                Some(
                    Published::Returned(why)
                    | Published::Refused(why)
                    | Published::Declined(why)
                    | Published::Unknown(why),
                ) => why,
                None => "the broker gave no answer".to_owned(),
            };
            if tried == TRIES {
                tracing::error!(consumer = %self.name, to = %outgoing.routing_key, %why,
                    "a delivery can be sent neither to its wait queue nor to the dead letters; it is kept and tried again");
                pause = KEPT_PAUSE;
            }
            tokio::select! {
                () = stop.cancelled() => return None,
                () = self.clock.sleep(pause) => {}
            }
            if tried < TRIES {
                pause *= 2;
            }
        }
        None
    }

    /// Without any wait queue a delivery that is too early goes to the end of its own queue; a while in hand keeps it from
    /// spinning. Only where nobody wants one: no retries and no tiers for deferring, or a preset under `strict` whose document has
    /// none. Nothing when told to stop.
    async fn wait_in_hand(&self, delay: Duration, stop: &CancellationToken) -> Option<()> {
        tokio::select! {
            () = stop.cancelled() => None,
            () = self.clock.sleep(delay.min(FIRST_PAUSE)) => Some(()),
        }
    }

    /// To the nearest wait queue. What is due later than that carries its time, and waits again when it comes back.
    fn to_wait_queue(&self, mut message: Message, delay: Duration) -> Outgoing {
        let Some(wait) = self.service.wait_queue(delay) else {
            let due = self.clock.now().checked_add(delay).unwrap_or(jiff::Timestamp::MAX);
            message.headers.insert(header::DUE_AT.to_owned(), due.to_string().into());
            return Outgoing::to_queue(self.service.name(), message);
        };
        if wait.delay < delay {
            let due = self.clock.now().checked_add(delay).unwrap_or(jiff::Timestamp::MAX);
            message.headers.insert(header::DUE_AT.to_owned(), due.to_string().into());
        }
        Outgoing::to_queue(&wait.name, message)
    }

    pub(super) fn to_dead_letters(&self, arrived: &Arrived, dying: &Dying<'_>) -> Outgoing {
        let Dying { outcome, reason, error } = dying;
        let failure = if let Outcome::Failed(failure) = outcome { Some(failure) } else { None };
        if *reason == DeadReason::RetriesExhausted {
            tracing::error!(
                code = "RABBITMQ_MESSAGE_MAX_RETRIES_EXCEEDED",
                consumer = %self.name,
                queue = %self.service.name(),
                event_id = arrived.event_id().map(AsRef::<str>::as_ref),
                attempts = arrived.attempt,
                error = dead_letter::cut(error, dead_letter::MAX_ERROR_BYTES),
                "an event failed as often as it may; it is a dead letter now"
            );
        }
        dead_letter::outgoing(
            &arrived.delivery,
            &self.service,
            &Death {
                consumer: &self.name,
                reason: *reason,
                error,
                class: failure.and_then(|failure| failure.class.as_deref()),
                status: failure.and_then(|failure| failure.status),
                attempt: arrived.attempt,
                at: self.clock.now(),
                event_id: arrived.event_id(),
            },
        )
    }

    /// An event that came again.
    fn tell_repeats(&self, arrived: &Arrived, outcome: &Outcome) {
        let event_id = arrived.event_id().map(AsRef::<str>::as_ref);
        match outcome {
            Outcome::Conflict => tracing::warn!(consumer = %self.name, event_id,
                "an event that was applied came again with another payload, or of another tenant; it is a dead letter now"),
            Outcome::Duplicate => tracing::debug!(consumer = %self.name, event_id, "applied before; acked"),
            _ => {}
        }
    }

    pub(super) fn count(&self, outcome: &Outcome, settlement: &Settlement) {
        let (meters, status) = (self.meters(), &self.status);
        let (metric, counter) = match (outcome, settlement) {
            (Outcome::Applied, _) => (&meters.applied, &status.applied),
            (_, Settlement::Ack) => (&meters.duplicates, &status.duplicates),
            (_, Settlement::Retry { .. }) => (&meters.retried, &status.retried),
            (_, Settlement::Defer { .. }) => (&meters.deferred, &status.deferred),
            (_, Settlement::DeadLetter { reason }) => {
                let (consumer, reason) = (self.name.to_string(), reason.as_str());
                let dead = metrics::counter!("postrider_consumer_dead_total", "consumer" => consumer, "reason" => reason);
                dead.increment(1);
                status.dead.fetch_add(1, Ordering::Relaxed);
                return;
            }
        };
        metric.increment(1);
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// What a message that waits remembers.
fn mark_waiting(message: &mut Message, arrived: &Arrived, retries: u32) {
    mark_passed_on(message, arrived, retries);
    message.headers.remove(header::DUE_AT);
}

/// What a message remembers that goes on as a new one: a publish would hide it.
pub(super) fn mark_passed_on(message: &mut Message, arrived: &Arrived, retries: u32) {
    dead_letter::remember_origin(message, &arrived.delivery);
    message.headers.insert(header::RETRY_COUNT.to_owned(), retries.into());
    if message.properties.time().is_none() {
        message.headers.insert(header::FIRST_RECEIVED_AT.to_owned(), arrived.received.to_string().into());
    }
    message.forget_deliveries();
}

/// What went wrong, for people.
pub(super) fn error_of(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Failed(failure) => failure.message.clone(),
        Outcome::Malformed(why) => why.clone(),
        Outcome::NoHandler => "this consumer has no handler for this type of event".to_owned(),
        Outcome::Conflict => {
            "this event id was applied before with another payload, or for another tenant".to_owned()
        }
        Outcome::Crashed { times } => {
            format!("the process died {times} times while it handled this event and none beside it")
        }
        Outcome::Early { until } => format!("not due before {until}"),
        Outcome::Applied | Outcome::Duplicate => String::new(),
    }
}

#[cfg(test)]
mod tests;
