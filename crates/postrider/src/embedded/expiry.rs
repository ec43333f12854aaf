//! Expiry: one task for all queues that have a message TTL, asleep until the first message is due, and never for long.

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use jiff::Timestamp;

use super::catalog::QueueId;
use super::death::Reason;
use super::queue::Settling;
use super::settle::carry_out;
use super::state::{PAUSE, Shared};
use crate::clock::Clock;

/// The longest sleep while something waits: when the clock is set, what is due by the new time is not waited for by the old one.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// So many messages of a queue are moved in one transaction.
const BATCH: usize = 512;

/// Moves what is due to its dead-letter target, in order, until the broker is closed or gone.
pub(super) async fn run(broker: Weak<Shared>) {
    loop {
        let Some(shared) = broker.upgrade() else { return };
        let (stop, due, clock) = (shared.stop.clone(), shared.due.clone(), shared.clock.clone());
        let (batches, next) = take_due(&shared);
        let idle = batches.is_empty();
        let moved =
            batches.into_iter().map(|(id, batch)| carry_out(shared.clone(), id, batch, Reason::Expired));
        let failed = join_all(moved).await.into_iter().find_map(Result::err);
        drop(shared);
        if let Some(error) = failed {
            tracing::warn!(%error, "expired messages could not be moved; they stay in their queue, trying again");
            tokio::select! {
                () = stop.cancelled() => return,
                () = clock.sleep(PAUSE) => {}
            }
        } else if idle {
            tokio::select! {
                () = stop.cancelled() => return,
                () = due.notified() => {}
                () = until(&clock, next) => {}
            }
        }
        if stop.is_cancelled() {
            return;
        }
    }
}

/// What is due now, by queue, and when to look again.
fn take_due(shared: &Arc<Shared>) -> (Vec<(QueueId, Settling)>, i64) {
    let mut state = shared.lock();
    let now = shared.now();
    let (mut batches, mut next) = (Vec::new(), i64::MAX);
    for (id, queue) in state.queues.iter_mut().filter(|(_, queue)| queue.settings.message_ttl.is_some()) {
        let due = queue.take_due(now, BATCH);
        next = next.min(queue.next_due().unwrap_or(i64::MAX));
        if due.is_empty() {
            continue;
        }
        batches.push((*id, queue.leaving(due)));
    }
    state.next_look = next;
    (batches, next)
}

/// Waits until a time of day in microseconds since 1970, but not for long.
async fn until(clock: &Clock, micros: i64) {
    let Ok(when) = Timestamp::from_microsecond(micros) else { return std::future::pending().await };
    tokio::select! {
        biased;
        () = clock.sleep_until(when) => {}
        () = clock.sleep(LOOK_AGAIN) => {}
        // Somebody may have moved the clock after it was asked for the time and before it was asked to wait.
        () = async { if clock.now() < when { std::future::pending().await } } => {}
    }
}
