//! Pushing the oldest messages out of a queue that has more than it may.
//!
//! The new message was confirmed before: a crash in between leaves the queue too long, and whoever opens the file next pushes
//! out what is too much.

use std::sync::Arc;

use super::catalog::QueueId;
use super::death::Reason;
use super::settle::carry_out;
use super::state::{PAUSE, Shared};

/// So many messages are moved in one transaction.
const BATCH: usize = 512;

/// Moves what is too much to the queue's dead-letter target, the oldest first, until it is no longer than it may be.
pub(super) async fn push_out(shared: Arc<Shared>, id: QueueId) {
    loop {
        let surplus = shared.lock().queues.get_mut(&id).and_then(|queue| queue.take_surplus(BATCH));
        let Some(surplus) = surplus else { return };
        let Err(error) = carry_out(shared.clone(), id, surplus, Reason::MaxLength).await else { continue };
        tracing::warn!(%error, "a queue is longer than it may be and nothing could be moved out of it; trying again");
        tokio::select! {
            () = shared.stop.cancelled() => return,
            () = shared.clock.sleep(PAUSE) => {}
        }
    }
}
