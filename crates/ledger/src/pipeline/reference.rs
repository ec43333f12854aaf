//! Sixth step: what an entry refers to is there, is of the right kind, and was not reversed, settled or voided before.

use std::collections::HashMap;

use crate::books::Referred;
use crate::entry::{Balanced, EntryKind, Line};
use crate::refusal::Refusal;

/// The entries that a batch refers to, and what has referred to them so far.
pub struct References<'a> {
    entries: HashMap<u64, &'a Referred>,
    taken: HashMap<u64, u64>,
}

impl<'a> References<'a> {
    /// With what the books say.
    pub fn new(referred: &'a [Referred]) -> Self {
        let taken =
            referred.iter().filter_map(|referred| Some((referred.entry.number, referred.by?))).collect();
        let entries = referred.iter().map(|referred| (referred.entry.number, referred)).collect();
        Self { entries, taken }
    }

    /// Takes what the entry refers to, for the entry with this number.
    pub fn claim(&mut self, balanced: &Balanced, number: u64) -> Result<(), Refusal> {
        let kind = balanced.draft.kind;
        let Some(entry) = balanced.draft.refers_to else {
            return match kind {
                EntryKind::Reversal | EntryKind::Settlement | EntryKind::Void => {
                    Err(Refusal::UnknownEntry(0))
                }
                _ => Ok(()),
            };
        };
        let referred = self.entries.get(&entry).ok_or(Refusal::UnknownEntry(entry))?;
        let there = referred.entry.kind;
        let (fits, action) = match kind {
            EntryKind::Reversal => (
                matches!(
                    there,
                    EntryKind::Posted | EntryKind::Settlement | EntryKind::Opening | EntryKind::Closing
                ),
                "reversed",
            ),
            EntryKind::Settlement => (there == EntryKind::Pending, "settled"),
            EntryKind::Void => (there == EntryKind::Pending, "voided"),
            _ => (false, "referred to"),
        };
        if !fits {
            return Err(Refusal::WrongKind { entry, kind: there.as_str(), action });
        }
        match self.taken.get(&entry) {
            Some(by) if kind == EntryKind::Reversal => Err(Refusal::AlreadyReversed { entry, by: *by }),
            Some(by) => Err(Refusal::AlreadyResolved { entry, by: *by }),
            None => {
                self.taken.insert(entry, number);
                Ok(())
            }
        }
    }

    /// The promised lines that end with this entry.
    pub fn released(&self, balanced: &Balanced) -> Option<Vec<Line>> {
        match balanced.draft.kind {
            EntryKind::Settlement | EntryKind::Void => {
                self.entries.get(&balanced.draft.refers_to?).map(|referred| referred.entry.lines.clone())
            }
            _ => None,
        }
    }
}
