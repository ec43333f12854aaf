//! The two JSON bodies that wrap a payload: HoldCo's envelope and SMAP's.
//!
//! The payload member keeps its text, byte for byte. A payload that is not JSON stands in `payload_base64`, beside
//! `payload_content_type`.

use std::borrow::Cow;

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
    #[serde(borrow)]
    event_id: Cow<'a, str>,
    occurred_at: Timestamp,
    #[serde(borrow)]
    aggregate_type: Cow<'a, str>,
    #[serde(borrow, default)]
    aggregate_id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    event_type: Cow<'a, str>,
    #[serde(borrow, default)]
    group_id: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    subsidiary_id: Option<Cow<'a, str>>,
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
    let body = EnvelopeBody {
        event_id: envelope.id.as_str().into(),
        occurred_at: envelope.occurred_at,
        aggregate_type: envelope.event_type.aggregate_type().into(),
        aggregate_id: envelope.aggregate_id.as_ref().map(|id| id.as_str().into()),
        event_type: envelope.event_type.action().into(),
        group_id: envelope.tenant.group.as_ref().map(|id| id.as_str().into()),
        subsidiary_id: envelope.tenant.subsidiary.as_ref().map(|id| id.as_str().into()),
        payload,
        payload_base64,
        payload_content_type,
    };
    to_bytes(&body, envelope)
}

pub(super) fn write_smap(envelope: &Envelope) -> Bytes {
    let (payload, payload_base64, payload_content_type) = wrap(&envelope.payload);
    let body = SmapBody {
        event_id: format!("{SMAP_PREFIX}{}", envelope.id),
        timestamp: envelope.occurred_at,
        payload,
        payload_base64,
        payload_content_type,
    };
    to_bytes(&body, envelope)
}

pub(super) fn read_envelope(body: &[u8]) -> Result<(Draft, Payload), Malformed> {
    let read: EnvelopeBody = parse("envelope", body)?;
    let payload = unwrap(read.payload, read.payload_base64.as_deref(), read.payload_content_type)?;
    let draft = Draft {
        id: Some(read.event_id.into_owned()),
        event_type: Some(format!("{}.{}", read.aggregate_type, read.event_type)),
        aggregate_id: read.aggregate_id.map(Cow::into_owned),
        group: read.group_id.map(Cow::into_owned),
        subsidiary: read.subsidiary_id.map(Cow::into_owned),
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

/// What a body takes beside its payload, as a rule.
const AROUND: usize = 512;

fn to_bytes(body: &impl Serialize, envelope: &Envelope) -> Bytes {
    let mut bytes = Vec::with_capacity(envelope.payload.bytes().len() + AROUND);
    match serde_json::to_writer(&mut bytes, body) {
        Ok(()) => bytes.into(),
        // Strings, times and JSON that was checked cannot fail to serialize.
        Err(_) => Bytes::new(),
    }
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
