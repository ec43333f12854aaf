//! Carries a settlement out: publish with confirm first, then ack.
//!
//! A crash between the two leaves the message in both places; the inbox knows the one that was applied.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::Consumer;
use super::attempt::Attempted;
use crate::broker::{Delivery, Outgoing, Published, Verdict};
use crate::dead_letter::{self, Death};
use crate::envelope::wire::header;
use crate::settlement::{DeadReason, Outcome, Settlement, decide};
use crate::store::Inbox;

/// A direct publish is tried again after this long, doubled each time, so many times, before it is said to fail.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const TRIES: u32 = 3;
/// After that the delivery is kept, and tried again this often.
const KEPT_PAUSE: Duration = Duration::from_secs(10);

impl<S: Inbox> Consumer<S> {
    /// Decides and does it. The answer is what the broker is told of the delivery.
    pub(super) async fn carry_out(
        &self,
        delivery: &Delivery,
        attempted: &Attempted,
        stop: &CancellationToken,
    ) -> Verdict {
        let now = self.clock.now();
        let settlement =
            decide(&attempted.outcome, attempted.attempt, &self.service.retry, now, self.clock.random());
        self.count(&attempted.outcome, &settlement);
        let outgoing = match settlement {
            Settlement::Ack => return Verdict::Ack,
            Settlement::Retry { delay } => self.to_wait_queue(delivery, delay, attempted.attempt),
            Settlement::Defer { delay } => self.to_wait_queue(delivery, delay, attempted.attempt - 1),
            Settlement::DeadLetter { reason } => self.to_dead_letters(delivery, attempted, reason),
        };
        if self.publish(outgoing, stop).await { Verdict::Ack } else { Verdict::Requeue }
    }

    /// Publishes until confirmed. False only when told to stop before that: then the delivery is given back.
    async fn publish(&self, outgoing: Outgoing, stop: &CancellationToken) -> bool {
        let mut pause = FIRST_PAUSE;
        for tried in 1_u32.. {
            let answer = self.broker.publish(vec![outgoing.clone()]).await.pop();
            let why = match answer {
                Some(Published::Confirmed) => return true,
                Some(Published::Returned(why) | Published::Refused(why) | Published::Unknown(why)) => why,
                None => "the broker gave no answer".to_owned(),
            };
            if tried == TRIES {
                tracing::error!(consumer = %self.name, to = %outgoing.routing_key, %why,
                    "a delivery can be sent neither to its wait queue nor to the dead letters; it is kept and tried again");
                pause = KEPT_PAUSE;
            }
            tokio::select! {
                () = stop.cancelled() => return false,
                () = self.clock.sleep(pause) => {}
            }
            if tried < TRIES {
                pause *= 2;
            }
        }
        false
    }

    fn to_wait_queue(&self, delivery: &Delivery, delay: Duration, retries: u32) -> Outgoing {
        let mut message = delivery.message.clone();
        dead_letter::remember_origin(&mut message, delivery);
        message.headers.insert(header::RETRY_COUNT.to_owned(), retries.into());
        dead_letter::remember_first_failure(&mut message, self.clock.now());
        match self.service.wait_queue(delay) {
            Some(wait) => Outgoing::to_queue(&wait.name, message),
            // Without a ladder it goes to the end of its own queue.
            None => Outgoing::to_queue(self.service.name(), message),
        }
    }

    fn to_dead_letters(&self, delivery: &Delivery, attempted: &Attempted, reason: DeadReason) -> Outgoing {
        let (error, failure) = match &attempted.outcome {
            Outcome::Failed(failure) => (failure.message.clone(), Some(failure)),
            Outcome::Malformed(why) => (why.clone(), None),
            Outcome::NoHandler => ("this consumer has no handler for this type of event".to_owned(), None),
            Outcome::Conflict => ("this event id was applied before with another payload".to_owned(), None),
            Outcome::Crashed { times } => {
                (format!("the process died {times} times while it handled this"), None)
            }
            Outcome::Applied | Outcome::Duplicate | Outcome::Early { .. } => (String::new(), None),
        };
        if reason == DeadReason::RetriesExhausted {
            tracing::error!(
                code = "RABBITMQ_MESSAGE_MAX_RETRIES_EXCEEDED",
                consumer = %self.name,
                queue = %self.service.name(),
                event_id = attempted.envelope.as_ref().map(|envelope| envelope.id.as_str()),
                attempts = attempted.attempt,
                %error,
                "an event failed as often as it may; it is a dead letter now"
            );
        }
        dead_letter::outgoing(
            delivery,
            &self.service,
            &Death {
                consumer: &self.name,
                reason,
                error: &error,
                class: failure.and_then(|failure| failure.class.as_deref()),
                status: failure.and_then(|failure| failure.status),
                attempt: attempted.attempt,
                at: self.clock.now(),
                event_id: attempted.envelope.as_ref().map(|envelope| &envelope.id),
            },
        )
    }

    fn count(&self, outcome: &Outcome, settlement: &Settlement) {
        let consumer = self.name.to_string();
        let counter = match (outcome, settlement) {
            (Outcome::Applied, _) => {
                metrics::counter!("postrider_consumer_applied_total", "consumer" => consumer).increment(1);
                &self.status.applied
            }
            (_, Settlement::Ack) => {
                metrics::counter!("postrider_consumer_duplicates_total", "consumer" => consumer).increment(1);
                &self.status.duplicates
            }
            (_, Settlement::DeadLetter { reason }) => {
                let reason = reason.as_str();
                metrics::counter!("postrider_consumer_dead_total", "consumer" => consumer, "reason" => reason)
                    .increment(1);
                &self.status.dead
            }
            (_, Settlement::Retry { .. } | Settlement::Defer { .. }) => {
                metrics::counter!("postrider_consumer_retried_total", "consumer" => consumer).increment(1);
                &self.status.retried
            }
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}
