//! Whether both buses had the same: by event id, what arrived where. Pure.

use std::collections::{BTreeMap, HashMap};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::envelope::{EventId, PayloadHash};

/// So many events are named of each kind of difference.
const NAMED: usize = 100;

/// One of the two buses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// The new one.
    New,
    /// The old one.
    Legacy,
}

/// What is wrong with an event on one side.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum Difference {
    /// It did not arrive.
    Missing {
        /// Where.
        side: Side,
        /// The event.
        event_id: String,
        /// Why, if the store knows.
        error: Option<String>,
    },
    /// It arrived, and nobody committed it: somebody else publishes there.
    Extra {
        /// Where.
        side: Side,
        /// The event; absent if the message has no id.
        event_id: Option<String>,
    },
    /// It arrived with another body than the outbox row gives.
    Different {
        /// Where.
        side: Side,
        /// The event.
        event_id: String,
        /// What the outbox row gives.
        expected: String,
        /// What arrived.
        found: String,
    },
}

/// The report of a comparison.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parity {
    /// Whether both sides had the same, and there was something to compare.
    pub holds: bool,
    /// The version of the migration it was made under.
    pub version: i64,
    /// When it was made.
    pub at: Timestamp,
    /// Events that were compared.
    pub compared: u64,
    /// Messages that arrived on the new side.
    pub new_messages: u64,
    /// Messages that arrived on the old one.
    pub legacy_messages: u64,
    /// Messages that arrived more than once, on either side: at least once allows it.
    pub repeated: u64,
    /// Events that are missing on a side.
    pub missing: u64,
    /// Messages that nobody committed.
    pub extra: u64,
    /// Events with another body.
    pub different: u64,
    /// Some of them by name.
    pub differences: Vec<Difference>,
    /// Why it says nothing, if it does not.
    pub note: Option<String>,
}

/// An event that must have arrived on both sides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Expected {
    pub(super) event_id: EventId,
    pub(super) new: PayloadHash,
    pub(super) legacy: PayloadHash,
    /// Why the copy is not there, if the store knows.
    pub(super) error: Option<String>,
    /// The position of its row, if no copy of it was ever recorded: none will arrive.
    pub(super) owed: Option<i64>,
}

/// What arrived on the two sides.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    /// The bodies of an event, by side: one, unless a repeat had another.
    seen: HashMap<EventId, BTreeMap<Side, Vec<PayloadHash>>>,
    new_messages: u64,
    legacy_messages: u64,
    repeated: u64,
    /// Messages without an id, by side.
    nameless: BTreeMap<Side, u64>,
}

impl Arrivals {
    pub(super) fn note(&mut self, side: Side, event: Option<EventId>, body: PayloadHash) {
        match side {
            Side::New => self.new_messages += 1,
            Side::Legacy => self.legacy_messages += 1,
        }
        let Some(event) = event else {
            *self.nameless.entry(side).or_default() += 1;
            return;
        };
        let bodies = self.seen.entry(event).or_default().entry(side).or_default();
        self.repeated += u64::from(!bodies.is_empty());
        if !bodies.contains(&body) {
            bodies.push(body);
        }
    }

    /// How many events arrived, on whichever side.
    pub(super) fn len(&self) -> usize {
        self.seen.len()
    }

    /// Whether an event has arrived wherever it will.
    pub(super) fn has(&self, event: &Expected) -> bool {
        self.seen.get(&event.event_id).is_some_and(|sides| {
            sides.contains_key(&Side::New) && (event.owed.is_some() || sides.contains_key(&Side::Legacy))
        })
    }

    /// Those that arrived and are not expected: committed before the window, or by nobody.
    pub(super) fn unexpected(&self, expected: &[&Expected]) -> Vec<EventId> {
        let known: std::collections::HashSet<_> = expected.iter().map(|event| &event.event_id).collect();
        self.seen.keys().filter(|event| !known.contains(event)).cloned().collect()
    }

    /// The report. `earlier` are the events from before that should have a copy and have none, `strangers` those that arrived and
    /// that nobody committed.
    pub(super) fn report(
        &self,
        expected: &[&Expected],
        earlier: &[&Expected],
        strangers: &[EventId],
        version: i64,
        at: Timestamp,
    ) -> Parity {
        let mut report = Parity {
            version,
            at,
            compared: expected.len() as u64,
            new_messages: self.new_messages,
            legacy_messages: self.legacy_messages,
            repeated: self.repeated,
            ..Parity::default()
        };
        for event in expected {
            let sides = self.seen.get(&event.event_id);
            for (side, hash) in [(Side::New, event.new), (Side::Legacy, event.legacy)] {
                match sides.and_then(|sides| sides.get(&side)) {
                    None => report.missing(side, event),
                    Some(found) => {
                        if let Some(other) = found.iter().find(|found| **found != hash) {
                            report.different(side, &event.event_id, hash, *other);
                        }
                    }
                }
            }
        }
        for event in earlier {
            report.missing(Side::Legacy, event);
        }
        for stranger in strangers {
            for side in self.seen.get(stranger).into_iter().flat_map(BTreeMap::keys) {
                report.extra(*side, Some(stranger));
            }
        }
        for (side, messages) in &self.nameless {
            for _ in 0..*messages {
                report.extra(*side, None);
            }
        }
        report.holds = report.compared > 0 && report.missing + report.extra + report.different == 0;
        if report.compared == 0 {
            report.note =
                Some("no event of this migration was published meanwhile: nothing is proven".to_owned());
        }
        report
    }
}

impl Parity {
    fn missing(&mut self, side: Side, event: &Expected) {
        self.missing += 1;
        let error = event.error.clone().filter(|_| side == Side::Legacy);
        self.name(Difference::Missing { side, event_id: event.event_id.to_string(), error });
    }

    fn extra(&mut self, side: Side, event: Option<&EventId>) {
        self.extra += 1;
        self.name(Difference::Extra { side, event_id: event.map(ToString::to_string) });
    }

    fn different(&mut self, side: Side, event: &EventId, expected: PayloadHash, found: PayloadHash) {
        self.different += 1;
        self.name(Difference::Different {
            side,
            event_id: event.to_string(),
            expected: expected.to_string(),
            found: found.to_string(),
        });
    }

    fn name(&mut self, difference: Difference) {
        if self.differences.len() < NAMED {
            self.differences.push(difference);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::envelope::Payload;

    fn id(name: &str) -> EventId {
        EventId::new(name).unwrap()
    }

    fn hash(text: &str) -> PayloadHash {
        Payload::new("text/plain", text.to_owned()).hash()
    }

    fn expected(name: &str) -> Expected {
        Expected { event_id: id(name), new: hash("new"), legacy: hash("old"), error: None, owed: None }
    }

    fn both(arrivals: &mut Arrivals, name: &str) {
        arrivals.note(Side::New, Some(id(name)), hash("new"));
        arrivals.note(Side::Legacy, Some(id(name)), hash("old"));
    }

    fn report(arrivals: &Arrivals, events: &[&str], strangers: &[&str]) -> Parity {
        let expected: Vec<_> = events.iter().map(|name| expected(name)).collect();
        let strangers: Vec<_> = strangers.iter().map(|name| id(name)).collect();
        arrivals.report(&expected.iter().collect::<Vec<_>>(), &[], &strangers, 3, Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn the_same_on_both_sides_is_parity_however_often_it_came() {
        let mut arrivals = Arrivals::default();
        for name in ["a", "b", "a"] {
            both(&mut arrivals, name);
        }
        let report = report(&arrivals, &["a", "b"], &[]);
        assert!(report.holds, "{report:?}");
        assert_eq!((report.compared, report.repeated), (2, 2));
    }

    #[test]
    fn nothing_compared_is_nothing_proven() {
        assert!(!report(&Arrivals::default(), &[], &[]).holds);
    }

    #[test]
    fn every_difference_is_counted_and_named() {
        let mut arrivals = Arrivals::default();
        both(&mut arrivals, "fine");
        arrivals.note(Side::New, Some(id("half")), hash("new"));
        arrivals.note(Side::New, Some(id("odd")), hash("new"));
        arrivals.note(Side::Legacy, Some(id("odd")), hash("something else"));
        arrivals.note(Side::Legacy, Some(id("foreign")), hash("old"));
        arrivals.note(Side::Legacy, None, hash("old"));
        let report = report(&arrivals, &["fine", "half", "odd"], &["foreign"]);
        assert!(!report.holds);
        assert_eq!((report.missing, report.extra, report.different), (1, 2, 1));
        assert!(report.differences.contains(&Difference::Missing {
            side: Side::Legacy,
            event_id: "half".to_owned(),
            error: None
        }));
        assert!(report.differences.contains(&Difference::Extra { side: Side::Legacy, event_id: None }));
    }

    #[test]
    fn what_came_before_the_window_is_not_judged() {
        let mut arrivals = Arrivals::default();
        both(&mut arrivals, "in");
        arrivals.note(Side::Legacy, Some(id("before")), hash("old"));
        assert_eq!(arrivals.unexpected(&[&expected("in")]), [id("before")]);
        assert!(report(&arrivals, &["in"], &[]).holds);
    }

    #[test]
    fn what_was_never_copied_is_missing_also_from_before_the_window() {
        let mut arrivals = Arrivals::default();
        both(&mut arrivals, "in");
        let never = Expected { owed: Some(7), ..expected("never copied") };
        let report = arrivals.report(&[&expected("in")], &[&never], &[], 3, Timestamp::UNIX_EPOCH);
        assert_eq!((report.holds, report.compared, report.missing), (false, 1, 1), "{report:?}");
        assert!(!arrivals.has(&never));
        arrivals.note(Side::New, Some(id("never copied")), hash("new"));
        assert!(arrivals.has(&never), "there is nothing to wait for");
    }
}
