//! Events that contradict one that is held: the same id with another payload, or of another tenant.
//!
//! The table of held events has one row for an id. To hold the second one behind the first would change nothing, and it would be acked
//! and gone; to hold it as the head of a key would put it in the place of the first. So it is a dead letter, like one that contradicts
//! what was applied.

use std::collections::HashMap;

use tokio_util::sync::CancellationToken;

use super::Consumer;
use super::arrived::Arrived;
use super::attempt::arrival;
use super::settle::Dying;
use crate::envelope::EventId;
use crate::settlement::{DeadReason, Outcome, Settlement};
use crate::store::{Admission, Arrival, ConsumerStore, Mark};

impl<S: ConsumerStore> Consumer<S> {
    /// Those that may be held, and those that contradict what is held, or one before them. Nothing when told to stop.
    pub(super) async fn part_contradicting(
        &self,
        all: Vec<Arrived>,
        stop: &CancellationToken,
    ) -> Option<(Vec<Arrived>, Vec<Arrived>)> {
        let ids: Vec<_> = all.iter().filter_map(Arrived::event_id).cloned().collect();
        let mut held = self.marks_of_held(&ids, stop).await?;
        let (mut agreeing, mut contradicting) = (Vec::new(), Vec::new());
        for arrived in all {
            let contradicts = arrived.read.as_ref().is_ok_and(|incoming| {
                let now = arrival(incoming);
                let before = held.entry(now.event_id.clone()).or_insert_with(|| Mark::of(&now));
                self.contradicts(before, &now)
            });
            if contradicts {
                contradicting.push(arrived);
            } else {
                agreeing.push(arrived);
            }
        }
        Some((agreeing, contradicting))
    }

    /// Whether it contradicts what is held under its id. Nothing when told to stop.
    pub(super) async fn is_contradicting(&self, arrived: &Arrived, stop: &CancellationToken) -> Option<bool> {
        let Ok(incoming) = &arrived.read else { return Some(false) };
        let now = arrival(incoming);
        let held = self.marks_of_held(std::slice::from_ref(&now.event_id), stop).await?;
        Some(held.get(&now.event_id).is_some_and(|before| self.contradicts(before, &now)))
    }

    /// Makes a dead letter of it, and leaves what is held as it is. Nothing when told to stop before that.
    pub(super) async fn bury_contradicting(&self, arrived: &Arrived, stop: &CancellationToken) -> Option<()> {
        let (outcome, reason) = (Outcome::Conflict, DeadReason::Conflict);
        tracing::warn!(consumer = %self.name, event_id = arrived.event_id().map(AsRef::<str>::as_ref),
            "an event that waits to be handled came again with another payload, or of another tenant; it is a dead letter now");
        self.count(&outcome, &Settlement::DeadLetter { reason });
        let error =
            "an event of this id waits to be handled, with another payload, or for another tenant".to_owned();
        self.bury(arrived, &Dying { outcome: &outcome, reason, error }, stop).await?;
        Some(())
    }

    fn contradicts(&self, before: &Mark, now: &Arrival) -> bool {
        self.admitted(before.judge(now)) == Admission::Conflict
    }

    /// What those that are held say, as the inbox would remember it.
    async fn marks_of_held(
        &self,
        events: &[EventId],
        stop: &CancellationToken,
    ) -> Option<HashMap<EventId, Mark>> {
        let held = self.surely(stop, || self.store.held_events(&self.name, events)).await?;
        let read = held.into_iter().filter_map(|event| self.read_held(event).read.ok());
        Some(read.map(|incoming| (incoming.envelope.id.clone(), Mark::of(&arrival(&incoming)))).collect())
    }
}
