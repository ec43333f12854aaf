//! When a message may be handled: what its producer asked for, and what a step of its waiting left to wait.
//!
//! A delay counts from when the event occurred, else from the message's AMQP timestamp, else from when it was first received,
//! which a message that waits carries along.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::broker::{HeaderValue, Message};
use crate::envelope::Envelope;
use crate::envelope::wire::header::{DUE_AT, FIRST_RECEIVED_AT, PROCESS_AFTER, PROCESS_AFTER_DELAY_MS};

/// When a message was first received, as far as it remembers: what stands in for the time of an event that has none.
pub(super) fn first_received(message: &Message, now: Timestamp) -> Timestamp {
    message.headers.get(FIRST_RECEIVED_AT).and_then(time).unwrap_or(now)
}

/// Nobody means to wait longer than this: microseconds in the place of milliseconds, or a time since 1970 in the place of a delay.
const LONGEST: SignedDuration = SignedDuration::from_hours(366 * 24);

/// Not before this time; nothing when nobody asked for one. A wish that cannot be read is told, because to ignore it would
/// be to handle the event too early; and so is one that would hide the event in a wait queue for years, where nobody looks.
pub(super) fn due(
    message: &Message,
    envelope: &Envelope,
    now: Timestamp,
) -> Result<Option<Timestamp>, String> {
    let waits = message.headers.get(DUE_AT).and_then(time);
    let after = match message.headers.get(PROCESS_AFTER) {
        None | Some(HeaderValue::Null) => None,
        Some(value) => Some(time(value).ok_or_else(|| {
            format!("the header {PROCESS_AFTER} is neither an RFC 3339 time nor milliseconds since 1970")
        })?),
    };
    let delayed = delay(message, envelope)?.map(|delay| {
        // Further away than any time can be said is the last of them.
        envelope.occurred_at.checked_add(delay).unwrap_or(Timestamp::MAX)
    });
    for (name, asked) in [(PROCESS_AFTER, after), (PROCESS_AFTER_DELAY_MS, delayed)] {
        if let Some(asked) = asked.filter(|asked| asked.duration_since(now) > LONGEST) {
            return Err(format!(
                "{name} asks to wait until {asked}; an event waits for {} days at most",
                LONGEST.as_hours() / 24
            ));
        }
    }
    Ok(waits.max(after).max(delayed))
}

/// From the header, else from the payload.
fn delay(message: &Message, envelope: &Envelope) -> Result<Option<Duration>, String> {
    let unreadable = || format!("{PROCESS_AFTER_DELAY_MS} is not a number of milliseconds");
    match message.headers.get(PROCESS_AFTER_DELAY_MS) {
        Some(HeaderValue::Null) | None => {}
        Some(HeaderValue::Float(millis)) => return milliseconds(*millis).map(Some).ok_or_else(unreadable),
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
            let whole = number.as_i64().map(whole);
            whole.or_else(|| number.as_f64().and_then(milliseconds)).map(Some).ok_or_else(unreadable)
        }
        Some(serde_json::Value::String(text)) => {
            text.trim().parse().map(whole).map(Some).map_err(|_| unreadable())
        }
        Some(_) => Err(unreadable()),
    }
}

/// Less than nothing is nothing: the time is over.
fn whole(millis: i64) -> Duration {
    Duration::from_millis(u64::try_from(millis).unwrap_or(0))
}

/// Nothing of what is no number at all.
fn milliseconds(millis: f64) -> Option<Duration> {
    let seconds = (!millis.is_nan()).then(|| millis.max(0.0) / 1000.0)?;
    Some(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
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
        due(message, &envelope(payload), NOON.parse().unwrap()).map(|due| due.map(|due| due.to_string()))
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
    fn the_latest_of_all_wishes_counts() {
        let mut message = with(PROCESS_AFTER, "2026-01-01T12:00:05Z".into());
        message.headers.insert(DUE_AT.to_owned(), "2026-01-01T13:00:00Z".into());
        let payload = serde_json::json!({ PROCESS_AFTER_DELAY_MS: -7 });
        assert_eq!(read(&message, &payload).unwrap().unwrap(), "2026-01-01T13:00:00Z");
        // The word somewhere else in the payload is nobody's wish.
        let payload = serde_json::json!({ "note": PROCESS_AFTER_DELAY_MS });
        assert_eq!(read(&Message::default(), &payload), Ok(None));
    }

    #[test]
    fn a_time_over_is_at_once_and_one_that_never_comes_is_told() {
        let (none, at_noon) = (serde_json::json!({}), Ok(Some(NOON.to_owned())));
        for past in [HeaderValue::Int(-1), HeaderValue::Int(i64::MIN), HeaderValue::Float(f64::NEG_INFINITY)]
        {
            assert_eq!(read(&with(PROCESS_AFTER_DELAY_MS, past), &none), at_noon);
        }
        let year = 366_u64 * 24 * 60 * 60 * 1000;
        let asks = |millis: u64| serde_json::json!({ PROCESS_AFTER_DELAY_MS: millis });
        assert_eq!(read(&Message::default(), &asks(year)), Ok(Some("2027-01-02T12:00:00Z".to_owned())));
        for never in [year + 1, 1_000_000_000_000_000_000, u64::MAX] {
            let told = read(&Message::default(), &asks(never)).unwrap_err();
            assert!(told.contains("366 days at most"), "{told}");
        }
        for never in [HeaderValue::Int(i64::MAX), HeaderValue::Float(f64::INFINITY), "9e99".into()] {
            assert!(read(&with(PROCESS_AFTER_DELAY_MS, never), &none).is_err());
        }
        assert!(read(&with(PROCESS_AFTER, "9000-01-01T00:00:00Z".into()), &none).is_err());
        let nan = with(PROCESS_AFTER_DELAY_MS, HeaderValue::Float(f64::NAN));
        assert!(read(&nan, &none).unwrap_err().contains("not a number of milliseconds"));
    }
}
