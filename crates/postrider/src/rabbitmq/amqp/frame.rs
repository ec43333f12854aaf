//! What everything travels in: a type, a channel, a length, a payload and a mark at the end.

use bytes::{Buf as _, Bytes, BytesMut};

use super::Error;
use super::content::Content;
use super::method::{self, Method};
use super::wire::{Unsayable, sized};

pub(super) const METHOD: u8 = 1;
pub(super) const HEADER: u8 = 2;
pub(super) const BODY: u8 = 3;
pub(super) const HEARTBEAT: u8 = 8;
const END: u8 = 0xCE;

/// Type, channel and length.
const BEFORE: usize = 7;
/// What a frame takes beside its payload.
pub(super) const AROUND: usize = BEFORE + 1;
/// Says that we are alive.
pub(super) const I_AM_HERE: [u8; AROUND] = [HEARTBEAT, 0, 0, 0, 0, 0, 0, END];

/// How much larger than agreed the headers of a message may be. RabbitMQ sends them in one frame whatever we agreed on: they filled a
/// frame of somebody who agreed on larger ones, or one of ours, and it added `x-death`, `x-delivery-count` and the like. Who does not take
/// them is delivered them again, and loses the connection for all its consumers each time.
const LARGER: usize = 16 << 20;

/// A frame that has arrived.
#[derive(Debug)]
pub(super) struct Frame {
    pub(super) kind: u8,
    pub(super) channel: u16,
    pub(super) payload: Bytes,
}

/// Takes the next frame off the front, once it is whole.
pub(super) fn take(arrived: &mut BytesMut, frame_max: usize) -> Result<Option<Frame>, Error> {
    let Some(&[kind, c1, c2, s1, s2, s3, s4]) = arrived.first_chunk::<BEFORE>() else {
        return Ok(None);
    };
    let size = u32::from_be_bytes([s1, s2, s3, s4]) as usize;
    let most = if kind == HEADER { frame_max.saturating_add(LARGER) } else { frame_max };
    if !matches!(kind, METHOD | HEADER | BODY | HEARTBEAT) || size + AROUND > most {
        return Err(Error::NotUnderstood(format!("a frame of type {kind} with {size} bytes")));
    }
    if arrived.len() < size + AROUND {
        // The rest is on its way: one read shall be enough for it.
        arrived.reserve(size + AROUND - arrived.len());
        return Ok(None);
    }
    if arrived[BEFORE + size] != END {
        return Err(Error::NotUnderstood("a frame without its end".to_owned()));
    }
    arrived.advance(BEFORE);
    let payload = arrived.split_to(size).freeze();
    arrived.advance(1);
    Ok(Some(Frame { kind, channel: u16::from_be_bytes([c1, c2]), payload }))
}

/// Writes a frame around whatever is written inside.
pub(super) fn put<T>(out: &mut Vec<u8>, kind: u8, channel: u16, inside: impl FnOnce(&mut Vec<u8>) -> T) -> T {
    out.push(kind);
    out.extend_from_slice(&channel.to_be_bytes());
    let told = sized(out, inside);
    out.push(END);
    told
}

/// Writes a message that is published: where to (exchange and routing key), its properties, and its body in as many frames as it
/// takes.
///
/// An error says why no RabbitMQ would take it, and leaves what was written before as it was: a property or header name over
/// 255 bytes, a header that is no number, or more headers than one frame holds, which would close the connection and not the channel.
pub(super) fn put_publish(
    out: &mut Vec<u8>,
    channel: u16,
    (exchange, key): (&[u8], &[u8]),
    content: &Content<'_>,
    body: &[u8],
    frame_max: usize,
) -> Result<(), String> {
    let start = out.len();
    let refused = |out: &mut Vec<u8>, why: String| {
        out.truncate(start);
        Err(why)
    };
    let said = |unsayable: Unsayable| unsayable.to_string();
    let addressed = put(out, METHOD, channel, |out| method::put_publish(out, exchange, key));
    if let Err(why) = addressed.map_err(said) {
        return refused(out, why);
    }
    let headers = out.len();
    if let Err(why) = put(out, HEADER, channel, |out| content.put(out, body.len())).map_err(said) {
        return refused(out, why);
    }
    let size = out.len() - headers;
    if size > frame_max {
        return refused(
            out,
            format!(
                "its headers take {size} bytes, more than the {frame_max} of one frame; put what is large into the body"
            ),
        );
    }
    for part in body.chunks(frame_max - AROUND) {
        put(out, BODY, channel, |out| out.extend_from_slice(part));
    }
    Ok(())
}

/// Writes a method.
pub(super) fn put_method(out: &mut Vec<u8>, channel: u16, method: &Method) {
    put(out, METHOD, channel, |out| out.extend_from_slice(method.bytes()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::{HeaderValue, Headers, Message, Properties};

    const FRAME_MAX: usize = 4096;

    fn put_message(out: &mut Vec<u8>, channel: u16, message: &Message) -> Result<(), String> {
        let to = (&b"orders"[..], &b"order.created"[..]);
        put_publish(out, channel, to, &Content::of(message), &message.body, FRAME_MAX)
    }

    #[test]
    fn headers_are_taken_beyond_the_agreed_size() {
        for beyond in [500, 4 << 20] {
            let mut out = Vec::new();
            put(&mut out, HEADER, 1, |out| out.resize(out.len() + FRAME_MAX + beyond, 0));
            let mut arrived = BytesMut::from(&out[..]);
            assert_eq!(take(&mut arrived, FRAME_MAX).unwrap().unwrap().payload.len(), FRAME_MAX + beyond);
            out[0] = BODY;
            assert!(take(&mut BytesMut::from(&out[..]), FRAME_MAX).is_err());
        }
    }

    #[test]
    fn a_body_goes_in_as_many_frames_as_it_takes() {
        let body = vec![7; 10_000];
        let message = Message { body: body.clone().into(), ..Message::default() };
        let mut out = Vec::new();
        put_message(&mut out, 3, &message).unwrap();
        let mut arrived = BytesMut::from(&out[..]);
        let mut frames = Vec::new();
        while let Some(frame) = take(&mut arrived, FRAME_MAX).unwrap() {
            assert_eq!(frame.channel, 3);
            frames.push(frame);
        }
        assert!(arrived.is_empty());
        assert_eq!(frames.iter().map(|frame| frame.kind).collect::<Vec<_>>(), [1, 2, 3, 3, 3]);
        assert_eq!(frames[2..].iter().flat_map(|frame| frame.payload.to_vec()).collect::<Vec<_>>(), body);
        assert_eq!(Content::read(&frames[1].payload).unwrap().0, 10_000);
    }

    #[test]
    fn a_frame_is_taken_when_it_is_whole_however_its_bytes_arrive() {
        let mut out = Vec::new();
        put_message(&mut out, 1, &Message::default()).unwrap();
        let mut arrived = BytesMut::new();
        let mut taken = 0;
        for byte in &out {
            arrived.extend_from_slice(&[*byte]);
            taken += usize::from(take(&mut arrived, FRAME_MAX).unwrap().is_some());
        }
        assert_eq!((taken, arrived.len()), (2, 0));
    }

    #[test]
    fn what_no_frame_can_carry_is_refused_and_leaves_no_trace() {
        let long = Message {
            properties: Properties { message_id: Some("x".repeat(256)), ..Properties::default() },
            ..Message::default()
        };
        let mut out = b"before".to_vec();
        let why = put_message(&mut out, 1, &long).unwrap_err();
        assert!(why.contains("message_id has 256 bytes"), "{why}");
        let wide = Message {
            headers: Headers::from([("big".into(), HeaderValue::Text("x".repeat(FRAME_MAX)))]),
            ..Message::default()
        };
        let why = put_message(&mut out, 1, &wide).unwrap_err();
        assert!(why.contains("one frame"), "{why}");
        for float in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let inside = HeaderValue::List(vec![HeaderValue::Float(float)]);
            let odd = Message { headers: Headers::from([("odd".into(), inside)]), ..Message::default() };
            let why = put_message(&mut out, 1, &odd).unwrap_err();
            assert!(why.contains("cannot read"), "{why}");
        }
        assert_eq!(out, b"before");
    }

    #[test]
    fn what_is_no_frame_is_not_waited_for() {
        for bytes in [&b"HTTP/1.1 400 Bad Request"[..], b"AMQP\x00\x00\x09\x01", &[1, 0, 1, 255, 0, 0, 0]] {
            assert!(take(&mut BytesMut::from(bytes), FRAME_MAX).is_err(), "{bytes:?}");
        }
        assert!(take(&mut BytesMut::from(&[8, 0, 0, 0, 0, 0, 0, 1][..]), FRAME_MAX).is_err());
    }
}
