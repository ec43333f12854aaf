//! The slots of the simulated outbox: which relay publishes which keys, and who streams.

use std::collections::BTreeMap;
use std::time::Duration;

use postrider::store::{RelayId, SLOTS, SlotLease};

/// Who has a slot.
#[derive(Clone, Default)]
struct Slot {
    owner: Option<RelayId>,
    until: Duration,
    epoch: i64,
}

pub(super) struct Slots {
    owners: Vec<Slot>,
    /// Until when each relay counts.
    relays: BTreeMap<RelayId, Duration>,
    /// Who streams, and until when.
    streamer: Option<(RelayId, Duration)>,
}

impl Default for Slots {
    fn default() -> Self {
        Self { owners: vec![Slot::default(); SLOTS], relays: BTreeMap::new(), streamer: None }
    }
}

impl Slots {
    /// Takes or renews a fair share: all of them for who streams, and none for those beside it.
    pub(super) fn lease(&mut self, relay: &RelayId, now: Duration, until: Duration) -> Vec<SlotLease> {
        self.relays.insert(relay.clone(), until);
        self.relays.retain(|_, until| *until > now);
        let share = match &mut self.streamer {
            Some((streamer, streams_until)) if streamer == relay => {
                *streams_until = until;
                SLOTS
            }
            Some((_, streams_until)) if *streams_until > now => 0,
            _ => SLOTS.div_ceil(self.relays.len().max(1)),
        };
        let mut held = 0;
        for slot in &mut self.owners {
            let is_ours = slot.owner.as_ref() == Some(relay);
            if is_ours && held == share {
                slot.owner = None;
            } else if is_ours {
                slot.until = until;
                held += 1;
            }
        }
        for slot in &mut self.owners {
            let is_free = slot.owner.is_none() || slot.until <= now;
            if held < share && is_free && slot.owner.as_ref() != Some(relay) {
                *slot = Slot { owner: Some(relay.clone()), until, epoch: slot.epoch + 1 };
                held += 1;
            }
        }
        self.held_by(relay)
    }

    pub(super) fn release(&mut self, relay: &RelayId) {
        self.relays.remove(relay);
        self.close_stream(relay);
        for slot in self.owners.iter_mut().filter(|slot| slot.owner.as_ref() == Some(relay)) {
            slot.owner = None;
        }
    }

    pub(super) fn held_by(&self, relay: &RelayId) -> Vec<SlotLease> {
        let slots = (0..).zip(&self.owners);
        let ours = slots.filter(|(_, slot)| slot.owner.as_ref() == Some(relay));
        ours.map(|(number, slot)| SlotLease { slot: number, epoch: slot.epoch }).collect()
    }

    /// Whether the relay may stream from now on.
    pub(super) fn open_stream(&mut self, relay: &RelayId, now: Duration, until: Duration) -> bool {
        let free = self.streamer.as_ref().is_none_or(|(streamer, until)| streamer == relay || *until <= now);
        if free {
            self.streamer = Some((relay.clone(), until));
        }
        free
    }

    pub(super) fn close_stream(&mut self, relay: &RelayId) {
        self.streamer.take_if(|(streamer, _)| streamer == relay);
    }

    pub(super) fn streamer(&self) -> Option<&RelayId> {
        self.streamer.as_ref().map(|(streamer, _)| streamer)
    }
}
