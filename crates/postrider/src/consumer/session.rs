//! From one subscription to the next: a session begins when the consumer may work, and ends when it may not.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::Consumer;
use super::breaker::BreakerState;
use super::desk::Desk;
use crate::broker::{BrokerError, Subscription};
use crate::store::ConsumerStore;

/// A session that takes nothing more on looks at what it was handed already. Most of that is still on its way when the first of it fails at
/// once: it comes within this time, one after the other.
const ON_ITS_WAY: Duration = Duration::from_millis(50);

/// What is handed out waits for the rate limit no longer than this. RabbitMQ takes back what is in hand for half an hour, and everything
/// beside it.
const LONGEST_TURN: Duration = Duration::from_mins(5);

/// How many may be handed out: as many as are wanted, but for what the rate limit would not let begin in time.
fn most_in_hand(prefetch: u16, rate: Option<f64>) -> u16 {
    let Some(rate) = rate.filter(|rate| *rate > 0.0) else { return prefetch };
    let begun = (rate * LONGEST_TURN.as_secs_f64()).clamp(1.0, f64::from(u16::MAX));
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 1 and the largest")]
    let begun = begun as u16;
    prefetch.min(begun)
}

impl<S: ConsumerStore> Consumer<S> {
    /// One session after the other, until told to stop.
    pub(super) async fn sessions(self: &Arc<Self>, stop: &CancellationToken) -> Result<(), BrokerError> {
        loop {
            tokio::select! {
                // First: a session that is over as soon as it begins hands everything back once more, and brokers count that.
                biased;
                () = stop.cancelled() => return Ok(()),
                () = self.clear_to_work() => {}
            }
            self.session(stop).await?;
        }
    }

    /// One subscription, from its beginning until everything that was begun is settled. While the breaker is half open it
    /// is for a single delivery.
    async fn session(self: &Arc<Self>, stop: &CancellationToken) -> Result<(), BrokerError> {
        self.look_for_marks().await;
        let probe = self.status.breaker() == BreakerState::HalfOpen;
        let prefetch = self.prefetch(probe);
        let Some(mut subscription) = self.subscribe(prefetch, stop).await? else { return Ok(()) };
        let opened = self.status.note_subscription(subscription.subscribed());
        tracing::debug!(consumer = %self.name, prefetch, probe, "a session begins");
        let desk = Desk::open(self.clone(), subscription.settler(), prefetch, stop.clone());
        let mut result = self.receive(subscription.as_mut(), &desk, probe, stop).await;
        // Who takes his time, such as a worker with a lease, holds up nobody else when the consumer was paused and goes on.
        while result.is_ok() && !probe && desk.may_go_on().await {
            result = self.receive(subscription.as_mut(), &desk, probe, stop).await;
        }
        desk.close().await;
        drop(opened);
        tracing::debug!(consumer = %self.name, "a session is over");
        result
    }

    /// A probe is for a single delivery. On an ordered queue it is taken from as many as ever: what goes back to a quorum queue stands
    /// behind what went back before it, so the order holds only as long as whoever takes over is handed all of it at once.
    pub(super) fn prefetch(&self, probe: bool) -> u16 {
        if probe && self.service.order.is_none() {
            return 1;
        }
        most_in_hand(self.config.prefetch, self.config.max_rate)
    }

    async fn subscribe(
        &self,
        prefetch: u16,
        stop: &CancellationToken,
    ) -> Result<Option<Box<dyn Subscription>>, BrokerError> {
        loop {
            match self.broker.subscribe(self.service.name(), prefetch).await {
                Err(error) if error.is_transient() => {
                    tracing::warn!(consumer = %self.name, %error, "cannot subscribe yet; trying again");
                    tokio::select! {
                        () = stop.cancelled() => return Ok(None),
                        () = self.clock.sleep(Duration::from_secs(1)) => {}
                    }
                }
                answer => return answer.map(Some),
            }
        }
    }

    pub(super) async fn receive(
        self: &Arc<Self>,
        subscription: &mut dyn Subscription,
        desk: &Arc<Desk<S>>,
        probe: bool,
        stop: &CancellationToken,
    ) -> Result<(), BrokerError> {
        // Nothing more is begun. Of what was handed out already, what came back too often is still brought to where nobody counts it. As long as
        // it was not looked at it would go back uncounted by us, until the broker gives it up.
        let mut leaving = false;
        // Of a single delivery that was asked for, nothing is on its way behind it.
        let alone = probe && self.service.order.is_none();
        while !(leaving && alone) {
            let most = if probe && !leaving { 1 } else { self.most_at_a_time() };
            let deliveries = tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(()),
                () = self.status.held_up(), if !leaving => {
                    leaving = true;
                    continue;
                }
                () = desk.left.cancelled(), if !leaving => {
                    leaving = true;
                    continue;
                }
                deliveries = subscription.next(most) => deliveries?,
                () = self.clock.sleep(ON_ITS_WAY), if leaving => return Ok(()),
            };
            for arrived in self.meet(deliveries, probe).await {
                // What is not begun is left unsettled: the broker takes it back when the subscription ends.
                leaving |= desk.begins_nothing();
                if leaving {
                    desk.turn_away(arrived).await;
                } else {
                    leaving = !desk.takes(arrived).await;
                }
                if leaving {
                    desk.passed_over.store(true, Ordering::Relaxed);
                }
            }
            desk.flush(probe).await;
            leaving |= probe && desk.tries.load(Ordering::Relaxed);
        }
        Ok(())
    }

    /// Waits while it is paused or its breaker is open.
    async fn clear_to_work(&self) {
        loop {
            self.status.unpaused().await;
            let now = self.clock.monotonic();
            let wait = self.with_breaker(|breaker| breaker.wait(now));
            if wait.is_zero() && self.status.pause().is_none() {
                return;
            }
            tokio::select! {
                () = self.status.closed() => {}
                () = self.clock.sleep(wait) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::most_in_hand;

    #[test]
    fn no_more_is_handed_out_than_a_rate_limit_lets_begin_in_time() {
        assert_eq!(most_in_hand(250, None), 250);
        assert_eq!(most_in_hand(250, Some(1e9)), 250);
        assert_eq!(most_in_hand(250, Some(0.1)), 30);
        assert_eq!(most_in_hand(250, Some(1e-300)), 1);
        assert_eq!(most_in_hand(250, Some(0.0)), 250, "no limit");
    }
}
