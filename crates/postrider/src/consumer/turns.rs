//! Copies of one event take turns, in this process.
//!
//! A handler that works outside has no transaction that would refuse the second of two at the same time. Copies come together when a
//! publisher sent one twice, or a relay did not hear of a confirm. In other processes a copy may still be called beside this one.

use std::collections::HashSet;
use std::sync::Mutex;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::lock;
use crate::envelope::EventId;

/// The events that are in hand.
#[derive(Default)]
pub(super) struct Turns {
    in_hand: Mutex<HashSet<EventId>>,
    ended: Notify,
}

/// A turn, given back when it is dropped.
pub(super) struct Turn<'a> {
    turns: &'a Turns,
    event: EventId,
}

impl Turns {
    /// Waits until no other copy of the event is in hand. Nothing when told to stop.
    pub(super) async fn take(&self, event: &EventId, stop: &CancellationToken) -> Option<Turn<'_>> {
        loop {
            let mut ended = std::pin::pin!(self.ended.notified());
            // From here on it hears of every end, also of one before it waits.
            ended.as_mut().enable();
            if lock(&self.in_hand).insert(event.clone()) {
                return Some(Turn { turns: self, event: event.clone() });
            }
            tokio::select! {
                () = stop.cancelled() => return None,
                () = ended => {}
            }
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        lock(&self.turns.in_hand).remove(&self.event);
        self.turns.ended.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn a_copy_waits_for_the_one_before_it_and_nobody_else_does() {
        let (turns, stop) = (Turns::default(), CancellationToken::new());
        let event = |id: &str| EventId::new(id).unwrap();
        let first = turns.take(&event("a"), &stop).await.unwrap();
        assert!(turns.take(&event("b"), &stop).now_or_never().flatten().is_some());
        let copy_id = event("a");
        let copy = turns.take(&copy_id, &stop);
        tokio::pin!(copy);
        assert!(copy.as_mut().now_or_never().is_none());
        drop(first);
        assert!(copy.await.is_some());
        let _again = turns.take(&event("a"), &stop).await.unwrap();
        stop.cancel();
        assert!(turns.take(&event("a"), &stop).await.is_none());
    }
}
