//! The headers and properties that every published message has, whatever its body.

use std::borrow::Cow;

use super::draft::Draft;
use super::{WireFormat, cloudevents};
use crate::broker::{HeaderValue, Headers, Message};
use crate::envelope::Envelope;

/// The names of the headers.
pub mod names {
    /// The event id, as in `message_id`.
    pub const EVENT_ID: &str = "x-event-id";
    /// All words of the type but the last.
    pub const AGGREGATE_TYPE: &str = "x-aggregate-type";
    /// The entity.
    pub const AGGREGATE_ID: &str = "x-aggregate-id";
    /// The tenant group.
    pub const GROUP_ID: &str = "x-group-id";
    /// The subsidiary.
    pub const SUBSIDIARY_ID: &str = "x-subsidiary-id";
    /// The last word of the type.
    pub const EVENT_TYPE: &str = "x-event-type";
    /// How often publishing it failed before: publish attempts, not retries of a consumer.
    pub const ATTEMPTS: &str = "x-attempts";
    /// Events of one key keep their order.
    pub const ORDERING_KEY: &str = "x-ordering-key";
    /// The event that caused it.
    pub const CAUSATION_ID: &str = "x-causation-id";
    /// The conversation.
    pub const CORRELATION_ID: &str = "x-correlation-id";
    /// When it happened, to the microsecond.
    pub const OCCURRED_AT: &str = "x-occurred-at";
    /// One of the names of [`WireFormat`](super::WireFormat).
    pub const WIRE_FORMAT: &str = "x-wire-format";
    /// W3C trace context.
    pub const TRACEPARENT: &str = "traceparent";
    /// W3C trace context.
    pub const TRACESTATE: &str = "tracestate";
    /// Attempt − 1, set when a delivery is retried.
    pub const RETRY_COUNT: &str = "x-retry-count";
    /// Set on a message that waits in several steps: not before this time.
    pub const DUE_AT: &str = "x-due-at";
    /// A producer's wish: not before this time, RFC 3339 or milliseconds since 1970.
    pub const PROCESS_AFTER: &str = "x-process-after";
    /// A producer's wish, as a header or a member of the payload: not before so many milliseconds after the event occurred.
    pub const PROCESS_AFTER_DELAY_MS: &str = "processAfterDelayMs";
    /// When a message without a time of its own was first received, set when it is retried or deferred.
    pub const FIRST_RECEIVED_AT: &str = "x-first-received-at";
    /// The exchange of the first publish, set when a delivery is retried or dead-lettered.
    pub const ORIGINAL_EXCHANGE: &str = "x-original-exchange";
    /// The key of the first publish, set when a delivery is retried or dead-lettered.
    pub const ORIGINAL_ROUTING_KEY: &str = "x-original-routing-key";
}

/// All of them.
const OWN: [&str; 21] = [
    names::EVENT_ID,
    names::AGGREGATE_TYPE,
    names::AGGREGATE_ID,
    names::GROUP_ID,
    names::SUBSIDIARY_ID,
    names::EVENT_TYPE,
    names::ATTEMPTS,
    names::ORDERING_KEY,
    names::CAUSATION_ID,
    names::CORRELATION_ID,
    names::OCCURRED_AT,
    names::WIRE_FORMAT,
    names::TRACEPARENT,
    names::TRACESTATE,
    names::RETRY_COUNT,
    names::DUE_AT,
    names::PROCESS_AFTER,
    names::PROCESS_AFTER_DELAY_MS,
    names::FIRST_RECEIVED_AT,
    names::ORIGINAL_EXCHANGE,
    names::ORIGINAL_ROUTING_KEY,
];

/// Whether a header is one of these, however it is spelled.
pub(crate) fn is_own(name: &str) -> bool {
    OWN.iter().any(|own| own.eq_ignore_ascii_case(name))
}

/// What a message has beside them, but for attributes of a CloudEvent, lists and tables. Of what the relay publishes that is nothing, so
/// the usual event costs no memory here.
pub(crate) fn beside(message: &Message) -> Headers {
    let plain = |value: &HeaderValue| {
        matches!(
            value,
            HeaderValue::Text(_) | HeaderValue::Int(_) | HeaderValue::Float(_) | HeaderValue::Bool(_)
        )
    };
    let of_others =
        |name: &str| !is_own(name) && !cloudevents::PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    let headers = message.headers.iter().filter(|(name, value)| plain(value) && of_others(name));
    headers.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// Writes headers and properties; the content type is the caller's.
pub(super) fn write(envelope: &Envelope, format: WireFormat, attempts: u32, message: &mut Message) {
    let headers = &mut message.headers;
    let mut set = |name: &str, value: Option<&str>| {
        if let Some(value) = value {
            headers.insert(name.to_owned(), HeaderValue::from(value));
        }
    };
    set(names::EVENT_ID, Some(envelope.id.as_str()));
    set(names::AGGREGATE_TYPE, Some(envelope.event_type.aggregate_type()));
    set(names::AGGREGATE_ID, envelope.aggregate_id.as_ref().map(AsRef::as_ref));
    set(names::GROUP_ID, envelope.tenant.group.as_ref().map(AsRef::as_ref));
    set(names::SUBSIDIARY_ID, envelope.tenant.subsidiary.as_ref().map(AsRef::as_ref));
    set(names::EVENT_TYPE, Some(envelope.event_type.action()));
    set(names::ORDERING_KEY, envelope.ordering_key.as_ref().map(AsRef::as_ref));
    set(names::CAUSATION_ID, envelope.causation_id.as_ref().map(AsRef::as_ref));
    set(names::CORRELATION_ID, envelope.correlation_id.as_ref().map(AsRef::as_ref));
    let time = envelope.occurred_at.to_string();
    set(names::OCCURRED_AT, Some(&time));
    set(names::WIRE_FORMAT, Some(format.as_str()));
    set(names::TRACEPARENT, envelope.trace.traceparent.as_deref());
    set(names::TRACESTATE, envelope.trace.tracestate.as_deref());
    headers.insert(names::ATTEMPTS.to_owned(), HeaderValue::from(attempts));
    cloudevents::write_headers(envelope, time, headers);

    let properties = &mut message.properties;
    properties.message_id = Some(envelope.id.as_str().to_owned());
    properties.kind = Some(envelope.event_type.as_str().to_owned());
    properties.correlation_id = envelope.correlation_id.as_ref().map(ToString::to_string);
    properties.timestamp = u64::try_from(envelope.occurred_at.as_second()).ok();
}

/// Fills what is still open from our headers, or a HoldCo producer's.
pub(super) fn read<'a>(message: &'a Message, draft: &mut Draft<'a>) {
    let (mut aggregate, mut action) = (None, None);
    for (name, value) in &message.headers {
        let Some(value) = value.as_str() else { continue };
        let place = match name.as_str() {
            names::EVENT_ID => &mut draft.id,
            names::AGGREGATE_TYPE => &mut aggregate,
            names::EVENT_TYPE => &mut action,
            names::AGGREGATE_ID => &mut draft.aggregate_id,
            names::GROUP_ID => &mut draft.group,
            names::SUBSIDIARY_ID => &mut draft.subsidiary,
            names::ORDERING_KEY => &mut draft.ordering_key,
            names::CAUSATION_ID => &mut draft.causation_id,
            names::CORRELATION_ID => &mut draft.correlation_id,
            names::TRACEPARENT => &mut draft.traceparent,
            names::TRACESTATE => &mut draft.tracestate,
            names::OCCURRED_AT => {
                draft.occurred_at = draft.occurred_at.or_else(|| value.parse().ok());
                continue;
            }
            _ => continue,
        };
        place.get_or_insert(Cow::Borrowed(value));
    }
    draft.event_type = draft.event_type.take().or_else(|| match (aggregate, action) {
        (Some(aggregate), Some(action)) => Some(Cow::Owned([&*aggregate, ".", &*action].concat())),
        // A producer may write the whole type into the one header it has.
        (None, Some(whole)) if whole.contains('.') => Some(whole),
        _ => None,
    });
}

/// Fills what is still open from the standard properties.
pub(super) fn read_properties<'a>(message: &'a Message, draft: &mut Draft<'a>) {
    let properties = &message.properties;
    let text = |text: &'a Option<String>| text.as_deref().map(Cow::Borrowed);
    let kind = || text(&properties.kind).filter(|kind| kind.contains('.'));
    draft.id = draft.id.take().or_else(|| text(&properties.message_id));
    draft.event_type = draft.event_type.take().or_else(kind);
    draft.occurred_at = draft.occurred_at.or_else(|| properties.time());
    draft.correlation_id = draft.correlation_id.take().or_else(|| text(&properties.correlation_id));
}
