//! Pushing the oldest messages out of a queue that has more than it may.
//!
//! The new message was confirmed before: a crash in between leaves the queue too long, and whoever opens the file next pushes
//! out what is too much.

use std::sync::Arc;

use super::catalog::QueueId;
use super::death::Reason;
use super::settle::carry_out;
use super::state::{PAUSE, Shared, from_store};
use super::tables;
use crate::broker::BrokerError;

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

/// Counts what a queue has in the tables, now that it may hold only so much, and sets it in motion.
pub(super) async fn take_stock(shared: &Arc<Shared>, id: QueueId) -> Result<(), BrokerError> {
    loop {
        let place = shared.clone();
        let count = shared.store.writer().run(move |conn| {
            Box::pin(async move {
                // Places are handed out by whoever has the writer: all of them up to the last are in the tables by now.
                let reached = place.lock().queues.get(&id).map(|queue| (queue.read_to, queue.last));
                let Some((read_to, last)) = reached else { return Ok(None) };
                Ok(Some((read_to, last, tables::load(&mut *conn, id, read_to).await?)))
            })
        });
        let Some((read_to, last, load)) = count.await.map_err(from_store)? else { return Ok(()) };
        let mut state = shared.lock();
        match state.queues.get_mut(&id) {
            // Somebody read on meanwhile: what he read is in this count too.
            Some(queue) if queue.read_to != read_to => {}
            Some(queue) => {
                queue.counted(load, last);
                shared.stir(&mut state, id);
                return Ok(());
            }
            None => return Ok(()),
        }
    }
}
