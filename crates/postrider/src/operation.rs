//! Long work on many things: planned, run chunk by chunk, watched, cancelled, and gone on with after a crash.
//!
//! An operation is a row with a frozen list of items. Whoever runs it leases it; each chunk takes items off the list, does their
//! work, writes the audit entries and counts, in one transaction. So a crash at any point leaves exactly what was not done, and
//! two processes never do the same item. A kind of operation is a [`Work`]: what becomes of one chunk.
//!
//! Progress is the row itself: the command line, the dashboard and another process all see the same.

mod edits;
mod events;
mod letters;
mod pace;
mod runner;

pub use edits::{EditWork, Example, Trial, Unfit};
pub use events::{
    EventPlan, EventSurvey, EventWork, Forgetful, plan_events, shelf, start_events, start_events_as,
};
pub(crate) use letters::start_in;
pub use letters::{LetterPlan, LetterWork, Plan, plan, start, start_as};
pub use runner::{Ended, Runner, RunnerConfig};

use futures_util::future::BoxFuture;

use crate::store::{Operation, Store, StoreError};

/// What one kind of operation does with its items.
pub trait Work<S: Store>: Send + Sync {
    /// Does the work of these items in the transaction that takes them off the list. What it does outside of `tx` is done again
    /// after a crash.
    fn chunk<'a>(
        &'a self,
        store: &'a S,
        tx: &'a mut S::Tx,
        operation: &'a Operation,
        items: Vec<String>,
    ) -> BoxFuture<'a, Result<Chunk, StoreError>>;
}

/// What became of a chunk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Chunk {
    /// Items that were done.
    pub done: u64,
    /// Items that needed nothing any more.
    pub skipped: u64,
}
