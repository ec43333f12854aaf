//! An envelope in the making: what each place of a message knows, first come first kept.
//!
//! Texts stay where they were found until the end: most of them stand in several places, and only the first is taken.

use std::borrow::Cow;

use jiff::Timestamp;

use super::{Malformed, cloudevents};
use crate::envelope::attributes::SOURCE;
use crate::envelope::{
    AggregateId, Attributes, Envelope, EventId, EventType, OrderingKey, Payload, Tenant, TenantId,
    TraceContext,
};
use crate::text::InvalidText;

/// A text as it was found.
pub(super) type Found<'a> = Option<Cow<'a, str>>;

/// What is known so far; checked at the end.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Draft<'a> {
    pub id: Found<'a>,
    pub event_type: Found<'a>,
    pub aggregate_id: Found<'a>,
    pub group: Found<'a>,
    pub subsidiary: Found<'a>,
    pub occurred_at: Option<Timestamp>,
    pub ordering_key: Found<'a>,
    pub causation_id: Found<'a>,
    pub correlation_id: Found<'a>,
    pub traceparent: Found<'a>,
    pub tracestate: Found<'a>,
    /// All attributes but the source.
    pub attributes: Attributes,
    /// Apart from the others, because as a rule it is the one that we gave the event ourselves.
    pub source: Found<'a>,
}

impl Draft<'_> {
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
            causation_id: reference(self.causation_id),
            correlation_id: reference(self.correlation_id),
            trace: TraceContext {
                traceparent: self.traceparent.map(Cow::into_owned),
                tracestate: self.tracestate.map(Cow::into_owned),
            },
            attributes: self.attributes,
            payload,
        };
        // The source that we gave an event is none of its own.
        if let Some(source) = self.source.filter(|source| !cloudevents::is_our_source(&envelope, source)) {
            cloudevents::keep(&mut envelope.attributes, SOURCE, &source);
        }
        Ok(envelope)
    }
}

fn text<T>(checked: Result<T, InvalidText>) -> Result<T, Malformed> {
    checked.map_err(|invalid| Malformed(invalid.to_string()))
}

/// An empty text is an absent one: many producers write `""` for null.
fn optional<'a, T>(
    found: Found<'a>,
    check: impl Fn(Cow<'a, str>) -> Result<T, InvalidText>,
) -> Result<Option<T>, Malformed> {
    found.filter(|found| !found.is_empty()).map(|found| text(check(found))).transpose()
}

/// Another event that it names. Whatever a foreign producer writes there (a `correlation_id` of 200 bytes is nothing unusual), it says nothing of
/// this event: what is no id is left where it stands, in the message.
fn reference(found: Found<'_>) -> Option<EventId> {
    found.and_then(|found| EventId::new(found).ok())
}
