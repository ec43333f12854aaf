//! A delivery at the door, read once: which event it is, which attempt, and who handles it.

use jiff::Timestamp;

use super::due::first_received;
use super::{Consumer, due};
use crate::broker::{Delivery, HeaderValue, Receipt};
use crate::dead_letter;
use crate::dedup::Sighting;
use crate::envelope::wire;
use crate::envelope::{EventId, OrderingKey};
use crate::handler::Incoming;
use crate::settlement::Outcome;
use crate::store::{ConsumerStore, HeldEvent};

/// A delivery, and what it says.
pub(super) struct Arrived {
    pub(super) delivery: Delivery,
    /// Which attempt it is, counted from 1.
    pub(super) attempt: u32,
    /// The event, or why the message is none.
    pub(super) read: Result<Incoming, String>,
    /// When it was first received, as far as it remembers.
    pub(super) received: Timestamp,
    /// Not before this time, or what nobody can make of such a wish.
    due: Result<Option<Timestamp>, String>,
    /// Whether the event is in the table of held events, and leaves it when it is applied.
    pub(super) held: bool,
    /// Whether it came from there. If not, the broker takes it back when it is left.
    pub(super) leased: bool,
    /// Under what it was looked up in front of the inbox, if it was.
    pub(super) sighting: Option<Sighting>,
    /// Whether it was known there: then it is a duplicate, and the store is not asked.
    pub(super) known: bool,
}

/// What is to be done with it, before anybody opened a transaction.
pub(super) enum Errand {
    /// The handler with this number is called.
    Handle(usize),
    /// Nobody is called: this is the outcome.
    Known(Outcome),
}

impl Arrived {
    pub(super) fn event_id(&self) -> Option<&EventId> {
        self.read.as_ref().ok().map(|incoming| &incoming.envelope.id)
    }

    pub(super) fn key(&self) -> Option<&OrderingKey> {
        self.read.as_ref().ok().and_then(|incoming| incoming.envelope.ordering_key.as_ref())
    }

    /// Whether the process may have died under it before.
    pub(super) fn suspect(&self) -> bool {
        self.delivery.redelivered || self.held
    }
}

impl<S: ConsumerStore> Consumer<S> {
    /// Reads a delivery. One that somebody brought back from the dead letters begins anew.
    pub(super) fn read(&self, mut delivery: Delivery) -> Arrived {
        dead_letter::revive(&mut delivery.message);
        dead_letter::recall_origin(&mut delivery, self.service.name());
        let now = self.clock.now();
        let received = first_received(&delivery.message, now);
        let attempt = attempt_of(&delivery);
        let read = wire::decode(&delivery.message, &delivery.routing_key, &self.service.identity, received)
            .map(|envelope| {
                let mut incoming = Incoming::new(self.name.clone(), envelope, attempt);
                incoming.headers = wire::headers_beside(&delivery.message);
                incoming
            })
            .map_err(|malformed| malformed.0);
        let due = read.as_ref().map_or(Ok(None), |event| due::due(&delivery.message, &event.envelope, now));
        Arrived {
            delivery,
            attempt,
            read,
            received,
            due,
            held: false,
            leased: false,
            sighting: None,
            known: false,
        }
    }

    /// Reads an event that was held.
    pub(super) fn read_held(&self, event: HeldEvent) -> Arrived {
        let HeldEvent { exchange, routing_key, message, .. } = event;
        let receipt = Receipt::void();
        let delivery = Delivery { message, exchange, routing_key, redelivered: true, receipt };
        Arrived { held: true, leased: true, ..self.read(delivery) }
    }

    /// Who handles it, if it is an event, due, and somebody's.
    pub(super) fn errand(&self, arrived: &Arrived) -> Errand {
        let incoming = match &arrived.read {
            Ok(incoming) => incoming,
            Err(why) => return Errand::Known(Outcome::Malformed(why.clone())),
        };
        match &arrived.due {
            Err(why) => return Errand::Known(Outcome::Malformed(why.clone())),
            Ok(Some(until)) if *until > self.clock.now() => {
                return Errand::Known(Outcome::Early { until: *until });
            }
            Ok(_) => {}
        }
        match self.registry.find(&incoming.envelope.event_type) {
            Some(entry) => Errand::Handle(entry.number),
            None => Errand::Known(Outcome::NoHandler),
        }
    }
}

/// Our own header counts; a broker's counters mean something else in every version.
fn attempt_of(delivery: &Delivery) -> u32 {
    let retries = delivery.message.headers.get(wire::header::RETRY_COUNT).and_then(HeaderValue::as_int);
    u32::try_from(retries.unwrap_or(0)).unwrap_or(0).saturating_add(1)
}
