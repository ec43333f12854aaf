//! The lease of slots, and what a change of them means for the rows in hand.

use std::collections::HashSet;
use std::time::Duration;

use super::{Pump, Step};
use crate::store::{Outbox, SlotLease, StoreError};

impl<S: Outbox> Pump<S> {
    pub(super) fn renew_lease(&mut self) {
        let (store, id, lease) = (self.relay.store.clone(), self.relay.id.clone(), self.relay.config.lease);
        let until = self.now() + lease;
        self.start(async move { Step::Leased { until, slots: store.lease(&id, lease).await } });
    }

    pub(super) fn leased(&mut self, until: Duration, slots: Result<Vec<SlotLease>, StoreError>) {
        match slots {
            Ok(slots) => {
                if !self.is_counted() {
                    // While it was not, a phase may have been settled without it.
                    self.obeyed.look_first();
                }
                self.leased_until = until;
                let held: HashSet<_> = slots.into_iter().collect();
                let lost: HashSet<_> = self.held.difference(&held).map(|lease| lease.slot).collect();
                if !lost.is_empty() {
                    self.flow.let_go(&lost, self.claims);
                }
                let changed = held != self.held;
                self.held = held;
                if changed {
                    // What came with a slot, and what was let go with another though its own is still ours.
                    self.reading.start_over();
                    self.parked.look_again();
                    self.slots_changed();
                }
                // Who has no slot claims nothing.
                if self.held.is_empty() {
                    self.store_works();
                }
            }
            Err(error) => self.outage(&format!("the store failed: {error}")),
        }
        let (clock, pause) = (self.relay.clock.clone(), self.relay.config.lease / 4);
        self.start_here(async move {
            clock.sleep(pause).await;
            Step::LeaseIsDue
        });
    }

    /// A relay that was paused beyond its lease stops here: another may have taken over.
    pub(super) fn is_leased(&self) -> bool {
        !self.held.is_empty() && self.is_counted()
    }

    /// Others count it among the relays that live, though it may have no slot: beside one that streams nobody has.
    pub(super) fn is_counted(&self) -> bool {
        self.now() < self.leased_until
    }
}
