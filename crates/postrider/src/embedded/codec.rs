//! Properties and headers as bytes in one column: every value comes back as it was, floats and binary text included.
//!
//! A version byte, a count of properties with their numbers, then the header table. Lengths and counts are little-endian.

use crate::broker::{HeaderValue, Headers, Properties};

const VERSION: u8 = 1;
/// Tables within tables, at most. Deeper ones are refused when they are published.
pub(super) const MAX_DEPTH: usize = 64;

/// Why bytes could not be read: the row was damaged, or a newer version wrote it.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("the properties and headers of a stored message cannot be read")]
pub(super) struct Unreadable;

/// Writes all properties but the message id, which has a column of its own, and the headers.
pub(super) fn write_head(properties: &Properties, headers: &Headers) -> Vec<u8> {
    let mut out = vec![VERSION];
    let texts = [
        (1, &properties.content_type),
        (2, &properties.content_encoding),
        (3, &properties.correlation_id),
        (4, &properties.kind),
        (5, &properties.app_id),
        (6, &properties.reply_to),
    ];
    for (number, text) in texts {
        if let Some(text) = text {
            out.push(number);
            put_bytes(&mut out, text.as_bytes());
        }
    }
    if let Some(timestamp) = properties.timestamp {
        out.push(7);
        out.extend(timestamp.to_le_bytes());
    }
    if let Some(priority) = properties.priority {
        out.extend([8, priority]);
    }
    out.push(0);
    put_table(&mut out, headers);
    out
}

/// Reads what [`write_head`] wrote.
pub(super) fn read_head(bytes: &[u8]) -> Result<(Properties, Headers), Unreadable> {
    let mut input = Input(bytes);
    let mut properties = Properties::default();
    if input.byte()? != VERSION {
        return Err(Unreadable);
    }
    loop {
        match input.byte()? {
            0 => break,
            1 => properties.content_type = Some(input.text()?),
            2 => properties.content_encoding = Some(input.text()?),
            3 => properties.correlation_id = Some(input.text()?),
            4 => properties.kind = Some(input.text()?),
            5 => properties.app_id = Some(input.text()?),
            6 => properties.reply_to = Some(input.text()?),
            7 => properties.timestamp = Some(u64::from_le_bytes(input.array()?)),
            8 => properties.priority = Some(input.byte()?),
            _ => return Err(Unreadable),
        }
    }
    Ok((properties, input.table(0)?))
}

/// Writes a header table alone.
pub(super) fn write_headers(headers: &Headers) -> Vec<u8> {
    let mut out = vec![VERSION];
    put_table(&mut out, headers);
    out
}

/// Reads what [`write_headers`] wrote.
pub(super) fn read_headers(bytes: &[u8]) -> Result<Headers, Unreadable> {
    let mut input = Input(bytes);
    if input.byte()? == VERSION { input.table(0) } else { Err(Unreadable) }
}

/// How many tables and lists stand within each other.
pub(super) fn nesting(headers: &Headers) -> usize {
    fn of(value: &HeaderValue) -> usize {
        match value {
            HeaderValue::List(list) => 1 + list.iter().map(of).max().unwrap_or(0),
            HeaderValue::Table(table) => nesting(table),
            _ => 0,
        }
    }
    1 + headers.values().map(of).max().unwrap_or(0)
}

fn put_len(out: &mut Vec<u8>, len: usize) {
    // Nothing near 4 GiB gets here: a message is refused long before.
    out.extend(u32::try_from(len).unwrap_or(u32::MAX).to_le_bytes());
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_len(out, bytes.len());
    out.extend(bytes);
}

fn put_table(out: &mut Vec<u8>, table: &Headers) {
    put_len(out, table.len());
    for (name, value) in table {
        put_bytes(out, name.as_bytes());
        put_value(out, value);
    }
}

fn put_value(out: &mut Vec<u8>, value: &HeaderValue) {
    match value {
        HeaderValue::Null => out.push(b'0'),
        HeaderValue::Bool(bool) => out.extend([b'b', u8::from(*bool)]),
        HeaderValue::Int(int) => {
            out.push(b'i');
            out.extend(int.to_le_bytes());
        }
        HeaderValue::Float(float) => {
            out.push(b'f');
            out.extend(float.to_bits().to_le_bytes());
        }
        HeaderValue::Decimal { scale, value } => {
            out.extend([b'd', *scale]);
            out.extend(value.to_le_bytes());
        }
        HeaderValue::Text(text) => {
            out.push(b's');
            put_bytes(out, text.as_bytes());
        }
        HeaderValue::Bytes(bytes) => {
            out.push(b'x');
            put_bytes(out, bytes);
        }
        HeaderValue::Timestamp(seconds) => {
            out.push(b't');
            out.extend(seconds.to_le_bytes());
        }
        HeaderValue::List(list) => {
            out.push(b'l');
            put_len(out, list.len());
            for value in list {
                put_value(out, value);
            }
        }
        HeaderValue::Table(table) => {
            out.push(b'h');
            put_table(out, table);
        }
    }
}

struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], Unreadable> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(Unreadable)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Unreadable> {
        self.take(N)?.try_into().map_err(|_| Unreadable)
    }

    fn byte(&mut self) -> Result<u8, Unreadable> {
        Ok(self.array::<1>()?[0])
    }

    fn len(&mut self) -> Result<usize, Unreadable> {
        usize::try_from(u32::from_le_bytes(self.array()?)).map_err(|_| Unreadable)
    }

    fn bytes(&mut self) -> Result<&'a [u8], Unreadable> {
        let len = self.len()?;
        self.take(len)
    }

    fn text(&mut self) -> Result<String, Unreadable> {
        String::from_utf8(self.bytes()?.to_vec()).map_err(|_| Unreadable)
    }

    fn table(&mut self, depth: usize) -> Result<Headers, Unreadable> {
        let len = self.len()?;
        (0..len).map(|_| Ok((self.text()?, self.value(depth)?))).collect()
    }

    fn value(&mut self, depth: usize) -> Result<HeaderValue, Unreadable> {
        if depth > MAX_DEPTH {
            return Err(Unreadable);
        }
        Ok(match self.byte()? {
            b'0' => HeaderValue::Null,
            b'b' => HeaderValue::Bool(self.byte()? != 0),
            b'i' => HeaderValue::Int(i64::from_le_bytes(self.array()?)),
            b'f' => HeaderValue::Float(f64::from_bits(u64::from_le_bytes(self.array()?))),
            b'd' => HeaderValue::Decimal { scale: self.byte()?, value: u32::from_le_bytes(self.array()?) },
            b's' => HeaderValue::Text(self.text()?),
            b'x' => HeaderValue::Bytes(self.bytes()?.to_vec()),
            b't' => HeaderValue::Timestamp(u64::from_le_bytes(self.array()?)),
            b'l' => {
                let len = self.len()?;
                HeaderValue::List((0..len).map(|_| self.value(depth + 1)).collect::<Result<_, _>>()?)
            }
            b'h' => HeaderValue::Table(self.table(depth + 1)?),
            _ => return Err(Unreadable),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn every_kind() -> Headers {
        let table = Headers::from([("ключ".to_owned(), HeaderValue::Null)]);
        let values = [
            HeaderValue::Null,
            HeaderValue::Bool(true),
            HeaderValue::Int(i64::MIN),
            HeaderValue::Float(0.1 + 0.2),
            HeaderValue::Float(f64::INFINITY),
            HeaderValue::Decimal { scale: 2, value: u32::MAX },
            HeaderValue::Text("Grüße".to_owned()),
            HeaderValue::Bytes(vec![0xff, 0x00]),
            HeaderValue::Timestamp(u64::MAX),
            HeaderValue::List(vec![HeaderValue::Int(1), HeaderValue::List(Vec::new())]),
            HeaderValue::Table(table),
        ];
        values.into_iter().enumerate().map(|(n, value)| (format!("x-{n}"), value)).collect()
    }

    fn every_property() -> Properties {
        Properties {
            message_id: None,
            content_type: Some("application/json".to_owned()),
            content_encoding: Some("gzip".to_owned()),
            correlation_id: Some(String::new()),
            timestamp: Some(1_700_000_000),
            kind: Some("order.created".to_owned()),
            app_id: Some("shop".to_owned()),
            reply_to: Some("answers".to_owned()),
            priority: Some(9),
        }
    }

    #[test]
    fn what_was_written_is_read_again() {
        let written = write_head(&every_property(), &every_kind());
        assert_eq!(read_head(&written), Ok((every_property(), every_kind())));
        let empty = write_head(&Properties::default(), &Headers::new());
        assert_eq!(read_head(&empty), Ok((Properties::default(), Headers::new())));
        assert_eq!(read_headers(&write_headers(&every_kind())), Ok(every_kind()));
    }

    #[test]
    fn damaged_bytes_are_an_error_and_no_panic() {
        let written = write_head(&every_property(), &every_kind());
        for len in 0..written.len() {
            assert_eq!(read_head(&written[..len]), Err(Unreadable), "cut at {len}");
        }
        for at in 0..written.len() {
            let mut damaged = written.clone();
            damaged[at] ^= 0xff;
            let _either = read_head(&damaged);
        }
    }

    #[test]
    fn nesting_counts_lists_and_tables() {
        assert_eq!(nesting(&Headers::new()), 1);
        let list = HeaderValue::List(vec![HeaderValue::Table(Headers::new())]);
        assert_eq!(nesting(&Headers::from([("x".to_owned(), list)])), 3);
    }
}
