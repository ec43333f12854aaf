//! First step: an event is posted once. The same id with the same payload gets the first answer again, with another payload
//! it is a conflict.

use std::collections::HashMap;

use postrider::EventId;
use postrider::envelope::PayloadHash;

use crate::books::{Known, Receipt};
use crate::refusal::Refusal;

/// What is in the books, those of this batch included. An event that was refused is not: its repeat is looked at again.
pub struct Seen(HashMap<EventId, (PayloadHash, Receipt)>);

impl Seen {
    /// With what the books know, and room for so many arrivals.
    pub fn new(known: &[Known], arrivals: usize) -> Self {
        let mut seen = HashMap::with_capacity(arrivals);
        seen.extend(known.iter().map(|known| (known.event.clone(), (known.payload_hash, known.receipt))));
        Self(seen)
    }

    /// Nothing if it is new, its receipt if it is a repeat.
    pub fn check(&self, event: &EventId, hash: PayloadHash) -> Result<Option<Receipt>, Refusal> {
        match self.0.get(event) {
            None => Ok(None),
            Some((same, receipt)) if *same == hash => Ok(Some(*receipt)),
            Some((_, receipt)) => Err(Refusal::Conflict { entry: receipt.entry }),
        }
    }

    /// One more of this batch.
    pub fn add(&mut self, event: EventId, hash: PayloadHash, receipt: Receipt) {
        self.0.insert(event, (hash, receipt));
    }
}
