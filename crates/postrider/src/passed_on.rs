//! Which headers of a message go on to a service outside, pushed or pulled: the marks of a replay, and its producer's own.
//!
//! Who can publish must not be able to speak for the operator or to break a request. So nothing that HTTP, a proxy, a signature or
//! we ourselves give a meaning to is passed on, and not more than any server takes. A worker that pulls gets the same as an endpoint.

use crate::broker::{HeaderValue, Headers};
use crate::dead_letter::header as mark;
use crate::envelope::wire;
use crate::handler::Incoming;

/// At most so many are passed on,
const MOST: usize = 64;
/// with values of so many bytes as they are sent,
const LONGEST: usize = 4 * 1024;
/// and of so many with their names, all together. Many servers refuse a head of more than 32 KiB.
const ALL: usize = 16 * 1024;

/// These come first, so that no others leave them without room.
const REPLAY: [&str; 3] = [mark::REPLAY_ID, mark::REPLAY_COUNT, mark::REPLACES];

/// What has a meaning to HTTP, or tells of other attempts than the one that is made.
const NEVER: &[&str] = &[
    "authorization",
    "bcc",
    "cc",
    "connection",
    "cookie",
    "date",
    "expect",
    "forwarded",
    "host",
    "keep-alive",
    "origin",
    "range",
    "referer",
    "set-cookie",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "user-agent",
    "via",
    "x-acquired-count",
    "x-attempt",
    "x-delivery-count",
    "x-real-ip",
    mark::CONSUMER,
    mark::DEAD_LETTER_ID,
    mark::DEAD_REASON,
    mark::FAILED_ATTEMPTS,
    mark::FIRST_FAILED_AT,
    mark::HOST,
    mark::LAST_FAILED_AT,
    mark::ORIGINAL_QUEUE,
];
const NEVER_BEGINNINGS: &[&str] = &[
    "accept",
    "access-control-",
    "ce-",
    "cloudevents",
    "content-",
    "if-",
    "proxy-",
    "sec-",
    "webhook-",
    "x-death",
    "x-final-",
    "x-first-death-",
    "x-forwarded-",
    "x-last-death-",
    "x-postrider-",
];

impl Incoming {
    /// The headers of its message that go on to services outside, by their names in lower case: the marks of a replay, then its producer's
    /// own. Not all of [`headers`](Self::headers): those that HTTP or Postrider give a meaning to stay here, and so does what is too much.
    pub fn passed_on(&self) -> Vec<(String, &HeaderValue)> {
        passed_on(&self.headers).into_iter().map(|Passed { name, value, .. }| (name, value)).collect()
    }
}

/// A header that goes on.
pub(crate) struct Passed<'a> {
    /// In lower case.
    pub(crate) name: String,
    /// The value as a header of HTTP carries it.
    pub(crate) text: String,
    value: &'a HeaderValue,
}

/// Those that go on. Each name is there once.
pub(crate) fn passed_on(headers: &Headers) -> Vec<Passed<'_>> {
    let (mut passed, mut room) = (Vec::<Passed<'_>>::new(), ALL);
    let is_mark = |name: &str| REPLAY.contains(&name);
    let marks = headers.iter().filter(|(name, _)| is_mark(name));
    let others = headers.iter().filter(|(name, _)| !is_mark(name));
    for (name, value) in marks.chain(others) {
        let name = name.to_ascii_lowercase();
        if !may_go(&name) || passed.iter().any(|other| other.name == name) {
            continue;
        }
        let Some(text) = text(value) else { continue };
        let bytes = name.len() + text.len();
        if passed.len() == MOST || text.len() > LONGEST || bytes > room {
            continue;
        }
        room -= bytes;
        passed.push(Passed { name, text, value });
    }
    passed
}

fn may_go(name: &str) -> bool {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !name.is_empty()
        && name.bytes().all(is_token)
        && !wire::is_own_header(name)
        && !NEVER.contains(&name)
        && !NEVER_BEGINNINGS.iter().any(|beginning| name.starts_with(beginning))
}

/// A value as a header can carry it, unless it is a list or a table.
fn text(value: &HeaderValue) -> Option<String> {
    match value {
        HeaderValue::Text(text) => Some(encoded(text)),
        HeaderValue::Int(value) => Some(value.to_string()),
        HeaderValue::Float(value) if value.is_finite() => Some(value.to_string()),
        HeaderValue::Bool(value) => Some(value.to_string()),
        _ => None,
    }
}

/// What is not printable ASCII, and the space, the percent sign and the double quote, as bytes of UTF-8 in hexadecimal. A space at either
/// end would be lost on the way, and with it the signature.
pub(crate) fn encoded(text: &str) -> String {
    use std::fmt::Write as _;

    text.bytes().fold(String::with_capacity(text.len()), |mut coded, byte| {
        match byte {
            b'!'..=b'~' if byte != b'%' && byte != b'"' => coded.push(char::from(byte)),
            // Writing to a String cannot fail.
            _ => _ = write!(coded, "%{byte:02X}"),
        }
        coded
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed(headers: impl IntoIterator<Item = (String, HeaderValue)>) -> Vec<(String, String)> {
        let headers = headers.into_iter().collect();
        passed_on(&headers).into_iter().map(|passed| (passed.name, passed.text)).collect()
    }

    #[test]
    fn the_marks_of_a_replay_and_plain_values_go_on() {
        let headers: [(&str, HeaderValue); 8] = [
            ("x-replay-id", "op/7".into()),
            ("x-replay-count", 2_u32.into()),
            ("x-replaces", "evt_0".into()),
            ("Region", "eu west é".into()),
            ("urgent", HeaderValue::Bool(true)),
            ("weight", HeaderValue::Float(1.5)),
            ("list", HeaderValue::List(Vec::new())),
            ("nan", HeaderValue::Float(f64::NAN)),
        ];
        let passed = passed(headers.map(|(name, value)| (name.to_owned(), value)));
        let wanted = [
            ("x-replaces", "evt_0"),
            ("x-replay-count", "2"),
            ("x-replay-id", "op/7"),
            ("region", "eu%20west%20%C3%A9"),
            ("urgent", "true"),
            ("weight", "1.5"),
        ];
        assert_eq!(passed, wanted.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }

    #[test]
    fn of_two_spellings_of_a_name_the_first_counts_and_a_worker_gets_the_value_itself() {
        let clock = crate::Clock::manual("2026-01-01T00:00:00Z".parse().unwrap()).0;
        let event = crate::Event::new("shop.order.placed").unwrap().into_envelope(&clock);
        let mut incoming = Incoming::new(crate::topology::ConsumerName::new("mail").unwrap(), event, 1);
        let headers: [(&str, HeaderValue); 4] = [
            ("region", "eu west é".into()),
            ("Region", "us".into()),
            ("x-replay-count", 2_u32.into()),
            ("authorization", "Bearer of another".into()),
        ];
        incoming.headers = headers.map(|(name, value)| (name.to_owned(), value)).into();
        let (count, region) = (HeaderValue::from(2_u32), HeaderValue::from("us"));
        let wanted = vec![("x-replay-count".to_owned(), &count), ("region".to_owned(), &region)];
        assert_eq!(incoming.passed_on(), wanted);
    }

    #[test]
    fn nothing_that_means_something_to_http_a_proxy_a_signature_or_us() {
        for name in [
            "Authorization",
            "cookie",
            "HOST",
            "connection",
            "Content-Length",
            "transfer-encoding",
            "webhook-id",
            "Webhook-Signature",
            "x-death",
            "x-final-error",
            "x-retry-count",
            "X-Group-Id",
            "x-event-id",
            "X-Event-Id",
            "x-attempt",
            "x-attempts",
            "x-consumer",
            "traceparent",
            "cloudEvents_type",
            "ce-id",
            "x-forwarded-for",
            "proxy-authorization",
            "user-agent",
            "accept-encoding",
            "x-original-queue",
            "x-first-failed-at",
            "processAfterDelayMs",
            "",
            "two words",
            "a:b",
            "a\r\nb",
            "é",
        ] {
            assert!(passed([(name.to_owned(), "1".into())]).is_empty(), "{name:?}");
        }
    }

    #[test]
    fn no_more_than_any_server_takes_and_the_marks_first() {
        let many = (0..100).map(|number| (format!("a{number:03}"), HeaderValue::Int(number)));
        let many = many.chain([("x-replay-id".to_owned(), "op/7".into())]);
        let passed_on = passed(many);
        assert_eq!((passed_on.len(), passed_on[0].0.as_str()), (64, "x-replay-id"));
        let long = |bytes: usize| HeaderValue::Text("x".repeat(bytes));
        assert_eq!(passed([("a".to_owned(), long(4096)), ("b".to_owned(), long(4097))]).len(), 1);
        let full = (0..9).map(|number| (format!("a{number}"), long(4000)));
        assert_eq!(passed(full).len(), 4, "16 KiB together");
    }
}
