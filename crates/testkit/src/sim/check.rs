//! What became of the events of a schedule, judged from what the client knows and what the tables hold at the end.

use std::collections::BTreeMap;
use std::fmt;

use postrider::store::OutboxStatus;

use super::database::JOB_ITEMS;
use super::handling::{Trouble, trouble};
use super::operation::ITEMS;
use super::process::{CONSUMERS, ClientLog};
use super::world::World;

/// What was wrong. All empty: nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Committed, with neither an effect nor a dead letter, or not even in the table.
    pub lost: Vec<String>,
    /// More than one effect.
    pub doubled: Vec<String>,
    /// An effect before one that was committed earlier under the same key.
    pub out_of_order: Vec<String>,
    /// An effect that nobody committed, or of an event that was rejected.
    pub without_cause: Vec<String>,
    /// A dead letter of an event that nobody rejected.
    pub dead_in_health: Vec<String>,
    /// The job's count is not that of its items, or it was not announced.
    pub miscounted: bool,
    /// Things that did not come to rest after all faults were over.
    pub stuck: bool,
}

impl Verdict {
    /// Whether the promises were kept.
    pub fn is_clean(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lost, doubled, out_of_order, without_cause, dead_in_health, miscounted, stuck } = self;
        write!(
            f,
            "lost {lost:?}, doubled {doubled:?}, out of order {out_of_order:?}, without cause {without_cause:?}, \
             dead in health {dead_in_health:?}, miscounted: {miscounted}, stuck: {stuck}"
        )
    }
}

/// Judges a world in which nothing happens any more.
pub(super) fn judge(world: &World, log: &ClientLog, stuck: bool) -> Verdict {
    let mut verdict = Verdict { stuck, ..Verdict::default() };
    let database = &world.database;
    let (job, items) = (&database.job, u64::from(JOB_ITEMS));
    let announced = database.rows.values().filter(|row| row.row.envelope.id.as_str() == "job-done").count();
    verdict.miscounted = job.counts.done != items || announced != 1;
    let missing = log.acked.iter().filter(|event| !database.knows(event));
    verdict
        .lost
        .extend(missing.map(|event| format!("{event}: its commit was answered, and it is not there")));
    let sent = |item: &&&str| database.rows.values().any(|row| row.row.envelope.id.as_str() == **item);
    let unsent = ITEMS.iter().filter(|item| !sent(item));
    verdict
        .lost
        .extend(unsent.map(|item| format!("{item}: the operation took it off its list and did not send it")));
    let dead = |consumer: &str, event: &str| {
        database.letters.values().any(|letter| {
            let of = letter.consumer.as_ref().is_some_and(|name| name.as_str() == consumer);
            of && letter.event_id.as_ref().is_some_and(|id| id.as_str() == event)
        })
    };
    for consumer in CONSUMERS {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        let mut last = BTreeMap::new();
        for effect in database.effects.iter().filter(|effect| effect.consumer == consumer) {
            let event = effect.event.as_str();
            *counts.entry(event).or_default() += 1;
            let shown = || format!("{event} for {consumer}");
            if !database.knows(&effect.event) || trouble(&effect.event) == Trouble::Rejected {
                verdict.without_cause.push(shown());
            }
            if let (Some(key), "ordered") = (&effect.key, consumer) {
                let before = last.insert(key, effect.number);
                if before.is_some_and(|before| before > effect.number) {
                    verdict.out_of_order.push(shown());
                }
            }
        }
        for row in database.rows.values() {
            let event = &row.row.envelope.id;
            let shown = || format!("{event} for {consumer}");
            let count = counts.get(event.as_str()).copied().unwrap_or(0);
            let is_dead = row.status == OutboxStatus::Dead || dead(consumer, event.as_str());
            match count {
                0 if !is_dead => verdict.lost.push(shown()),
                0 | 1 => {}
                _ => verdict.doubled.push(shown()),
            }
            if is_dead && trouble(event) != Trouble::Rejected {
                verdict.dead_in_health.push(shown());
            }
        }
    }
    verdict
}
