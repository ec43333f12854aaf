//! CloudEvents 1.0.2 on AMQP 0-9-1: attributes as headers beside the body, or the whole event as JSON.

use std::ops::Bound;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::Malformed;
use super::draft::Draft;
use crate::broker::{HeaderValue, Headers, Message};
use crate::envelope::attributes::{SOURCE, text};
use crate::envelope::payload::JSON;
use crate::envelope::{Attributes, Envelope, Payload};

/// What readers accept before an attribute's name; the first is what we write.
const PREFIXES: [&str; 3] = ["cloudEvents_", "cloudEvents:", "ce-"];

/// The media type of a whole event as JSON.
const STRUCTURED: &str = "application/cloudevents+json";

/// Writes the attributes; `time` is when the event occurred.
pub(super) fn write_headers(envelope: &Envelope, time: String, headers: &mut Headers) {
    let prefixed = |name: &str| [PREFIXES[0], name].concat();
    headers.insert(prefixed("time"), HeaderValue::Text(time));
    let mut set = |name: &str, value: &str| {
        headers.insert(prefixed(name), HeaderValue::from(value));
    };
    set("specversion", "1.0");
    set("id", envelope.id.as_str());
    set("type", envelope.event_type.as_str());
    if envelope.attributes.get(SOURCE).is_none() {
        set(SOURCE, &source(envelope));
    }
    if let Some(id) = &envelope.aggregate_id {
        set("subject", id.as_str());
    }
    if let Some(key) = &envelope.ordering_key {
        set("partitionkey", key.as_str());
    }
    for (name, value) in envelope.attributes.iter() {
        set(name, value);
    }
}

/// What an event without a source says: a relative reference of the tenant, if there is one, and the kind of aggregate.
fn source(envelope: &Envelope) -> String {
    let aggregate_type = envelope.event_type.aggregate_type();
    match &envelope.tenant.group {
        Some(group) => format!("/{}/{aggregate_type}", percent_encode(group.as_str())),
        None => format!("/{aggregate_type}"),
    }
}

/// The source that we gave an event is none of its own.
pub(super) fn forget_our_source(envelope: &mut Envelope) {
    if envelope.attributes.get(SOURCE).is_some_and(|given| given == source(envelope)) {
        envelope.attributes.forget(SOURCE);
    }
}

fn percent_encode(text: &str) -> String {
    url::form_urlencoded::byte_serialize(text.as_bytes()).collect()
}

/// What the attributes in the headers say; nothing when it is not a CloudEvent. What the envelope has no place of its own for is kept
/// beside it, but for what could not be carried on.
pub(super) fn read_headers(message: &Message) -> Draft {
    let (mut draft, mut is_event) = (Draft::default(), false);
    for prefix in PREFIXES {
        let from_here = message.headers.range::<str, _>((Bound::Included(prefix), Bound::Unbounded));
        let named = from_here.map_while(|(name, value)| Some((name.strip_prefix(prefix)?, value)));
        for (name, value) in named.filter_map(|(name, value)| Some((name, value.as_str()?))) {
            is_event |= name == "specversion";
            let place = match name {
                "id" => &mut draft.id,
                "type" => &mut draft.event_type,
                "subject" => &mut draft.aggregate_id,
                "partitionkey" => &mut draft.ordering_key,
                "traceparent" => &mut draft.traceparent,
                "tracestate" => &mut draft.tracestate,
                "time" => {
                    draft.occurred_at = draft.occurred_at.or_else(|| value.parse().ok());
                    continue;
                }
                _ => {
                    if !Attributes::is_placed(name) && draft.attributes.get(name).is_none() {
                        keep(&mut draft.attributes, name, value);
                    }
                    continue;
                }
            };
            place.get_or_insert_with(|| value.to_owned());
        }
    }
    if is_event { draft } else { Draft::default() }
}

fn keep(attributes: &mut Attributes, name: &str, value: &str) {
    if let Err(why) = attributes.set(name, value) {
        tracing::debug!(%why, "an attribute of a CloudEvent is left out");
    }
}

pub(super) fn is_structured(message: &Message) -> bool {
    message.properties.content_type.as_deref().is_some_and(|content_type| {
        content_type.split(';').next().unwrap_or("").trim().eq_ignore_ascii_case(STRUCTURED)
    })
}

#[derive(Deserialize)]
struct Structured<'a> {
    specversion: String,
    id: String,
    #[serde(rename = "type")]
    event_type: String,
    subject: Option<String>,
    time: Option<jiff::Timestamp>,
    partitionkey: Option<String>,
    traceparent: Option<String>,
    tracestate: Option<String>,
    datacontenttype: Option<String>,
    #[serde(borrow)]
    data: Option<&'a RawValue>,
    data_base64: Option<String>,
    source: Option<String>,
    dataschema: Option<String>,
    #[serde(flatten)]
    extensions: std::collections::BTreeMap<String, serde_json::Value>,
}

pub(super) fn read_structured(body: &[u8]) -> Result<(Draft, Payload), Malformed> {
    let event: Structured = serde_json::from_slice(body)
        .map_err(|error| Malformed(format!("not a CloudEvent in JSON: {error}")))?;
    if !event.specversion.starts_with("1.") {
        return Err(Malformed(format!(
            "CloudEvents specversion {:?} is not known; 1.0 is",
            event.specversion
        )));
    }
    let payload = match (event.data, event.data_base64) {
        (_, Some(base64)) => {
            let bytes = BASE64.decode(base64).map_err(|error| Malformed(format!("data_base64: {error}")))?;
            Payload::new(
                event.datacontenttype.unwrap_or_else(|| "application/octet-stream".to_owned()),
                bytes,
            )
        }
        (data, None) => {
            let text = data.map_or("null", RawValue::get);
            Payload::new(
                event.datacontenttype.unwrap_or_else(|| JSON.to_owned()),
                Bytes::copy_from_slice(text.as_bytes()),
            )
        }
    };
    let mut attributes = Attributes::default();
    let own = [(SOURCE, event.source), ("dataschema", event.dataschema)];
    for (name, value) in own.into_iter().filter_map(|(name, value)| Some((name, value?))) {
        keep(&mut attributes, name, &value);
    }
    for (name, value) in event.extensions.into_iter().filter(|(name, _)| !Attributes::is_placed(name)) {
        if let Some(value) = text(value) {
            keep(&mut attributes, &name, &value);
        }
    }
    let draft = Draft {
        id: Some(event.id),
        event_type: Some(event.event_type),
        aggregate_id: event.subject,
        occurred_at: event.time,
        ordering_key: event.partitionkey,
        traceparent: event.traceparent,
        tracestate: event.tracestate,
        attributes,
        ..Draft::default()
    };
    Ok((draft, payload))
}
