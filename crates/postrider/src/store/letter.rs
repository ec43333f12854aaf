//! Dead letters as people look for them: filters, pages, groups.

use std::fmt;
use std::future::Future;
use std::str::FromStr;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{DeadLetter, DeadLetters, StoreError};
use crate::envelope::{AggregateId, EventId, TenantId};
use crate::topology::{ConsumerName, QueueName};

/// Finding dead letters, and changing what becomes of them.
///
/// No question counts or reads the whole table: a page walks an index, newest first, and where a filter has none it looks at
/// [`SCANNED`] letters at most and says where it stopped.
pub trait Triage: DeadLetters {
    /// A page of dead letters, the newest first.
    fn letters(&self, query: &LetterQuery) -> impl Future<Output = Result<LetterPage, StoreError>> + Send;

    /// One of them, whole.
    fn letter(&self, id: LetterId) -> impl Future<Output = Result<Option<StoredLetter>, StoreError>> + Send;

    /// A page of groups, the one with the newest letter first.
    fn groups(&self, query: &GroupQuery) -> impl Future<Output = Result<GroupPage, StoreError>> + Send;

    /// What a filter matches now, counted: what a plan is made of.
    fn survey(&self, filter: &LetterFilter) -> impl Future<Output = Result<Survey, StoreError>> + Send;

    /// Writes what a filter matches now as the items of an operation, in the order in which the letters first failed, at most
    /// `limit` of them. Returns how many.
    fn freeze(
        &self,
        tx: &mut Self::Tx,
        operation: Uuid,
        filter: &LetterFilter,
        limit: Option<u64>,
    ) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// Those of these letters that are open, whole, in the order asked for. Nobody else resolves them until `tx` ends.
    fn take_open(
        &self,
        tx: &mut Self::Tx,
        ids: &[LetterId],
    ) -> impl Future<Output = Result<Vec<StoredLetter>, StoreError>> + Send;

    /// Marks letters that were taken as resolved.
    fn resolve(
        &self,
        tx: &mut Self::Tx,
        operation: Uuid,
        resolved: &[Resolution],
    ) -> impl Future<Output = Result<(), StoreError>> + Send;
}

/// A filter without an index looks at so many letters for one page, and no further.
pub const SCANNED: u32 = 20_000;

/// The number of a dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LetterId(pub i64);

impl fmt::Display for LetterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for LetterId {
    type Err = std::num::ParseIntError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}

/// 64-bit numbers are text in JSON.
impl Serialize for LetterId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for LetterId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// What became of a dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LetterStatus {
    /// Nothing yet.
    Open,
    /// It was sent again; should it die again, it is another letter.
    Replayed,
    /// Nobody wants it, or another event was sent in its place.
    Discarded,
}

impl LetterStatus {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Open, Self::Replayed, Self::Discarded];

    /// The word for it, in tables and on pages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Replayed => "replayed",
            Self::Discarded => "discarded",
        }
    }

    /// The status with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == name)
    }
}

/// Which dead letters: all that fit everything that is given.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LetterFilter {
    /// These alone.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ids: Vec<LetterId>,
    /// Who could not handle it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consumer: Option<ConsumerName>,
    /// The queue it was consumed from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<QueueName>,
    /// The type of event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event_type: Option<String>,
    /// The event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event_id: Option<EventId>,
    /// Why it is dead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The kind of error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_class: Option<String>,
    /// The group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
    /// Whose it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<TenantId>,
    /// The entity it happened to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aggregate_id: Option<AggregateId>,
    /// Text in the error (whatever its case) or in the body (as it stands).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Dead since then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// Dead before then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    /// Attempted at least so often.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_attempts: Option<u32>,
    /// Attempted at most so often.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<u32>,
    /// Replayed at most so often before: what dies again and again is left for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_replays: Option<u32>,
    /// What became of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<LetterStatus>,
}

impl LetterFilter {
    /// What is open, of whatever kind.
    pub fn open() -> Self {
        Self { status: Some(LetterStatus::Open), ..Self::default() }
    }

    /// Whether groups alone can answer it.
    pub(crate) fn is_about_groups(&self) -> bool {
        let Self { consumer, queue, event_type, reason, error_class, fingerprint, status, .. } = self.clone();
        let groups =
            Self { consumer, queue, event_type, reason, error_class, fingerprint, status, ..Self::default() };
        *self == groups && status.is_none_or(|status| status == LetterStatus::Open)
    }
}

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
            StoreError::new(super::StoreErrorKind::Invalid, text)
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
    /// The event, if the message could be read as one. Absent: flagged, and kept at least once.
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
    /// How many aggregates they are of.
    pub aggregates: u64,
    /// The queues they go back to, with how many each.
    pub queues: Vec<(String, u64)>,
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

    #[test]
    fn groups_answer_what_they_know() {
        assert!(LetterFilter::open().is_about_groups());
        let by_text = LetterFilter { text: Some("smtp".to_owned()), ..LetterFilter::open() };
        assert!(!by_text.is_about_groups());
    }
}
