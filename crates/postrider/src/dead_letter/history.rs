//! The attempts that failed, as a message carries them from one to the next: the last ten, each cut short, so that a header
//! never outgrows a frame.

use jiff::Timestamp;
use serde::Serialize;

use super::marks::{cut, names};
use crate::broker::{HeaderValue, Headers, Message};

/// So many are remembered, the newest.
const MOST: usize = 10;
/// So much of what went wrong.
const MAX_ERROR_BYTES: usize = 200;
const MAX_CLASS_BYTES: usize = 64;

/// An attempt that failed, and after which there was another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FailedAttempt {
    /// Which one, from 1.
    pub attempt: u32,
    /// When it failed.
    pub at: Timestamp,
    /// The kind of error.
    pub class: Option<String>,
    /// What went wrong; the beginning of it.
    pub error: String,
}

/// Adds an attempt to those that a message remembers.
pub(crate) fn remember_attempt(message: &mut Message, failed: &FailedAttempt) {
    let mut entry: Headers = [
        ("attempt".to_owned(), failed.attempt.into()),
        ("at".to_owned(), failed.at.to_string().into()),
        ("error".to_owned(), cut(&failed.error, MAX_ERROR_BYTES).into()),
    ]
    .into();
    if let Some(class) = &failed.class {
        entry.insert("class".to_owned(), cut(class, MAX_CLASS_BYTES).into());
    }
    let known = match message.headers.remove(names::FAILED_ATTEMPTS) {
        Some(HeaderValue::List(known)) => known,
        _ => Vec::new(),
    };
    let mut attempts: Vec<HeaderValue> = known.into_iter().chain([HeaderValue::Table(entry)]).collect();
    attempts.drain(..attempts.len().saturating_sub(MOST));
    message.headers.insert(names::FAILED_ATTEMPTS.to_owned(), HeaderValue::List(attempts));
}

/// Makes room in a message that has none: what went wrong before is told by the log alone then.
pub(crate) fn forget_attempts(message: &mut Message) {
    message.headers.remove(names::FAILED_ATTEMPTS);
}

/// The attempts before the last one, as far as they are remembered, the oldest first. What is no such entry is passed over.
pub fn failed_attempts(headers: &Headers) -> Vec<FailedAttempt> {
    let Some(HeaderValue::List(attempts)) = headers.get(names::FAILED_ATTEMPTS) else { return Vec::new() };
    attempts.iter().filter_map(read).collect()
}

fn read(entry: &HeaderValue) -> Option<FailedAttempt> {
    let HeaderValue::Table(entry) = entry else { return None };
    let text = |name: &str| entry.get(name).and_then(HeaderValue::as_str);
    Some(FailedAttempt {
        attempt: entry.get("attempt").and_then(HeaderValue::as_int)?.try_into().ok()?,
        at: text("at")?.parse().ok()?,
        class: text("class").map(str::to_owned),
        error: text("error").unwrap_or_default().to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_ten_are_remembered_each_cut_short() {
        let mut message = Message::default();
        for attempt in 1..=15 {
            let (at, class) = (Timestamp::UNIX_EPOCH, (attempt % 2 == 0).then(|| "smtp".to_owned()));
            let error = "ä".repeat(1 << 20);
            remember_attempt(&mut message, &FailedAttempt { attempt, at, class, error });
        }
        let found = failed_attempts(&message.headers);
        assert_eq!(found.iter().map(|one| one.attempt).collect::<Vec<_>>(), (6..=15).collect::<Vec<_>>());
        assert!(found.iter().all(|one| one.error.len() < 300 && one.error.starts_with("ää")));
        assert_eq!((found[0].class.as_deref(), found[1].class.as_deref()), (Some("smtp"), None));
    }

    #[test]
    fn what_others_wrote_there_is_passed_over() {
        let mut message = Message::default();
        for odd in [HeaderValue::Int(3), HeaderValue::List(vec![HeaderValue::Null, "x".into()])] {
            message.headers.insert(names::FAILED_ATTEMPTS.to_owned(), odd);
            assert_eq!(failed_attempts(&message.headers), []);
        }
    }
}
