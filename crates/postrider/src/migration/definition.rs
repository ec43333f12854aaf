//! What goes where: the new exchange, the old one, which events, and how they look there.

use serde::{Deserialize, Serialize};

use super::template::Template;
use crate::broker::{Message, Outgoing};
use crate::envelope::{Envelope, WireFormat, wire};
use crate::topology::{BindingKey, ExchangeName, QueueName, RoutingKey, topic_matches};

crate::text::text_newtype!(
    /// The name of a migration.
    MigrationName, "a migration's name", 1..=128
);

/// A migration, as it was started. Kept in the store, so that all relays have the same, whatever their configuration says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Definition {
    /// Its name.
    pub name: MigrationName,
    /// The exchange of the new bus.
    pub exchange: ExchangeName,
    /// Which events are copied, as topic patterns on their routing keys.
    pub events: Vec<BindingKey>,
    /// The old bus.
    pub legacy: Legacy,
    /// Whether an event counts as published only when the old bus has it too.
    pub block_on_legacy: bool,
    /// What to do when publishing takes long.
    pub latency: LatencyRule,
}

/// The old bus.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Legacy {
    /// Its exchange, deprecated from the start of the migration on.
    pub exchange: ExchangeName,
    /// Its queue: removed with the exchange in the end, when it is empty and nobody consumes it.
    pub queue: Option<QueueName>,
    /// The wait queues of a consumer of ours there. They lead back to the queue, so they go with it, when they are empty.
    #[serde(default)]
    pub waits: Vec<QueueName>,
    /// The key copies are published with; absent: the event's own.
    pub routing_key: Option<RoutingKey>,
    /// How events look there.
    pub format: LegacyFormat,
}

/// How events look on the old bus.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LegacyFormat {
    /// The payload alone.
    Bare,
    /// A body made of parts of the event.
    Template(Template),
}

/// What to do when publishing takes long.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LatencyRule {
    /// A warning, when 99 of 100 publishes are not faster than this, in milliseconds.
    pub warn_ms: u64,
    /// Too slow.
    pub limit_ms: u64,
    /// What then.
    pub on_latency: OnLatency,
}

/// What to do when publishing is too slow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnLatency {
    /// Say so.
    #[default]
    Warn,
    /// Turn copies off until somebody rolls back; they are made up for then.
    Disable,
}

impl Default for LatencyRule {
    /// The limits of the SMAP design: 50 ms for every publish, 100 ms while both buses are published to.
    fn default() -> Self {
        Self { warn_ms: 50, limit_ms: 100, on_latency: OnLatency::Warn }
    }
}

impl Definition {
    /// Whether events of this exchange and key are copied.
    pub fn covers(&self, exchange: &ExchangeName, key: &RoutingKey) -> bool {
        *exchange == self.exchange
            && self.events.iter().any(|pattern| topic_matches(pattern.as_str(), key.as_str()))
    }

    /// The copy of an event for the old bus. `attempts` is how often publishing it failed before.
    pub fn copy_of(&self, envelope: &Envelope, key: &RoutingKey, attempts: u32) -> Outgoing {
        Outgoing {
            exchange: self.legacy.exchange.clone(),
            routing_key: self.legacy.routing_key.clone().unwrap_or_else(|| key.clone()),
            message: self.legacy.format.message(envelope, attempts),
        }
    }
}

impl LegacyFormat {
    /// The event as it looks on the old bus: an old consumer finds the body it knows. Identity is in the headers, which it does
    /// not look at, so that a consumer of ours knows the event by whichever way it comes.
    pub fn message(&self, envelope: &Envelope, attempts: u32) -> Message {
        let mut message = wire::encode(envelope, WireFormat::Bare, attempts);
        if let Self::Template(template) = self
            && let Some(body) = template.fill(envelope)
        {
            message.body = body;
            message.properties.content_type = Some("application/json".to_owned());
        }
        message
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::json;

    use super::*;
    use crate::clock::Clock;
    use crate::envelope::Event;

    pub(crate) fn definition() -> Definition {
        Definition {
            name: MigrationName::new("smap").unwrap(),
            exchange: ExchangeName::new("smap.events").unwrap(),
            events: vec![BindingKey::new("email.#").unwrap()],
            legacy: Legacy {
                exchange: ExchangeName::new("smtp_send_email_exc").unwrap(),
                queue: Some(QueueName::new("smtp_send_email").unwrap()),
                waits: Vec::new(),
                routing_key: None,
                format: LegacyFormat::Bare,
            },
            block_on_legacy: false,
            latency: LatencyRule::default(),
        }
    }

    fn email() -> Envelope {
        let (clock, _) = Clock::manual(jiff::Timestamp::UNIX_EPOCH);
        let event = Event::new("email.verification.requested").unwrap();
        let payload =
            json!({ "data": { "email": "ann@example.com", "code": "1234" }, "idempotency_key": "k1" });
        event.json(&payload).unwrap().into_envelope(&clock)
    }

    #[test]
    fn only_events_of_the_new_exchange_and_these_patterns_are_copied() {
        let definition = definition();
        let key = |key| RoutingKey::new(key).unwrap();
        assert!(definition.covers(&definition.exchange, &key("email.verification.requested")));
        assert!(!definition.covers(&definition.exchange, &key("subscription.created")));
        assert!(!definition.covers(&ExchangeName::new("other").unwrap(), &key("email.sent")));
    }

    #[test]
    fn a_bare_copy_is_the_payload_and_says_who_it_is_in_its_headers() {
        let (definition, envelope) = (definition(), email());
        let copy = definition.copy_of(&envelope, &RoutingKey::from(&envelope.event_type), 0);
        assert_eq!(copy.message.body, *envelope.payload.bytes());
        assert_eq!(copy.exchange.as_str(), "smtp_send_email_exc");
        let read = wire::decode(
            &copy.message,
            &copy.routing_key,
            &wire::Identity::default(),
            jiff::Timestamp::UNIX_EPOCH,
        );
        assert_eq!(read.unwrap().id, envelope.id);
    }

    #[test]
    fn a_definition_survives_its_store() {
        let mut definition = definition();
        definition.legacy.format =
            LegacyFormat::Template(Template::new(json!({ "to": "/data/email" })).unwrap());
        let json = serde_json::to_value(&definition).unwrap();
        assert_eq!(serde_json::from_value::<Definition>(json).unwrap(), definition);
    }
}
