//! What RabbitMQ could not carry is refused here too, so that nothing works on a laptop and fails in production.

use super::codec::{MAX_DEPTH, nesting};
use crate::broker::{HeaderValue, Headers, Message};

/// RabbitMQ's own limit, in its older versions; the newer ones take less.
const MAX_BODY: usize = 128 << 20;
/// What a property and the name of a header may have.
const MAX_SHORT: usize = 255;
/// Properties and headers travel in one frame, of this size unless a server is told otherwise.
const MAX_FRAME: usize = 128 << 10;

/// Why no broker would take this message, if so.
pub(super) fn unfit(message: &Message) -> Option<String> {
    let body = message.body.len();
    if body > MAX_BODY {
        return Some(format!("the message has {body} bytes, more than the {MAX_BODY} a broker takes"));
    }
    if nesting(&message.headers) > MAX_DEPTH {
        return Some(format!("the headers stand more than {MAX_DEPTH} tables and lists within each other"));
    }
    let of = &message.properties;
    let texts = [
        ("message_id", &of.message_id),
        ("content_type", &of.content_type),
        ("content_encoding", &of.content_encoding),
        ("correlation_id", &of.correlation_id),
        ("type", &of.kind),
        ("app_id", &of.app_id),
        ("reply_to", &of.reply_to),
    ];
    let lengths = || texts.iter().map(|(name, text)| (*name, text.as_ref().map_or(0, String::len)));
    if let Some((name, len)) = lengths().find(|(_, len)| *len > MAX_SHORT) {
        return Some(format!("{name} has {len} bytes, and AMQP carries at most {MAX_SHORT}"));
    }
    let longest = longest_name(&message.headers);
    if longest > MAX_SHORT {
        return Some(format!("a header name has {longest} bytes, and AMQP carries at most {MAX_SHORT}"));
    }
    if message.headers.values().any(is_no_number) {
        return Some(
            "a header is an infinite number or none (NaN), which RabbitMQ cannot read; send it as text"
                .to_owned(),
        );
    }
    let size = table_size(&message.headers) + lengths().map(|(_, len)| len).sum::<usize>();
    (size > MAX_FRAME).then(|| {
        format!("its headers take {size} bytes, more than the {MAX_FRAME} of one frame; put what is large into the body")
    })
}

/// Names at every depth.
fn longest_name(headers: &Headers) -> usize {
    fn within(value: &HeaderValue) -> usize {
        match value {
            HeaderValue::List(list) => list.iter().map(within).max().unwrap_or(0),
            HeaderValue::Table(table) => longest_name(table),
            _ => 0,
        }
    }
    headers.iter().map(|(name, value)| name.len().max(within(value))).max().unwrap_or(0)
}

/// At every depth.
fn is_no_number(value: &HeaderValue) -> bool {
    match value {
        HeaderValue::Float(float) => !float.is_finite(),
        HeaderValue::List(list) => list.iter().any(is_no_number),
        HeaderValue::Table(table) => table.values().any(is_no_number),
        _ => false,
    }
}

fn table_size(headers: &Headers) -> usize {
    headers.iter().map(|(name, value)| name.len() + value_size(value)).sum()
}

/// About what a value takes on the wire.
fn value_size(value: &HeaderValue) -> usize {
    8 + match value {
        HeaderValue::Text(text) => text.len(),
        HeaderValue::Bytes(bytes) => bytes.len(),
        HeaderValue::List(list) => list.iter().map(value_size).sum(),
        HeaderValue::Table(table) => table_size(table),
        _ => 0,
    }
}
