//! The two JSON bodies that wrap a payload: HoldCo's envelope and SMAP's.
//!
//! The payload member keeps its text, byte for byte. A payload that is not JSON stands in `payload_base64`, beside
//! `payload_content_type`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::Malformed;
use super::draft::Draft;
use crate::envelope::payload::JSON;
use crate::envelope::{Envelope, Payload};

/// SMAP's ids have this before the id.
const SMAP_PREFIX: &str = "evt_";

#[derive(Serialize, Deserialize)]
struct EnvelopeBody<'a> {
    event_id: String,
    occurred_at: Timestamp,
    aggregate_type: String,
    #[serde(default)]
    aggregate_id: Option<String>,
    event_type: String,
    #[serde(default)]
    group_id: Option<String>,
    #[serde(default)]
    subsidiary_id: Option<String>,
    #[serde(borrow, default)]
    payload: Option<&'a RawValue>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    payload_content_type: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct SmapBody<'a> {
    event_id: String,
    timestamp: Timestamp,
    #[serde(borrow, default)]
    payload: Option<&'a RawValue>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    payload_content_type: Option<String>,
}

pub(super) fn write_envelope(envelope: &Envelope) -> Bytes {
    let (payload, payload_base64, payload_content_type) = wrap(&envelope.payload);
    let text = |id: &dyn AsRef<str>| id.as_ref().to_owned();
    to_bytes(&EnvelopeBody {
        event_id: text(&envelope.id),
        occurred_at: envelope.occurred_at,
        aggregate_type: envelope.event_type.aggregate_type().to_owned(),
        aggregate_id: envelope.aggregate_id.as_ref().map(|id| text(id)),
        event_type: envelope.event_type.action().to_owned(),
        group_id: envelope.tenant.group.as_ref().map(|id| text(id)),
        subsidiary_id: envelope.tenant.subsidiary.as_ref().map(|id| text(id)),
        payload,
        payload_base64,
        payload_content_type,
    })
}

pub(super) fn write_smap(envelope: &Envelope) -> Bytes {
    let (payload, payload_base64, payload_content_type) = wrap(&envelope.payload);
    to_bytes(&SmapBody {
        event_id: format!("{SMAP_PREFIX}{}", envelope.id),
        timestamp: envelope.occurred_at,
        payload,
        payload_base64,
        payload_content_type,
    })
}

pub(super) fn read_envelope(body: &[u8]) -> Result<(Draft, Payload), Malformed> {
    let read: EnvelopeBody = parse("envelope", body)?;
    let payload = unwrap(read.payload, read.payload_base64.as_deref(), read.payload_content_type)?;
    let draft = Draft {
        id: Some(read.event_id),
        event_type: Some(format!("{}.{}", read.aggregate_type, read.event_type)),
        aggregate_id: read.aggregate_id,
        group: read.group_id,
        subsidiary: read.subsidiary_id,
        occurred_at: Some(read.occurred_at),
        ..Draft::default()
    };
    Ok((draft, payload))
}

pub(super) fn read_smap(body: &[u8]) -> Result<(Draft, Payload), Malformed> {
    let read: SmapBody = parse("smap", body)?;
    let payload = unwrap(read.payload, read.payload_base64.as_deref(), read.payload_content_type)?;
    let id = read.event_id.strip_prefix(SMAP_PREFIX).unwrap_or(&read.event_id).to_owned();
    let draft = Draft { id: Some(id), occurred_at: Some(read.timestamp), ..Draft::default() };
    Ok((draft, payload))
}

pub(super) fn looks_like_envelope(body: &[u8]) -> bool {
    has_members(body, &["event_id", "aggregate_type", "event_type", "payload"])
}

pub(super) fn looks_like_smap(body: &[u8]) -> bool {
    has_members(body, &["event_id", "timestamp", "payload"])
}

fn has_members(body: &[u8], names: &[&str]) -> bool {
    let members: Result<std::collections::HashMap<String, &RawValue>, _> = serde_json::from_slice(body);
    members.is_ok_and(|members| names.iter().all(|name| members.contains_key(*name)))
}

fn parse<'a, T: Deserialize<'a>>(format: &str, body: &'a [u8]) -> Result<T, Malformed> {
    serde_json::from_slice(body).map_err(|error| Malformed(format!("not the {format} format: {error}")))
}

fn to_bytes(body: &impl Serialize) -> Bytes {
    // Strings, times and JSON that was checked cannot fail to serialize.
    serde_json::to_vec(body).unwrap_or_default().into()
}

type Wrapped<'a> = (Option<&'a RawValue>, Option<String>, Option<String>);

fn wrap(payload: &Payload) -> Wrapped<'_> {
    let json =
        if payload.is_json() { serde_json::from_slice::<&RawValue>(payload.bytes()).ok() } else { None };
    match json {
        Some(_) => (json, None, (payload.content_type() != JSON).then(|| payload.content_type().to_owned())),
        None => (None, Some(BASE64.encode(payload.bytes())), Some(payload.content_type().to_owned())),
    }
}

fn unwrap(
    json: Option<&RawValue>,
    base64: Option<&str>,
    content_type: Option<String>,
) -> Result<Payload, Malformed> {
    if let Some(base64) = base64 {
        let bytes = BASE64.decode(base64).map_err(|error| Malformed(format!("payload_base64: {error}")))?;
        return Ok(Payload::new(
            content_type.unwrap_or_else(|| "application/octet-stream".to_owned()),
            bytes,
        ));
    }
    let text = json.map_or("null", RawValue::get);
    Ok(Payload::new(content_type.unwrap_or_else(|| JSON.to_owned()), Bytes::copy_from_slice(text.as_bytes())))
}
