//! Where the deliveries of one session go: to a task of their own, to the lane of their key, or into a batch.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::arrived::{Arrived, Errand};
use super::attempt::Tried;
use super::order::Lane;
use super::{Consumer, lock};
use crate::broker::{Receipt, Settler, Verdict};
use crate::settlement::Outcome;
use crate::store::ConsumerStore;

/// The desk of one session.
pub(super) struct Desk<S: ConsumerStore> {
    pub(super) consumer: Arc<Consumer<S>>,
    pub(super) stop: CancellationToken,
    /// Something was left to the broker, which takes it back when the session ends: nothing more is taken on.
    pub(super) left: CancellationToken,
    /// What waits behind the delivery in hand, lane by lane.
    pub(super) lanes: Mutex<HashMap<Lane, VecDeque<Arrived>>>,
    /// The batches that are still being gathered, by the number of their handler.
    gathering: Mutex<HashMap<usize, Vec<Arrived>>>,
    settled: Mutex<Option<mpsc::Sender<(Receipt, Verdict)>>>,
    settling: Mutex<Option<JoinHandle<()>>>,
    tasks: TaskTracker,
    freed: Notify,
}

impl<S: ConsumerStore> Desk<S> {
    pub(super) fn open(
        consumer: Arc<Consumer<S>>,
        settler: Box<dyn Settler>,
        prefetch: u16,
        stop: CancellationToken,
    ) -> Arc<Self> {
        let (settled, to_settle) = mpsc::channel(usize::from(prefetch.max(1)));
        let settling = tokio::spawn(settle_in_batches(settler, to_settle));
        Arc::new(Self {
            consumer,
            stop,
            left: CancellationToken::new(),
            lanes: Mutex::default(),
            gathering: Mutex::default(),
            settled: Mutex::new(Some(settled)),
            settling: Mutex::new(Some(settling)),
            tasks: TaskTracker::new(),
            freed: Notify::new(),
        })
    }

    /// Waits until everything that was begun is settled.
    pub(super) async fn close(&self) {
        lock(&self.gathering).clear();
        self.tasks.close();
        self.tasks.wait().await;
        lock(&self.settled).take();
        let settling = lock(&self.settling).take();
        if let Some(settling) = settling {
            let _ended = settling.await;
        }
    }

    /// Takes a delivery on, as soon as the rate limit and the number of others in hand allow it. Dropped before that, it
    /// leaves the delivery to the broker.
    pub(super) async fn take(self: &Arc<Self>, arrived: Arrived) {
        if arrived.known {
            if self.consumer.carry_out(&arrived, &Outcome::Duplicate, &self.stop).await.is_some() {
                self.ack(arrived).await;
            }
            return;
        }
        self.consumer.keep_to_the_rate().await;
        if let Some(lane) = self.lane_of(&arrived) {
            let most = self.most_in_hand(&arrived);
            let Some(first) = self.queue_behind(&lane, arrived) else { return };
            self.room(most).await;
            self.begin_lane(lane, first);
            return;
        }
        let Some((number, most)) = self.batchable(&arrived) else {
            self.room(self.most_in_hand(&arrived)).await;
            let desk = self.clone();
            return self.begin(async move {
                if desk.consumer.deliver(&arrived, &desk.stop).await.is_some() {
                    desk.ack(arrived).await;
                }
            });
        };
        let size = self.gather(number, arrived);
        if size >= most {
            self.room(None).await;
            self.begin_batch(number);
        } else if size == 1 {
            self.flush_later(number);
        }
    }

    /// Begins the batches that wait for nobody, or all of them.
    pub(super) async fn flush(self: &Arc<Self>, all: bool) {
        let ready = |number: &usize| all || self.wait_of(*number).is_zero();
        let numbers: Vec<_> = lock(&self.gathering).keys().copied().filter(ready).collect();
        for number in numbers {
            self.room(None).await;
            self.begin_batch(number);
        }
    }

    /// The handler's number and the most it takes, if the delivery may share a batch: it is due, somebody's, and nothing
    /// died under it.
    pub(super) fn batchable(&self, arrived: &Arrived) -> Option<(usize, usize)> {
        if arrived.suspect() || self.consumer.is_marked(arrived) {
            return None;
        }
        let Errand::Handle(number) = self.consumer.errand(arrived) else { return None };
        let limits = self.consumer.registry.entry(number)?.batch?;
        Some((number, limits.max_size.max(1)))
    }

    /// A batch in one transaction. If it fails, one by one.
    async fn run_batch(self: Arc<Self>, number: usize, batch: Vec<Arrived>) {
        let spans: Vec<_> = batch.iter().map(|arrived| self.consumer.span(arrived)).collect();
        let Some(tried) = self.try_batch(number, &batch).await else { return };
        match tried {
            Tried::Done(outcomes) => {
                for ((arrived, outcome), span) in batch.into_iter().zip(outcomes).zip(spans) {
                    self.consumer.end_span(span, &arrived, &outcome);
                    if self.consumer.carry_out(&arrived, &outcome, &self.stop).await.is_some() {
                        self.ack(arrived).await;
                    }
                }
            }
            Tried::Failed(_) => {
                for arrived in batch {
                    if self.consumer.deliver(&arrived, &self.stop).await.is_some() {
                        self.ack(arrived).await;
                    }
                }
            }
        }
    }

    /// All of them in one transaction, side by side with others. Nothing when told to stop.
    pub(super) async fn try_batch(&self, number: usize, batch: &[Arrived]) -> Option<Tried> {
        let consumer = &self.consumer;
        let entry = consumer.registry.entry(number)?;
        let events: Vec<_> = batch.iter().filter_map(|arrived| arrived.read.clone().ok()).collect();
        let _beside = consumer.alone.read().await;
        let tried = consumer.try_on(entry, &events, false, &self.stop).await?;
        if let Tried::Done(outcomes) = &tried {
            for (incoming, outcome) in events.iter().zip(outcomes) {
                consumer.tell_breaker(incoming, outcome);
            }
        }
        Some(tried)
    }

    pub(super) async fn ack(&self, arrived: Arrived) {
        let settled = lock(&self.settled).clone();
        if let Some(settled) = settled {
            let _closing = settled.send((arrived.delivery.receipt, Verdict::Ack)).await;
        }
    }

    fn gather(&self, number: usize, arrived: Arrived) -> usize {
        let mut gathering = lock(&self.gathering);
        let batch = gathering.entry(number).or_default();
        batch.push(arrived);
        batch.len()
    }

    fn begin_batch(self: &Arc<Self>, number: usize) {
        let batch = lock(&self.gathering).remove(&number);
        if let Some(batch) = batch {
            self.begin(self.clone().run_batch(number, batch));
        }
    }

    /// Whatever was gathered by then goes; if the batch was full before, that is the beginning of the next one.
    fn flush_later(self: &Arc<Self>, number: usize) {
        let wait = self.wait_of(number);
        if wait.is_zero() {
            return;
        }
        let desk = self.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                () = desk.stop.cancelled() => {}
                () = desk.consumer.status.held_up() => desk.left.cancel(),
                () = desk.consumer.clock.sleep(wait) => desk.begin_batch(number),
            }
        });
    }

    fn wait_of(&self, number: usize) -> Duration {
        let batch = self.consumer.registry.entry(number).and_then(|entry| entry.batch);
        batch.map_or(Duration::ZERO, |limits| limits.max_wait)
    }

    pub(super) fn begin(self: &Arc<Self>, work: impl Future<Output = ()> + Send + 'static) {
        let slot = Slot::new(self.clone());
        self.tasks.spawn(async move {
            let _slot = slot;
            work.await;
        });
    }

    /// A handler that works outside counts for itself what is with it: in hand is all that was delivered, marks included.
    fn most_in_hand(&self, arrived: &Arrived) -> Option<usize> {
        let Errand::Handle(number) = self.consumer.errand(arrived) else { return None };
        self.consumer.registry.entry(number)?.handler.outside()?;
        Some(usize::from(self.consumer.config.prefetch.max(1)))
    }

    /// Waits until fewer are in hand than so many, or else than may be at this pace.
    async fn room(&self, most: Option<usize>) {
        let status = &self.consumer.status;
        while status.in_flight() >= most.unwrap_or_else(|| self.consumer.pace().limit()) {
            if most.is_none() {
                self.consumer.pace().backed_up();
            }
            self.freed.notified().await;
        }
    }
}

/// A place among those in hand, given back when it is dropped.
struct Slot<S: ConsumerStore>(Arc<Desk<S>>);

impl<S: ConsumerStore> Slot<S> {
    fn new(desk: Arc<Desk<S>>) -> Self {
        desk.consumer.status.in_flight.fetch_add(1, Ordering::Relaxed);
        Self(desk)
    }
}

impl<S: ConsumerStore> Drop for Slot<S> {
    fn drop(&mut self) {
        self.0.consumer.status.in_flight.fetch_sub(1, Ordering::Relaxed);
        self.0.freed.notify_one();
    }
}

/// Settles whatever is ready in one go. A lost connection needs nothing: the broker delivers again.
async fn settle_in_batches(settler: Box<dyn Settler>, mut ready: mpsc::Receiver<(Receipt, Verdict)>) {
    const MOST: usize = 512;
    let mut batch = Vec::new();
    while ready.recv_many(&mut batch, MOST).await > 0 {
        if let Err(error) = settler.settle(std::mem::take(&mut batch)).await {
            tracing::warn!(%error, "deliveries could not be settled; the broker delivers them again");
        }
    }
}
