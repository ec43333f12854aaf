//! Deliveries under which the process may have died: marked before they are handled, and handled alone if a crash left a
//! mark.
//!
//! When a process dies, every delivery in its hands comes again, and nobody knows which of them was at fault. The first time
//! they are handled side by side as ever, each with a mark in the store that goes when it is settled. If the process dies
//! again, those with a mark are handled one at a time, with nothing beside them in this process, so that the next crash is the fault of
//! the one. After [`max_crashes`](super::ConsumerConfig::max_crashes) marks it is a dead letter.

use std::future::Future;
use std::time::Duration;

use tokio::sync::{RwLockReadGuard, RwLockWriteGuard};
use tokio_util::sync::CancellationToken;

use super::Consumer;
use super::arrived::Arrived;
use crate::envelope::EventId;
use crate::settlement::Outcome;
use crate::store::{ConsumerStore, StoreError, StoreErrorKind};

/// The right to handle a delivery now: beside others, or alone.
pub(super) enum Turn<'a> {
    #[expect(dead_code, reason = "held for its drop")]
    Beside(RwLockReadGuard<'a, ()>),
    #[expect(dead_code, reason = "held for its drop")]
    Alone(RwLockWriteGuard<'a, ()>),
}

impl<S: ConsumerStore> Consumer<S> {
    /// Waits for the right to handle a delivery, and marks it if the process may have died under it before. The outcome, if
    /// it did so too often; nothing at all when it was told to stop.
    pub(super) async fn turn(
        &self,
        arrived: &Arrived,
        stop: &CancellationToken,
    ) -> Option<Result<Turn<'_>, Outcome>> {
        let suspect = arrived.event_id().filter(|_| arrived.suspect() && self.config.max_crashes > 0);
        let Some(event) = suspect else { return Some(Ok(Turn::Beside(self.alone.read().await))) };
        let times = self.surely(stop, || self.store.unfinished(&self.name, event)).await?;
        if times >= self.config.max_crashes {
            return Some(Err(Outcome::Crashed { times }));
        }
        let turn = match times {
            0 => Turn::Beside(self.alone.read().await),
            _ => Turn::Alone(self.alone.write().await),
        };
        self.surely(stop, || self.store.begun(&self.name, event)).await?;
        Some(Ok(turn))
    }

    /// Takes the marks of a settled delivery away. Where that fails they stay: a mark too many is found again when the same
    /// event is delivered again, and does no harm before.
    pub(super) async fn over(&self, event: Option<&EventId>) {
        let Some(event) = event.filter(|_| self.config.max_crashes > 0) else { return };
        if let Err(error) = self.store.ended(&self.name, event).await {
            tracing::warn!(consumer = %self.name, event_id = %event, %error, "a crash mark could not be taken away");
        }
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
                Err(error) if error.kind == StoreErrorKind::Contended => self.pace().contended(),
                Err(error) => {
                    if error.is_transient() {
                        tracing::debug!(consumer = %self.name, %error, "the store failed; it is asked again");
                    } else {
                        tracing::error!(consumer = %self.name, %error, "the store refuses what a consumer needs; trying on");
                    }
                    let now = self.clock.monotonic();
                    self.with_breaker(|breaker| breaker.store_away(now));
                }
            }
            tokio::select! {
                () = stop.cancelled() => return None,
                () = self.clock.sleep(pause) => pause = (pause * 2).min(Duration::from_secs(5)),
            }
        }
    }
}
