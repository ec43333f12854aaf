//! Where a job stands and which steps it may take: pure, and the same on every backend.
//!
//! ```text
//! INITIALIZING ──begin──▶ CRAWLING ──end──▶ PROCESSING_WAIT ──mark──▶ PROCESSING ──last mark──▶ DONE
//!       └───────────────────end───────────────────▲
//! ```
//! Ending discovery skips what there is nothing to wait for: a job whose items are all done (or that has none) is DONE at
//! once, and one with some of them done is PROCESSING.

use serde::{Deserialize, Serialize};

use super::error::ProgressErrorKind;
use super::job::{ItemId, Total};

/// Where a job stands. The words are those that other services read in Redis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Status {
    /// Known, nothing else.
    Initializing,
    /// Its items are being discovered; the total may grow.
    Crawling,
    /// All items are known, none is done.
    ProcessingWait,
    /// All items are known, some are done.
    Processing,
    /// All items are known and done. Nothing changes any more.
    Done,
}

impl Status {
    /// All of them, in the order in which a job passes through them.
    pub const ALL: [Self; 5] =
        [Self::Initializing, Self::Crawling, Self::ProcessingWait, Self::Processing, Self::Done];

    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Initializing => "INITIALIZING",
            Self::Crawling => "CRAWLING",
            Self::ProcessingWait => "PROCESSING_WAIT",
            Self::Processing => "PROCESSING",
            Self::Done => "DONE",
        }
    }

    /// From the word for it, in capitals or not.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_str().eq_ignore_ascii_case(name))
    }

    /// Whether its items may still be being discovered. Until that has ended, nothing is announced.
    pub fn is_open(self) -> bool {
        matches!(self, Self::Initializing | Self::Crawling)
    }

    /// Whether a job may go from this status to that one.
    pub fn may_become(self, next: Self) -> bool {
        use Status::{Crawling, Done, Initializing, Processing, ProcessingWait};
        matches!(
            (self, next),
            (Initializing, Crawling)
                | (Initializing | Crawling, ProcessingWait | Processing | Done)
                | (ProcessingWait, Processing | Done)
                | (Processing, Done)
        )
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A step that changes a job other than by marking its items. Every one of them may be repeated without harm.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// There are this many items. Until the job is DONE it can be corrected, but not to fewer than are done.
    SetTotal(Total),
    /// A page of discovery found this many more. A page is counted once, however often it is reported.
    AddTotal {
        /// Which page: the id of the event that reported it, say.
        page: ItemId,
        /// How many items it found.
        found: Total,
    },
    /// Discovery begins.
    BeginDiscovery,
    /// Discovery has ended: the total is known, and the job is DONE when that many are.
    EndDiscovery,
}

/// The numbers of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Where it stands.
    pub status: Status,
    /// How many items are known.
    pub total: u64,
    /// How many were handled, failed ones too.
    pub done: u64,
    /// How many of these failed.
    pub errors: u64,
}

/// Why a step was refused: the kind, and the rest of a sentence that begins with the job.
pub(crate) type Refusal = (ProgressErrorKind, String);

impl Counts {
    /// A job that was just made.
    pub const NEW: Self = Self { status: Status::Initializing, total: 0, done: 0, errors: 0 };

    /// What a step would make of it, or why it would be refused: the rules, for whoever wants to know beforehand. A page
    /// counts as new.
    pub fn try_change(self, change: &Change) -> Result<Self, ProgressErrorKind> {
        self.after(change).map_err(|(kind, _)| kind)
    }

    /// What new items would make of it: this many done, so many of them failed.
    pub fn try_marks(self, done: u64, errors: u64) -> Result<Self, ProgressErrorKind> {
        self.after_marks(done, errors).map_err(|(kind, _)| kind)
    }

    /// What a step makes of it. A step that was taken before changes nothing. Whether a page is new is for the caller to know.
    pub(crate) fn after(self, change: &Change) -> Result<Self, Refusal> {
        match change {
            Change::SetTotal(total) => self.with_total(total.get()),
            Change::AddTotal { found, .. } => self.with_more(*found),
            Change::BeginDiscovery => match self.status {
                Status::Initializing => Ok(Self { status: Status::Crawling, ..self }),
                Status::Crawling => Ok(self),
                status => {
                    let text = format!(
                        "is {status}: its discovery has ended and cannot begin again; nothing was changed. Start a new job"
                    );
                    Err((ProgressErrorKind::IllegalMove, text))
                }
            },
            Change::EndDiscovery if !self.status.is_open() => Ok(self),
            Change::EndDiscovery if self.done > self.total => {
                let Self { done, total, .. } = self;
                let text = format!(
                    "has {done} items done but a total of {total}, so its discovery cannot end; nothing was changed. Set the total first"
                );
                Err((ProgressErrorKind::TooMany, text))
            }
            Change::EndDiscovery => Ok(Self { status: self.when_closed(), ..self }),
        }
    }

    /// What new items make of it: this many done, so many of them failed. No items are no step.
    pub(crate) fn after_marks(self, done: u64, errors: u64) -> Result<Self, Refusal> {
        if done == 0 {
            return Ok(self);
        }
        if self.status == Status::Done {
            let text = format!(
                "is DONE with all of its {} items, and {done} other items came; nothing was counted. Give its true total before discovery ends",
                self.total
            );
            return Err((ProgressErrorKind::AfterDone, text));
        }
        let counted = Self { done: self.done + done, errors: self.errors + errors, ..self };
        if self.status.is_open() {
            return Ok(counted);
        }
        if counted.done > self.total {
            let text = format!(
                "has a total of {} and {} done, so {done} more are too many; nothing was counted. Correct the total, or mark items of this job only",
                self.total, self.done
            );
            return Err((ProgressErrorKind::TooMany, text));
        }
        Ok(Self { status: counted.when_closed(), ..counted })
    }

    fn with_total(self, total: u64) -> Result<Self, Refusal> {
        if total == self.total {
            return Ok(self);
        }
        if self.status == Status::Done {
            let text = format!("is DONE with a total of {}; nothing was changed", self.total);
            return Err((ProgressErrorKind::AfterDone, text));
        }
        if total < self.done {
            let text =
                format!("has {} items done, more than the total of {total}; nothing was changed", self.done);
            return Err((ProgressErrorKind::TooMany, text));
        }
        let changed = Self { total, ..self };
        let status = if self.status.is_open() { self.status } else { changed.when_closed() };
        Ok(Self { status, ..changed })
    }

    fn with_more(self, found: Total) -> Result<Self, Refusal> {
        if !self.status.is_open() {
            let text = format!(
                "is {}: its discovery has ended, and its total no longer grows; nothing was changed. Set the total to correct it",
                self.status
            );
            let kind = if self.status == Status::Done {
                ProgressErrorKind::AfterDone
            } else {
                ProgressErrorKind::IllegalMove
            };
            return Err((kind, text));
        }
        let total = self.total.checked_add(found.get()).filter(|total| *total <= Total::MAX);
        let total = total.ok_or_else(|| {
            (
                ProgressErrorKind::Invalid,
                format!("cannot have more than {} items; nothing was changed", Total::MAX),
            )
        })?;
        Ok(Self { total, ..self })
    }

    /// The finish check: where a job stands whose discovery has ended.
    fn when_closed(self) -> Status {
        match self.done {
            done if done >= self.total => Status::Done,
            0 => Status::ProcessingWait,
            _ => Status::Processing,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn counts(status: Status, total: u64, done: u64) -> Counts {
        Counts { status, total, done, errors: 0 }
    }

    fn total(count: i64) -> Total {
        Total::new(count).unwrap()
    }

    fn kind(refused: Result<Counts, Refusal>) -> ProgressErrorKind {
        refused.unwrap_err().0
    }

    #[test]
    fn the_last_item_finishes_the_job_and_not_before_discovery_ended() {
        let crawling = counts(Status::Crawling, 2, 1).after_marks(1, 1).unwrap();
        assert_eq!(crawling, Counts { errors: 1, ..counts(Status::Crawling, 2, 2) });
        assert_eq!(crawling.after(&Change::EndDiscovery).unwrap().status, Status::Done);
        let waiting = counts(Status::Crawling, 2, 0).after(&Change::EndDiscovery).unwrap();
        assert_eq!(waiting.status, Status::ProcessingWait);
        let processing = waiting.after_marks(1, 0).unwrap();
        assert_eq!(processing.status, Status::Processing);
        assert_eq!(processing.after_marks(1, 0).unwrap().status, Status::Done);
    }

    #[test]
    fn a_job_of_zero_items_is_done_when_discovery_ends() {
        assert_eq!(Counts::NEW.after(&Change::EndDiscovery).unwrap().status, Status::Done);
    }

    #[test]
    fn lowering_the_total_to_what_is_done_finishes_the_job() {
        let lowered = counts(Status::Processing, 3, 2).after(&Change::SetTotal(total(2))).unwrap();
        assert_eq!(lowered.status, Status::Done);
    }

    #[test]
    fn nothing_changes_a_job_that_is_done() {
        let done = counts(Status::Done, 2, 2);
        assert_eq!(done.after(&Change::EndDiscovery), Ok(done));
        assert_eq!(done.after(&Change::SetTotal(total(2))), Ok(done));
        assert_eq!(kind(done.after_marks(1, 0)), ProgressErrorKind::AfterDone);
        assert_eq!(kind(done.after(&Change::SetTotal(total(3)))), ProgressErrorKind::AfterDone);
        assert_eq!(kind(done.after(&Change::BeginDiscovery)), ProgressErrorKind::IllegalMove);
    }

    #[test]
    fn more_done_than_the_total_is_refused_once_the_total_is_known() {
        assert_eq!(counts(Status::Crawling, 1, 1).after_marks(1, 0).unwrap().done, 2);
        assert_eq!(
            kind(counts(Status::Crawling, 1, 2).after(&Change::EndDiscovery)),
            ProgressErrorKind::TooMany
        );
        assert_eq!(kind(counts(Status::Processing, 2, 1).after_marks(2, 0)), ProgressErrorKind::TooMany);
        assert_eq!(
            kind(counts(Status::Crawling, 5, 3).after(&Change::SetTotal(total(2)))),
            ProgressErrorKind::TooMany
        );
    }

    #[derive(Debug, Clone)]
    enum Step {
        Change(Change),
        Marks(u64, u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0..6_i64).prop_map(|n| Step::Change(Change::SetTotal(total(n)))),
            (0..4_i64).prop_map(|n| {
                Step::Change(Change::AddTotal { page: ItemId::new("page").unwrap(), found: total(n) })
            }),
            Just(Step::Change(Change::BeginDiscovery)),
            Just(Step::Change(Change::EndDiscovery)),
            (0..3_u64, 0..3_u64).prop_map(|(done, errors)| Step::Marks(done, errors.min(done))),
        ]
    }

    proptest! {
        #[test]
        fn whatever_happens_moves_are_legal_and_done_means_all_of_them(steps in prop::collection::vec(step(), 0..30)) {
            let mut now = Counts::NEW;
            for step in steps {
                let next = match step {
                    Step::Change(change) => now.after(&change),
                    Step::Marks(done, errors) => now.after_marks(done, errors),
                };
                let Ok(next) = next else { continue };
                prop_assert!(next.status == now.status || now.status.may_become(next.status), "{now:?} to {next:?}");
                prop_assert!(next.errors <= next.done && next.done >= now.done);
                prop_assert!(next.status.is_open() || (next.status == Status::Done) == (next.done == next.total));
                prop_assert!(now.status != Status::Done || next == now);
                now = next;
            }
        }
    }
}
