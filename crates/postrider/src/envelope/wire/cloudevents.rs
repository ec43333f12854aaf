//! CloudEvents 1.0.2 on AMQP 0-9-1: attributes as headers beside the body, or the whole event as JSON.

use std::borrow::Cow;
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
pub(super) const PREFIXES: [&str; 3] = ["cloudEvents_", "cloudEvents:", "ce-"];

/// The attribute that every CloudEvent has, after each of them.
const VERSIONS: [&str; 3] = ["cloudEvents_specversion", "cloudEvents:specversion", "ce-specversion"];

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

/// Whether it is what [`source`] says of the event: compared as it stands, because nearly every event has it.
pub(super) fn is_our_source(envelope: &Envelope, given: &str) -> bool {
    let ours = || {
        let given = given.strip_prefix('/')?;
        let Some(group) = &envelope.tenant.group else { return Some(given) };
        let mut encoded = url::form_urlencoded::byte_serialize(group.as_str().as_bytes());
        encoded.try_fold(given, |rest, part| rest.strip_prefix(part))?.strip_prefix('/')
    };
    ours() == Some(envelope.event_type.aggregate_type())
}

fn percent_encode(text: &str) -> String {
    url::form_urlencoded::byte_serialize(text.as_bytes()).collect()
}

/// Fills what is still open from the attributes in the headers, if it is a CloudEvent. What the envelope has no place of its own for is
/// kept beside it, but for what could not be carried on.
pub(super) fn read_headers<'a>(message: &'a Message, draft: &mut Draft<'a>) {
    let is_event = VERSIONS.iter().any(|name| message.header(name).is_some());
    if !is_event {
        return;
    }
    let keeps = draft.attributes.is_empty() && draft.source.is_none();
    for prefix in PREFIXES {
        let from_here = message.headers.range::<str, _>((Bound::Included(prefix), Bound::Unbounded));
        let named = from_here.map_while(|(name, value)| Some((name.strip_prefix(prefix)?, value)));
        for (name, value) in named.filter_map(|(name, value)| Some((name, value.as_str()?))) {
            let place = match name {
                "id" => &mut draft.id,
                "type" => &mut draft.event_type,
                "subject" => &mut draft.aggregate_id,
                "partitionkey" => &mut draft.ordering_key,
                "traceparent" => &mut draft.traceparent,
                "tracestate" => &mut draft.tracestate,
                SOURCE if keeps => &mut draft.source,
                "time" => {
                    draft.occurred_at = draft.occurred_at.or_else(|| value.parse().ok());
                    continue;
                }
                _ => {
                    let is_other = name != SOURCE && !Attributes::is_placed(name);
                    if keeps && is_other && draft.attributes.get(name).is_none() {
                        keep(&mut draft.attributes, name, value);
                    }
                    continue;
                }
            };
            place.get_or_insert(Cow::Borrowed(value));
        }
    }
}

pub(super) fn keep(attributes: &mut Attributes, name: &str, value: &str) {
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

pub(super) fn read_structured(body: &Bytes) -> Result<(Draft<'_>, Payload), Malformed> {
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
            let bytes =
                data.map_or(Bytes::from_static(b"null"), |data| body.slice_ref(data.get().as_bytes()));
            Payload::new(event.datacontenttype.unwrap_or_else(|| JSON.to_owned()), bytes)
        }
    };
    let mut attributes = Attributes::default();
    if let Some(schema) = event.dataschema {
        keep(&mut attributes, "dataschema", &schema);
    }
    for (name, value) in event.extensions.into_iter().filter(|(name, _)| !Attributes::is_placed(name)) {
        if let Some(value) = text(value) {
            keep(&mut attributes, &name, &value);
        }
    }
    let draft = Draft {
        id: Some(event.id.into()),
        event_type: Some(event.event_type.into()),
        aggregate_id: event.subject.map(Cow::Owned),
        occurred_at: event.time,
        ordering_key: event.partitionkey.map(Cow::Owned),
        traceparent: event.traceparent.map(Cow::Owned),
        tracestate: event.tracestate.map(Cow::Owned),
        attributes,
        source: event.source.map(Cow::Owned),
        ..Draft::default()
    };
    Ok((draft, payload))
}
