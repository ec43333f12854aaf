//! What all handles of one broker share: the file, the clock, and the queues in memory behind one lock.
//!
//! The lock is held for moments, never across I/O. Work on the tables runs in tasks of its own, so that a caller who gives
//! up waiting cannot leave memory and tables in disagreement.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::catalog::{Catalog, QueueId};
use super::overflow::push_out;
use super::queue::{Entry, Load, QueueState};
use super::tables;
use crate::broker::{BrokerError, BrokerErrorKind};
use crate::clock::Clock;
use crate::sqlite::Sqlite;
use crate::store::{StoreError, StoreErrorKind};

/// How long to wait before the tables are asked again after they failed.
pub(super) const PAUSE: Duration = Duration::from_secs(1);

pub(super) struct Shared {
    pub(super) store: Sqlite,
    pub(super) clock: Clock,
    state: Mutex<State>,
    /// One declaration at a time.
    pub(super) declaring: tokio::sync::Mutex<()>,
    runtime: Handle,
    pub(super) tasks: TaskTracker,
    pub(super) stop: CancellationToken,
    /// Something will be due earlier than the expiry task knows.
    pub(super) due: Arc<Notify>,
}

pub(super) struct State {
    pub(super) closed: bool,
    pub(super) catalog: Catalog,
    pub(super) queues: BTreeMap<QueueId, QueueState>,
    /// The row of the table of messages that was handed out last.
    pub(super) last_row: i64,
    /// When the expiry task will look again, in microseconds since 1970.
    pub(super) next_look: i64,
}

/// A message that has been committed to a queue.
pub(super) struct Arrival {
    pub(super) queue: QueueId,
    pub(super) entry: Entry,
    /// The place before it.
    pub(super) previous: i64,
}

impl Shared {
    pub(super) fn new(store: Sqlite, clock: Clock, state: State) -> Arc<Self> {
        Arc::new(Self {
            store,
            clock,
            state: Mutex::new(state),
            declaring: tokio::sync::Mutex::new(()),
            runtime: Handle::current(),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
            due: Arc::new(Notify::new()),
        })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same, unless the broker was closed.
    pub(super) fn open(&self) -> Result<MutexGuard<'_, State>, BrokerError> {
        let state = self.lock();
        if state.closed { Err(closed()) } else { Ok(state) }
    }

    /// Microseconds since 1970.
    pub(super) fn now(&self) -> i64 {
        self.clock.now().as_microsecond()
    }

    /// Runs work to its end, whether or not anybody waits for it.
    pub(super) async fn run<T, F>(&self, work: F) -> Result<T, BrokerError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, BrokerError>> + Send + 'static,
    {
        match self.tasks.spawn_on(work, &self.runtime).await {
            Ok(outcome) => outcome,
            Err(ended) => {
                let text = "the embedded broker was stopped in the middle; what it was told may have been done, try again";
                Err(BrokerError::new(BrokerErrorKind::Unavailable, text).because(ended))
            }
        }
    }

    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        drop(self.tasks.spawn_on(task, &self.runtime));
    }

    /// Sets a queue in motion after something about it has changed: delivers, reads on, pushes out what is too much, looks when
    /// the next is due.
    pub(super) fn stir(self: &Arc<Self>, state: &mut State, id: QueueId) {
        if state.closed {
            return;
        }
        let Some(queue) = state.queues.get_mut(&id) else { return };
        queue.deliver(self.now());
        if queue.start_reading() {
            self.spawn(read_on(self.clone(), id));
        }
        if queue.start_pushing_out() {
            self.spawn(push_out(self.clone(), id));
        }
        if let Some(due) = queue.next_due().filter(|due| *due < state.next_look) {
            state.next_look = due;
            self.due.notify_one();
        }
    }

    /// Takes messages that have just been committed into their queues.
    pub(super) fn arrived(self: &Arc<Self>, state: &mut State, arrivals: Vec<Arrival>) {
        let mut touched = BTreeSet::new();
        for Arrival { queue, entry, previous } in arrivals {
            touched.insert(queue);
            if let Some(queue) = state.queues.get_mut(&queue) {
                queue.committed(entry, previous);
            }
        }
        for queue in touched {
            self.stir(state, queue);
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Reads more of a queue into its window. Tries until it can.
async fn read_on(shared: Arc<Shared>, id: QueueId) {
    loop {
        let Some(after) = shared.lock().queues.get(&id).map(|queue| queue.read_to) else { return };
        match tables::read_after(shared.store.readers(), id, after).await {
            Ok(read) => {
                let mut state = shared.lock();
                let Some(queue) = state.queues.get_mut(&id) else { return };
                for (seq, entry) in read.rows {
                    if entry.is_none() {
                        tracing::error!(
                            queue = %queue.settings.name,
                            place = seq,
                            "a stored message cannot be read; it stays in the file and is not delivered"
                        );
                    }
                    queue.was_read(seq, entry);
                }
                queue.more |= read.more;
                queue.reading = false;
                if !queue.more {
                    queue.unread = Load::default();
                }
                shared.stir(&mut state, id);
                return;
            }
            Err(error) => tracing::warn!(%error, "a queue could not be read; nothing is lost, trying again"),
        }
        tokio::select! {
            () = shared.stop.cancelled() => return,
            () = shared.clock.sleep(PAUSE) => {}
        }
    }
}

/// Tries stranded messages again, now that something was declared.
pub(super) async fn try_stranded(shared: Arc<Shared>, id: QueueId, stranded: Vec<i64>) {
    match tables::read_at(shared.store.readers(), id, stranded).await {
        Ok(entries) => {
            let mut state = shared.lock();
            let Some(queue) = state.queues.get_mut(&id) else { return };
            for entry in entries {
                queue.try_again(entry);
            }
            shared.stir(&mut state, id);
        }
        Err(error) => {
            tracing::warn!(%error, "stranded messages could not be read; they are tried again at the next start");
        }
    }
}

/// An error of the tables, as one of the broker.
pub(super) fn from_store(error: StoreError) -> BrokerError {
    let kind = match error.kind {
        StoreErrorKind::Unavailable | StoreErrorKind::Contended | StoreErrorKind::Busy => {
            BrokerErrorKind::Unavailable
        }
        StoreErrorKind::Denied => BrokerErrorKind::Denied,
        StoreErrorKind::Schema
        | StoreErrorKind::Duplicate
        | StoreErrorKind::Invalid
        | StoreErrorKind::OutOfRange
        | StoreErrorKind::Other => BrokerErrorKind::Protocol,
    };
    BrokerError::new(kind, error.message.clone()).because(error)
}

pub(super) fn closed() -> BrokerError {
    let text = "the embedded broker was closed; nothing is lost: what was unsettled is delivered again when it is opened";
    BrokerError::new(BrokerErrorKind::Closed, text)
}
