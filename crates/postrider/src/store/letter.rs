//! Dead letters as people look for them: filters, pages, groups.

mod page;

pub use page::{
    Cursor, GroupPage, GroupQuery, LetterGroup, LetterPage, LetterQuery, LetterSummary, Resolution,
    StoredLetter, Survey, Turn,
};

use std::fmt;
use std::future::Future;
use std::str::FromStr;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{DeadLetters, StoreError};
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

    /// The letters that [`Self::freeze`] would take now: those that failed first.
    fn foremost(
        &self,
        filter: &LetterFilter,
        limit: usize,
    ) -> impl Future<Output = Result<Vec<LetterId>, StoreError>> + Send;

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
    /// Replayed at most so often before: what dies again and again is left for people. So is what could not be published the last time: it
    /// did not die again, and would go round for ever.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_answer_what_they_know() {
        assert!(LetterFilter::open().is_about_groups());
        let by_text = LetterFilter { text: Some("smtp".to_owned()), ..LetterFilter::open() };
        assert!(!by_text.is_about_groups());
    }
}
