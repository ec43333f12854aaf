//! An envelope in the making: what each place of a message knows, first come first kept.

use jiff::Timestamp;

use super::{Malformed, cloudevents};
use crate::envelope::{
    AggregateId, Attributes, Envelope, EventId, EventType, OrderingKey, Payload, Tenant, TenantId,
    TraceContext,
};
use crate::text::InvalidText;

/// What one place knows; text as it was found, checked at the end.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Draft {
    pub id: Option<String>,
    pub event_type: Option<String>,
    pub aggregate_id: Option<String>,
    pub group: Option<String>,
    pub subsidiary: Option<String>,
    pub occurred_at: Option<Timestamp>,
    pub ordering_key: Option<String>,
    pub causation_id: Option<String>,
    pub correlation_id: Option<String>,
    pub traceparent: Option<String>,
    pub tracestate: Option<String>,
    pub attributes: Attributes,
}

impl Draft {
    /// The key says the type, if it is one.
    pub(super) fn from_routing_key(key: &str) -> Self {
        Self { event_type: EventType::new(key).ok().map(String::from), ..Self::default() }
    }

    /// Fills what is still open from the next place.
    pub(super) fn or(self, next: Self) -> Self {
        Self {
            id: self.id.or(next.id),
            event_type: self.event_type.or(next.event_type),
            aggregate_id: self.aggregate_id.or(next.aggregate_id),
            group: self.group.or(next.group),
            subsidiary: self.subsidiary.or(next.subsidiary),
            occurred_at: self.occurred_at.or(next.occurred_at),
            ordering_key: self.ordering_key.or(next.ordering_key),
            causation_id: self.causation_id.or(next.causation_id),
            correlation_id: self.correlation_id.or(next.correlation_id),
            traceparent: self.traceparent.or(next.traceparent),
            tracestate: self.tracestate.or(next.tracestate),
            attributes: if self.attributes.is_empty() { next.attributes } else { self.attributes },
        }
    }

    /// The envelope, if there is an id and a type and all texts are what they should be.
    pub(super) fn finish(self, payload: Payload, received_at: Timestamp) -> Result<Envelope, Malformed> {
        let id = self.id.ok_or_else(|| {
            Malformed("no event id: not in the body, the headers or the message_id property".to_owned())
        })?;
        let event_type = self.event_type.ok_or_else(|| {
            Malformed(
                "no event type: not in the body or the headers, and the routing key is not one".to_owned(),
            )
        })?;
        let event_type = text(EventType::new(event_type))?;
        let aggregate_id = optional(self.aggregate_id, AggregateId::new)?;
        let group = optional(self.group, TenantId::new)?;
        let ordering_key = optional(self.ordering_key, OrderingKey::new)?;
        let mut envelope = Envelope {
            id: text(EventId::new(id))?,
            event_type,
            aggregate_id,
            tenant: Tenant { group, subsidiary: optional(self.subsidiary, TenantId::new)? },
            occurred_at: self.occurred_at.unwrap_or(received_at),
            ordering_key,
            causation_id: optional(self.causation_id, EventId::new)?,
            correlation_id: optional(self.correlation_id, EventId::new)?,
            trace: TraceContext { traceparent: self.traceparent, tracestate: self.tracestate },
            attributes: self.attributes,
            payload,
        };
        cloudevents::forget_our_source(&mut envelope);
        Ok(envelope)
    }
}

fn text<T>(checked: Result<T, InvalidText>) -> Result<T, Malformed> {
    checked.map_err(|invalid| Malformed(invalid.to_string()))
}

/// An empty text is an absent one: many producers write `""` for null.
fn optional<T>(
    found: Option<String>,
    check: impl Fn(String) -> Result<T, InvalidText>,
) -> Result<Option<T>, Malformed> {
    found.filter(|found| !found.is_empty()).map(|found| text(check(found))).transpose()
}
