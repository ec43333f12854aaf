//! What a lease is settled by: a secret of the desk that gave it, and enough of the event that what is said counts wherever it is said.

use crate::envelope::{EventId, PayloadHash, TenantId};
use crate::handler::Incoming;
use crate::store::Arrival;
use crate::topology::ConsumerName;

/// A token, read: `lease_DESK_SECRET_CONSUMER_HASH_EVENT_TENANT`, all in hexadecimal but the first word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseToken {
    desk: String,
    consumer: ConsumerName,
    arrival: Arrival,
}

impl LeaseToken {
    /// The token of a new lease on this event.
    pub(super) fn write(desk: &str, secret: &[u8], event: &Incoming) -> String {
        let (hash, id) = (event.hash(), event.envelope.id.as_str());
        let tenant = event.envelope.tenant.group.as_ref().map(AsRef::<str>::as_ref).unwrap_or_default();
        let consumer = event.consumer.as_str();
        let parts = [secret, consumer.as_bytes(), hash.as_bytes(), id.as_bytes(), tenant.as_bytes()];
        format!("lease_{desk}_{}", parts.map(hex).join("_"))
    }

    /// Reads one. Nothing if nobody gave it out.
    pub fn read(text: &str) -> Option<Self> {
        let mut parts = text.strip_prefix("lease_")?.split('_');
        let (desk, _secret, consumer) = (parts.next()?, parts.next()?, parts.next()?);
        let (hash, event, tenant) = (parts.next()?, parts.next()?, parts.next()?);
        if parts.next().is_some() {
            return None;
        }
        let text = |hex: &str| String::from_utf8(bytes(hex)?).ok();
        let tenant = text(tenant)?;
        let arrival = Arrival {
            event_id: EventId::new(text(event)?).ok()?,
            tenant: if tenant.is_empty() { None } else { Some(TenantId::new(tenant).ok()?) },
            payload_hash: PayloadHash::from_bytes(&bytes(hash)?)?,
        };
        let consumer = ConsumerName::new(text(consumer)?).ok()?;
        Some(Self { desk: desk.to_owned(), consumer, arrival })
    }

    /// Whether the desk with this name gave it: then that desk alone knows whether it is over.
    pub(super) fn is_of(&self, desk: &str) -> bool {
        self.desk == desk
    }

    /// The desk that gave it.
    pub fn desk(&self) -> &str {
        &self.desk
    }

    /// The consumer whose delivery it is.
    pub fn consumer(&self) -> &ConsumerName {
        &self.consumer
    }

    /// The event, as an inbox marks it.
    pub fn arrival(&self) -> &Arrival {
        &self.arrival
    }
}

pub(super) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;

    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn bytes(hex: &str) -> Option<Vec<u8>> {
    let digits: Vec<_> = hex.chars().map(|digit| digit.to_digit(16)).collect::<Option<_>>()?;
    let (pairs, rest) = digits.as_chunks::<2>();
    rest.is_empty()
        .then(|| pairs.iter().filter_map(|[high, low]| u8::try_from((high << 4) | low).ok()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::envelope::Event;

    #[test]
    fn a_token_tells_its_desk_and_its_event() {
        let (clock, _) = Clock::manual("2026-01-01T00:00:00Z".parse().unwrap());
        let mut envelope = Event::new("order.placed").unwrap().id("évt_1").unwrap().into_envelope(&clock);
        envelope.tenant.group = Some(TenantId::new("acme").unwrap());
        let event = Incoming::new(ConsumerName::new("mail").unwrap(), envelope, 1);
        let text = LeaseToken::write("ab12", &[7; 24], &event);
        let read = LeaseToken::read(&text).unwrap();
        assert!(read.is_of("ab12") && !read.is_of("ab13"));
        assert_eq!((read.desk(), read.consumer().as_str()), ("ab12", "mail"));
        let Arrival { event_id, tenant, payload_hash } = read.arrival();
        assert_eq!((event_id.as_str(), *payload_hash), ("évt_1", event.hash()));
        assert_eq!(*tenant, event.envelope.tenant.group);
        for wrong in [
            "",
            "lease_",
            "lease_unknown",
            "lease_a_b_c_d_e_f",
            &text[..text.len() - 1],
            &format!("{text}_00"),
        ] {
            assert_eq!(LeaseToken::read(wrong), None, "{wrong}");
        }
    }
}
