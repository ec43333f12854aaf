//! A document of an archive file, as the row it was.

use jiff::Timestamp;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::unhex;
use crate::envelope::{Attributes, Envelope, EventType, Payload, Tenant, TraceContext};
use crate::store::{OutboxRow, RowId};

/// A time, as PostgreSQL writes it (RFC 3339) or as SQLite keeps it (microseconds).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Moment(pub(super) Timestamp);

impl<'de> Deserialize<'de> for Moment {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Micros(i64),
            Text(String),
        }
        let moment = match Written::deserialize(deserializer)? {
            Written::Micros(micros) => Timestamp::from_microsecond(micros),
            Written::Text(text) => text.parse(),
        };
        moment.map(Self).map_err(serde::de::Error::custom)
    }
}

/// The columns that make an event. What else a row had says nothing of the event.
#[derive(Deserialize)]
struct Columns {
    position: i64,
    id: String,
    group_id: Option<String>,
    subsidiary_id: Option<String>,
    aggregate_type: String,
    aggregate_id: Option<String>,
    event_type: String,
    payload: Option<Box<RawValue>>,
    body: Option<String>,
    content_type: Option<String>,
    created_at: Moment,
    occurred_at: Option<Moment>,
    key: Option<String>,
    causation_id: Option<String>,
    correlation_id: Option<String>,
    traceparent: Option<String>,
    tracestate: Option<String>,
    headers: Option<Box<RawValue>>,
    exchange: Option<String>,
    routing_key: Option<String>,
    target_queue: Option<String>,
}

type NotAnEvent = Box<dyn std::error::Error + Send + Sync>;

/// Reads a document back.
pub(crate) fn row(json: &str) -> Result<OutboxRow, NotAnEvent> {
    let columns: Columns = serde_json::from_str(json)?;
    let bytes = match (&columns.body, &columns.payload) {
        (Some(body), _) => {
            body.strip_prefix("\\x").and_then(unhex).ok_or("its body is not written in hexadecimal")?
        }
        (None, Some(payload)) => payload.get().as_bytes().to_vec(),
        // The payload is the JSON `null`: a row has one of them.
        (None, None) => b"null".to_vec(),
    };
    let headers = columns.headers.as_ref().map(|headers| headers.get().as_bytes());
    let created_at = columns.created_at.0;
    Ok(OutboxRow {
        row: RowId { position: columns.position, created_at },
        slot: None,
        envelope: Envelope {
            id: columns.id.as_str().try_into()?,
            tenant: Tenant {
                group: name(columns.group_id.as_deref())?,
                subsidiary: name(columns.subsidiary_id.as_deref())?,
            },
            event_type: EventType::from_parts(&columns.aggregate_type, &columns.event_type)?,
            aggregate_id: name(columns.aggregate_id.as_deref())?,
            payload: Payload::new(columns.content_type.as_deref().unwrap_or("application/json"), bytes),
            occurred_at: columns.occurred_at.map_or(created_at, |moment| moment.0),
            ordering_key: name(columns.key.as_deref())?,
            causation_id: name(columns.causation_id.as_deref())?,
            correlation_id: name(columns.correlation_id.as_deref())?,
            trace: TraceContext { traceparent: columns.traceparent, tracestate: columns.tracestate },
            attributes: Attributes::from_json(headers),
        },
        exchange: name(columns.exchange.as_deref())?,
        routing_key: name(columns.routing_key.as_deref())?,
        target_queue: name(columns.target_queue.as_deref())?,
        attempts: 0,
        verbatim: None,
        dead_letter: None,
    })
}

fn name<T>(text: Option<&str>) -> Result<Option<T>, crate::text::InvalidText>
where
    T: for<'t> TryFrom<&'t str, Error = crate::text::InvalidText>,
{
    text.map(T::try_from).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = r#"{"position":7,"id":"evt_1","group_id":"acme","subsidiary_id":null,"aggregate_type":"shop.order",
        "aggregate_id":"42","event_type":"placed","payload":null,"body":"\\x7b2261223a317d","content_type":"application/json",
        "status":"published","created_at":"2026-03-01T12:00:00.123456+00:00","occurred_at":null,"key":"acme/shop.order/42",
        "headers":{"colour":"red"},"exchange":"shop","slot":3,"published_at":null}"#;

    #[test]
    fn a_document_is_read_as_the_row_it_was() {
        let row = row(LINE).unwrap();
        assert_eq!((row.row.position, row.envelope.id.as_str()), (7, "evt_1"));
        assert_eq!(row.envelope.event_type.to_string(), "shop.order.placed");
        assert_eq!(row.envelope.payload.bytes().as_ref(), br#"{"a":1}"#);
        assert_eq!(row.envelope.ordering_key.as_ref().unwrap().as_str(), "acme/shop.order/42");
        assert_eq!(row.envelope.occurred_at, "2026-03-01T12:00:00.123456Z".parse().unwrap());
        assert_eq!(row.exchange.as_ref().unwrap().as_str(), "shop");
        assert_eq!(row.envelope.tenant.group.as_ref().unwrap().as_str(), "acme");
    }

    #[test]
    fn a_payload_keeps_its_text_and_what_is_no_event_is_refused() {
        let with = |from: &str, to: &str| super::row(&LINE.replace(from, to));
        let exact = with(r#""payload":null,"body":"\\x7b2261223a317d""#, r#""payload":{"b": 1.10, "a": 2}"#);
        assert_eq!(exact.unwrap().envelope.payload.bytes().as_ref(), br#"{"b": 1.10, "a": 2}"#);
        let null = with(r#""body":"\\x7b2261223a317d""#, r#""body":null"#);
        assert_eq!(null.unwrap().envelope.payload.bytes().as_ref(), b"null");
        for (from, to) in
            [("\\x7b", "7b"), ("\"evt_1\"", "\"\""), ("2026-03-01T", "yesterday "), ("7,\"id\"", "\"id\"")]
        {
            assert!(with(from, to).is_err(), "{to}");
        }
    }
}
