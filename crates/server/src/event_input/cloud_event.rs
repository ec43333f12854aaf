//! CloudEvents 1.0.2 over HTTP: the whole event as JSON (structured), or attributes as headers beside the payload (binary).
//!
//! `subject` is the aggregate, `partitionkey` the ordering key, `tenant` and `subsidiary` (extensions of ours) the tenant.
//! `source`, `dataschema` and extensions of others are carried along. An event's id alone is its identity here.

use std::borrow::Cow;

use axum::http::{HeaderMap, header};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use jiff::Timestamp;
use postrider::envelope::{self, Ordering, OrderingKey, TenantId};
use postrider::{Event, Payload};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::{Members, Refused, check_payload};
use crate::config::Limits;

/// A content type is a short text of AMQP, and so is all that a trace parent may be.
pub(crate) const SHORT: usize = 255;
/// The state of a trace is a header, which leaves room for others.
pub(crate) const LONGEST_STATE: usize = 4096;

/// What the attributes say.
#[derive(Debug, Default)]
struct Attributes {
    specversion: String,
    id: String,
    source: String,
    event_type: String,
    subject: Option<String>,
    time: Option<Timestamp>,
    partitionkey: Option<String>,
    tenant: Option<String>,
    subsidiary: Option<String>,
    traceparent: Option<String>,
    tracestate: Option<String>,
    /// What the envelope has no place of its own for.
    others: envelope::Attributes,
}

/// A whole event as JSON.
#[derive(Debug, Deserialize)]
struct Structured<'a> {
    specversion: String,
    id: String,
    source: String,
    #[serde(rename = "type")]
    event_type: String,
    subject: Option<String>,
    time: Option<Timestamp>,
    partitionkey: Option<String>,
    tenant: Option<String>,
    subsidiary: Option<String>,
    traceparent: Option<String>,
    tracestate: Option<String>,
    datacontenttype: Option<String>,
    #[serde(borrow)]
    data: Option<&'a RawValue>,
    data_base64: Option<String>,
    dataschema: Option<String>,
    /// Attributes of others.
    #[serde(flatten)]
    extensions: Members,
}

/// Reads a structured event.
pub(crate) fn structured(json: &str, limits: Limits) -> Result<Event, Refused> {
    let read: Structured<'_> =
        serde_json::from_str(json).map_err(|error| Refused::NotAnEvent(error.to_string()))?;
    let content_type = read.datacontenttype.unwrap_or_else(|| "application/json".to_owned());
    let payload = match (read.data, read.data_base64) {
        (Some(_), Some(_)) => return Err(wrong("it has data and data_base64; an event has one of them")),
        (None, Some(text)) => {
            let bytes = BASE64.decode(text).map_err(|error| wrong(format!("data_base64: {error}")))?;
            Payload::new(content_type, bytes)
        }
        (data, None) => {
            let data = data.map_or("null", RawValue::get);
            let payload = Payload::new(content_type, Bytes::copy_from_slice(data.as_bytes()));
            match serde_json::from_str::<String>(data) {
                // Text of another type stands there as a JSON string, and is what the string says.
                Ok(text) if !payload.is_json() => Payload::new(payload.content_type().to_owned(), text),
                _ => payload,
            }
        }
    };
    let mut others = envelope::Attributes::default();
    if let Some(schema) = read.dataschema {
        others.set("dataschema", schema)?;
    }
    for (name, value) in read.extensions.0 {
        match value {
            Value::Null => {}
            Value::String(text) => others.set(name, text)?,
            Value::Number(_) | Value::Bool(_) => others.set(name, value.to_string())?,
            Value::Array(_) | Value::Object(_) => {
                return Err(wrong(format!(
                    "the extension {name:?} is neither a text, a number nor a boolean"
                )));
            }
        }
    }
    let attributes = Attributes {
        specversion: read.specversion,
        id: read.id,
        source: read.source,
        event_type: read.event_type,
        subject: read.subject,
        time: read.time,
        partitionkey: read.partitionkey,
        tenant: read.tenant,
        subsidiary: read.subsidiary,
        traceparent: read.traceparent,
        tracestate: read.tracestate,
        others,
    };
    attributes.into_event(payload, limits)
}

/// Whether the headers say that the body is the payload of an event.
pub(crate) fn is_binary(headers: &HeaderMap) -> bool {
    headers.contains_key("ce-specversion")
}

/// Reads an event whose attributes are headers.
pub(crate) fn binary(headers: &HeaderMap, body: Bytes, limits: Limits) -> Result<Event, Refused> {
    let attribute = |name: &str| attribute(headers, name);
    let required =
        |name: &str| attribute(name)?.ok_or_else(|| wrong(format!("the header ce-{name} is missing")));
    let time = attribute("time")?.map(|time| time.parse()).transpose();
    let mut others = envelope::Attributes::default();
    let named = headers.keys().filter_map(|name| name.as_str().strip_prefix("ce-"));
    for name in named.filter(|name| *name != "source" && !envelope::Attributes::is_placed(name)) {
        others.set(name, attribute(name)?.unwrap_or_default())?;
    }
    let attributes = Attributes {
        specversion: required("specversion")?,
        id: required("id")?,
        source: required("source")?,
        event_type: required("type")?,
        subject: attribute("subject")?,
        time: time.map_err(|_| wrong("ce-time is not a time as RFC 3339 writes it"))?,
        partitionkey: attribute("partitionkey")?,
        tenant: attribute("tenant")?,
        subsidiary: attribute("subsidiary")?,
        traceparent: attribute("traceparent")?,
        tracestate: attribute("tracestate")?,
        others,
    };
    let content_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let content_type = match content_type {
        Some(content_type) => content_type,
        None if body.is_empty() => "application/json",
        None => "application/octet-stream",
    };
    let mut payload = Payload::new(content_type, body);
    // An event without data: nothing is no JSON, and null is.
    if payload.is_json() && payload.bytes().is_empty() {
        payload = Payload::new(content_type, "null");
    }
    attributes.into_event(payload, limits)
}

impl Attributes {
    fn into_event(self, payload: Payload, limits: Limits) -> Result<Event, Refused> {
        if self.specversion != "1.0" {
            return Err(wrong(format!("specversion {:?} is not known; 1.0 is", self.specversion)));
        }
        if self.source.is_empty() {
            return Err(wrong("its source is empty"));
        }
        for (name, text, most) in [
            ("datacontenttype", Some(payload.content_type()), SHORT),
            ("traceparent", self.traceparent.as_deref(), SHORT),
            ("tracestate", self.tracestate.as_deref(), LONGEST_STATE),
        ] {
            fits(name, text.unwrap_or_default(), most)?;
        }
        check_payload(&payload, limits)?;
        let mut event = Event::new(&self.event_type)?.id(&self.id)?.payload(payload);
        if let Some(subject) = self.subject.filter(|subject| !subject.is_empty()) {
            event = event.aggregate_id(subject)?;
        }
        if let Some(key) = self.partitionkey.filter(|key| !key.is_empty()) {
            event = event.ordering(Ordering::Key(OrderingKey::new(key)?));
        }
        if let Some(tenant) = self.tenant {
            event = event.tenant(tenant)?;
        }
        event.tenant.subsidiary = self.subsidiary.map(TenantId::new).transpose()?;
        event.occurred_at = self.time;
        event.trace.traceparent = self.traceparent;
        event.trace.tracestate = self.tracestate;
        event.attributes = self.others;
        event.attributes.set("source", self.source)?;
        Ok(event)
    }
}

/// An attribute in the headers, with what the HTTP binding percent-encodes decoded.
fn attribute(headers: &HeaderMap, name: &str) -> Result<Option<String>, Refused> {
    let mut values = headers.get_all(format!("ce-{name}")).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(wrong(format!("the header ce-{name} is there twice")));
    }
    let text =
        value.to_str().map_err(|_| wrong(format!("ce-{name} is not plain text; percent-encode it")))?;
    let text = unquoted(text);
    let decoded = percent_decoded(&text);
    String::from_utf8(decoded.into_owned())
        .map(Some)
        .map_err(|_| wrong(format!("ce-{name} is not UTF-8 when it is percent-decoded")))
}

/// `"a \"b\""` is `a "b"`: so the HTTP binding wrote what has spaces before it encoded them, and every reader has to know it still.
fn unquoted(text: &str) -> Cow<'_, str> {
    let Some(inner) = text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) else {
        return text.into();
    };
    let (mut plain, mut characters) = (String::with_capacity(inner.len()), inner.chars());
    while let Some(character) = characters.next() {
        match character {
            '\\' => match characters.next() {
                Some(escaped) => plain.push(escaped),
                None => return text.into(),
            },
            // Something else that begins and ends with a quote.
            '"' => return text.into(),
            other => plain.push(other),
        }
    }
    plain.into()
}

/// `%E2%82%AC` is a euro sign; a percent sign that encodes nothing stays.
fn percent_decoded(text: &str) -> Cow<'_, [u8]> {
    if !text.contains('%') {
        return Cow::Borrowed(text.as_bytes());
    }
    let (bytes, mut decoded, mut at) = (text.as_bytes(), Vec::with_capacity(text.len()), 0);
    while let Some(&byte) = bytes.get(at) {
        let digits = bytes.get(at + 1..at + 3).and_then(|two| std::str::from_utf8(two).ok());
        let plain = digits.is_some_and(|two| two.bytes().all(|digit| digit.is_ascii_hexdigit()));
        let encoded = digits.filter(|_| plain).and_then(|two| u8::from_str_radix(two, 16).ok());
        match encoded {
            Some(encoded) if byte == b'%' => {
                decoded.push(encoded);
                at += 3;
            }
            _ => {
                decoded.push(byte);
                at += 1;
            }
        }
    }
    Cow::Owned(decoded)
}

/// Committed, an event that no broker can carry would never be published.
fn fits(name: &str, text: &str, most: usize) -> Result<(), Refused> {
    if text.len() > most {
        return Err(wrong(format!(
            "its {name} has {} bytes, more than the {most} that a message can carry",
            text.len()
        )));
    }
    if text.chars().any(|character| character.is_control() && character != '\t') {
        return Err(wrong(format!("its {name} has a control character")));
    }
    Ok(())
}

fn wrong(why: impl Into<String>) -> Refused {
    Refused::NotAnEvent(why.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { max_payload_bytes: 64, max_depth: 3, max_batch_events: 10 };

    fn headers(all: &[(&'static str, &'static str)]) -> HeaderMap {
        all.iter()
            .map(|(name, value)| (axum::http::HeaderName::from_static(name), value.parse().unwrap()))
            .collect()
    }

    #[test]
    fn both_modes_say_the_same() {
        let json = r#"{"specversion":"1.0","id":"évt","source":"/shop","type":"shop.order.placed","subject":"42",
            "time":"2026-01-01T00:00:00Z","data":{"a": 1}, "comexampleother":"x", "level": 3, "none": null,
            "dataschema": "https://example.com/order.json"}"#;
        let whole = structured(json, LIMITS).unwrap();
        let given = headers(&[
            ("ce-specversion", "1.0"),
            ("ce-id", "%C3%A9vt"),
            ("ce-source", "/shop"),
            ("ce-type", "shop.order.placed"),
            ("ce-subject", "42"),
            ("ce-time", "2026-01-01T00:00:00Z"),
            ("ce-comexampleother", "x"),
            ("ce-level", "3"),
            ("ce-dataschema", "https://example.com/order.json"),
            ("content-type", "application/json"),
        ]);
        let parts = binary(&given, Bytes::from_static(br#"{"a": 1}"#), LIMITS).unwrap();
        assert_eq!(format!("{whole:?}"), format!("{parts:?}"));
        assert_eq!(whole.id.unwrap().as_str(), "évt");
        assert_eq!(
            (whole.attributes.get("source"), whole.attributes.get("level")),
            (Some("/shop"), Some("3"))
        );
    }

    #[test]
    fn quotes_around_an_attribute_are_no_part_of_it() {
        for (given, wanted) in [
            (r#""a \"b\" 100%25""#, r#"a "b" 100%"#),
            (r#""a\\b""#, r"a\b"),
            ("%22a%22", r#""a""#),
            (r#""a" or "b""#, r#""a" or "b""#),
            (r#""a\""#, r#""a\""#),
            ("\"", "\""),
        ] {
            let given: axum::http::HeaderValue = given.parse().unwrap();
            let name = axum::http::HeaderName::from_static("ce-subject");
            let headers: HeaderMap = [(name, given)].into_iter().collect();
            assert_eq!(attribute(&headers, "subject").unwrap().as_deref(), Some(wanted));
        }
    }

    #[test]
    fn a_payload_of_another_type_is_kept_as_it_is() {
        let event = |rest: &str| {
            let head = r#""specversion":"1.0","id":"1","source":"/s","type":"a.b""#;
            structured(&format!("{{{head},{rest}}}"), LIMITS)
        };
        let text = event(r#""datacontenttype":"text/plain","data":"hé""#).unwrap().payload;
        assert_eq!((text.bytes().as_ref(), text.content_type()), ("hé".as_bytes(), "text/plain"));
        let bytes = event(r#""datacontenttype":"image/png","data_base64":"AAEC""#).unwrap().payload;
        assert_eq!(bytes.bytes().as_ref(), [0, 1, 2]);
        assert!(event(r#""data":1,"data_base64":"AA==""#).unwrap_err().to_string().contains("one of them"));
        assert!(event(r#""data":{"a":1,"a":2}"#).unwrap_err().to_string().contains("twice"));
        assert!(event(r#""data":1,"list":[1]"#).unwrap_err().to_string().contains("neither a text"));
        assert!(event(r#""data":1,"level":1,"level":2"#).unwrap_err().to_string().contains("duplicate"));
        assert!(event(r#""data":1,"my-name":"x""#).unwrap_err().to_string().contains("lower-case"));
    }

    #[test]
    fn an_event_without_data_is_one_whose_data_is_null() {
        let json = r#"{"specversion":"1.0","id":"1","source":"/s","type":"a.b"}"#;
        let whole = structured(json, LIMITS).unwrap();
        let needed = [("ce-specversion", "1.0"), ("ce-id", "1"), ("ce-source", "/s"), ("ce-type", "a.b")];
        let typed = [&needed[..], &[("content-type", "application/json")]].concat();
        for given in [&needed[..], &typed] {
            let parts = binary(&headers(given), Bytes::new(), LIMITS).unwrap();
            assert_eq!(format!("{whole:?}"), format!("{parts:?}"));
        }
        assert_eq!(whole.payload.bytes().as_ref(), b"null");
        let text = [&needed[..], &[("content-type", "text/plain")]].concat();
        assert!(binary(&headers(&text), Bytes::new(), LIMITS).unwrap().payload.bytes().is_empty());
    }

    #[test]
    fn what_no_message_can_carry_is_refused() {
        let event = |name: &str, value: &str| {
            let json = serde_json::json!({"specversion": "1.0", "id": "1", "source": "/s", "type": "a.b", "data": "x", name: value});
            structured(&json.to_string(), LIMITS)
        };
        for (name, most) in
            [("datacontenttype", SHORT), ("traceparent", SHORT), ("tracestate", LONGEST_STATE)]
        {
            assert!(event(name, &"x".repeat(most)).is_ok(), "{name}");
            let told = event(name, &"x".repeat(most + 1)).unwrap_err().to_string();
            assert!(told.contains(name) && told.contains("a message can carry"), "{told}");
            let told = event(name, "text/pl\0ain").unwrap_err().to_string();
            assert!(told.contains(name) && told.contains("control character"), "{told}");
        }
    }

    #[test]
    fn what_is_missing_is_named() {
        let refused = binary(&headers(&[("ce-specversion", "1.0")]), Bytes::new(), LIMITS).unwrap_err();
        assert!(refused.to_string().contains("ce-id is missing"), "{refused}");
        let refused = structured(r#"{"specversion":"1.0","id":"1","type":"a.b"}"#, LIMITS).unwrap_err();
        assert!(refused.to_string().contains("source"), "{refused}");
        let old = r#"{"specversion":"0.3","id":"1","source":"s","type":"a.b"}"#;
        assert!(structured(old, LIMITS).unwrap_err().to_string().contains("1.0 is"));
    }
}
