//! Looks after the outbox beside the relay: partitions and retention now and then, and the gauges people watch.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::store::{HouseRules, Housekeeping, Kept, Outbox, RelayId, StoreError, StoreErrorKind};

/// How often the house is kept.
const ROUNDS: Duration = Duration::from_mins(10);
/// How often the gauges are read.
const GAUGES: Duration = Duration::from_secs(15);

/// Keeps one outbox. Of several beside each other, one does the work.
pub(crate) struct Housekeeper<S> {
    store: S,
    clock: Clock,
    rules: HouseRules,
    id: RelayId,
    /// What metrics call the outbox.
    label: String,
}

impl<S: Outbox + Housekeeping> Housekeeper<S> {
    pub(crate) fn new(store: S, clock: Clock, rules: HouseRules, label: &str) -> Self {
        let id = RelayId::of_process(&clock);
        Self { store, clock, rules, id, label: label.to_owned() }
    }

    /// Works until told to stop. An error is told and waited out: the next round does what this one did not.
    pub(crate) async fn run(self, stop: CancellationToken) {
        // An alert watches it grow: it is there before the first time.
        metrics::counter!("postrider_outbox_housekeeping_failed_total").increment(0);
        let mut next_round = Duration::ZERO;
        while !stop.is_cancelled() {
            if self.clock.monotonic() >= next_round {
                next_round = self.clock.monotonic() + ROUNDS;
                tokio::select! {
                    () = stop.cancelled() => return,
                    kept = self.store.keep_house(&self.id, &self.rules) => tell(kept, &self.label),
                }
            }
            // How long an event waits is told by the clock that says when it was written.
            match tokio::join!(self.store.backlog(), self.store.horizon()) {
                (Ok(backlog), Ok(horizon)) => backlog.show(&self.label, horizon.at),
                (Err(error), _) | (_, Err(error)) => tracing::debug!(%error, "the backlog was not counted"),
            }
            tokio::select! {
                () = stop.cancelled() => {}
                () = self.clock.sleep(GAUGES) => {}
            }
        }
    }
}

fn tell(kept: Result<Option<Kept>, StoreError>, outbox: &str) {
    match kept {
        Ok(Some(kept)) if kept != Kept::default() => {
            let Kept { partitions_made, partitions_ended, archived, removed, .. } = kept;
            tracing::info!(
                outbox,
                ?partitions_made,
                ?partitions_ended,
                archived,
                removed,
                "the outbox was looked after"
            );
        }
        Ok(_) => {}
        // A role with no more rights than a relay needs leaves it to whoever owns the tables.
        Err(error) if error.kind == StoreErrorKind::Denied => {
            tracing::info!(outbox, %error, "the outbox is left to be looked after by its owner: `postrider outbox archive`");
        }
        Err(error) => {
            tracing::warn!(outbox, %error, "the outbox was not looked after; nothing is lost, it is tried again");
            metrics::counter!("postrider_outbox_housekeeping_failed_total").increment(1);
        }
    }
}
