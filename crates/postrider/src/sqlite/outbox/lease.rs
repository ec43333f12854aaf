//! Who relays. One process works on a file, so the lease is kept in its memory and ends with it: after a crash the next
//! relay starts at once.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::store::{RelayId, SlotLease};

/// The one slot of the outbox.
#[derive(Default)]
pub(in crate::sqlite) struct Slot(Mutex<Place>);

#[derive(Default)]
struct Place {
    holder: Option<Holder>,
    /// How often it changed hands.
    epoch: i64,
}

struct Holder {
    relay: RelayId,
    until: Duration,
}

impl Slot {
    /// Takes or renews it, unless another relay holds it. Times are on the monotonic clock.
    pub(super) fn take(&self, relay: &RelayId, now: Duration, until: Duration) -> Option<SlotLease> {
        let mut place = self.place();
        match &mut place.holder {
            Some(holder) if holder.relay == *relay => holder.until = until,
            Some(holder) if holder.until > now => return None,
            _ => {
                place.holder = Some(Holder { relay: relay.clone(), until });
                place.epoch += 1;
            }
        }
        Some(SlotLease { slot: 0, epoch: place.epoch })
    }

    /// Gives it back.
    pub(super) fn release(&self, relay: &RelayId) {
        self.place().holder.take_if(|holder| holder.relay == *relay);
    }

    /// What it has, if this relay was the last to take it. Its time may be over, but nobody has taken over.
    pub(super) fn held_by(&self, relay: &RelayId) -> Option<SlotLease> {
        let place = self.place();
        let holds = place.holder.as_ref().is_some_and(|holder| holder.relay == *relay);
        holds.then_some(SlotLease { slot: 0, epoch: place.epoch })
    }

    /// Makes its holder look at everything again.
    pub(in crate::sqlite) fn stir(&self) {
        self.place().epoch += 1;
    }

    fn place(&self) -> MutexGuard<'_, Place> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_has_one_holder_at_a_time() {
        let (one, two) = (RelayId::new("one").unwrap(), RelayId::new("two").unwrap());
        let at = Duration::from_secs;
        let slot = Slot::default();
        assert!(slot.take(&one, at(0), at(10)).is_some());
        assert!(slot.take(&two, at(9), at(19)).is_none());
        assert!(slot.take(&one, at(9), at(19)).is_some());
        assert!(slot.held_by(&one).is_some() && slot.held_by(&two).is_none());
        assert!(slot.take(&two, at(19), at(29)).is_some());
        assert!(slot.held_by(&one).is_none());
        slot.release(&one);
        assert!(slot.held_by(&two).is_some());
        slot.release(&two);
        assert!(slot.take(&one, at(20), at(30)).is_some());
    }
}
