//! What is asked about dead letters, and what is answered.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use serde::Serialize;
use uuid::Uuid;

use super::{LetterFilter, LetterId, LetterStatus};
use crate::envelope::EventId;
use crate::store::{DeadLetter, StoreError, StoreErrorKind};

/// A place in the list of dead letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cursor {
    /// When the letter died.
    pub dead_at: Timestamp,
    /// Which one of that moment.
    pub id: LetterId,
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.dead_at.as_microsecond(), self.id)
    }
}

impl FromStr for Cursor {
    type Err = StoreError;
    fn from_str(text: &str) -> Result<Self, StoreError> {
        let parse = || {
            let (micros, id) = text.split_once('.')?;
            let dead_at = Timestamp::from_microsecond(micros.parse().ok()?).ok()?;
            Some(Self { dead_at, id: id.parse().ok()? })
        };
        parse().ok_or_else(|| {
            let text = format!("{text:?} is no place in a list; give one that a page before named, or none");
            StoreError::new(StoreErrorKind::Invalid, text)
        })
    }
}

/// Which page of dead letters.
#[derive(Debug, Clone, Default)]
pub struct LetterQuery {
    /// Which letters.
    pub filter: LetterFilter,
    /// Where the page is.
    pub turn: Turn,
    /// At most so many.
    pub limit: usize,
}

/// Where a page is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Turn {
    /// The newest.
    #[default]
    Newest,
    /// Older than this place.
    Before(Cursor),
    /// Newer than this place.
    After(Cursor),
}

/// A page of dead letters, the newest first whichever way it was turned.
#[derive(Debug, Clone, PartialEq)]
pub struct LetterPage {
    /// The letters.
    pub letters: Vec<LetterSummary>,
    /// Where to go on, if there may be more that way.
    pub next: Option<Cursor>,
    /// The search stopped here for its length, and not because it found enough: `next` goes on from there.
    pub stopped_at: Option<Timestamp>,
}

/// What a list shows of a dead letter.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LetterSummary {
    /// Its number.
    pub id: LetterId,
    /// The event, or the id that a message has which is none. Absent: flagged, and kept at least once.
    pub event_id: Option<String>,
    /// Its type.
    pub event_type: Option<String>,
    /// Whose it is.
    pub tenant: Option<String>,
    /// The entity it happened to.
    pub aggregate_id: Option<String>,
    /// Who could not handle it.
    pub consumer: Option<String>,
    /// The queue it was consumed from.
    pub queue: String,
    /// Why it is dead.
    pub reason: String,
    /// What went wrong; the beginning of it.
    pub error: String,
    /// The kind of error.
    pub error_class: Option<String>,
    /// Its group.
    pub fingerprint: String,
    /// How often it was attempted.
    pub attempts: u32,
    /// When it first failed.
    pub first_failed_at: Timestamp,
    /// When it became a dead letter.
    pub dead_at: Timestamp,
    /// What became of it.
    pub status: LetterStatus,
    /// When that was.
    pub resolved_at: Option<Timestamp>,
    /// Which operation did it.
    pub operation_id: Option<Uuid>,
    /// The dead letter whose replay died here.
    pub replay_of: Option<LetterId>,
    /// How often it was replayed before it died here.
    pub replays: u32,
    /// The event that was sent in its place, edited.
    pub replaced_by: Option<String>,
    /// Why its replay could not be published: it is open again.
    pub replay_error: Option<String>,
    /// The size of its body.
    pub body_bytes: u64,
}

impl LetterSummary {
    /// Its place in the list.
    pub fn cursor(&self) -> Cursor {
        Cursor { dead_at: self.dead_at, id: self.id }
    }
}

/// A dead letter, whole.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredLetter {
    /// What a list shows of it.
    pub summary: LetterSummary,
    /// Everything.
    pub letter: DeadLetter,
}

/// Which page of groups.
#[derive(Debug, Clone, Default)]
pub struct GroupQuery {
    /// Of which letters.
    pub filter: LetterFilter,
    /// After this group: when its newest letter died, and its fingerprint.
    pub after: Option<(Timestamp, String)>,
    /// At most so many.
    pub limit: usize,
    /// How many hours of counts to give with each, the last of which is the hour of `now`.
    pub hours: u16,
    /// The time by which hours are counted.
    pub now: Timestamp,
}

/// A page of groups.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupPage {
    /// The groups.
    pub groups: Vec<LetterGroup>,
    /// Where to go on, if there may be more.
    pub next: Option<(Timestamp, String)>,
    /// Only the newest letters were looked at, back to this time: the filter asks for what groups do not know.
    pub stopped_at: Option<Timestamp>,
}

/// Dead letters that failed for the same reason.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LetterGroup {
    /// What they have in common.
    pub fingerprint: String,
    /// Who could not handle them.
    pub consumer: Option<String>,
    /// The queue they were consumed from.
    pub queue: String,
    /// Their type.
    pub event_type: Option<String>,
    /// Why they are dead.
    pub reason: String,
    /// The kind of error.
    pub error_class: Option<String>,
    /// The error of one of them.
    pub error: String,
    /// How many are open.
    pub open: u64,
    /// How many there ever were.
    pub total: u64,
    /// When the first died.
    pub first_at: Timestamp,
    /// When the last died.
    pub last_at: Timestamp,
    /// How many died in each hour, the oldest first.
    pub hours: Vec<u64>,
    /// Some of them, the newest first.
    pub samples: Vec<LetterId>,
}

/// What a filter matches, counted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Survey {
    /// Open letters that match.
    pub letters: u64,
    /// Of these, whose event the inbox of their consumer knows: a replay of them does nothing.
    pub applied: u64,
    /// Of these, without an event id: nothing will know a repeat of them.
    pub unidentified: u64,
    /// Of these, that were replayed before and died again.
    pub replayed_before: u64,
    /// Of these, whose first failure is older than all the inbox remembers: had their event been applied before that, nothing
    /// would know it.
    pub forgotten: u64,
    /// How many aggregates they are of, each counted once: a tenant's, of a type, with an id.
    pub aggregates: u64,
    /// The queues they go back to, with how many each.
    pub queues: Vec<(String, u64)>,
    /// Of these, that no queue wanted: they go to their exchange once more.
    pub unroutable: u64,
}

impl Survey {
    /// Counts the letters of a queue.
    pub(crate) fn add_queue(&mut self, queue: String, letters: u64, unroutable: u64) {
        self.letters += letters;
        self.unroutable += unroutable;
        let back = letters.saturating_sub(unroutable);
        if back > 0 {
            self.queues.push((queue, back));
        }
    }
}

/// What becomes of a letter that was taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolution {
    /// Which one.
    pub letter: LetterId,
    /// What it is now.
    pub status: LetterStatus,
    /// The event that goes in its place.
    pub replaced_by: Option<EventId>,
    /// Whether that event goes to the same queue. A key that is parked behind the letter waits for it then, in the letter's place; else
    /// the key goes on, as behind one that is discarded.
    pub keeps_its_place: bool,
}

impl Resolution {
    /// Resolved, with nothing in its place.
    pub fn plain(letter: LetterId, status: LetterStatus) -> Self {
        Self { letter, status, replaced_by: None, keeps_its_place: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_survives_being_written_down() {
        let cursor =
            Cursor { dead_at: Timestamp::from_microsecond(1_763_200_000_123_456).unwrap(), id: LetterId(42) };
        assert_eq!(cursor.to_string().parse::<Cursor>().unwrap(), cursor);
        assert!("yesterday".parse::<Cursor>().unwrap_err().message.contains("no place in a list"));
    }
}
