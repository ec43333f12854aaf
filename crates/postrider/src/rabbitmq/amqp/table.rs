//! Header tables, both ways.
//!
//! Nothing is lost on the way in, except that integers and floats of all widths become one of each and that strings are told
//! from bytes by whether they are UTF-8. Lists and tables are read by recursion, so there is a deepest level: below it they are
//! bytes. Whoever may publish could otherwise overflow the stack of every consumer.

use super::wire::{Malformed, Reader, Unsayable, put_long, put_short, sized, text};
use crate::broker::{HeaderValue, Headers};

/// Levels that are read as they are. RabbitMQ's own history of a message has three.
pub(in crate::rabbitmq) const DEEPEST: usize = 32;

/// Writes a table, its length first.
pub(in crate::rabbitmq) fn put(out: &mut Vec<u8>, headers: &Headers) -> Result<(), Unsayable> {
    sized(out, |out| headers.iter().try_for_each(|(name, value)| put_entry(out, name, value)))
}

/// Writes one header of a table.
pub(in crate::rabbitmq) fn put_entry(
    out: &mut Vec<u8>,
    name: &str,
    value: &HeaderValue,
) -> Result<(), Unsayable> {
    put_short(out, "a header name", name.as_bytes())?;
    put_value(out, value)
}

fn put_value(out: &mut Vec<u8>, value: &HeaderValue) -> Result<(), Unsayable> {
    match value {
        HeaderValue::Null => out.push(b'V'),
        HeaderValue::Bool(value) => out.extend_from_slice(&[b't', u8::from(*value)]),
        HeaderValue::Int(value) => put_number(out, b'l', value.to_be_bytes()),
        HeaderValue::Float(value) if value.is_finite() => put_number(out, b'd', value.to_be_bytes()),
        HeaderValue::Float(_) => return Err(Unsayable::NoNumber),
        HeaderValue::Decimal { scale, value } => {
            out.extend_from_slice(&[b'D', *scale]);
            out.extend_from_slice(&value.to_be_bytes());
        }
        HeaderValue::Text(value) => {
            out.push(b'S');
            put_long(out, value.as_bytes());
        }
        HeaderValue::Bytes(value) => {
            out.push(b'x');
            put_long(out, value);
        }
        HeaderValue::Timestamp(value) => put_number(out, b'T', value.to_be_bytes()),
        HeaderValue::List(values) => {
            out.push(b'A');
            sized(out, |out| values.iter().try_for_each(|value| put_value(out, value)))?;
        }
        HeaderValue::Table(headers) => {
            out.push(b'F');
            put(out, headers)?;
        }
    }
    Ok(())
}

fn put_number(out: &mut Vec<u8>, kind: u8, bytes: [u8; 8]) {
    out.push(kind);
    out.extend_from_slice(&bytes);
}

/// Reads what is inside of a table.
pub(in crate::rabbitmq) fn read(inside: &[u8]) -> Result<Headers, Malformed> {
    read_at(inside, 1)
}

fn read_at(inside: &[u8], level: usize) -> Result<Headers, Malformed> {
    let mut reader = Reader(inside);
    // Gathered first: a map that is made of a whole list is made in one go.
    let mut headers = Vec::with_capacity(16);
    while !reader.is_empty() {
        let name = text(reader.short()?);
        headers.push((name, read_value(&mut reader, level)?));
    }
    Ok(headers.into_iter().collect())
}

fn read_value(reader: &mut Reader<'_>, level: usize) -> Result<HeaderValue, Malformed> {
    Ok(match reader.u8()? {
        b'V' => HeaderValue::Null,
        b't' => HeaderValue::Bool(reader.u8()? != 0),
        b'b' => HeaderValue::Int(i64::from(reader.u8()?.cast_signed())),
        b'B' => HeaderValue::Int(i64::from(reader.u8()?)),
        b's' | b'U' => HeaderValue::Int(i64::from(reader.u16()?.cast_signed())),
        b'u' => HeaderValue::Int(i64::from(reader.u16()?)),
        b'I' => HeaderValue::Int(i64::from(reader.u32()?.cast_signed())),
        b'i' => HeaderValue::Int(i64::from(reader.u32()?)),
        b'l' | b'L' => HeaderValue::Int(reader.u64()?.cast_signed()),
        b'f' => HeaderValue::Float(f64::from(f32::from_bits(reader.u32()?))),
        b'd' => HeaderValue::Float(f64::from_bits(reader.u64()?)),
        b'D' => HeaderValue::Decimal { scale: reader.u8()?, value: reader.u32()? },
        b'T' => HeaderValue::Timestamp(reader.u64()?),
        b'S' => {
            let bytes = reader.long()?;
            match std::str::from_utf8(bytes) {
                Ok(text) => HeaderValue::Text(text.to_owned()),
                Err(_) => HeaderValue::Bytes(bytes.to_vec()),
            }
        }
        b'x' => HeaderValue::Bytes(reader.long()?.to_vec()),
        b'A' | b'F' if level >= DEEPEST => HeaderValue::Bytes(reader.long()?.to_vec()),
        b'A' => {
            let mut inside = Reader(reader.long()?);
            let mut values = Vec::new();
            while !inside.is_empty() {
                values.push(read_value(&mut inside, level + 1)?);
            }
            HeaderValue::List(values)
        }
        b'F' => HeaderValue::Table(read_at(reader.long()?, level + 1)?),
        _ => return Err(Malformed),
    })
}

/// The headers of a table as they stand in it, name and whole entry each.
pub(in crate::rabbitmq) fn entries(inside: &[u8]) -> impl Iterator<Item = Result<(&[u8], &[u8]), Malformed>> {
    let mut reader = Reader(inside);
    std::iter::from_fn(move || {
        let start = reader.0;
        if start.is_empty() {
            return None;
        }
        let mut entry = || {
            let name = reader.short()?;
            skip_value(&mut reader)?;
            Ok((name, &start[..start.len() - reader.0.len()]))
        };
        let entry = entry();
        if entry.is_err() {
            reader = Reader(&[]);
        }
        Some(entry)
    })
}

fn skip_value(reader: &mut Reader<'_>) -> Result<(), Malformed> {
    let bytes = match reader.u8()? {
        b'V' => 0,
        b't' | b'b' | b'B' => 1,
        b's' | b'u' | b'U' => 2,
        b'I' | b'i' | b'f' => 4,
        b'D' => 5,
        b'L' | b'l' | b'd' | b'T' => 8,
        b'S' | b'x' | b'A' | b'F' => reader.u32()? as usize,
        _ => return Err(Malformed),
    };
    reader.take(bytes).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many lists and tables in turn around a number, as they are written.
    fn nested(levels: usize) -> Vec<u8> {
        let mut value = vec![b'I', 0, 0, 0, 5];
        for level in 0..levels {
            let mut around = vec![if level % 2 == 0 { b'A' } else { b'F' }];
            sized(&mut around, |out| {
                out.extend_from_slice(if level % 2 == 0 { &[] } else { &[2, b'i', b'n'] });
                out.extend_from_slice(&value);
            });
            value = around;
        }
        value
    }

    fn inside(fields: &[(&str, Vec<u8>)]) -> Vec<u8> {
        let mut out = Vec::new();
        for (name, value) in fields {
            put_short(&mut out, "a name", name.as_bytes()).unwrap();
            out.extend_from_slice(value);
        }
        out
    }

    fn depth(value: &HeaderValue) -> usize {
        match value {
            HeaderValue::List(values) => 1 + values.first().map_or(0, depth),
            HeaderValue::Table(headers) => 1 + headers.values().next().map_or(0, depth),
            _ => 0,
        }
    }

    /// One value of every type that others may send, and what it is to us.
    fn foreign() -> Vec<(&'static str, Vec<u8>, HeaderValue)> {
        vec![
            ("tiny", vec![b'b', 255], HeaderValue::Int(-1)),
            ("tiny unsigned", vec![b'B', 255], HeaderValue::Int(255)),
            ("short", vec![b's', 255, 254], HeaderValue::Int(-2)),
            ("short again", vec![b'U', 1, 2], HeaderValue::Int(258)),
            ("short unsigned", vec![b'u', 255, 255], HeaderValue::Int(65_535)),
            ("int", vec![b'I', 255, 255, 255, 255], HeaderValue::Int(-1)),
            ("unsigned", vec![b'i', 255, 255, 255, 255], HeaderValue::Int(4_294_967_295)),
            ("float", vec![b'f', 0x3f, 0, 0, 0], HeaderValue::Float(0.5)),
            ("long again", vec![b'L', 0, 0, 0, 0, 0, 0, 0, 7], HeaderValue::Int(7)),
            ("text", vec![b'S', 0, 0, 0, 2, 0xff, 0xfe], HeaderValue::Bytes(vec![0xff, 0xfe])),
        ]
    }

    #[test]
    fn every_type_of_others_has_a_place() {
        for (name, wire, value) in foreign() {
            assert_eq!(read(&inside(&[(name, wire)])).unwrap(), Headers::from([(name.to_owned(), value)]));
        }
    }

    #[test]
    fn what_is_deep_is_bytes_from_there_on_and_its_neighbours_are_as_they_were() {
        for levels in [1, DEEPEST - 1, DEEPEST, 20_000] {
            let fields = [("a", nested(2)), ("deep", nested(levels)), ("z", nested(DEEPEST - 1))];
            let seen = read(&inside(&fields)).unwrap();
            assert_eq!(depth(&seen["deep"]), levels.min(DEEPEST - 1), "{levels} levels");
            assert_eq!((depth(&seen["a"]), depth(&seen["z"])), (2, DEEPEST - 1));
        }
    }

    #[test]
    fn entries_stand_as_they_were_written() {
        let inside = inside(&[("a", nested(3)), ("b", vec![b'S', 0, 0, 0, 1, b'x']), ("c", vec![b'V'])]);
        let entries: Vec<_> = entries(&inside).collect::<Result<_, _>>().unwrap();
        assert_eq!(entries.iter().map(|(name, _)| *name).collect::<Vec<_>>(), [b"a", b"b", b"c"]);
        assert_eq!(entries.iter().flat_map(|(_, entry)| entry.to_vec()).collect::<Vec<_>>(), inside);
    }

    #[test]
    fn no_lie_about_a_length_does_harm() {
        let good = inside(&[("a", nested(DEEPEST + 5)), ("b", vec![b'S', 0, 0, 0, 1, b'x'])]);
        for at in 0..good.len() {
            for lie in [0, 1, 127, 255, b'A', b'F', b'S'] {
                let mut bad = good.clone();
                bad[at] = lie;
                let _read_or_refused = (read(&bad), entries(&bad).count());
            }
        }
    }
}
