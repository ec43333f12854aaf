//! The protocol's parsers, for tests that feed them anything.

use bytes::BytesMut;

use super::content::Content;
use super::table::DEEPEST;
use super::wire::Reader;
use super::{frame, table};
use crate::broker::{HeaderValue, Headers, Message};

const FRAME_MAX: usize = 131_072;

/// A message as it arrives after a way through RabbitMQ, or why it cannot go unchanged.
pub(crate) fn there_and_back(message: &Message) -> Result<Message, String> {
    if message.headers.values().any(|value| depth(value) >= DEEPEST) {
        return Err(format!("headers nested deeper than {DEEPEST} levels arrive as bytes"));
    }
    let mut out = Vec::new();
    Content::of(message).put(&mut out, message.body.len()).map_err(|long| long.to_string())?;
    let (size, content) = Content::read(&out).map_err(|malformed| malformed.to_string())?;
    assert_eq!(size, message.body.len() as u64);
    let arrived = content.message().map_err(|malformed| malformed.to_string())?;
    Ok(Message { body: message.body.clone(), ..arrived })
}

/// The headers in a table as it travels, which say the same when they are sent on. Nothing if it is no table.
pub(crate) fn headers_of(table: &[u8]) -> Option<Headers> {
    let headers = table::read(Reader(table).long().ok()?).ok()?;
    let mut again = Vec::new();
    table::put(&mut again, &headers).ok()?;
    let again = Reader(&again).long().ok().and_then(|inside| table::read(inside).ok());
    // As text: a number that is none does not equal itself.
    assert_eq!(format!("{again:?}"), format!("{:?}", Some(&headers)));
    Some(headers)
}

/// The messages whose properties are in a stream of frames. What can be read says the same when it is written.
pub(crate) fn messages_of(stream: &[u8]) -> Vec<Message> {
    let mut arrived = BytesMut::from(stream);
    let mut messages = Vec::new();
    while let Ok(Some(frame)) = frame::take(&mut arrived, FRAME_MAX) {
        let Ok((size, content)) = Content::read(&frame.payload) else { continue };
        let mut again = Vec::new();
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        assert!(content.put(&mut again, size).is_ok(), "short texts were read, so they are short");
        assert_eq!(Content::read(&again).map(|(_, content)| content), Ok(content));
        messages.extend(content.message());
    }
    messages
}

fn depth(value: &HeaderValue) -> usize {
    match value {
        HeaderValue::List(values) => 1 + values.iter().map(depth).max().unwrap_or(0),
        HeaderValue::Table(headers) => 1 + headers.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}
