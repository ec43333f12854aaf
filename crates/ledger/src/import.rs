//! History from elsewhere: entries as a file has them, posted here one after the other.
//!
//! An entry keeps its source event, so a repeat of the file, or of a part of it, posts nothing twice. It gets a number and a place in the
//! chain of these books; what it refers to is found by the number that it had in the file. What cannot be posted is named with its line,
//! and the rest is posted. A crash leaves what was posted until then, and the same file goes on from there.

mod csv;
mod file;
mod past;

pub use csv::Records;
pub use file::entries;
pub use past::{PastEntry, PastLine};

use past::There;

use std::collections::{HashMap, HashSet};

use postrider::envelope::TenantId;
use serde::Serialize;

use crate::books::Books;
use crate::correcting::opposite;
use crate::entry::{Draft, DraftLine, EntryKind};
use crate::error::LedgerError;
use crate::ledger::{LINES, Ledger};
use crate::money::Currency;
use crate::pipeline::{Answer, Arrival};
use crate::refusal::Refusal;

/// Entries in one transaction.
const BATCH: usize = 500;

/// What became of a file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Imported {
    /// Entries that are in the books now.
    pub posted: usize,
    /// Entries that were in the books before.
    pub duplicates: usize,
    /// Seals of periods: these books close their own.
    pub seals_left_out: usize,
    /// Entries that are not in the books.
    pub refused: Vec<RefusedRow>,
}

/// An entry of a file that was not posted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RefusedRow {
    /// The line it begins on, from 1.
    pub line: usize,
    /// Its source event, as far as it could be read.
    pub event: String,
    /// The code of the refusal.
    pub code: &'static str,
    /// In words.
    pub why: String,
}

/// An import on its way.
pub struct Import<'a, B> {
    ledger: &'a Ledger<B>,
    tenant: TenantId,
    base: Currency,
    waiting: Vec<Waiting>,
    /// The lines of waiting entries.
    waiting_lines: usize,
    /// Where waiting entries stand in the file.
    waiting_places: HashSet<There>,
    /// The numbers here of entries by where they stand in the file.
    numbers: HashMap<There, u64>,
    /// In a rehearsal: where entries stand in the file that would be posted.
    rehearsed: Option<HashSet<There>>,
    /// What has become of the file so far.
    pub so_far: Imported,
}

struct Waiting {
    line: usize,
    /// Where it stands in the file.
    there: Option<There>,
    draft: Draft,
}

impl<B: Books> Ledger<B> {
    /// Begins to import into a tenant's books.
    pub async fn import(&self, tenant: &TenantId) -> Result<Import<'_, B>, LedgerError> {
        let base = self.read_chart(tenant).await?.book.base_currency;
        Ok(Import {
            ledger: self,
            tenant: tenant.clone(),
            base,
            waiting: Vec::with_capacity(BATCH),
            waiting_lines: 0,
            waiting_places: HashSet::new(),
            numbers: HashMap::new(),
            rehearsed: None,
            so_far: Imported::default(),
        })
    }
}

impl<B: Books> Import<'_, B> {
    /// Only says what would become of the file: nothing is posted.
    #[must_use]
    pub fn rehearsed(mut self) -> Self {
        self.rehearsed = Some(HashSet::new());
        self
    }

    /// Takes the next entry of the file, or why there is none on this line. Posts when enough are waiting.
    pub async fn take(&mut self, line: usize, read: Result<PastEntry, String>) -> Result<(), LedgerError> {
        let past = match read {
            Err(why) => {
                self.refuse(line, "", None, &Refusal::Malformed(why));
                return Ok(());
            }
            Ok(past) if past.kind == EntryKind::Seal => {
                self.so_far.seals_left_out += 1;
                return Ok(());
            }
            Ok(past) => past,
        };
        let (event, there, referred) = (past.source_event.clone(), past.there(), past.referred());
        // What it refers to must be in the books before it.
        if referred.as_ref().is_some_and(|referred| self.waiting_places.contains(referred)) {
            self.post().await?;
        }
        if let Some(rehearsed) = &mut self.rehearsed
            && referred.is_some_and(|referred| rehearsed.contains(&referred))
        {
            // What it refers to would be there.
            rehearsed.extend(there);
            self.so_far.posted += 1;
            return Ok(());
        }
        let drafted = past.draft(self.base, |referred| self.numbers.get(referred).copied());
        match drafted {
            Err(refusal) => self.refuse(line, &event, there.as_ref(), &refusal),
            Ok(mut draft) => {
                self.keep_base(&mut draft).await?;
                self.waiting_places.extend(there.clone());
                self.waiting_lines += draft.lines.len();
                self.waiting.push(Waiting { line, there, draft });
                if self.waiting.len() >= BATCH || self.waiting_lines >= LINES {
                    self.post().await?;
                }
            }
        }
        Ok(())
    }

    /// Posts what is left, and says what became of everything.
    pub async fn finish(mut self) -> Result<Imported, LedgerError> {
        self.post().await?;
        self.so_far.refused.sort_by_key(|row| row.line);
        Ok(self.so_far)
    }

    /// A reversal undoes an entry at the base amounts that it has here, also where the file has none that count here: the rate of another day
    /// would leave a difference on accounts that hold nothing any more.
    async fn keep_base(&self, draft: &mut Draft) -> Result<(), LedgerError> {
        let is_open = |line: &DraftLine| line.base.is_none() && line.currency != self.base;
        let (EntryKind::Reversal, Some(number)) = (draft.kind, draft.refers_to) else { return Ok(()) };
        if !draft.lines.iter().any(is_open) {
            return Ok(());
        }
        let there = self.ledger.books.entries(&self.tenant, number.saturating_sub(1), 1).await?.pop();
        let opposite = there.filter(|there| there.number == number).map(|there| opposite(&there.lines));
        if let Some(opposite) = opposite.filter(|opposite| say_the_same(opposite, &draft.lines)) {
            draft.lines = opposite;
        }
        Ok(())
    }

    async fn post(&mut self) -> Result<(), LedgerError> {
        self.waiting_places.clear();
        self.waiting_lines = 0;
        let mut arrivals = Vec::with_capacity(self.waiting.len());
        let mut places = Vec::with_capacity(self.waiting.len());
        for Waiting { line, there, draft } in self.waiting.drain(..) {
            places.push((line, there, draft.source.event.clone()));
            arrivals.push(Arrival::Draft(Box::new(draft)));
        }
        let answers = if self.rehearsed.is_some() {
            self.ledger.rehearse(&self.tenant, &arrivals).await?
        } else {
            self.ledger.post(&self.tenant, &arrivals).await?
        };
        for ((line, there, event), answer) in places.into_iter().zip(answers) {
            let receipt = match answer {
                Answer::Refused(refusal) => {
                    self.refuse(line, event.as_str(), there.as_ref(), &refusal);
                    continue;
                }
                Answer::Posted(receipt) => {
                    self.so_far.posted += 1;
                    if let Some(rehearsed) = &mut self.rehearsed {
                        rehearsed.extend(there);
                        continue;
                    }
                    receipt
                }
                Answer::Duplicate(receipt) => {
                    self.so_far.duplicates += 1;
                    receipt
                }
            };
            self.numbers.extend(there.map(|there| (there, receipt.entry)));
        }
        Ok(())
    }

    /// Whoever refers to it finds nothing, and not an earlier entry of the file that has its number.
    fn refuse(&mut self, line: usize, event: &str, there: Option<&There>, refusal: &Refusal) {
        if let Some(there) = there {
            self.numbers.remove(there);
            if let Some(rehearsed) = &mut self.rehearsed {
                rehearsed.remove(there);
            }
        }
        // The words of a refusal are about the payload of an event, and this is a row of a file.
        let why = match refusal {
            Refusal::Malformed(why) => why.clone(),
            other => other.to_string(),
        };
        let row = RefusedRow { line, event: event.to_owned(), code: refusal.code(), why };
        self.so_far.refused.push(row);
    }
}

/// Whether lines are the same but for their order, their base amounts, and what rounding left over in base.
fn say_the_same(one: &[DraftLine], other: &[DraftLine]) -> bool {
    let said = |lines: &[DraftLine]| {
        let lines = lines.iter().filter(|line| line.amount.minor() > 0);
        let mut said: Vec<_> =
            lines.map(|line| (line.account.clone(), line.side, line.amount, line.currency)).collect();
        said.sort_unstable();
        said
    };
    said(one) == said(other)
}
