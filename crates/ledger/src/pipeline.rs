//! From an event to a sealed entry: the steps, in their order, on one tenant's batch in one transaction.
//!
//! lock the books → [`idempotency`] → [`mapping`] → [`period`] → [`validation`] → [`currency`] → [`mod@reference`] → [`sealing`]
//! → write → commit. Only then is anything acked. Whatever dies before the commit leaves nothing; after it, the entries, their
//! place in the chain, the balances and the outgoing events are all there, and a repeat is a duplicate.
//!
//! The steps from [`mapping`] to [`currency`] ask for nothing but the chart, so they may be taken before the lock ([`Prepared`]),
//! while another batch has it.
//!
//! A refusal is about one event: it leaves the batch, its neighbours are posted.

pub mod currency;
pub mod idempotency;
pub mod mapping;
pub mod period;
pub mod reference;
pub mod sealing;
pub mod validation;

use std::collections::{HashMap, HashSet};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use postrider::envelope::{PayloadHash, TenantId};
use postrider::{Envelope, EventId};

use crate::account::{Account, AccountCode};
use crate::books::{Head, Known, Page, Receipt, Referred};
use crate::chart::Chart;
use crate::entry::{Balanced, Draft, EntryKind};
use crate::refusal::Refusal;

/// Something to be posted.
#[derive(Debug, Clone)]
#[allow(clippy::large_enum_variant, reason = "nearly all of them are the large one")]
pub enum Arrival {
    /// An event, for the rules.
    Event {
        /// The event.
        envelope: Envelope,
        /// The hash of its payload.
        hash: PayloadHash,
    },
    /// An entry that somebody wrote by hand.
    Draft(Box<Draft>),
}

impl Arrival {
    /// An event, for the rules.
    pub fn event(envelope: Envelope) -> Self {
        let hash = envelope.payload.hash();
        Self::Event { envelope, hash }
    }

    /// What makes it the same as another.
    pub fn id(&self) -> (&EventId, PayloadHash) {
        match self {
            Self::Event { envelope, hash } => (&envelope.id, *hash),
            Self::Draft(draft) => (&draft.source.event, draft.source.payload_hash),
        }
    }
}

/// What became of an arrival.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// It is in the books now.
    Posted(Receipt),
    /// It was in the books before, with the same payload.
    Duplicate(Receipt),
    /// It is not in the books.
    Refused(Refusal),
}

/// What the steps before the lock came to for one arrival, by the chart that was known then. It counts if the books, once they are
/// locked, still have that version; otherwise the steps are taken again.
pub struct Prepared {
    version: u64,
    balanced: Result<Balanced, Refusal>,
}

impl Prepared {
    /// Takes an arrival as far as a chart of this version leads.
    pub fn new(arrival: &Arrival, chart: &Chart, version: u64) -> Self {
        Self { version, balanced: balance(arrival, chart) }
    }
}

/// What the pure steps need to know: all of it read after the books were locked.
pub struct Standing<'a> {
    /// What entries are made by.
    pub chart: &'a Chart,
    /// Where the chain stands.
    pub head: Head,
    /// Children that were opened since the chart was read.
    pub opened: &'a HashSet<AccountCode>,
    /// Arrivals that are in the books.
    pub known: &'a [Known],
    /// Entries that arrivals refer to.
    pub referred: &'a [Referred],
}

/// What a batch comes to: an answer each, and a page to be written.
pub struct Outcome {
    /// In the order of the arrivals.
    pub answers: Vec<Answer>,
    /// What is to be written.
    pub page: Arc<Page>,
}

/// Takes a batch through all steps. Pure: the same batch on the same books comes to the same page.
pub fn run(
    tenant: &TenantId,
    arrivals: &[Arrival],
    standing: &Standing<'_>,
    now: jiff::Timestamp,
) -> Outcome {
    run_prepared(tenant, arrivals, (&mut [], usize::MAX), standing, now)
}

/// The same with what was prepared for the arrivals, in their order, which is used up. Ends once there are so many lines: what has no answer
/// then is for the next page.
pub(crate) fn run_prepared(
    tenant: &TenantId,
    arrivals: &[Arrival],
    (prepared, most_lines): (&mut [Option<Prepared>], usize),
    standing: &Standing<'_>,
    now: jiff::Timestamp,
) -> Outcome {
    let mut prepared = prepared.iter_mut().map(Option::take);
    let mut seen = idempotency::Seen::new(standing.known, arrivals.len());
    let mut references = reference::References::new(standing.referred);
    let mut sealer = sealing::Sealer::new(tenant.clone(), standing.head, now, arrivals.len());
    let mut opened: HashMap<AccountCode, Account> = HashMap::new();
    let mut answers = Vec::with_capacity(arrivals.len());
    for arrival in arrivals {
        if sealer.lines() >= most_lines {
            break;
        }
        let prepared = prepared.next().flatten();
        let (event, hash) = arrival.id();
        let answer = match seen.check(event, hash) {
            Err(refusal) => Answer::Refused(refusal),
            Ok(Some(receipt)) => Answer::Duplicate(receipt),
            Ok(None) => match one(arrival, prepared, standing, &mut references, &mut sealer) {
                Err(refusal) => Answer::Refused(refusal),
                Ok(balanced) => {
                    note_children(&balanced, standing, &mut opened);
                    let released = references.released(&balanced);
                    let receipt = sealer.seal(balanced, released.as_deref());
                    seen.add(event.clone(), hash, receipt);
                    Answer::Posted(receipt)
                }
            },
        };
        answers.push(answer);
    }
    let mut page = sealer.into_page();
    page.opened = opened.into_values().collect();
    page.opened.sort_by(|left, right| left.code.cmp(&right.code));
    Outcome { answers, page: Arc::new(page) }
}

fn one(
    arrival: &Arrival,
    prepared: Option<Prepared>,
    standing: &Standing<'_>,
    references: &mut reference::References<'_>,
    sealer: &mut sealing::Sealer,
) -> Result<Balanced, Refusal> {
    let (chart, number) = (standing.chart, sealer.next_number());
    // What the ledger records of periods needs no room: whoever has used all of it still closes his books.
    let records = matches!(arrival, Arrival::Draft(draft) if draft.kind == EntryKind::Seal);
    if !records && chart.book.max_entries.is_some_and(|most| number > most) {
        return Err(Refusal::QuotaExceeded("entries"));
    }
    let prepared = prepared.filter(|prepared| prepared.version == standing.head.version);
    let balanced = prepared.map_or_else(|| balance(arrival, chart), |prepared| prepared.balanced)?;
    sealer.has_room(&balanced)?;
    references.claim(&balanced, number)?;
    Ok(balanced)
}

/// The steps that ask for nothing but the chart. Where one of them panics the event is refused, because it would take its whole batch along,
/// again whenever it is delivered.
fn balance(arrival: &Arrival, chart: &Chart) -> Result<Balanced, Refusal> {
    refusing_panics(|| balance_by(arrival, chart))
}

/// Takes a step; where it panics, that is the refusal.
pub(crate) fn refusing_panics<T>(step: impl FnOnce() -> Result<T, Refusal>) -> Result<T, Refusal> {
    std::panic::catch_unwind(AssertUnwindSafe(step)).unwrap_or_else(|panic| {
        let told = panic.downcast_ref::<&str>().map(|told| (*told).to_owned());
        let told = told.or_else(|| panic.downcast_ref::<String>().cloned());
        Err(Refusal::Panicked(told.unwrap_or_else(|| "no words".to_owned())))
    })
}

fn balance_by(arrival: &Arrival, chart: &Chart) -> Result<Balanced, Refusal> {
    let (draft, poster) = mapping::draft(arrival, chart)?;
    let draft = period::place(draft, chart, poster)?;
    validation::check(&draft, chart)?;
    currency::convert(draft, chart)
}

/// Remembers the accounts that this entry opens.
fn note_children(balanced: &Balanced, standing: &Standing<'_>, opened: &mut HashMap<AccountCode, Account>) {
    for line in balanced.lines() {
        let code = &line.account;
        if standing.chart.accounts.contains_key(code)
            || standing.opened.contains(code)
            || opened.contains_key(code)
        {
            continue;
        }
        if let Ok(found) = standing.chart.account(code) {
            opened.insert(code.clone(), found.account(code));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_a_refusal_of_the_event() {
        let refused = |step: fn() -> Result<(), Refusal>| refusing_panics(step).unwrap_err();
        assert_eq!(refused(|| panic!("no such digit")), Refusal::Panicked("no such digit".to_owned()));
        let digit = std::hint::black_box(7);
        let formatted = refusing_panics::<()>(|| panic!("no digit {digit}")).unwrap_err();
        assert_eq!((formatted.code(), formatted.to_string().contains("no digit 7")), ("panicked", true));
        assert_eq!(refused(|| Err(Refusal::NoTenant)), Refusal::NoTenant);
    }
}
