//! What a lease is settled by: signed, so that nobody else can make one, and with enough of the event that what is said counts wherever
//! it is said.

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use crate::clock::Clock;
use crate::envelope::{EventId, PayloadHash, TenantId};
use crate::handler::Incoming;
use crate::store::Arrival;
use crate::topology::ConsumerName;

/// What makes two leases on one event differ.
const NONCE: usize = 12;
/// So much of the signature is in the token.
const SIGNATURE: usize = 20;

/// What tokens are signed with: the same for every desk that shall believe them.
#[derive(Clone, PartialEq, Eq)]
pub struct LeaseKey([u8; 32]);

impl LeaseKey {
    /// One that nobody else has.
    pub fn fresh(clock: &Clock) -> Self {
        Self(clock.secret())
    }

    /// The 32 bytes, as stores keep them.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// From the 32 bytes a store kept.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    /// Over everything that a token says. None of its parts has an underscore, so it can be taken apart in one way only.
    fn mac(&self, desk: &str, nonce: &[u8], rest: &str) -> Hmac<Sha256> {
        // A block of the hash: HMAC fills a shorter key with zeros.
        let mut block = [0; 64];
        block[..self.0.len()].copy_from_slice(&self.0);
        let mut mac = Hmac::<Sha256>::new(&block.into());
        for part in [b"lease_", desk.as_bytes(), b"_", hex(nonce).as_bytes(), b"_", rest.as_bytes()] {
            mac.update(part);
        }
        mac
    }
}

impl std::fmt::Debug for LeaseKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LeaseKey(…)")
    }
}

/// A token, read: `lease_DESK_SIGNED_CONSUMER_HASH_EVENT_TENANT`, all in hexadecimal but the first word. `SIGNED` is a nonce and the
/// signature over it and all the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseToken {
    desk: String,
    consumer: ConsumerName,
    arrival: Arrival,
}

impl LeaseToken {
    /// The token of a new lease on this event.
    pub(super) fn write(desk: &str, key: &LeaseKey, random: [u8; 32], event: &Incoming) -> String {
        let (hash, id) = (event.hash(), event.envelope.id.as_str());
        let tenant = event.envelope.tenant.group.as_ref().map(AsRef::<str>::as_ref).unwrap_or_default();
        let consumer = event.consumer.as_str();
        let rest = [consumer.as_bytes(), hash.as_bytes(), id.as_bytes(), tenant.as_bytes()];
        let (nonce, rest) = (&random[..NONCE], rest.map(hex).join("_"));
        let signature = key.mac(desk, nonce, &rest).finalize().into_bytes();
        format!("lease_{desk}_{}{}_{rest}", hex(nonce), hex(&signature[..SIGNATURE]))
    }

    /// Reads one. Nothing if nobody who has this key gave it out.
    pub fn read(text: &str, key: &LeaseKey) -> Option<Self> {
        let (desk, others) = text.strip_prefix("lease_")?.split_once('_')?;
        let (signed, rest) = others.split_once('_')?;
        let signed = bytes(signed)?;
        let (nonce, signature) =
            signed.split_at_checked(NONCE).filter(|(_, rest)| rest.len() == SIGNATURE)?;
        key.mac(desk, nonce, rest).verify_truncated_left(signature).ok()?;
        let mut parts = rest.split('_');
        let (consumer, hash) = (parts.next()?, parts.next()?);
        let (event, tenant) = (parts.next()?, parts.next()?);
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
    use crate::envelope::Event;

    #[test]
    fn a_token_tells_its_desk_and_its_event() {
        let (clock, _) = Clock::manual("2026-01-01T00:00:00Z".parse().unwrap());
        let mut envelope = Event::new("order.placed").unwrap().id("évt_1").unwrap().into_envelope(&clock);
        envelope.tenant.group = Some(TenantId::new("acme").unwrap());
        let event = Incoming::new(ConsumerName::new("mail").unwrap(), envelope, 1);
        let key = LeaseKey([1; 32]);
        let text = LeaseToken::write("ab12", &key, [7; 32], &event);
        let read = LeaseToken::read(&text, &key).unwrap();
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
            assert_eq!(LeaseToken::read(wrong, &key), None, "{wrong}");
        }
        assert_eq!(LeaseToken::read(&text, &LeaseKey([2; 32])), None, "of somebody else's key");
        // Whatever is changed in it, nobody gave it out.
        for at in 6..text.len() {
            let mut changed = text.clone().into_bytes();
            changed[at] = if changed[at] == b'0' { b'1' } else { b'0' };
            let changed = String::from_utf8(changed).unwrap();
            assert_eq!(LeaseToken::read(&changed, &key), None, "{changed}");
        }
    }
}
