//! When a message may be handled: what its producer asked for, and what a step of its waiting left to wait.
//!
//! A delay counts from when the event occurred, else from the message's AMQP timestamp, else from when it was first received,
//! which a message that waits carries along.

use std::time::Duration;

use jiff::Timestamp;

use crate::broker::{HeaderValue, Message};
use crate::envelope::Envelope;
use crate::envelope::wire::header::{DUE_AT, FIRST_RECEIVED_AT, PROCESS_AFTER, PROCESS_AFTER_DELAY_MS};

/// When a message was first received, as far as it remembers: what stands in for the time of an event that has none.
pub(super) fn first_received(message: &Message, now: Timestamp) -> Timestamp {
    message.headers.get(FIRST_RECEIVED_AT).and_then(time).unwrap_or(now)
}

/// Not before this time; nothing when nobody asked for one. A wish that cannot be read is told, because to ignore it would
/// be to handle the event too early.
pub(super) fn due(message: &Message, envelope: &Envelope) -> Result<Option<Timestamp>, String> {
    let waits = message.headers.get(DUE_AT).and_then(time);
    let after = match message.headers.get(PROCESS_AFTER) {
        None | Some(HeaderValue::Null) => None,
        Some(value) => Some(time(value).ok_or_else(|| {
            format!("the header {PROCESS_AFTER} is neither an RFC 3339 time nor milliseconds since 1970")
        })?),
    };
    let delayed = delay(message, envelope)?.map(|delay| {
        // What is further away than any time can be said waits until the last of them.
        envelope.occurred_at.checked_add(delay).unwrap_or(Timestamp::MAX)
    });
    Ok(waits.max(after).max(delayed))
}

/// From the header, else from the payload.
fn delay(message: &Message, envelope: &Envelope) -> Result<Option<Duration>, String> {
    let unreadable = || format!("{PROCESS_AFTER_DELAY_MS} is not a number of milliseconds");
    match message.headers.get(PROCESS_AFTER_DELAY_MS) {
        Some(HeaderValue::Null) | None => {}
        Some(HeaderValue::Float(millis)) => return Ok(Some(milliseconds(*millis))),
        Some(value) => return value.as_int().map(whole).map(Some).ok_or_else(unreadable),
    }
    // Few payloads have it, and looking for a word is much cheaper than parsing.
    let payload = &envelope.payload;
    let named = std::str::from_utf8(payload.bytes()).is_ok_and(|text| text.contains(PROCESS_AFTER_DELAY_MS));
    if !named {
        return Ok(None);
    }
    let Ok(serde_json::Value::Object(members)) = payload.parse() else { return Ok(None) };
    match members.get(PROCESS_AFTER_DELAY_MS) {
        None | Some(serde_json::Value::Null) => Ok(None),
        Some(serde_json::Value::Number(number)) => {
            number.as_i64().map(whole).or(number.as_f64().map(milliseconds)).map(Some).ok_or_else(unreadable)
        }
        Some(serde_json::Value::String(text)) => {
            text.trim().parse().map(whole).map(Some).map_err(|_| unreadable())
        }
        Some(_) => Err(unreadable()),
    }
}

fn whole(millis: i64) -> Duration {
    Duration::from_millis(u64::try_from(millis).unwrap_or(0))
}

fn milliseconds(millis: f64) -> Duration {
    Duration::try_from_secs_f64(millis.max(0.0) / 1000.0).unwrap_or(Duration::MAX)
}

fn time(value: &HeaderValue) -> Option<Timestamp> {
    match value {
        HeaderValue::Timestamp(seconds) => Timestamp::from_second(i64::try_from(*seconds).ok()?).ok(),
        HeaderValue::Text(text) if text.contains('-') => text.trim().parse().ok(),
        other => Timestamp::from_millisecond(other.as_int()?).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::envelope::Event;

    const NOON: &str = "2026-01-01T12:00:00Z";

    fn envelope(payload: &serde_json::Value) -> Envelope {
        let (clock, _) = Clock::manual(NOON.parse().unwrap());
        Event::new("order.placed").unwrap().json(payload).unwrap().into_envelope(&clock)
    }

    fn with(name: &str, value: HeaderValue) -> Message {
        let mut message = Message::default();
        message.headers.insert(name.to_owned(), value);
        message
    }

    fn read(message: &Message, payload: &serde_json::Value) -> Result<Option<String>, String> {
        due(message, &envelope(payload)).map(|due| due.map(|due| due.to_string()))
    }

    #[test]
    fn a_producer_asks_by_header_or_payload() {
        let (none, plain) = (serde_json::json!({}), Message::default());
        let at_five = Ok(Some("2026-01-01T12:00:05Z".to_owned()));
        assert_eq!(read(&plain, &none), Ok(None));
        for number in [serde_json::json!(5000), serde_json::json!(5000.0), serde_json::json!("5000")] {
            assert_eq!(read(&plain, &serde_json::json!({ PROCESS_AFTER_DELAY_MS: number })), at_five);
        }
        for value in [HeaderValue::Int(5000), "5000".into(), HeaderValue::Float(5000.0)] {
            assert_eq!(read(&with(PROCESS_AFTER_DELAY_MS, value), &none), at_five);
        }
        for value in ["2026-01-01T12:00:05Z".into(), HeaderValue::Int(1_767_268_805_000)] {
            assert_eq!(read(&with(PROCESS_AFTER, value), &none), at_five);
        }
    }

    #[test]
    fn a_wish_that_cannot_be_read_is_told() {
        let none = serde_json::json!({});
        for wrong in [serde_json::json!("soon"), serde_json::json!([5000]), serde_json::json!({})] {
            let payload = serde_json::json!({ PROCESS_AFTER_DELAY_MS: wrong });
            assert!(
                read(&Message::default(), &payload).unwrap_err().contains("not a number of milliseconds")
            );
        }
        assert!(read(&with(PROCESS_AFTER, "tomorrow".into()), &none).unwrap_err().contains("RFC 3339"));
    }

    #[test]
    fn the_latest_of_all_wishes_counts_and_the_absurd_ones_wait_for_ever() {
        let mut message = with(PROCESS_AFTER, "2026-01-01T12:00:05Z".into());
        message.headers.insert(DUE_AT.to_owned(), "2026-01-01T13:00:00Z".into());
        let payload = serde_json::json!({ PROCESS_AFTER_DELAY_MS: -7 });
        assert_eq!(read(&message, &payload).unwrap().unwrap(), "2026-01-01T13:00:00Z");
        let payload = serde_json::json!({ PROCESS_AFTER_DELAY_MS: u64::MAX });
        assert_eq!(due(&message, &envelope(&payload)).unwrap(), Some(Timestamp::MAX));
        // The word somewhere else in the payload is nobody's wish.
        let payload = serde_json::json!({ "note": PROCESS_AFTER_DELAY_MS });
        assert_eq!(read(&Message::default(), &payload), Ok(None));
    }
}
