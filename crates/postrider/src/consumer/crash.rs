//! Deliveries under which the process may have died: marked before they are handled, and handled alone if a crash left a
//! mark.
//!
//! When a process dies, every delivery in its hands comes again, and nobody knows which of them was at fault. The first time
//! they are handled side by side as ever, each with a mark in the store that goes when it is settled. If the process dies
//! again, those with a mark are handled one at a time, with nothing beside them in this process, so that the next crash is the fault of
//! the one. After [`max_crashes`](super::ConsumerConfig::max_crashes) marks it is a dead letter, and the marks stay: a process
//! that dies so soon may leave copies of the event behind, which would take it down again.

use std::future::Future;
use std::time::Duration;

use tokio::sync::{RwLockReadGuard, RwLockWriteGuard};
use tokio_util::sync::CancellationToken;

use super::arrived::Arrived;
use super::{Consumer, lock};
use crate::dead_letter;
use crate::settlement::Outcome;
use crate::store::{ConsumerStore, StoreError, StoreErrorKind};

/// The right to handle a delivery now: beside others, or alone.
pub(super) enum Turn<'a> {
    #[expect(dead_code, reason = "held for its drop")]
    Beside(RwLockReadGuard<'a, ()>),
    /// With how often the process died under it before.
    #[expect(dead_code, reason = "held for its drop")]
    Alone(RwLockWriteGuard<'a, ()>, u32),
}

impl<S: ConsumerStore> Consumer<S> {
    /// Waits for the right to handle a delivery, and marks it if the process may have died under it before. The outcome, if
    /// it did so too often; nothing at all when it was told to stop, or, of one that a crash marked, while the consumer is held up.
    pub(super) async fn turn(
        &self,
        arrived: &Arrived,
        stop: &CancellationToken,
    ) -> Option<Result<Turn<'_>, Outcome>> {
        let mark = self.crash_mark(arrived);
        match mark {
            None => Some(Ok(Turn::Beside(self.alone.read().await))),
            // Few are marked: in a box, so that the others have no room for it.
            Some(mark) => Box::pin(self.marked_turn(&mark, arrived.leased, stop)).await,
        }
    }

    async fn marked_turn(
        &self,
        mark: &str,
        leased: bool,
        stop: &CancellationToken,
    ) -> Option<Result<Turn<'_>, Outcome>> {
        let times = self.surely(stop, || self.store.unfinished(&self.name, mark)).await?;
        if times >= self.config.max_crashes {
            return Some(Err(Outcome::Crashed { times }));
        }
        let waiting = async {
            match times {
                0 => Turn::Beside(self.alone.read().await),
                _ => Turn::Alone(self.alone.write().await, times),
            }
        };
        // What is begun now might be cut off or given back, and that would count as a crash.
        let turn = stop.run_until_cancelled(waiting).await?;
        if times > 0 && !leased && self.status.is_held_up() {
            return None;
        }
        self.surely(stop, || self.store.begun(&self.name, mark)).await?;
        Some(Ok(turn))
    }

    /// Takes the mark of a settled delivery away, and says whether it had one that is gone. Where that fails it stays: a mark too many is
    /// found again when the same event is delivered again, and does no harm before.
    pub(super) async fn over(&self, arrived: &Arrived) -> bool {
        let Some(mark) = self.crash_mark(arrived) else { return false };
        match Box::pin(self.store.ended(&self.name, &mark)).await {
            Ok(()) => {
                lock(&self.marked).remove(&mark);
                true
            }
            Err(error) => {
                tracing::warn!(consumer = %self.name, %mark, %error, "a crash mark could not be taken away");
                false
            }
        }
    }

    /// Takes the mark of a delivery away that is left to the broker, told to stop or held up: nothing died under it. Those that crashes
    /// left before stay: without them, whatever takes the process down would do so for ever beside somebody who stops or pauses it.
    pub(super) async fn left_alive(&self, arrived: &Arrived, turn: &Turn<'_>) {
        let Some(mark) = self.crash_mark(arrived) else { return };
        // What could not be taken away is there still.
        if !self.over(arrived).await {
            return;
        }
        let times = if let Turn::Alone(_, times) = turn { *times } else { 0 };
        for _ in 0..times {
            if let Err(error) = self.store.begun(&self.name, &mark).await {
                tracing::warn!(consumer = %self.name, %mark, %error, "a crash is not remembered any more");
            }
        }
    }

    /// Whether a crash left a mark on it.
    pub(super) fn is_marked(&self, arrived: &Arrived) -> bool {
        self.crash_mark(arrived).is_some()
    }

    /// Looks which events are marked. A store that cannot be asked changes nothing.
    pub(super) async fn look_for_marks(&self) {
        if self.config.max_crashes == 0 {
            return;
        }
        if let Ok(marks) = self.store.crash_marks(&self.name).await {
            *lock(&self.marked) = marks.into_iter().collect();
        }
    }

    /// The name of a delivery's mark, if the process may have died under it before.
    fn crash_mark(&self, arrived: &Arrived) -> Option<String> {
        if self.config.max_crashes == 0 {
            return None;
        }
        if arrived.suspect() {
            return mark_of(arrived);
        }
        let marked = lock(&self.marked);
        // As a rule there are none, and then nobody needs the name.
        if marked.is_empty() {
            return None;
        }
        mark_of(arrived).filter(|mark| marked.contains(mark))
    }

    /// Whether a crash left a mark that was there when the session began.
    pub(super) fn left_a_mark(&self, arrived: &Arrived) -> bool {
        let marked = lock(&self.marked);
        !marked.is_empty() && mark_of(arrived).is_some_and(|mark| marked.contains(&mark))
    }

    /// Asks the store until it answers. Nothing when told to stop before that.
    pub(super) async fn surely<T, F: Future<Output = Result<T, StoreError>>>(
        &self,
        stop: &CancellationToken,
        ask: impl Fn() -> F,
    ) -> Option<T> {
        let mut pause = Duration::from_millis(100);
        loop {
            match ask().await {
                Ok(answer) => return Some(answer),
                Err(error) if matches!(error.kind, StoreErrorKind::Contended | StoreErrorKind::Busy) => {
                    self.pace().contended();
                }
                Err(error) => {
                    if error.is_transient() {
                        tracing::debug!(consumer = %self.name, %error, "the store failed; it is asked again");
                    } else {
                        tracing::error!(consumer = %self.name, %error, "the store refuses what a consumer needs; trying on");
                    }
                    self.store_away();
                }
            }
            tokio::select! {
                () = stop.cancelled() => return None,
                () = self.clock.sleep(pause) => pause = (pause * 2).min(Duration::from_secs(5)),
            }
        }
    }
}

fn mark_of(arrived: &Arrived) -> Option<String> {
    let event = arrived.event_id()?;
    Some(match arrived.delivery.message.header(dead_letter::header::REPLAY_ID) {
        Some(replay) => format!("{event} replayed by {replay}"),
        None => event.to_string(),
    })
}
