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

/// An endpoint keeps so many in memory until somebody stores them.
const KEPT: usize = 256;

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

/// The attempts at one endpoint that nobody has stored yet. The oldest make room for new ones, those that succeeded first.
#[derive(Debug, Default)]
pub struct Attempts(Mutex<VecDeque<Attempt>>);

impl Attempts {
    /// Remembers one.
    pub fn record(&self, attempt: Attempt) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() == KEPT {
            let oldest = kept.iter().position(|attempt| attempt.error.is_none()).unwrap_or(0);
            kept.remove(oldest);
        }
        kept.push_back(attempt);
    }

    /// Takes them out, the oldest first.
    pub fn take(&self) -> Vec<Attempt> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).drain(..).collect()
    }
}
