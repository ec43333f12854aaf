//! Routing keys made of parts of the event, for an outbox whose rows name none.

use serde::{Deserialize, Serialize};

use super::RoutingKey;
use crate::envelope::{Envelope, EventType, Tenant};

/// A routing key with places for parts of the event: `{type}`, its two halves `{aggregate_type}` and `{event_type}`, `{group_id}` and
/// `{subsidiary_id}`. An event without a tenant has nothing in its place. So `eu.{type}` is `eu.shop.order.placed`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct KeyTemplate(Vec<Part>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Place(Place),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Type,
    AggregateType,
    EventType,
    Group,
    Subsidiary,
}

impl Place {
    const ALL: [(&str, Self); 5] = [
        ("type", Self::Type),
        ("aggregate_type", Self::AggregateType),
        ("event_type", Self::EventType),
        ("group_id", Self::Group),
        ("subsidiary_id", Self::Subsidiary),
    ];

    fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, place)| *place == self).map_or("", |(name, _)| name)
    }
}

/// Why a text is no template.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no template for routing keys: its places are {{type}}, {{aggregate_type}}, {{event_type}}, {{group_id}} and \
     {{subsidiary_id}}, and it has 200 bytes at most"
)]
pub struct InvalidTemplate(String);

/// AMQP has no longer keys.
const LONGEST_KEY: usize = 255;
const LONGEST_TEMPLATE: usize = 200;

impl KeyTemplate {
    /// Reads a template.
    pub fn new(template: &str) -> Result<Self, InvalidTemplate> {
        let invalid = || InvalidTemplate(template.to_owned());
        if template.is_empty() || template.len() > LONGEST_TEMPLATE || template.contains('\0') {
            return Err(invalid());
        }
        let mut parts = Vec::new();
        let mut rest = template;
        while let Some((text, after)) = rest.split_once('{') {
            let (name, after) = after.split_once('}').ok_or_else(invalid)?;
            let place = Place::ALL.iter().find(|(known, _)| *known == name).ok_or_else(invalid)?.1;
            parts.extend((!text.is_empty()).then(|| Part::Text(text.to_owned())));
            parts.push(Part::Place(place));
            rest = after;
        }
        parts.extend((!rest.is_empty()).then(|| Part::Text(rest.to_owned())));
        if parts.iter().any(|part| matches!(part, Part::Text(text) if text.contains('}'))) {
            return Err(invalid());
        }
        Ok(Self(parts))
    }

    /// The key of an event. What is longer than a key of AMQP ends where such a key ends: no queue wants it, and it is dead in the outbox.
    pub fn fill(&self, envelope: &Envelope) -> RoutingKey {
        self.fill_for(&envelope.event_type, &envelope.tenant)
    }

    /// The key of an event of this type, of this tenant.
    pub fn fill_for(&self, event_type: &EventType, tenant: &Tenant) -> RoutingKey {
        let mut key = self.written(|place| match place {
            Place::Type => event_type.as_str(),
            Place::AggregateType => event_type.aggregate_type(),
            Place::EventType => event_type.action(),
            Place::Group => tenant.group.as_ref().map_or("", AsRef::as_ref),
            Place::Subsidiary => tenant.subsidiary.as_ref().map_or("", AsRef::as_ref),
        });
        key.truncate(key.floor_char_boundary(LONGEST_KEY));
        RoutingKey::new(key).unwrap_or_else(|_| RoutingKey::from(event_type))
    }

    /// The same as an expression of SQL over the columns of an outbox row.
    pub(crate) fn sql(&self) -> String {
        let part = |part: &Part| match part {
            Part::Text(text) => format!("'{}'", text.replace('\'', "''")),
            Part::Place(Place::Type) => "aggregate_type || '.' || event_type".to_owned(),
            Part::Place(place @ (Place::AggregateType | Place::EventType)) => place.name().to_owned(),
            Part::Place(place) => format!("COALESCE({}::text, '')", place.name()),
        };
        self.0.iter().map(part).collect::<Vec<_>>().join(" || ")
    }

    fn written<'a>(&'a self, of: impl Fn(Place) -> &'a str) -> String {
        self.0
            .iter()
            .map(|part| if let Part::Place(place) = part { of(*place) } else { part.text() })
            .collect()
    }
}

impl Part {
    fn text(&self) -> &str {
        if let Self::Text(text) = self { text } else { "" }
    }
}

/// The key of an event whose row names none: by the template, or by its type.
pub(crate) fn routing_key(template: Option<&KeyTemplate>, envelope: &Envelope) -> RoutingKey {
    template.map_or_else(|| RoutingKey::from(&envelope.event_type), |template| template.fill(envelope))
}

impl TryFrom<String> for KeyTemplate {
    type Error = InvalidTemplate;

    fn try_from(text: String) -> Result<Self, InvalidTemplate> {
        Self::new(&text)
    }
}

impl From<KeyTemplate> for String {
    fn from(template: KeyTemplate) -> Self {
        let part = |part: &Part| match part {
            Part::Text(text) => text.clone(),
            Part::Place(place) => format!("{{{}}}", place.name()),
        };
        template.0.iter().map(part).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::envelope::{Event, TenantId};

    #[test]
    fn a_key_is_made_of_parts_of_the_event() {
        let (clock, _) = Clock::manual(jiff::Timestamp::UNIX_EPOCH);
        let mut event = Event::new("shop.order.placed").unwrap();
        event.tenant.group = Some(TenantId::new("acme").unwrap());
        let envelope = event.into_envelope(&clock);
        for (template, key, sql) in [
            ("eu.{type}", "eu.shop.order.placed", "'eu.' || aggregate_type || '.' || event_type"),
            ("{group_id}.{event_type}", "acme.placed", "COALESCE(group_id::text, '') || '.' || event_type"),
            ("it's{subsidiary_id}", "it's", "'it''s' || COALESCE(subsidiary_id::text, '')"),
            ("{aggregate_type}", "shop.order", "aggregate_type"),
        ] {
            let read = KeyTemplate::new(template).unwrap();
            assert_eq!((read.fill(&envelope).as_str(), read.sql().as_str()), (key, sql));
            assert_eq!(String::from(read), template);
        }
        for wrong in ["", "{", "}", "a}b", "{id}", "{type", "{{type}}", &"x".repeat(201)] {
            assert!(KeyTemplate::new(wrong).is_err(), "{wrong}");
        }
    }
}
