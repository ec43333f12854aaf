//! What became of events, judged from the outside: each effect once, none lost, none from nowhere.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use postrider::EventId;

/// Compares the events that were committed with the effects that a consumer's table holds.
///
/// The table must not have a unique constraint, or the checker could never see a doubled effect.
#[derive(Debug, Clone, Default)]
pub struct EffectLog {
    committed: BTreeSet<EventId>,
    effects: BTreeMap<String, BTreeMap<EventId, usize>>,
}

/// What was wrong for one consumer. Empty lists: nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Committed, without an effect.
    pub lost: Vec<EventId>,
    /// With more than one effect, and how many.
    pub doubled: Vec<(EventId, usize)>,
    /// An effect of an event that nobody committed.
    pub unknown: Vec<EventId>,
}

impl EffectLog {
    /// A log of nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Notes events whose commit was answered.
    pub fn commit(&mut self, ids: impl IntoIterator<Item = EventId>) -> &mut Self {
        self.committed.extend(ids);
        self
    }

    /// Notes the rows of the effects table: who applied which event.
    pub fn effects<C: Into<String>>(&mut self, rows: impl IntoIterator<Item = (C, EventId)>) -> &mut Self {
        for (consumer, id) in rows {
            *self.effects.entry(consumer.into()).or_default().entry(id).or_default() += 1;
        }
        self
    }

    /// Judges one consumer, who was to apply every committed event.
    pub fn judge(&self, consumer: &str) -> Verdict {
        let none = BTreeMap::new();
        let effects = self.effects.get(consumer).unwrap_or(&none);
        let twice = effects.iter().filter(|(_, times)| **times > 1);
        Verdict {
            lost: self.committed.iter().filter(|id| !effects.contains_key(*id)).cloned().collect(),
            doubled: twice.map(|(id, times)| (id.clone(), *times)).collect(),
            unknown: effects.keys().filter(|id| !self.committed.contains(*id)).cloned().collect(),
        }
    }

    /// How many of the committed events have an effect for this consumer: what a test waits for.
    pub fn applied(&self, consumer: &str) -> usize {
        let effects = self.effects.get(consumer);
        effects.map_or(0, |effects| effects.keys().filter(|id| self.committed.contains(*id)).count())
    }
}

impl Verdict {
    /// Whether every committed event took effect once, and nothing else did.
    pub fn is_clean(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 10;
        let Self { lost, doubled, unknown } = self;
        write!(f, "{} lost, {} doubled, {} unknown", lost.len(), doubled.len(), unknown.len())?;
        for id in lost.iter().take(SHOWN) {
            write!(f, "\n  lost {id}")?;
        }
        for (id, times) in doubled.iter().take(SHOWN) {
            write!(f, "\n  applied {times} times {id}")?;
        }
        for id in unknown.iter().take(SHOWN) {
            write!(f, "\n  never committed {id}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> EventId {
        EventId::new(text).unwrap()
    }

    #[test]
    fn each_fault_is_told_apart() {
        let mut log = EffectLog::new();
        log.commit(["a", "b", "c"].map(id));
        log.effects([
            ("mail", id("a")),
            ("mail", id("b")),
            ("mail", id("b")),
            ("mail", id("x")),
            ("ledger", id("c")),
        ]);
        let verdict = log.judge("mail");
        assert_eq!(verdict.lost, [id("c")]);
        assert_eq!(verdict.doubled, [(id("b"), 2)]);
        assert_eq!(verdict.unknown, [id("x")]);
        assert_eq!(log.applied("mail"), 2);
        let text = "1 lost, 1 doubled, 1 unknown\n  lost c\n  applied 2 times b\n  never committed x";
        assert_eq!(verdict.to_string(), text);
    }

    #[test]
    fn one_effect_each_is_clean() {
        let mut log = EffectLog::new();
        log.commit(["a", "b"].map(id)).effects([("mail", id("b")), ("mail", id("a"))]);
        assert!(log.judge("mail").is_clean());
        assert_eq!(log.judge("ledger").lost.len(), 2);
    }
}
