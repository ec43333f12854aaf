//! What a session that takes nothing more on does with what it was handed: it leaves it to the broker, which takes it back when the session
//! ends. What has come back so often that the broker would soon give it up (see `worn`) is brought to where nobody counts it instead.
//!
//! On an ordered queue that must not change who is first. So nothing of a key is brought to safety after an earlier one of its key was left.

use std::sync::Arc;

use futures_util::FutureExt as _;

use super::arrived::Arrived;
use super::desk::Desk;
use super::lock;
use crate::store::ConsumerStore;

impl<S: ConsumerStore> Desk<S> {
    /// Whether nothing more is begun: told to stop, or something was left to the broker, and what follows it must not go first.
    pub(super) fn is_over(&self) -> bool {
        self.stop.is_cancelled() || self.left.is_cancelled()
    }

    /// Whether what is not begun yet is not begun any more in this session: it is over, or the consumer is held up.
    pub(super) fn begins_nothing(&self) -> bool {
        self.is_over() || self.consumer.status.is_held_up()
    }

    /// Takes a delivery on, unless nothing more is to be begun by then.
    pub(super) async fn takes(self: &Arc<Self>, arrived: Arrived) -> bool {
        let key = self.consumer.service.order.and_then(|_| arrived.key().cloned());
        let mut taking = std::pin::pin!(self.take(arrived));
        // Most are taken at once, and to wait for four things costs more than that.
        if taking.as_mut().now_or_never().is_some() {
            return true;
        }
        let taken = tokio::select! {
            biased;
            () = self.stop.cancelled() => false,
            () = self.consumer.status.held_up() => false,
            () = self.left.cancelled() => false,
            () = taking => true,
        };
        if !taken {
            lock(&self.turned_away).extend(key);
        }
        taken
    }

    /// Takes a delivery on only to bring it to safety, if it is worn and nothing of its key was left before it. Leaves it to the broker
    /// otherwise; those in hand go on.
    pub(super) async fn turn_away(self: &Arc<Self>, arrived: Arrived) {
        let is_behind = arrived.key().is_some_and(|key| lock(&self.turned_away).contains(key));
        if !is_behind && self.is_saved(&arrived) {
            self.take(arrived).await;
        } else if self.consumer.is_worn(&arrived) && !self.consumer.has_place(&arrived) {
            self.renew(arrived);
        } else if self.consumer.service.order.is_some() {
            lock(&self.turned_away).extend(arrived.key().cloned());
        }
    }

    /// Whether a delivery of an ordered queue goes to those that are held although nothing more is begun, unless it was turned away.
    pub(super) fn is_saved(&self, arrived: &Arrived) -> bool {
        let is_left = || arrived.key().is_some_and(|key| lock(&self.left_keys).contains(key));
        !self.stop.is_cancelled() && self.consumer.is_worn_in_order(arrived) && !is_left()
    }

    /// Leaves deliveries to the broker, and with them all that is not begun: what follows them must not go first.
    pub(super) fn leave<'a>(&self, deliveries: impl IntoIterator<Item = &'a Arrived>) {
        lock(&self.left_keys).extend(deliveries.into_iter().filter_map(Arrived::key).cloned());
        self.left.cancel();
    }

    /// Sends a worn delivery to the end of its queue. A task of its own, because whoever takes deliveries on may be interrupted, and a publish
    /// must not be.
    pub(super) fn renew(self: &Arc<Self>, arrived: Arrived) {
        let desk = self.clone();
        self.begin(async move {
            if desk.consumer.renewed(&arrived).await {
                desk.ack(arrived).await;
            } else {
                desk.left.cancel();
            }
        });
    }
}
