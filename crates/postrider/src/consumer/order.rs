//! Order per key: the deliveries of one key go one after the other, and while one of them waits, the rest are held.
//!
//! The events of a key take one of two ways. While nothing of the key is held they are handled as they come, in a lane of
//! their own. Once one of them has to wait, it becomes the head of its key in the table of held events, those that follow
//! are put behind it and acked, and all of them are handled from there (see `release`), until the key has no rows left.
//! An event leaves the table in the transaction that applies it, so whoever finds no rows may go on.
//!
//! A crash between holding and acking brings the delivery again, and holding it again changes nothing. Two processes that
//! both believe to be the active one can only repeat what the other did: the inbox knows, and the rows say who is next.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::arrived::Arrived;
use super::attempt::Tried;
use super::desk::Desk;
use super::settle::{Fate, error_of, mark_passed_on};
use super::{Consumer, lock};
use crate::broker::{Message, Outgoing};
use crate::dead_letter;
use crate::envelope::OrderingKey;
use crate::settlement::Outcome;
use crate::store::{ConsumerStore, HeldEvent, HeldState};

/// Deliveries that go one after the other.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Lane {
    /// Those of one key.
    Key(OrderingKey),
    /// All of an ordered queue with batch handlers: its batches go one after the other.
    All,
}

/// What a lane does next: one delivery, or several that share a batch of the handler with this number.
struct Run {
    batch: Option<usize>,
    arrived: Vec<Arrived>,
}

impl<S: ConsumerStore> Desk<S> {
    /// The lane of a delivery, if it has to keep to one.
    pub(super) fn lane_of(&self, arrived: &Arrived) -> Option<Lane> {
        self.consumer.service.order?;
        if self.consumer.registry.largest_batch().is_some() {
            return Some(Lane::All);
        }
        arrived.key().cloned().map(Lane::Key)
    }

    /// Whether what is not begun yet is left to the broker, all of it: nothing more is begun, or the consumer is held up. Tried all the same,
    /// the rest of a batch that failed would use up its retries although the breaker has opened.
    pub(super) fn leaves_the_rest(&self) -> bool {
        let leaves = self.begins_nothing();
        if leaves {
            self.left.cancel();
        }
        leaves
    }

    /// Begins a lane, unless one that was given up meanwhile would have been before it.
    pub(super) fn begin_lane(self: &Arc<Self>, lane: Lane, first: Arrived) {
        let mut lanes = lock(&self.lanes);
        if self.is_over() && !self.is_saved(&first) {
            return self.leave([&first]);
        }
        lanes.insert(lane.clone(), VecDeque::from([first]));
        self.begin(self.clone().run_lane(lane));
    }

    /// Puts a delivery at the end of its lane. Gives it back if the lane is empty.
    pub(super) fn queue_behind(&self, lane: &Lane, arrived: Arrived) -> Option<Arrived> {
        match lock(&self.lanes).get_mut(lane) {
            Some(waiting) => {
                waiting.push_back(arrived);
                None
            }
            None => Some(arrived),
        }
    }

    /// Works until the lane is empty. Told to stop, or while the consumer is held up, it leaves the rest to the broker, all but what is worn.
    pub(super) async fn run_lane(self: Arc<Self>, lane: Lane) {
        while let Some(run) = self.next_run(&lane) {
            self.in_order(run).await;
        }
    }

    fn next_run(&self, lane: &Lane) -> Option<Run> {
        let mut lanes = lock(&self.lanes);
        let waiting = lanes.get_mut(lane)?;
        if self.begins_nothing() {
            self.leave_all_but_worn(waiting);
        }
        let Some(first) = waiting.pop_front() else {
            lanes.remove(lane);
            return None;
        };
        // Those that are only held go together, so that many of one key are held before the broker gets them back.
        let is_worn = self.consumer.is_worn_in_order(&first);
        let batch = self.batchable(&first);
        let most = batch.map_or(1, |(_, most)| most);
        let fits = |next: &Arrived| match batch {
            _ if is_worn => self.consumer.is_worn_in_order(next),
            Some((number, _)) => self.batchable(next).is_some_and(|(other, _)| other == number),
            None => false,
        };
        let mut arrived = vec![first];
        while (is_worn || arrived.len() < most)
            && let Some(next) = waiting.pop_front_if(|next| fits(next))
        {
            arrived.push(next);
        }
        Some(Run { batch: batch.map(|(number, _)| number), arrived })
    }

    /// Leaves what waits in a lane to the broker. Even if the consumer goes on in the next moment: it comes back only with another session.
    fn leave_all_but_worn(&self, waiting: &mut VecDeque<Arrived>) {
        for arrived in std::mem::take(waiting) {
            if self.is_saved(&arrived) {
                waiting.push_back(arrived);
            } else {
                self.leave([&arrived]);
            }
        }
    }

    /// Holds those of a run whose key is held, and handles the others.
    async fn in_order(&self, run: Run) {
        let Some((ready, behind)) = self.part(run.arrived).await else { return };
        if self.hold_behind(behind).await.is_none() {
            return;
        }
        let ready = match run.batch.filter(|_| ready.len() > 1 && !ready.iter().any(|one| one.held)) {
            Some(number) => match self.batch_in_order(number, ready).await {
                Some(failed) => failed,
                None => return,
            },
            None => ready,
        };
        self.one_by_one(ready).await;
    }

    /// Those that may be handled now, and those that have to be held, because their key is or because the broker would soon give them up.
    /// Nothing when told to stop.
    async fn part(&self, run: Vec<Arrived>) -> Option<(Vec<Arrived>, Vec<Arrived>)> {
        let consumer = &self.consumer;
        let keys: HashSet<_> = run.iter().filter_map(Arrived::key).cloned().collect();
        let keys: Vec<_> = keys.into_iter().collect();
        let heads = if keys.is_empty() {
            std::collections::HashMap::new()
        } else {
            consumer.surely(&self.stop, || consumer.store.held_heads(&consumer.name, &keys)).await?
        };
        let (mut ready, mut behind) = (Vec::new(), Vec::new());
        for mut arrived in run {
            let head = arrived.key().and_then(|key| heads.get(key));
            let is_awaited = head.is_some_and(|head| {
                head.state == HeldState::Parked && Some(&head.event_id) == arrived.event_id()
            });
            let is_replay = arrived.delivery.message.header(dead_letter::header::REPLAY_ID).is_some();
            // The dead letter that its key is parked behind was replayed: this is what the key waits for. Something else under its id is not,
            // unless somebody sent it again.
            if is_awaited && (is_replay || !consumer.is_contradicting(&arrived, &self.stop).await?) {
                arrived.held = true;
                ready.push(arrived);
            } else if head.is_some() || consumer.is_worn_in_order(&arrived) {
                behind.push(arrived);
            } else {
                ready.push(arrived);
            }
        }
        Some((ready, behind))
    }

    /// A batch, in one transaction. Gives it back if it failed.
    async fn batch_in_order(&self, number: usize, batch: Vec<Arrived>) -> Option<Vec<Arrived>> {
        match self.try_batch(number, &batch).await? {
            Tried::Failed(_) => Some(batch),
            Tried::Done(outcomes) => {
                for (arrived, outcome) in batch.into_iter().zip(outcomes) {
                    self.consumer.carry_out(&arrived, &outcome, &self.stop).await?;
                    self.ack(arrived).await;
                }
                None
            }
        }
    }

    /// Each in a transaction of its own. What follows one that waits is held.
    async fn one_by_one(&self, ready: Vec<Arrived>) {
        let (mut blocked, mut behind) = (HashSet::new(), Vec::new());
        let mut rest = ready.into_iter();
        while let Some(arrived) = rest.next() {
            if self.leaves_the_rest() {
                return self.leave(behind.iter().chain([&arrived]).chain(rest.as_slice()));
            }
            if arrived.key().is_some_and(|key| blocked.contains(key)) {
                behind.push(arrived);
                continue;
            }
            let Some(fate) = self.consumer.deliver(&arrived, &self.stop).await else {
                return self.leave(behind.iter().chain([&arrived]).chain(rest.as_slice()));
            };
            if fate == Fate::Waits {
                blocked.extend(arrived.key().cloned());
            }
            self.ack(arrived).await;
        }
        self.hold_behind(behind).await;
    }

    /// Holds deliveries and acks them. Nothing when told to stop before.
    async fn hold_behind(&self, behind: Vec<Arrived>) -> Option<()> {
        if behind.is_empty() {
            return Some(());
        }
        let consumer = &self.consumer;
        let (behind, contradicting) = consumer.part_contradicting(behind, &self.stop).await?;
        for arrived in contradicting {
            consumer.bury_contradicting(&arrived, &self.stop).await?;
            self.ack(arrived).await;
        }
        let events: Vec<_> = behind.iter().filter_map(held_event).collect();
        consumer.surely(&self.stop, || consumer.store.hold(&consumer.name, events.clone())).await?;
        for arrived in &behind {
            let (event, key) = (arrived.event_id(), arrived.key());
            tracing::debug!(consumer = %consumer.name, ?event, ?key, "held behind the others of its key");
        }
        consumer.status.held.fetch_add(behind.len() as u64, Ordering::Relaxed);
        metrics::counter!("postrider_consumer_held_total", "consumer" => consumer.name.to_string())
            .increment(behind.len() as u64);
        for arrived in behind {
            self.ack(arrived).await;
        }
        consumer.released.notify_one();
        Some(())
    }
}

/// A delivery as the table of held events keeps it, due at once.
fn held_event(arrived: &Arrived) -> Option<HeldEvent> {
    let mut message = arrived.delivery.message.clone();
    mark_passed_on(&mut message, arrived, arrived.attempt - 1);
    Some(HeldEvent {
        event_id: arrived.event_id()?.clone(),
        key: arrived.key()?.clone(),
        state: HeldState::Waiting,
        attempt: arrived.attempt,
        delay: Duration::ZERO,
        error: String::new(),
        letter: None,
        exchange: arrived.delivery.exchange.clone(),
        routing_key: arrived.delivery.routing_key.clone(),
        message,
    })
}

impl<S: ConsumerStore> Consumer<S> {
    /// Makes an event the head of its key, until its next attempt.
    pub(super) async fn wait_in_order(
        &self,
        arrived: &Arrived,
        outcome: &Outcome,
        message: Message,
        delay: Duration,
        stop: &CancellationToken,
    ) -> Option<Fate> {
        if !arrived.held && self.is_contradicting(arrived, stop).await? {
            self.bury_contradicting(arrived, stop).await?;
            return Some(Fate::Done);
        }
        let retried = matches!(outcome, Outcome::Failed(failure) if !failure.is_deferred());
        let attempt = arrived.attempt + u32::from(retried);
        let error = dead_letter::cut(&error_of(outcome), dead_letter::MAX_ERROR_BYTES);
        let event = HeldEvent { attempt, delay, error, message, ..held_event(arrived)? };
        tracing::debug!(consumer = %self.name, event = %event.event_id, key = %event.key, attempt, "waits, and its key with it");
        self.surely(stop, || self.store.hold_head(&self.name, event.clone())).await?;
        self.released.notify_one();
        Some(Fate::Waits)
    }

    /// Parks the key of an event that is a dead letter now, behind this one.
    pub(super) async fn park(
        &self,
        arrived: &Arrived,
        outcome: &Outcome,
        letter: Outgoing,
        stop: &CancellationToken,
    ) -> Option<Fate> {
        // It is a dead letter already, and what is held under its id has nothing to do with that.
        if !arrived.held && self.is_contradicting(arrived, stop).await? {
            return Some(Fate::Done);
        }
        let error = dead_letter::cut(&error_of(outcome), dead_letter::MAX_ERROR_BYTES);
        // Under the key that its collector will give it.
        let letter = Some(dead_letter::uncarried(letter, &self.service, &self.clock).key);
        let event = HeldEvent { state: HeldState::Parked, error, letter, ..held_event(arrived)? };
        self.surely(stop, || self.store.hold_head(&self.name, event.clone())).await?;
        Some(Fate::Waits)
    }

    /// Lets an event go that is a dead letter now, so that those behind it go on.
    pub(super) async fn forget(&self, arrived: &Arrived, stop: &CancellationToken) -> Option<Fate> {
        let event = arrived.event_id()?;
        let forgetting = || async {
            let mut tx = self.store.begin().await?;
            self.store.let_go(&mut tx, &self.name, event).await?;
            self.store.commit(tx).await
        };
        self.surely(stop, forgetting).await?;
        Some(Fate::Done)
    }
}

#[cfg(test)]
mod tests;
