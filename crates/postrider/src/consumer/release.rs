//! Handles held events, key by key, each when it is due and its turn has come.
//!
//! Every process that runs the consumer does this, also one whose subscription is not the active one: leases on the heads
//! share them out. A crash leaves the lease to run out, and the event to the next who looks.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::Consumer;
use super::breaker::BreakerState;
use crate::envelope::EventId;
use crate::store::{ConsumerStore, HeldEvent, HeldState};

/// A lease outlasts the longest attempt by so much …
const GRACE: Duration = Duration::from_secs(5);
/// … but is never longer than this: while an attempt takes longer it is renewed, and when the process dies its key does not
/// stand still for as long as the attempt could have taken.
const LONGEST_LEASE: Duration = Duration::from_mins(1);
/// How often the held events are counted, for the gauges.
const COUNTING: Duration = Duration::from_secs(5);
/// The keys that are looked at for that.
const COUNTED_KEYS: usize = 10_000;

impl<S: ConsumerStore> Consumer<S> {
    /// Works until told to stop, then lets the attempts in progress finish.
    pub(super) async fn release_held(self: Arc<Self>, ended: CancellationToken) {
        let owner = self.clock.new_id().to_string();
        let mut in_hand = JoinSet::new();
        let (mut counted, mut looked) = (None, None);
        loop {
            if counted.is_none_or(|at| self.clock.since(at) > COUNTING) {
                counted = Some(self.clock.monotonic());
                self.count_held().await;
            }
            tokio::select! {
                () = ended.cancelled() => break,
                () = self.status.free() => {}
            }
            // Also while there is always something due: to discard a letter would free its key only when all the others have nothing left.
            if looked.is_none_or(|at| self.clock.since(at) >= self.config.poll_interval) {
                looked = Some(self.clock.monotonic());
                self.release_discarded().await;
            }
            for event in self.claim(&owner, in_hand.len()).await {
                let (this, ended, owner) = (self.clone(), ended.clone(), owner.clone());
                in_hand.spawn(async move {
                    let event_id = event.event_id.clone();
                    tracing::debug!(consumer = %this.name, event = %event_id, key = %event.key, "a held event is tried");
                    let handling = async {
                        this.keep_to_the_rate().await;
                        let arrived = this.read_held(event);
                        this.deliver(&arrived, &ended).await;
                    };
                    tokio::select! {
                        () = handling => {}
                        () = this.keep_leased(&owner, &event_id) => {}
                    }
                });
            }
            tokio::select! {
                () = ended.cancelled() => break,
                // The next of the same key may be due.
                Some(_done) = in_hand.join_next() => {}
                () = self.released.notified() => {}
                () = self.clock.sleep(self.config.poll_interval) => {}
            }
        }
        while in_hand.join_next().await.is_some() {}
    }

    fn lease(&self) -> Duration {
        (self.config.handler_limit + GRACE).min(LONGEST_LEASE)
    }

    /// Renews the lease of an event in hand, for ever. One that cannot be renewed now is tried again well before it ends.
    async fn keep_leased(&self, owner: &str, event: &EventId) {
        loop {
            self.clock.sleep(self.lease() / 3).await;
            if let Err(error) = self.store.renew_held(&self.name, owner, event, self.lease()).await {
                tracing::debug!(consumer = %self.name, %event, %error, "a lease could not be renewed; trying again");
            }
        }
    }

    /// Sets the gauges. Best effort: they are for people.
    #[expect(clippy::cast_precision_loss, reason = "a gauge")]
    async fn count_held(&self) {
        let Ok(keys) = self.store.held_keys(Some(&self.name), COUNTED_KEYS).await else { return };
        let events: u64 = keys.iter().map(|key| key.events).sum();
        let parked = keys.iter().filter(|key| key.state == HeldState::Parked).count();
        let consumer = self.name.to_string();
        metrics::gauge!("postrider_consumer_held_events", "consumer" => consumer.clone()).set(events as f64);
        metrics::gauge!("postrider_consumer_parked_keys", "consumer" => consumer).set(parked as f64);
    }

    /// Claims what is due, as much as there is room for. While the breaker is half open, one at a time.
    async fn claim(&self, owner: &str, in_hand: usize) -> Vec<HeldEvent> {
        let most = if self.status.breaker() == BreakerState::HalfOpen {
            1
        } else {
            self.config.concurrency.min.max(1)
        };
        let room = most.saturating_sub(in_hand);
        if room == 0 {
            return Vec::new();
        }
        self.store.claim_held(&self.name, owner, self.lease(), room).await.unwrap_or_else(|error| {
            tracing::warn!(consumer = %self.name, %error, "held events could not be claimed; trying again");
            Vec::new()
        })
    }

    /// Lets the keys go on whose dead letter was discarded.
    async fn release_discarded(&self) {
        if let Err(error) = self.store.release_discarded(&self.name).await {
            tracing::debug!(consumer = %self.name, %error, "parked keys could not be looked at; trying again");
        }
    }
}
