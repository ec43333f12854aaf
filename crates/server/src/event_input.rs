//! An event as people and other programs write it: plain JSON, a CloudEvent or flags, checked before anything is committed.

pub(crate) mod cloud_event;
mod members;
mod strict;

pub(crate) use members::Members;

use jiff::Timestamp;
use postrider::envelope::{OrderingKey, TenantId};
use postrider::topology::ExchangeName;
use postrider::{Event, InvalidText, Payload};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::config::Limits;

/// What `POST /v1/events` takes and what `postrider publish` fills in.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct EventInput {
    /// `shop.order.placed`
    #[serde(rename = "type")]
    pub(crate) event_type: String,
    /// The payload, kept byte for byte.
    pub(crate) data: Box<RawValue>,
    /// The entity it happened to.
    #[serde(default)]
    pub(crate) aggregate_id: Option<String>,
    /// `group` or `group/subsidiary`
    #[serde(default)]
    pub(crate) tenant: Option<String>,
    /// Events of one key keep their order; that of the aggregate when absent.
    #[serde(default)]
    pub(crate) key: Option<String>,
    /// A repeat with the same id is refused; a new id when absent.
    #[serde(default)]
    pub(crate) id: Option<String>,
    /// Published not before this time.
    #[serde(default)]
    pub(crate) at: Option<Timestamp>,
    /// When it happened; now when absent.
    #[serde(default)]
    pub(crate) occurred_at: Option<Timestamp>,
    /// Another exchange than the outbox's own.
    #[serde(default)]
    pub(crate) exchange: Option<String>,
}

/// Why an event was refused. Nothing was committed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refused {
    /// An id or a name breaks a rule.
    #[error(transparent)]
    Text(#[from] InvalidText),
    /// The payload is too large.
    #[error(
        "the payload has {bytes} bytes, more than the {max} allowed (limits.max_payload_bytes); store the body elsewhere, \
         such as in an object store, and send a reference to it"
    )]
    TooLarge { bytes: usize, max: usize },
    /// The payload is nested too deeply.
    #[error("the payload is nested {depth} levels deep, more than the {max} allowed (limits.max_depth)")]
    TooDeep { depth: usize, max: usize },
    /// An object has a key twice.
    #[error(
        "the payload has an object with the key {0:?} twice; readers would disagree about which one counts"
    )]
    KeyTwice(String),
    /// A text has a NUL in it.
    #[error(
        "the payload has a NUL (\\u0000) in a text; databases cannot keep it, so leave it out or encode it"
    )]
    Nul,
    /// It says that it is JSON and is not.
    #[error("the payload is not JSON: {0}")]
    NotJson(String),
    /// It is not an event at all.
    #[error("not an event: {0}")]
    NotAnEvent(String),
}

impl EventInput {
    /// Reads one. An object alone is one: an array of its members in their order would do for serde.
    pub(crate) fn read(json: &str) -> Result<Self, Refused> {
        if json.trim_start().starts_with('[') {
            let told = "it is an array; an array of events goes to /v1/events:batch";
            return Err(Refused::NotAnEvent(told.to_owned()));
        }
        serde_json::from_str(json).map_err(|error| Refused::NotAnEvent(error.to_string()))
    }

    /// The event, or why it is refused.
    pub(crate) fn into_event(self, limits: Limits) -> Result<Event, Refused> {
        let payload = Payload::new("application/json", self.data.get().trim().to_owned());
        check_payload(&payload, limits)?;
        let mut event = Event::new(&self.event_type)?.payload(payload);
        if let Some(id) = &self.id {
            event = event.id(id)?;
        }
        if let Some(id) = &self.aggregate_id {
            event = event.aggregate_id(id)?;
        }
        if let Some(tenant) = &self.tenant {
            let (group, subsidiary) =
                tenant.split_once('/').map_or((tenant.as_str(), None), |(g, s)| (g, Some(s)));
            event = event.tenant(group)?;
            event.tenant.subsidiary = subsidiary.map(TenantId::new).transpose()?;
        }
        if let Some(key) = &self.key {
            event = event.ordering(postrider::envelope::Ordering::Key(OrderingKey::new(key)?));
        }
        if let Some(exchange) = &self.exchange {
            event = event.exchange(ExchangeName::new(exchange)?);
        }
        event.occurred_at = self.occurred_at;
        event.available_at = self.at;
        Ok(event)
    }
}

/// What is JSON is checked as such; anything else may have any bytes.
fn check_payload(payload: &Payload, limits: Limits) -> Result<(), Refused> {
    let (bytes, max) = (payload.bytes().len(), limits.max_payload_bytes);
    if bytes > max {
        return Err(Refused::TooLarge { bytes, max });
    }
    if !payload.is_json() {
        return Ok(());
    }
    let json = std::str::from_utf8(payload.bytes()).map_err(|error| Refused::NotJson(error.to_string()))?;
    strict::check(json, limits.max_depth)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { max_payload_bytes: 64, max_depth: 3, max_batch_events: 10 };

    fn event(json: &str) -> Result<Event, String> {
        let input = EventInput::read(json).map_err(|error| error.to_string())?;
        input.into_event(LIMITS).map_err(|error| error.to_string())
    }

    #[test]
    fn the_payload_is_kept_byte_for_byte() {
        let event = event(r#"{"type":"a.b","data": {"z": 1.50, "a" :2} ,"tenant":"g/s","key":"k"}"#).unwrap();
        assert_eq!(event.payload.bytes().as_ref(), br#"{"z": 1.50, "a" :2}"#);
        assert_eq!(event.tenant.subsidiary.unwrap().as_str(), "s");
    }

    #[test]
    fn an_array_is_no_event() {
        for json in [r#"["a.b", {}]"#, r#" [{"type":"a.b","data":{}}]"#, "[]"] {
            assert!(event(json).unwrap_err().contains("/v1/events:batch"), "{json}");
        }
    }

    #[test]
    fn bodies_in_any_state_are_events_or_refused() {
        let samples = [
            r#"{"type":"shop.order.placed","data":{"a":[1,{"b":"c"}]},"tenant":"g/s","key":"k","id":"evt_1","at":"2026-03-01T00:00:00Z"}"#,
            r#"{"specversion":"1.0","type":"shop.order.placed","source":"/till/7","id":"1","level":3,"data_base64":"aGk="}"#,
        ];
        let mut taken = 0;
        for sample in samples {
            for seed in 0..5_000 {
                let json = postrider_testkit::hostile::damaged_text(seed, sample);
                let limits = Limits { max_payload_bytes: 512, ..LIMITS };
                let plain =
                    serde_json::from_str::<EventInput>(&json).map(|input| input.into_event(limits).is_ok());
                taken += u32::from(plain.unwrap_or(false));
                taken += u32::from(cloud_event::structured(&json, limits).is_ok());
            }
        }
        assert!(taken > 100, "only {taken} of the damaged bodies were events");
    }

    #[test]
    fn what_is_too_large_too_deep_or_unknown_is_refused_with_a_way_out() {
        for (json, said) in [
            (format!(r#"{{"type":"a.b","data":"{}"}}"#, "x".repeat(64)), "send a reference to it"),
            (r#"{"type":"a.b","data":[[[[]]]]}"#.to_owned(), "nested 4 levels deep, more than the 3 allowed"),
            (r#"{"type":"a.b","data":{},"colour":1}"#.to_owned(), "unknown field `colour`"),
            (r#"{"type":"a.b"}"#.to_owned(), "missing field `data`"),
            (r#"{"type":"order","data":{}}"#.to_owned(), "two words or more"),
        ] {
            let refused = event(&json).unwrap_err();
            assert!(refused.contains(said), "{json} said {refused}");
        }
    }
}
