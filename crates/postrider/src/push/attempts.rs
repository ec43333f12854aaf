//! What the last attempts at an endpoint came to: status, time, and the beginning of the answer. Never what was sent.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;

use super::answer::{Answer, Said};
use super::sender::SendError;
use crate::envelope::EventId;
use crate::handler::Incoming;
use crate::topology::ConsumerName;

/// So many of each kind are in memory until somebody stores them.
const KEPT: usize = crate::store::KEPT_ATTEMPTS;

/// So many bytes of an answer are kept.
const ANSWER_BYTES: usize = 2048;

/// One attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Attempt {
    /// The endpoint's consumer.
    pub consumer: ConsumerName,
    /// The event.
    pub event_id: EventId,
    /// Which attempt at it, counted from 1.
    pub attempt: u32,
    /// When it began.
    pub at: Timestamp,
    /// How long it took.
    pub took_ms: u64,
    /// The status; absent when there was no answer.
    pub status: Option<u16>,
    /// What went wrong; absent when nothing did.
    pub error: Option<String>,
    /// The beginning of the answer's body, as text.
    pub answer: String,
}

impl Attempt {
    /// What an attempt came to.
    pub fn of(
        event: &Incoming,
        at: Timestamp,
        took: Duration,
        sent: &Result<Answer, SendError>,
        said: &Said,
    ) -> Self {
        let answer = sent.as_ref().ok();
        let body = answer.map_or(&[][..], |answer| &answer.body[..answer.body.len().min(ANSWER_BYTES)]);
        Self {
            consumer: event.consumer.clone(),
            event_id: event.envelope.id.clone(),
            attempt: event.attempt,
            at,
            took_ms: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
            status: answer.map(|answer| answer.status),
            error: match said {
                Said::Done => None,
                Said::Failed(failure) | Said::Gone(failure) => Some(failure.message.clone()),
            },
            // No database keeps a NUL in a text.
            answer: String::from_utf8_lossy(body).replace('\0', "\u{fffd}"),
        }
    }
}

/// The attempts at one endpoint that nobody has stored yet. Of those that failed, and of the others, as many are kept as the store keeps: what
/// the oldest make room for would be forgotten there, too, so that nothing is missing in between.
#[derive(Debug, Default)]
pub struct Attempts(Mutex<Fresh>);

#[derive(Debug, Default)]
struct Fresh {
    failed: VecDeque<(u64, Attempt)>,
    others: VecDeque<(u64, Attempt)>,
    /// How many there were: their order.
    count: u64,
}

impl Attempts {
    /// Remembers one.
    pub fn record(&self, attempt: Attempt) {
        let mut fresh = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        fresh.count += 1;
        let count = fresh.count;
        let kept = if attempt.error.is_some() { &mut fresh.failed } else { &mut fresh.others };
        if kept.len() == KEPT {
            kept.pop_front();
        }
        kept.push_back((count, attempt));
    }

    /// Takes them out, the oldest first.
    pub fn take(&self) -> Vec<Attempt> {
        let fresh = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        let mut all: Vec<_> = fresh.failed.into_iter().chain(fresh.others).collect();
        all.sort_by_key(|(count, _)| *count);
        all.into_iter().map(|(_, attempt)| attempt).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(number: u32, error: Option<&str>) -> Attempt {
        Attempt {
            consumer: ConsumerName::new("erp").unwrap(),
            event_id: EventId::new("evt_1").unwrap(),
            attempt: number,
            at: Timestamp::UNIX_EPOCH,
            took_ms: 1,
            status: None,
            error: error.map(str::to_owned),
            answer: String::new(),
        }
    }

    #[test]
    fn of_each_kind_the_newest_are_kept_in_their_order() {
        let attempts = Attempts::default();
        attempts.record(attempt(1, Some("unreachable")));
        for number in 2..=1001 {
            attempts.record(attempt(number, None));
        }
        let all: Vec<_> = attempts.take().iter().map(|one| one.attempt).collect();
        assert_eq!(all, (1..=1001).collect::<Vec<_>>(), "a thousand a second are all there");
        assert!(attempts.take().is_empty());
        attempts.record(attempt(1, Some("unreachable")));
        for number in 2..=3001 {
            attempts.record(attempt(number, None));
        }
        let all: Vec<_> = attempts.take().iter().map(|one| one.attempt).collect();
        let newest = std::iter::once(1).chain(2002..=3001).collect::<Vec<_>>();
        assert_eq!(all, newest, "successes drive no failure out");
    }
}
