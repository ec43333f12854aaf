//! A refused delivery becomes a dead letter: through the broker, or past it where no broker can carry it.

use postrider::EventId;
use postrider::broker::{Delivery, Outgoing, Published, Verdict};
use postrider::dead_letter::{self, Death};
use postrider::settlement::DeadReason;
use postrider::store::DeadLetters;
use tokio_util::sync::CancellationToken;

use super::{Intake, PAUSE};
use crate::books::Books;
use crate::refusal::Refusal;

/// What became of a letter.
enum Sent {
    Confirmed,
    /// It never will be: its own headers fill a frame, so that ours do not fit beside them.
    Unfit(String),
    /// It was told to stop before that.
    Stopped,
}

impl<B: Books + DeadLetters> Intake<B> {
    /// Published until confirmed, or stored; then acked. A crash before the ack makes the same letter again, under the same key,
    /// and the table keeps one.
    pub(super) async fn bury(
        &self,
        delivery: &Delivery,
        event: Option<&EventId>,
        refusal: &Refusal,
        stop: &CancellationToken,
    ) -> Verdict {
        let reason = match refusal {
            Refusal::Malformed(_) => DeadReason::Malformed,
            Refusal::Conflict { .. } => DeadReason::Conflict,
            _ => DeadReason::Rejected,
        };
        let death = Death {
            consumer: &self.name,
            reason,
            error: &refusal.to_string(),
            class: Some(refusal.code()),
            status: None,
            attempt: 1,
            at: self.clock.now(),
            event_id: event,
        };
        let letter = dead_letter::outgoing(delivery, &self.service, &death);
        let buried = match self.send(&letter, stop).await {
            Sent::Confirmed => true,
            Sent::Stopped => false,
            Sent::Unfit(why) => {
                tracing::warn!(intake = %self.name, %why, event = event.map_or("", EventId::as_str),
                    "a dead letter does not fit through the broker; it is stored without it");
                self.keep(letter, stop).await
            }
        };
        if buried { self.status.count_refused(&self.name, reason, refusal) } else { Verdict::Requeue }
    }

    async fn send(&self, letter: &Outgoing, stop: &CancellationToken) -> Sent {
        loop {
            match self.broker.publish(vec![letter.clone()]).await.pop() {
                Some(Published::Confirmed) => return Sent::Confirmed,
                Some(Published::Unfit(why)) => return Sent::Unfit(why),
                answer => {
                    tracing::error!(intake = %self.name, to = %letter.routing_key, ?answer,
                        "a refused event cannot be sent to the dead letters; it is kept and tried again");
                }
            }
            if self.paused(stop).await.is_none() {
                return Sent::Stopped;
            }
        }
    }

    /// Into the table of dead letters. False only when told to stop before it was there.
    async fn keep(&self, letter: Outgoing, stop: &CancellationToken) -> bool {
        let letter = dead_letter::uncarried(letter, &self.service, &self.clock);
        loop {
            let stored = self.sequencer.books().collect(vec![letter.clone()]).await;
            let Err(error) = stored else { return true };
            tracing::error!(intake = %self.name, %error,
                "a dead letter that fits through no broker cannot be stored; its delivery is kept and it is tried again");
            if self.paused(stop).await.is_none() {
                return false;
            }
        }
    }

    /// Nothing when told to stop.
    async fn paused(&self, stop: &CancellationToken) -> Option<()> {
        stop.run_until_cancelled(self.clock.sleep(PAUSE)).await
    }
}
