//! Which migration the relay obeys. It looks about once a second, and takes up a new phase with nothing in flight: every row is
//! published and marked under one phase, and what it says of itself is true of everything before.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::super::both::Plan;
use super::{Pump, Step};
use crate::migration::{Course, Definition, Halves, Phase};
use crate::store::{Outbox, OutboxRow, StoreError};

/// How often it looks.
const LOOK: Duration = Duration::from_secs(1);
/// An old bus that did not answer is left to the copier for so long.
const LEFT_ALONE: Duration = Duration::from_secs(30);

/// What the relay obeys, and what it will obey next.
#[derive(Default)]
pub(super) struct Obeyed {
    course: Option<Course>,
    /// That another course, or none, is to be taken up when nothing is in flight.
    next: Option<News>,
    /// It has looked at least once.
    known: bool,
    /// A look is under way, or waits for its time.
    looking: bool,
    /// Halves that are confirmed, of rows that have to go out again because nobody knows of the other half.
    halves: HashMap<i64, Halves>,
    /// Until then copies are left to the copier.
    left_alone_until: Option<Duration>,
}

/// What the last look found, if it was something new.
struct News(Option<Course>);

impl Obeyed {
    /// Whether rows are copied to the old bus.
    pub(super) fn copies(&self) -> bool {
        self.course.as_ref().is_some_and(|course| course.phase == Phase::Dual)
    }

    /// Whether a row counts as published only when the old bus has it too.
    pub(super) fn blocks(&self) -> bool {
        self.course.as_ref().is_some_and(|course| course.definition.block_on_legacy)
    }

    /// How these rows go out.
    pub(super) fn plan(&self, rows: &[OutboxRow], now: Duration) -> Option<Plan> {
        let course = self.course.as_ref().filter(|course| course.phase == Phase::Dual)?;
        let position = |row: &OutboxRow| row.row.position;
        let known = rows.iter().filter_map(|row| Some((position(row), *self.halves.get(&position(row))?)));
        // Where rows wait for their copies, somebody has to make them: what was found under another course counts no more.
        let copied_later = !self.blocks() && self.left_alone_until.is_some_and(|until| now < until);
        Some(Plan { definition: Arc::clone(&course.definition), confirmed: known.collect(), copied_later })
    }

    /// The old bus did not answer: for a while nothing waits for it.
    pub(super) fn leave_old_bus_alone(&mut self, now: Duration) {
        if self.left_alone_until.is_none_or(|until| now >= until) {
            tracing::warn!(
                "the old bus does not answer; events go to the new one meanwhile, and their copies are made when it does"
            );
        }
        self.left_alone_until = Some(now + LEFT_ALONE);
    }

    pub(super) fn remember(&mut self, position: i64, halves: Halves) {
        if halves != Halves::default() {
            self.halves.insert(position, halves);
        }
    }

    pub(super) fn forget(&mut self, position: i64) {
        if !self.halves.is_empty() {
            self.halves.remove(&position);
        }
    }

    /// Nothing goes out before the next look.
    pub(super) fn look_first(&mut self) {
        self.known = false;
    }

    pub(super) fn begin_again(&mut self) {
        (self.looking, self.known) = (false, false);
        self.halves.clear();
    }

    fn version(&self) -> Option<i64> {
        self.course.as_ref().map(|course| course.version)
    }
}

impl<S: Outbox> Pump<S> {
    /// Nothing goes out before the first look, which comes after the first lease: who asks whether all relays obey sees this one.
    /// Nor while a new course waits to be taken up.
    pub(super) fn may_publish(&self) -> bool {
        self.obeyed.known && self.obeyed.next.is_none()
    }

    /// Looks again when it is time, and takes up what it was told when nothing is in flight. So does a relay that has nothing to publish:
    /// a phase is settled only when every relay obeys it.
    pub(super) fn look_at_course(&mut self) {
        self.take_up();
        // What it was told already comes first: until that is taken up, another look would only follow on the last one at once.
        if self.obeyed.looking || self.obeyed.next.is_some() || !self.is_counted() {
            return;
        }
        self.obeyed.looking = true;
        let (store, clock) = (self.relay.store.clone(), self.relay.clock.clone());
        let pause = if self.obeyed.known { LOOK } else { Duration::ZERO };
        self.start_here(async move {
            if !pause.is_zero() {
                clock.sleep(pause).await;
            }
            Step::Course(store.course().await)
        });
    }

    pub(super) fn told(&mut self, course: Result<Option<Course>, StoreError>) {
        self.obeyed.looking = false;
        match course {
            Ok(course) => {
                let version = course.as_ref().map(|course| course.version);
                if !self.obeyed.known || version != self.obeyed.version() {
                    self.obeyed.next = Some(News(course));
                } else if course.is_some() {
                    self.relay.status.set_course(course);
                }
            }
            Err(error) if !self.obeyed.known => self.outage(&format!("the store failed: {error}")),
            Err(error) => tracing::debug!(%error, "the migration cannot be looked at; trying again"),
        }
    }

    fn take_up(&mut self) {
        let marking = self.settling || self.marking_again > 0 || !self.done.is_empty();
        if self.publishing > 0 || marking {
            return;
        }
        let Some(News(course)) = self.obeyed.next.take() else { return };
        let before = self.obeyed.course.take();
        if let Some(course) = &course {
            say(before.as_ref(), course);
            let (store, id, version) = (self.relay.store.clone(), self.relay.id.clone(), course.version);
            let latencies = &self.relay.status.latencies;
            latencies.clear();
            let p99 = latencies.p99();
            // If this is not written, it is a moment later, by the copier.
            self.start(async move {
                if let Err(error) = store.obeys(&id, version, p99).await {
                    tracing::debug!(%error, "that the phase is obeyed could not be written; trying again");
                }
                Step::Over
            });
        }
        self.relay.status.set_course(course.clone());
        self.obeyed.course = course;
        self.obeyed.known = true;
        self.obeyed.halves.clear();
    }
}

/// Says once what has changed, and that the old exchange is deprecated.
fn say(before: Option<&Course>, course: &Course) {
    let Definition { name, exchange, legacy, .. } = course.definition.as_ref();
    match course.phase {
        Phase::Dual => tracing::warn!(
            migration = %name,
            %exchange,
            deprecated = %legacy.exchange,
            "dual publishing is enabled: events go to the deprecated exchange {} too", legacy.exchange
        ),
        phase if before.is_some() => {
            tracing::info!(migration = %name, %phase, "events go to the exchange {exchange} alone");
        }
        _ => {}
    }
}
