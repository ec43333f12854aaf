//! Messages as RabbitMQ carries them: properties and header tables, both ways.
//!
//! Nothing is lost on the way in, except that integers and floats of all widths become one of each and that strings are
//! told from bytes by whether they are UTF-8. What AMQP cannot carry is refused here, before it can close a connection on
//! which other messages travel.

use bytes::Bytes;
use lapin::BasicProperties;
use lapin::types::{AMQPValue, ByteArray, DecimalValue, FieldArray, FieldTable, LongString, ShortString};

use crate::broker::{HeaderValue, Headers, Message, Properties};

const PERSISTENT: u8 = 2;
/// What a header frame takes beside the properties themselves.
const FRAME_OVERHEAD: usize = 64;

/// The properties to publish a message with, persistent.
///
/// An error says why no RabbitMQ would take it: a property or header name over 255 bytes, or more headers than one frame
/// of `frame_max` bytes holds (which would close the connection, not the channel).
pub(super) fn to_amqp(message: &Message, frame_max: usize) -> Result<BasicProperties, String> {
    let from = &message.properties;
    let mut to = BasicProperties::default().with_delivery_mode(PERSISTENT);
    let mut size = FRAME_OVERHEAD;
    let mut text = |name: &str, value: &Option<String>| match value {
        Some(value) => {
            size += value.len() + 1;
            short(name, value).map(Some)
        }
        None => Ok(None),
    };
    if let Some(value) = text("message_id", &from.message_id)? {
        to = to.with_message_id(value);
    }
    if let Some(value) = text("content_type", &from.content_type)? {
        to = to.with_content_type(value);
    }
    if let Some(value) = text("content_encoding", &from.content_encoding)? {
        to = to.with_content_encoding(value);
    }
    if let Some(value) = text("correlation_id", &from.correlation_id)? {
        to = to.with_correlation_id(value);
    }
    if let Some(value) = text("type", &from.kind)? {
        to = to.with_type(value);
    }
    if let Some(value) = text("app_id", &from.app_id)? {
        to = to.with_app_id(value);
    }
    if let Some(value) = text("reply_to", &from.reply_to)? {
        to = to.with_reply_to(value);
    }
    if let Some(value) = from.timestamp {
        to = to.with_timestamp(value);
    }
    if let Some(value) = from.priority {
        to = to.with_priority(value);
    }
    if !message.headers.is_empty() {
        size += table_size(&message.headers);
        to = to.with_headers(to_table(&message.headers)?);
    }
    if frame_max > 0 && size > frame_max {
        return Err(format!(
            "its headers take {size} bytes, more than the {frame_max} of one frame; put what is large into the body"
        ));
    }
    Ok(to)
}

/// A message as it was delivered.
pub(super) fn from_amqp(from: &BasicProperties, body: Vec<u8>) -> Message {
    let text = |value: &Option<ShortString>| value.as_ref().map(ToString::to_string);
    let properties = Properties {
        message_id: text(from.message_id()),
        content_type: text(from.content_type()),
        content_encoding: text(from.content_encoding()),
        correlation_id: text(from.correlation_id()),
        timestamp: *from.timestamp(),
        kind: text(from.kind()),
        app_id: text(from.app_id()),
        reply_to: text(from.reply_to()),
        priority: *from.priority(),
    };
    let headers = from.headers().as_ref().map(from_table).unwrap_or_default();
    Message { properties, headers, body: Bytes::from(body) }
}

/// A text of at most 255 bytes, which is what AMQP's short strings hold.
pub(super) fn short(what: &str, text: &str) -> Result<ShortString, String> {
    ShortString::try_new(text)
        .map_err(|_| format!("{what} has {} bytes, and AMQP carries at most 255", text.len()))
}

fn to_table(headers: &Headers) -> Result<FieldTable, String> {
    let mut table = FieldTable::default();
    for (name, value) in headers {
        table.insert(short("a header name", name)?, to_value(value)?);
    }
    Ok(table)
}

fn to_value(value: &HeaderValue) -> Result<AMQPValue, String> {
    Ok(match value {
        HeaderValue::Null => AMQPValue::Void,
        HeaderValue::Bool(value) => AMQPValue::Boolean(*value),
        HeaderValue::Int(value) => AMQPValue::LongLongInt(*value),
        HeaderValue::Float(value) => AMQPValue::Double(*value),
        HeaderValue::Decimal { scale, value } => {
            AMQPValue::DecimalValue(DecimalValue { scale: *scale, value: *value })
        }
        HeaderValue::Text(value) => AMQPValue::LongString(LongString::from(value.as_str())),
        HeaderValue::Bytes(value) => AMQPValue::ByteArray(ByteArray::from(value.as_slice())),
        HeaderValue::Timestamp(value) => AMQPValue::Timestamp(*value),
        HeaderValue::List(values) => AMQPValue::FieldArray(FieldArray::from(
            values.iter().map(to_value).collect::<Result<Vec<_>, _>>()?,
        )),
        HeaderValue::Table(headers) => AMQPValue::FieldTable(to_table(headers)?),
    })
}

fn from_table(table: &FieldTable) -> Headers {
    table.into_iter().map(|(name, value)| (name.to_string(), from_value(value))).collect()
}

fn from_value(value: &AMQPValue) -> HeaderValue {
    match value {
        AMQPValue::Void => HeaderValue::Null,
        AMQPValue::Boolean(value) => HeaderValue::Bool(*value),
        AMQPValue::ShortShortInt(value) => HeaderValue::Int(i64::from(*value)),
        AMQPValue::ShortShortUInt(value) => HeaderValue::Int(i64::from(*value)),
        AMQPValue::ShortInt(value) => HeaderValue::Int(i64::from(*value)),
        AMQPValue::ShortUInt(value) => HeaderValue::Int(i64::from(*value)),
        AMQPValue::LongInt(value) => HeaderValue::Int(i64::from(*value)),
        AMQPValue::LongUInt(value) => HeaderValue::Int(i64::from(*value)),
        AMQPValue::LongLongInt(value) => HeaderValue::Int(*value),
        AMQPValue::Float(value) => HeaderValue::Float(f64::from(*value)),
        AMQPValue::Double(value) => HeaderValue::Float(*value),
        AMQPValue::DecimalValue(value) => HeaderValue::Decimal { scale: value.scale, value: value.value },
        AMQPValue::ShortString(value) => HeaderValue::Text(value.to_string()),
        AMQPValue::LongString(value) => match std::str::from_utf8(value.as_bytes()) {
            Ok(text) => HeaderValue::Text(text.to_owned()),
            Err(_) => HeaderValue::Bytes(value.as_bytes().to_vec()),
        },
        AMQPValue::ByteArray(value) => HeaderValue::Bytes(value.as_slice().to_vec()),
        AMQPValue::Timestamp(value) => HeaderValue::Timestamp(*value),
        AMQPValue::FieldArray(values) => {
            HeaderValue::List(values.as_slice().iter().map(from_value).collect())
        }
        AMQPValue::FieldTable(table) => HeaderValue::Table(from_table(table)),
    }
}

fn table_size(headers: &Headers) -> usize {
    4 + headers.iter().map(|(name, value)| 1 + name.len() + value_size(value)).sum::<usize>()
}

/// The bytes a value takes on the wire, its type included.
fn value_size(value: &HeaderValue) -> usize {
    1 + match value {
        HeaderValue::Null => 0,
        HeaderValue::Bool(_) => 1,
        HeaderValue::Int(_) | HeaderValue::Float(_) | HeaderValue::Timestamp(_) => 8,
        HeaderValue::Decimal { .. } => 5,
        HeaderValue::Text(text) => 4 + text.len(),
        HeaderValue::Bytes(bytes) => 4 + bytes.len(),
        HeaderValue::List(values) => 4 + values.iter().map(value_size).sum::<usize>(),
        HeaderValue::Table(headers) => table_size(headers),
    }
}

/// A message as it arrives after a way through RabbitMQ, or why it cannot go.
#[cfg(any(test, fuzzing))]
pub(crate) fn there_and_back(message: &Message) -> Result<Message, String> {
    Ok(from_amqp(&to_amqp(message, 0)?, message.body.to_vec()))
}

/// The headers in a table as it travels, which say the same when they are sent on. Nothing if it is no table.
#[cfg(any(test, fuzzing))]
pub(crate) fn headers_of(table: &[u8]) -> Option<Headers> {
    let (_rest, table) = lapin::types::parsing::parse_field_table(table).ok()?;
    let headers = from_table(&table);
    let again = to_table(&headers).map(|table| from_table(&table));
    // As text: a number that is none does not equal itself.
    assert_eq!(format!("{again:?}"), format!("{:?}", Ok::<_, String>(&headers)));
    Some(headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn every_type() -> Headers {
        let inner = Headers::from([("inside".into(), HeaderValue::Null)]);
        Headers::from([
            ("null".into(), HeaderValue::Null),
            ("bool".into(), HeaderValue::Bool(true)),
            ("int".into(), HeaderValue::Int(i64::MIN)),
            ("float".into(), HeaderValue::Float(-0.5)),
            ("decimal".into(), HeaderValue::Decimal { scale: 2, value: 1999 }),
            ("text".into(), HeaderValue::Text("Grüße".into())),
            ("bytes".into(), HeaderValue::Bytes(vec![0, 255, 1])),
            ("timestamp".into(), HeaderValue::Timestamp(1_700_000_000)),
            ("list".into(), HeaderValue::List(vec![HeaderValue::Int(1), HeaderValue::Text("two".into())])),
            ("table".into(), HeaderValue::Table(inner)),
        ])
    }

    #[test]
    fn every_header_type_comes_back_as_it_went() {
        let message = Message {
            properties: Properties {
                message_id: Some("evt_1".into()),
                content_type: Some("application/json".into()),
                content_encoding: Some("gzip".into()),
                correlation_id: Some("c".into()),
                timestamp: Some(7),
                kind: Some("order.created".into()),
                app_id: Some("shop".into()),
                reply_to: Some("answers".into()),
                priority: Some(3),
            },
            headers: every_type(),
            body: Bytes::from_static(b"{}"),
        };
        let sent = to_amqp(&message, 131_072).unwrap();
        assert_eq!(*sent.delivery_mode(), Some(2));
        assert_eq!(from_amqp(&sent, b"{}".to_vec()), message);
    }

    #[test]
    fn a_long_string_that_is_not_utf8_is_bytes() {
        let value = AMQPValue::LongString(LongString::from(vec![0xff_u8, 0xfe]));
        assert_eq!(from_value(&value), HeaderValue::Bytes(vec![0xff, 0xfe]));
    }

    #[test]
    fn what_no_frame_can_carry_is_refused_here() {
        let long = Message {
            properties: Properties { message_id: Some("x".repeat(256)), ..Properties::default() },
            ..Message::default()
        };
        assert!(to_amqp(&long, 131_072).unwrap_err().contains("message_id has 256 bytes"));
        let wide = Message {
            headers: Headers::from([("big".into(), HeaderValue::Text("x".repeat(140_000)))]),
            ..Message::default()
        };
        assert!(to_amqp(&wide, 131_072).unwrap_err().contains("one frame"));
    }
}
