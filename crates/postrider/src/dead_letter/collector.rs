//! Takes dead letters from their queue into the table. Committed first, then acked.
//!
//! A crash between the two delivers them again, and the table knows them by their key. What the store refuses for good stays in
//! the queue, unsettled, and its neighbours are collected all the same.

mod share;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use jiff::{SignedDuration, Timestamp};
use tokio_util::sync::CancellationToken;

use self::share::Share;
use super::story;
use crate::broker::{Broker, BrokerError, Receipt, Settler, Subscription, Verdict};
use crate::clock::Clock;
use crate::store::{DeadLetter, DeadLetters, StoreError};
use crate::topology::ServiceQueue;

/// Dead letters taken at a time.
const BATCH: usize = 500;

/// Batches that the store has in hand at the same time: while it writes one, the next is read and written out for it.
const AT_ONCE: usize = 2;

/// Dead letters, and the right to settle each.
struct Batch {
    receipts: Vec<Receipt>,
    letters: Vec<DeadLetter>,
}

/// Puts letters of the same second in the order in which they came: what a broker or a foreign consumer dead-lettered has times of whole
/// seconds, and a replay takes letters by their times, so that each key keeps its order. Two batches are stored at once, so their
/// numbers say nothing of it.
#[derive(Default)]
struct Order {
    /// How many times each of the newest seconds was told. Counted over all of them, a number would soon be so large that it
    /// is ahead of now, and all that died in this second would have the same time.
    told: BTreeMap<i64, i64>,
    /// The last number that was told for a second before those. A broker dates a message that went round a retry loop by its first death,
    /// which may be long ago.
    older: i64,
}

impl Order {
    const MOST_SECONDS: usize = 1_000;

    fn tell_apart(&mut self, letter: &mut DeadLetter, now: Timestamp) {
        for time in [&mut letter.first_failed_at, &mut letter.dead_at] {
            *time = self.apart(*time, now);
        }
    }

    fn apart(&mut self, time: Timestamp, now: Timestamp) -> Timestamp {
        const LAST: i64 = 999_999;
        if time.subsec_nanosecond() != 0 {
            return time;
        }
        let second = time.as_second();
        let full = self.told.len() >= Self::MOST_SECONDS;
        let micros = if full && self.told.keys().next().is_some_and(|first| second < *first) {
            self.older = self.older % LAST + 1;
            self.older
        } else {
            let micros = self.told.entry(second).or_insert(0);
            *micros = (*micros + 1).min(LAST);
            *micros
        };
        let apart = time.saturating_add(SignedDuration::from_micros(micros)).unwrap_or(time);
        if self.told.len() > Self::MOST_SECONDS
            && let Some((_, last)) = self.told.pop_first()
        {
            self.older = self.older.max(last);
        }
        // Not ahead of now: a plan leaves out what dies after it.
        apart.min(now.max(time))
    }
}

/// Collects the dead letters of one queue.
pub struct Collector<S> {
    store: S,
    broker: Arc<dyn Broker>,
    clock: Clock,
    service: ServiceQueue,
}

impl<S: DeadLetters> Collector<S> {
    /// A collector for a service queue's dead letters.
    pub fn new(store: S, broker: Arc<dyn Broker>, clock: Clock, service: ServiceQueue) -> Self {
        Self { store, broker, clock, service }
    }

    /// Works until told to stop. An outage of the store is waited out; the letters stay in their queue meanwhile.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) -> Result<(), BrokerError> {
        let mut share = Share::new((AT_ONCE + 1) * BATCH);
        let Some(mut subscription) = self.subscribe(share.prefetch(), &stop).await? else { return Ok(()) };
        let settler = subscription.settler();
        let (mut collecting, mut order) = (FuturesUnordered::new(), Order::default());
        let mut goes_on = true;
        while goes_on || !collecting.is_empty() {
            tokio::select! {
                Some(collected) = collecting.next(), if !collecting.is_empty() => match collected? {
                    Some(refused) if share.refuse(refused) => subscription.allow(share.prefetch()).await,
                    Some(_) => {}
                    None => goes_on = false,
                },
                next = self.receive(subscription.as_mut(), &mut order, &stop), if goes_on && collecting.len() < AT_ONCE => match next? {
                    Some(batch) => {
                        let changes = share.weigh(&batch.letters);
                        collecting.push(self.collect(batch, settler.as_ref(), &stop));
                        if changes {
                            subscription.allow(share.prefetch()).await;
                        }
                    }
                    None => goes_on = false,
                },
            }
        }
        Ok(())
    }

    /// The next batch; nothing when told to stop.
    async fn receive(
        &self,
        subscription: &mut dyn Subscription,
        order: &mut Order,
        stop: &CancellationToken,
    ) -> Result<Option<Batch>, BrokerError> {
        let deliveries = tokio::select! {
            () = stop.cancelled() => return Ok(None),
            deliveries = subscription.next(BATCH) => deliveries?,
        };
        let letter = |delivery| story::letter(delivery, &self.service, self.clock.now(), self.clock.new_id());
        let (receipts, mut letters): (Vec<_>, Vec<_>) = deliveries.into_iter().map(letter).unzip();
        let now = self.clock.now();
        for letter in &mut letters {
            order.tell_apart(letter, now);
        }
        Ok(Some(Batch { receipts, letters }))
    }

    async fn subscribe(
        &self,
        prefetch: u16,
        stop: &CancellationToken,
    ) -> Result<Option<Box<dyn Subscription>>, BrokerError> {
        loop {
            match self.broker.subscribe(&self.service.dead_letter_queue, prefetch).await {
                Err(error) if error.is_transient() => tokio::select! {
                    () = stop.cancelled() => return Ok(None),
                    () = self.clock.sleep(Duration::from_secs(1)) => {}
                },
                subscribed => return subscribed.map(Some),
            }
        }
    }

    /// Stores and acks. A batch that is refused is halved until what is refused stands alone. How many were; nothing when told to stop.
    async fn collect(
        &self,
        batch: Batch,
        settler: &dyn Settler,
        stop: &CancellationToken,
    ) -> Result<Option<usize>, BrokerError> {
        let (mut parts, mut refused) = (vec![batch], 0);
        while let Some(Batch { mut receipts, mut letters }) = parts.pop() {
            if letters.is_empty() {
                continue;
            }
            match self.store_surely(&letters, stop).await {
                None => return Ok(None),
                Some(Ok(())) => {
                    metrics::counter!("postrider_dead_letters_collected_total")
                        .increment(letters.len() as u64);
                    let done = receipts.into_iter().map(|receipt| (receipt, Verdict::Ack));
                    settler.settle(done.collect()).await?;
                }
                Some(Err(error)) if letters.len() > 1 => {
                    tracing::debug!(%error, "a batch of dead letters was refused; looking for the one that is at fault");
                    let half = letters.len() / 2;
                    parts
                        .push(Batch { receipts: receipts.split_off(half), letters: letters.split_off(half) });
                    parts.push(Batch { receipts, letters });
                }
                // Its receipt is dropped: the broker keeps it, and delivers it again when this connection ends.
                Some(Err(error)) => {
                    refused += 1;
                    metrics::counter!("postrider_dead_letters_refused_total").increment(1);
                    tracing::error!(queue = %self.service.dead_letter_queue, %error,
                        event_id = letters.first().and_then(|letter| letter.event_id.as_ref()).map(AsRef::<str>::as_ref),
                        "the store refuses a dead letter; nothing is lost, it stays in its queue. Look at it there; the \
                         others are collected");
                }
            }
        }
        Ok(Some(refused))
    }

    /// Tries until it is committed or refused; nothing when told to stop before that.
    async fn store_surely(
        &self,
        letters: &[DeadLetter],
        stop: &CancellationToken,
    ) -> Option<Result<(), StoreError>> {
        loop {
            let error = match self.store.collect(letters.to_vec()).await {
                Err(error) if may_pass(&error) => error,
                answered => return Some(answered),
            };
            tracing::warn!(queue = %self.service.dead_letter_queue, %error,
                "dead letters could not be stored; they stay in their queue, trying again");
            tokio::select! {
                () = stop.cancelled() => return None,
                () = self.clock.sleep(Duration::from_secs(1)) => {}
            }
        }
    }
}

/// Whether the letter is not to blame: an outage, missing rights or a schema that waits for its migration.
fn may_pass(error: &StoreError) -> bool {
    use crate::store::StoreErrorKind::{Denied, Schema};
    error.is_transient() || matches!(error.kind, Denied | Schema)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_died_in_one_second_stays_apart_however_many_there_were_before() {
        let mut order = Order::default();
        let second = |number: i64| Timestamp::from_second(1_767_268_800 + number).unwrap();
        for number in 0..3 {
            let long_after = second(100);
            let mut last = Timestamp::MIN;
            for _ in 0..300_000 {
                let told = order.apart(second(number), long_after);
                assert!(told > last && told < second(number + 1), "{told} after {last}");
                last = told;
            }
        }
        // These are collected in the second in which they die.
        let now = second(4).saturating_add(SignedDuration::from_millis(10)).unwrap();
        let told: Vec<_> = (0..50).map(|_| order.apart(second(4), now)).collect();
        assert!(told.is_sorted_by(|one, next| one < next) && told[49] <= now, "{told:?}");
        // Whoever has a better time keeps it.
        assert_eq!(order.apart(now, now), now);
    }

    #[test]
    fn what_died_long_before_the_others_stays_apart_too() {
        let mut order = Order::default();
        let second = |number: i64| Timestamp::from_second(1_767_268_800 + number).unwrap();
        let now = second(10_000);
        let mut told = vec![order.apart(second(0), now)];
        for number in 1..5_000 {
            order.apart(second(number), now);
        }
        told.extend((0..50).map(|_| order.apart(second(0), now)));
        assert!(told.is_sorted_by(|one, next| one < next) && told[50] < second(1), "{told:?}");
        assert_eq!(order.told.len(), Order::MOST_SECONDS);
    }
}
