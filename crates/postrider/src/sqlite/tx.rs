//! A transaction of the caller's, in a savepoint of the writer.

use std::time::Duration;

use sqlx::SqliteConnection;

use super::error::from_sqlite;
use super::inbox::Marks;
use super::outbox::{append, append_verbatim};
use super::writer::{Lease, Writer};
use crate::clock::Clock;
use crate::envelope::{Event, EventId};
use crate::store::{StoreError, StoreErrorKind, Verbatim};

/// A transaction. Dropping it rolls it back.
///
/// It takes the one writer at its first write and keeps it until it ends, so nobody else writes meanwhile: do no outside
/// work in it. Who exceeds the time limit is rolled back and gets an error at the next use. Opening a second
/// transaction while the first one holds the writer waits for ever, that is, until an error says so.
pub struct SqliteTx {
    writer: Writer,
    clock: Clock,
    limit: Duration,
    max_payload_bytes: usize,
    state: State,
    /// Whether it appended events, so that relays are woken after the commit.
    appended: bool,
    /// A step of a job's progress was begun and not ended: refused, failed or dropped half way.
    midway: bool,
    /// Whether a job changed, so that whoever shows it is woken after the commit.
    jobs_changed: bool,
}

/// What a commit is news of.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Committed {
    pub(super) appended: bool,
    pub(super) jobs_changed: bool,
}

enum State {
    /// Nothing is written; these marks are to be, before anything else.
    Untouched(Vec<Marks>),
    Open {
        lease: Lease,
        since: Duration,
    },
    /// Rolled back, and why.
    Over(&'static str),
}

const TOO_SLOW: &str = "this transaction was open longer than its time limit and is rolled back; nothing of it was written: \
                        do slow work before the first write, and try again";
const MIDWAY: &str = "a step of a job's progress was refused or interrupted in this transaction, and its error was not passed on; \
                      nothing was committed. Return the error from the handler";
const FAILED: &str =
    "a statement of this transaction failed before, and it is rolled back; nothing of it was written";

impl SqliteTx {
    pub(super) fn new(writer: Writer, clock: Clock, limit: Duration, max_payload_bytes: usize) -> Self {
        let state = State::Untouched(Vec::new());
        let (appended, midway, jobs_changed) = (false, false, false);
        Self { writer, clock, limit, max_payload_bytes, state, appended, midway, jobs_changed }
    }

    /// The connection to write with; the first call opens the transaction. Leave `BEGIN`, `COMMIT` and `ROLLBACK` to the
    /// store: a commit by hand is refused.
    pub async fn connection(&mut self) -> Result<&mut SqliteConnection, StoreError> {
        self.open().await?;
        self.keep_limit();
        match &mut self.state {
            State::Open { lease, .. } => lease.connection(),
            State::Over(why) => Err(StoreError::new(StoreErrorKind::Contended, *why)),
            State::Untouched(_) => {
                Err(StoreError::new(StoreErrorKind::Other, "the transaction did not open"))
            }
        }
    }

    /// Commits events with whatever else this transaction writes. Returns their ids, in order.
    ///
    /// After an error the transaction cannot go on.
    pub async fn append(&mut self, events: Vec<Event>) -> Result<Vec<EventId>, StoreError> {
        let clock = self.clock.clone();
        events.iter().try_for_each(|event| event.check_size(self.max_payload_bytes))?;
        let appended = append(self.connection().await?, events, &clock).await;
        match &appended {
            Ok(ids) => self.appended |= !ids.is_empty(),
            Err(_) => self.fail(),
        }
        appended
    }

    /// Commits messages that are to be sent again as they were.
    pub(super) async fn append_verbatim(&mut self, messages: Vec<Verbatim>) -> Result<(), StoreError> {
        let now = self.clock.now().as_microsecond();
        let any = !messages.is_empty();
        let appended = append_verbatim(self.connection().await?, messages, now).await;
        match &appended {
            Ok(()) => self.appended |= any,
            Err(_) => self.fail(),
        }
        appended
    }

    /// Runs one of our own statements, and says how many rows it changed.
    pub(super) async fn execute(
        &mut self,
        query: sqlx::query::Query<'_, sqlx::Sqlite, sqlx::sqlite::SqliteArguments>,
    ) -> Result<u64, StoreError> {
        let done = query.execute(self.connection().await?).await.map_err(from_sqlite);
        if done.is_err() {
            self.fail();
        }
        Ok(done?.rows_affected())
    }

    /// After an error in the middle of a port's work the transaction cannot go on.
    pub(super) fn fail(&mut self) {
        self.state = State::Over(FAILED);
    }

    /// Begins several statements that belong together: until [`Self::end_step`] it cannot be committed.
    pub(super) async fn begin_step(&mut self) -> Result<(), StoreError> {
        self.connection().await?;
        self.midway = true;
        Ok(())
    }

    /// Ends them, and notes whether a job changed.
    pub(super) fn end_step(&mut self, changed: bool) {
        self.midway = false;
        self.jobs_changed |= changed;
    }

    /// Whether it has the writer, or had it.
    pub(super) fn is_open(&self) -> bool {
        !matches!(self.state, State::Untouched(_))
    }

    /// Marks to be written when it opens.
    pub(super) fn mark_later(&mut self, marks: Marks) {
        if let State::Untouched(later) = &mut self.state {
            later.push(marks);
        }
    }

    /// Takes the writer and writes the marks, unless that is done.
    async fn open(&mut self) -> Result<(), StoreError> {
        let State::Untouched(marks) = &mut self.state else { return Ok(()) };
        let marks = std::mem::take(marks);
        // Until it is open it counts as failed: whoever is cancelled here must not commit without the marks.
        self.state = State::Over(FAILED);
        let mut lease = self.writer.lease().await?;
        let (since, now) = (self.clock.monotonic(), self.clock.now().as_microsecond());
        for mark in marks {
            mark.write(lease.connection()?, now).await?;
        }
        self.state = State::Open { lease, since };
        Ok(())
    }

    /// Commits, and says what that is news of.
    pub(super) async fn commit(mut self) -> Result<Committed, StoreError> {
        if self.midway {
            return Err(StoreError::new(StoreErrorKind::Invalid, MIDWAY));
        }
        if matches!(&self.state, State::Untouched(marks) if !marks.is_empty()) {
            self.open().await?;
        }
        self.keep_limit();
        match self.state {
            State::Untouched(_) => Ok(Committed::default()),
            State::Open { lease, .. } => {
                lease.finish()?.committed().await?;
                Ok(Committed { appended: self.appended, jobs_changed: self.jobs_changed })
            }
            State::Over(why) => Err(StoreError::new(StoreErrorKind::Contended, why)),
        }
    }

    fn keep_limit(&mut self) {
        if let State::Open { since, .. } = &self.state
            && self.clock.monotonic().saturating_sub(*since) > self.limit
        {
            self.state = State::Over(TOO_SLOW);
        }
    }
}
