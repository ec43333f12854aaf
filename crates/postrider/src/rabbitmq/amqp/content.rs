//! What stands before the body of a message: its size and its properties.

use super::table;
use super::wire::{Malformed, Reader, Unsayable, put_long, put_short, text};
use crate::broker::{Headers, Message, Properties};

/// The class of everything that has content.
pub(super) const BASIC: u16 = 60;
pub(in crate::rabbitmq) const PERSISTENT: u8 = 2;

/// Which properties there are: a bit each, from the highest, in the order in which they follow.
mod flag {
    pub(super) const CONTENT_TYPE: u16 = 1 << 15;
    pub(super) const CONTENT_ENCODING: u16 = 1 << 14;
    pub(super) const HEADERS: u16 = 1 << 13;
    pub(super) const DELIVERY_MODE: u16 = 1 << 12;
    pub(super) const PRIORITY: u16 = 1 << 11;
    pub(super) const CORRELATION_ID: u16 = 1 << 10;
    pub(super) const REPLY_TO: u16 = 1 << 9;
    pub(super) const EXPIRATION: u16 = 1 << 8;
    pub(super) const MESSAGE_ID: u16 = 1 << 7;
    pub(super) const TIMESTAMP: u16 = 1 << 6;
    pub(super) const TYPE: u16 = 1 << 5;
    pub(super) const USER_ID: u16 = 1 << 4;
    pub(super) const APP_ID: u16 = 1 << 3;
    pub(super) const CLUSTER_ID: u16 = 1 << 2;
}

/// The properties of a message as they travel, each as it stands in the frame.
#[allow(clippy::struct_field_names, reason = "AMQP's own names")]
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(in crate::rabbitmq) struct Content<'a> {
    pub(in crate::rabbitmq) content_type: Option<&'a [u8]>,
    pub(in crate::rabbitmq) content_encoding: Option<&'a [u8]>,
    pub(in crate::rabbitmq) headers: Option<Table<'a>>,
    pub(in crate::rabbitmq) delivery_mode: Option<u8>,
    pub(in crate::rabbitmq) priority: Option<u8>,
    pub(in crate::rabbitmq) correlation_id: Option<&'a [u8]>,
    pub(in crate::rabbitmq) reply_to: Option<&'a [u8]>,
    pub(in crate::rabbitmq) expiration: Option<&'a [u8]>,
    pub(in crate::rabbitmq) message_id: Option<&'a [u8]>,
    pub(in crate::rabbitmq) timestamp: Option<u64>,
    pub(in crate::rabbitmq) kind: Option<&'a [u8]>,
    pub(in crate::rabbitmq) user_id: Option<&'a [u8]>,
    pub(in crate::rabbitmq) app_id: Option<&'a [u8]>,
    pub(in crate::rabbitmq) cluster_id: Option<&'a [u8]>,
}

/// A header table, written already or not yet.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::rabbitmq) enum Table<'a> {
    /// What is inside of it, as it came.
    Written(&'a [u8]),
    /// Ours.
    Read(&'a Headers),
}

impl<'a> Content<'a> {
    /// The properties to publish a message with, persistent.
    pub(in crate::rabbitmq) fn of(message: &'a Message) -> Self {
        let Properties {
            message_id,
            content_type,
            content_encoding,
            correlation_id,
            timestamp,
            kind,
            app_id,
            reply_to,
            priority,
        } = &message.properties;
        let short = |value: &'a Option<String>| value.as_deref().map(str::as_bytes);
        Self {
            content_type: short(content_type),
            content_encoding: short(content_encoding),
            headers: (!message.headers.is_empty()).then_some(Table::Read(&message.headers)),
            delivery_mode: Some(PERSISTENT),
            priority: *priority,
            correlation_id: short(correlation_id),
            reply_to: short(reply_to),
            message_id: short(message_id),
            timestamp: *timestamp,
            kind: short(kind),
            app_id: short(app_id),
            ..Self::default()
        }
    }

    /// Reads the payload of a content header; also how long the body is.
    pub(in crate::rabbitmq) fn read(payload: &'a [u8]) -> Result<(u64, Self), Malformed> {
        let mut from = Reader(payload);
        let (class, _weight, size, flags) = (from.u16()?, from.u16()?, from.u64()?, from.u16()?);
        // The lowest bit would say that more flags follow; there are no more than fourteen.
        if class != BASIC || flags & 1 != 0 {
            return Err(Malformed);
        }
        let short = |from: &mut Reader<'a>, bit| (flags & bit != 0).then(|| from.short()).transpose();
        let byte = |from: &mut Reader<'a>, bit| (flags & bit != 0).then(|| from.u8()).transpose();
        // The fields are read in the order in which they are written here.
        let content = Self {
            content_type: short(&mut from, flag::CONTENT_TYPE)?,
            content_encoding: short(&mut from, flag::CONTENT_ENCODING)?,
            headers: (flags & flag::HEADERS != 0).then(|| from.long().map(Table::Written)).transpose()?,
            delivery_mode: byte(&mut from, flag::DELIVERY_MODE)?,
            priority: byte(&mut from, flag::PRIORITY)?,
            correlation_id: short(&mut from, flag::CORRELATION_ID)?,
            reply_to: short(&mut from, flag::REPLY_TO)?,
            expiration: short(&mut from, flag::EXPIRATION)?,
            message_id: short(&mut from, flag::MESSAGE_ID)?,
            timestamp: (flags & flag::TIMESTAMP != 0).then(|| from.u64()).transpose()?,
            kind: short(&mut from, flag::TYPE)?,
            user_id: short(&mut from, flag::USER_ID)?,
            app_id: short(&mut from, flag::APP_ID)?,
            cluster_id: short(&mut from, flag::CLUSTER_ID)?,
        };
        Ok((size, content))
    }

    /// Writes the payload of a content header for a body of this size.
    pub(in crate::rabbitmq) fn put(&self, out: &mut Vec<u8>, size: usize) -> Result<(), Unsayable> {
        out.extend_from_slice(&BASIC.to_be_bytes());
        out.extend_from_slice(&[0; 2]);
        out.extend_from_slice(&(size as u64).to_be_bytes());
        let mut put = Put { at: out.len(), out, flags: 0 };
        put.out.extend_from_slice(&[0; 2]);
        put.short(flag::CONTENT_TYPE, "content_type", self.content_type)?;
        put.short(flag::CONTENT_ENCODING, "content_encoding", self.content_encoding)?;
        if let Some(headers) = self.headers {
            put.flags |= flag::HEADERS;
            match headers {
                Table::Written(inside) => put_long(put.out, inside),
                Table::Read(headers) => table::put(put.out, headers)?,
            }
        }
        put.bytes(flag::DELIVERY_MODE, self.delivery_mode.map(u8::to_be_bytes));
        put.bytes(flag::PRIORITY, self.priority.map(u8::to_be_bytes));
        put.short(flag::CORRELATION_ID, "correlation_id", self.correlation_id)?;
        put.short(flag::REPLY_TO, "reply_to", self.reply_to)?;
        put.short(flag::EXPIRATION, "expiration", self.expiration)?;
        put.short(flag::MESSAGE_ID, "message_id", self.message_id)?;
        put.bytes(flag::TIMESTAMP, self.timestamp.map(u64::to_be_bytes));
        put.short(flag::TYPE, "type", self.kind)?;
        put.short(flag::USER_ID, "user_id", self.user_id)?;
        put.short(flag::APP_ID, "app_id", self.app_id)?;
        put.short(flag::CLUSTER_ID, "cluster_id", self.cluster_id)?;
        let Put { at, out, flags } = put;
        out[at..at + 2].copy_from_slice(&flags.to_be_bytes());
        Ok(())
    }

    /// As a message, whose body is left to the caller.
    pub(in crate::rabbitmq) fn message(&self) -> Result<Message, Malformed> {
        let short = |value: Option<&[u8]>| value.map(text);
        let properties = Properties {
            message_id: short(self.message_id),
            content_type: short(self.content_type),
            content_encoding: short(self.content_encoding),
            correlation_id: short(self.correlation_id),
            timestamp: self.timestamp,
            kind: short(self.kind),
            app_id: short(self.app_id),
            reply_to: short(self.reply_to),
            priority: self.priority,
        };
        let headers = match self.headers {
            Some(Table::Written(inside)) => table::read(inside)?,
            Some(Table::Read(headers)) => headers.clone(),
            None => Headers::new(),
        };
        Ok(Message { properties, headers, ..Message::default() })
    }
}

/// How long a body will be, from the payload of its content header. Whether its properties can be read is another question: a
/// message without them is one, and the connection goes on.
pub(super) fn body_size(payload: &[u8]) -> Result<u64, Malformed> {
    let mut reader = Reader(payload);
    reader.take(4)?;
    reader.u64()
}

/// Properties that are being written, and which there are.
struct Put<'a> {
    out: &'a mut Vec<u8>,
    at: usize,
    flags: u16,
}

impl Put<'_> {
    fn short(&mut self, bit: u16, what: &'static str, value: Option<&[u8]>) -> Result<(), Unsayable> {
        match value {
            Some(value) => {
                self.flags |= bit;
                put_short(self.out, what, value)
            }
            None => Ok(()),
        }
    }

    fn bytes<const N: usize>(&mut self, bit: u16, value: Option<[u8; N]>) {
        if let Some(value) = value {
            self.flags |= bit;
            self.out.extend_from_slice(&value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::HeaderValue;
    use crate::rabbitmq::there_and_back;

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
    fn every_property_and_header_type_comes_back_as_it_went() {
        let properties = Properties {
            message_id: Some("evt_1".into()),
            content_type: Some("application/json".into()),
            content_encoding: Some("gzip".into()),
            correlation_id: Some("c".into()),
            timestamp: Some(7),
            kind: Some("order.created".into()),
            app_id: Some("shop".into()),
            reply_to: Some("answers".into()),
            priority: Some(3),
        };
        let message = Message { properties, headers: every_type(), body: "{}".into() };
        assert_eq!(there_and_back(&message).unwrap(), message);
        assert_eq!(there_and_back(&Message::default()).unwrap(), Message::default());
    }

    #[test]
    fn what_others_set_is_carried_as_it_came() {
        let content = Content {
            headers: Some(Table::Written(&[1, b'n', b'I', 0, 0, 0, 5])),
            delivery_mode: Some(1),
            expiration: Some(b"60000"),
            user_id: Some(b"guest"),
            cluster_id: Some(b"\xff not text"),
            ..Content::default()
        };
        let mut out = Vec::new();
        content.put(&mut out, 12).unwrap();
        assert_eq!(Content::read(&out).unwrap(), (12, content));
        for end in 0..out.len() {
            assert_eq!(Content::read(&out[..end]), Err(Malformed), "cut at {end}");
        }
    }
}
