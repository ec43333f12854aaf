//! A job, its items, and how they are named.

use jiff::Timestamp;
use serde::Serialize;

use super::error::ProgressError;
use super::state::{Counts, Status};
use crate::envelope::{EventType, TenantId};
use crate::text::{InvalidText, text_newtype};

text_newtype!(
    /// The id of a job. It becomes a part of Redis keys, where braces choose the node of a cluster, so it has none.
    JobId, "a job id", 1..=128, rule plain
);
text_newtype!(
    /// The id of an item of a job, or of a page of its discovery: whatever a redelivery has too. Any text, a URL say.
    ItemId, "an item id", 1..=512
);

fn plain(what: &'static str, text: &str) -> Result<(), InvalidText> {
    if text.contains(|c: char| c.is_whitespace() || c.is_control() || c == '{' || c == '}') {
        let rule = "must have no braces, spaces or control characters; use letters, digits, - and _";
        return Err(InvalidText::Rule { what, text: text.to_owned(), rule });
    }
    Ok(())
}

/// A number of items: none or more, and exact in every language that may read it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Total(u64);

impl Total {
    /// The most: 2⁵³ − 1, which JSON and Redis scripts still keep exactly.
    pub const MAX: u64 = (1 << 53) - 1;

    /// Checks a number from outside.
    pub fn new(count: i64) -> Result<Self, ProgressError> {
        match u64::try_from(count) {
            Ok(count) if count <= Self::MAX => Ok(Self(count)),
            Ok(_) => Err(ProgressError::invalid(format!(
                "a total of {count} is more than the {} it may be; nothing was changed",
                Self::MAX
            ))),
            Err(_) => Err(ProgressError::invalid(format!(
                "a total of {count} is negative; give 0 or more. Nothing was changed"
            ))),
        }
    }

    /// The number.
    pub fn get(self) -> u64 {
        self.0
    }
}

impl From<u32> for Total {
    fn from(count: u32) -> Self {
        Self(count.into())
    }
}

/// A job to be followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewJob {
    /// Its id.
    pub id: JobId,
    /// Whose it is.
    pub tenant: Option<TenantId>,
    /// The type of the event that tells of its completion.
    pub announces: EventType,
}

impl NewJob {
    /// A job that ends with `job.completed`.
    pub fn new(id: impl AsRef<str>) -> Result<Self, InvalidText> {
        Ok(Self { id: JobId::new(id)?, tenant: None, announces: EventType::new(super::JOB_COMPLETED)? })
    }

    /// Whose it is.
    pub fn tenant(mut self, tenant: impl AsRef<str>) -> Result<Self, InvalidText> {
        self.tenant = Some(TenantId::new(tenant)?);
        Ok(self)
    }

    /// Another type of event to end with.
    pub fn announces(mut self, event_type: impl AsRef<str>) -> Result<Self, InvalidText> {
        self.announces = EventType::new(event_type)?;
        Ok(self)
    }
}

/// What became of one item. The first word counts: a repeat changes nothing, whatever it says.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark {
    /// Which item.
    pub item: ItemId,
    /// Whether it failed for good. It counts as handled all the same.
    pub failed: bool,
}

impl Mark {
    /// An item that is done.
    pub fn done(item: impl AsRef<str>) -> Result<Self, InvalidText> {
        Ok(Self { item: ItemId::new(item)?, failed: false })
    }

    /// An item that failed for good.
    pub fn failed(item: impl AsRef<str>) -> Result<Self, InvalidText> {
        Ok(Self { item: ItemId::new(item)?, failed: true })
    }

    /// Each item once, by its first mark, in an order that all who mark agree on, so that two batches with the same items
    /// wait for each other instead of deadlocking.
    pub(crate) fn first_of_each(marks: &[Self]) -> Vec<&Self> {
        let mut firsts: Vec<&Self> = marks.iter().collect();
        firsts.sort_by(|a, b| a.item.cmp(&b.item));
        firsts.dedup_by(|later, first| later.item == first.item);
        firsts
    }
}

/// What a batch of marks did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Marked {
    /// How many items were new, and are counted.
    pub counted: u64,
    /// How many marks were repeats.
    pub repeated: u64,
}

/// A job as it stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Job {
    /// Its id.
    pub id: JobId,
    /// Whose it is.
    pub tenant: Option<TenantId>,
    /// Where it stands.
    pub status: Status,
    /// How many items are known.
    pub total: u64,
    /// How many were handled, failed ones too.
    pub done: u64,
    /// How many of these failed.
    pub errors: u64,
    /// The type of the event that tells of its completion.
    pub announces: EventType,
    /// Grows with every change, so that a late older view never replaces a newer one.
    pub version: u64,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it changed last.
    pub updated_at: Timestamp,
    /// When it was done.
    pub finished_at: Option<Timestamp>,
}

impl Job {
    /// Its numbers.
    pub fn counts(&self) -> Counts {
        let Self { status, total, done, errors, .. } = *self;
        Counts { status, total, done, errors }
    }
}

/// Which jobs to list, the newest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobFilter {
    /// Only those in this status.
    pub status: Option<Status>,
    /// Only those of this tenant.
    pub tenant: Option<TenantId>,
    /// Only those after this one in the list: when it was made, and its id.
    pub after: Option<(Timestamp, JobId)>,
    /// No more than this many.
    pub limit: u32,
}

impl JobFilter {
    /// Whether it lets this job through.
    pub(crate) fn accepts(&self, job: &Job) -> bool {
        self.status.is_none_or(|status| status == job.status)
            && self.tenant.as_ref().is_none_or(|tenant| job.tenant.as_ref() == Some(tenant))
            && self.after.as_ref().is_none_or(|(at, id)| (job.created_at, &job.id) < (*at, id))
    }
}

impl Default for JobFilter {
    fn default() -> Self {
        Self { status: None, tenant: None, after: None, limit: 100 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_that_would_break_a_redis_key_are_refused() {
        for bad in ["", "a b", "{a}", "a}", "tab\t", "a\u{a0}b", "line\n"] {
            assert!(JobId::new(bad).is_err(), "{bad:?} was accepted");
        }
        let error = JobId::new("{7}").unwrap_err().to_string();
        assert!(error.contains("no braces"), "{error}");
        assert!(JobId::new("größe-7:eu/1").is_ok() && ItemId::new("https://x.test/{a} b").is_ok());
    }

    #[test]
    fn a_total_is_not_negative_and_stays_exact() {
        assert!(Total::new(-1).unwrap_err().to_string().contains("negative"));
        assert!(Total::new(1 << 53).is_err());
        assert_eq!(Total::new((1 << 53) - 1).unwrap().get(), Total::MAX);
    }

    #[test]
    fn the_first_mark_of_an_item_counts() {
        let marks = [Mark::failed("b").unwrap(), Mark::done("a").unwrap(), Mark::done("b").unwrap()];
        assert_eq!(Mark::first_of_each(&marks), [&marks[1], &marks[0]]);
    }
}
