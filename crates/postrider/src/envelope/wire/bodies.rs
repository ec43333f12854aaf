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

/// A text that stays in the body, unless it has escapes in it. An optional `Cow` alone would always be copied.
#[derive(Serialize, Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

#[derive(Serialize, Deserialize)]
struct EnvelopeBody<'a> {
    #[serde(borrow)]
    event_id: Text<'a>,
    occurred_at: Timestamp,
    #[serde(borrow)]
    aggregate_type: Text<'a>,
    #[serde(borrow, default)]
    aggregate_id: Option<Text<'a>>,
    #[serde(borrow)]
    event_type: Text<'a>,
    #[serde(borrow, default)]
    group_id: Option<Text<'a>>,
    #[serde(borrow, default)]
    subsidiary_id: Option<Text<'a>>,
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
    let said = |text| Text(Cow::Borrowed(text));
    let body = EnvelopeBody {
        event_id: said(envelope.id.as_str()),
        occurred_at: envelope.occurred_at,
        aggregate_type: said(envelope.event_type.aggregate_type()),
        aggregate_id: envelope.aggregate_id.as_ref().map(|id| said(id.as_str())),
        event_type: said(envelope.event_type.action()),
        group_id: envelope.tenant.group.as_ref().map(|id| said(id.as_str())),
        subsidiary_id: envelope.tenant.subsidiary.as_ref().map(|id| said(id.as_str())),
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

pub(super) fn read_envelope(body: &Bytes) -> Result<(Draft<'_>, Payload), Malformed> {
    let read: EnvelopeBody = parse("envelope", body)?;
    let payload = unwrap(body, read.payload, read.payload_base64.as_deref(), read.payload_content_type)?;
    let draft = Draft {
        id: Some(read.event_id.0),
        event_type: Some([&*read.aggregate_type.0, ".", &*read.event_type.0].concat().into()),
        aggregate_id: read.aggregate_id.map(|text| text.0),
        group: read.group_id.map(|text| text.0),
        subsidiary: read.subsidiary_id.map(|text| text.0),
        occurred_at: Some(read.occurred_at),
        ..Draft::default()
    };
    Ok((draft, payload))
}

pub(super) fn read_smap(body: &Bytes) -> Result<(Draft<'_>, Payload), Malformed> {
    let read: SmapBody = parse("smap", body)?;
    let payload = unwrap(body, read.payload, read.payload_base64.as_deref(), read.payload_content_type)?;
    let id = read.event_id.strip_prefix(SMAP_PREFIX).unwrap_or(&read.event_id).to_owned();
    let draft = Draft { id: Some(id.into()), occurred_at: Some(read.timestamp), ..Draft::default() };
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
    body: &Bytes,
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
    let bytes = json.map_or(Bytes::from_static(b"null"), |json| body.slice_ref(json.get().as_bytes()));
    Ok(match content_type {
        Some(content_type) => Payload::new(content_type, bytes),
        None => Payload::json_bytes(bytes),
    })
}
