//! Third step: the day lies in a period that takes entries, or is moved on by the tenant's policy.

use crate::chart::Chart;
use crate::entry::{Draft, EntryKind};
use crate::period::{BackDated, Poster, open_day};
use crate::refusal::Refusal;

/// What the metadata says of an entry that was moved on: the day it should have had.
pub const MOVED_FROM: &str = "back_dated_from";

/// The draft on a day that is open.
pub fn place(mut draft: Draft, chart: &Chart, poster: Poster) -> Result<Draft, Refusal> {
    if draft.kind == EntryKind::Seal {
        return Ok(draft);
    }
    // People name the day they mean.
    let policy = if poster == Poster::Event { chart.book.back_dated } else { BackDated::Refuse };
    let day = open_day(&chart.periods, draft.effective_on, poster, policy)?;
    if day != draft.effective_on {
        draft.metadata.insert(MOVED_FROM.to_owned(), draft.effective_on.to_string());
        draft.effective_on = day;
    }
    Ok(draft)
}
