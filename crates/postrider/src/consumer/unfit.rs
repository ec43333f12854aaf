//! What no broker can carry any more: a message whose own headers fill a frame, so that ours do not fit beside them.
//!
//! It came that way, and has to wait or to be given up like any other. To wait, it may do without the history of its attempts. If that is
//! not enough it is a dead letter, which goes into the table without a queue in between: there it has all of its headers, and ours, and
//! can be edited and sent again. A crash before the ack stores it again under the same key, and the table keeps one.

use tokio_util::sync::CancellationToken;

use super::Consumer;
use super::arrived::Arrived;
use super::settle::{Dying, KEPT_PAUSE, error_of};
use crate::broker::Outgoing;
use crate::dead_letter;
use crate::settlement::{DeadReason, Outcome, Settlement};
use crate::store::ConsumerStore;

impl<S: ConsumerStore> Consumer<S> {
    /// To the wait queue with less, or else to the dead letters. Nothing when told to stop before it was done.
    pub(super) async fn without_room(
        &self,
        arrived: &Arrived,
        outcome: &Outcome,
        mut outgoing: Outgoing,
        why: &str,
        stop: &CancellationToken,
    ) -> Option<()> {
        dead_letter::forget_attempts(&mut outgoing.message);
        if self.publish(&outgoing, stop).await?.is_ok() {
            return Some(());
        }
        self.count(outcome, &Settlement::DeadLetter { reason: DeadReason::Unfit });
        let error = format!("{}; it cannot wait for another attempt: {why}", error_of(outcome));
        self.bury(arrived, &Dying { outcome, reason: DeadReason::Unfit, error }, stop).await?;
        Some(())
    }

    /// To the dead letters: by their queue, or straight into the table. The letter; nothing when told to stop before it was done.
    pub(super) async fn bury(
        &self,
        arrived: &Arrived,
        dying: &Dying<'_>,
        stop: &CancellationToken,
    ) -> Option<Outgoing> {
        let outgoing = self.to_dead_letters(arrived, dying);
        let Err(why) = self.publish(&outgoing, stop).await? else { return Some(outgoing) };
        tracing::warn!(consumer = %self.name, %why, event_id = arrived.event_id().map(AsRef::<str>::as_ref),
            "a dead letter does not fit through the broker; it is stored without it");
        let letter = dead_letter::uncarried(outgoing.clone(), &self.service, &self.clock);
        loop {
            let Err(error) = self.store.collect(vec![letter.clone()]).await else { return Some(outgoing) };
            tracing::error!(consumer = %self.name, %error,
                "a dead letter that fits through no broker cannot be stored; its delivery is kept and it is tried again");
            tokio::select! {
                () = stop.cancelled() => return None,
                () = self.clock.sleep(KEPT_PAUSE) => {}
            }
        }
    }
}
