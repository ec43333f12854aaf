//! Where the deliveries of one session go: to a task of their own, to the lane of their key, or into a batch.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
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
use crate::envelope::OrderingKey;
use crate::settlement::Outcome;
use crate::store::ConsumerStore;

/// How long what waits for nobody gathers behind other batches of its handler, at most.
const BEHIND_OTHERS: Duration = Duration::from_millis(20);

/// Deliveries that may be settled.
type Ready = Vec<(Receipt, Verdict)>;

/// What a batch handler has in hand, and what gathers meanwhile.
#[derive(Default)]
struct Batches {
    gathering: Vec<Arrived>,
    in_hand: usize,
}

/// The desk of one session.
pub(super) struct Desk<S: ConsumerStore> {
    pub(super) consumer: Arc<Consumer<S>>,
    pub(super) stop: CancellationToken,
    /// Something was left to the broker, which takes it back when the session ends: nothing more is taken on.
    pub(super) left: CancellationToken,
    /// The keys of what was taken on and then left: what follows it must not go first, whether it waits in a lane or is still to come.
    pub(super) left_keys: Mutex<HashSet<OrderingKey>>,
    /// The keys of what was not taken on: what is still to come follows it, and what waits in a lane was before it.
    pub(super) turned_away: Mutex<HashSet<OrderingKey>>,
    /// Something was taken on to be handled, and not only to be brought where nobody counts it: one is enough for a probe.
    pub(super) tries: AtomicBool,
    /// Something was handed out and not taken on: it comes again when the session ends, and not before.
    pub(super) passed_over: AtomicBool,
    /// What waits behind the delivery in hand, lane by lane.
    pub(super) lanes: Mutex<HashMap<Lane, VecDeque<Arrived>>>,
    /// The batches of each handler, by its number.
    batches: Mutex<HashMap<usize, Batches>>,
    settled: Mutex<Option<mpsc::Sender<Ready>>>,
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
            left_keys: Mutex::default(),
            turned_away: Mutex::default(),
            tries: AtomicBool::new(false),
            passed_over: AtomicBool::new(false),
            lanes: Mutex::default(),
            batches: Mutex::default(),
            settled: Mutex::new(Some(settled)),
            settling: Mutex::new(Some(settling)),
            tasks: TaskTracker::new(),
            freed: Notify::new(),
        })
    }

    /// Waits until everything that was begun is done, or until the consumer is free again before that. Then it may go on where it was, unless
    /// something comes again only when the session ends, or an order is kept.
    pub(super) async fn may_go_on(&self) -> bool {
        if self.consumer.service.order.is_some() || self.passed_over.load(Ordering::Relaxed) {
            return false;
        }
        self.tasks.close();
        let free = tokio::select! {
            biased;
            () = self.tasks.wait() => false,
            () = self.stop.cancelled() => false,
            () = self.left.cancelled() => false,
            () = self.consumer.status.free() => true,
        };
        self.tasks.reopen();
        free
    }

    /// Waits until everything that was begun is settled.
    pub(super) async fn close(&self) {
        lock(&self.batches).values_mut().for_each(|batches| batches.gathering.clear());
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
        let worn = self.consumer.is_worn(&arrived);
        if worn && !self.consumer.has_place(&arrived) {
            return self.renew(arrived);
        }
        // What is worn and has a place is held, and needs no room.
        if !worn {
            self.tries.store(true, Ordering::Relaxed);
            self.consumer.keep_to_the_rate().await;
        }
        if let Some(lane) = self.lane_of(&arrived) {
            let most = self.most_in_hand(&arrived);
            let Some(first) = self.queue_behind(&lane, arrived) else { return };
            if !worn {
                self.room(most).await;
            }
            self.begin_lane(lane, first);
            return;
        }
        let Some((number, most)) = self.batchable(&arrived) else {
            self.room(self.most_in_hand(&arrived)).await;
            let desk = self.clone();
            return self.begin(async move {
                if desk.consumer.deliver(&arrived, &desk.stop).await.is_some() {
                    desk.ack(arrived).await;
                } else {
                    // Even if the consumer goes on in the next moment: what is left here comes back with another session.
                    desk.left.cancel();
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
        let ready = |(number, batches): (&usize, &Batches)| {
            (all || self.may_begin(*number, batches)).then_some(*number)
        };
        let numbers: Vec<_> = lock(&self.batches).iter().filter_map(ready).collect();
        for number in numbers {
            self.room(None).await;
            self.begin_batch(number);
        }
    }

    /// While a handler has a batch in hand, the next gathers until that ends, or it is half full, or a moment has passed: little load
    /// goes at once, and much load in large batches, which cost less.
    fn may_begin(&self, number: usize, batches: &Batches) -> bool {
        let Some(limits) = self.consumer.registry.entry(number).and_then(|entry| entry.batch) else {
            return true;
        };
        limits.max_wait.is_zero() && (batches.in_hand == 0 || batches.gathering.len() * 2 >= limits.max_size)
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
                let mut done = Vec::with_capacity(batch.len());
                for ((arrived, outcome), span) in batch.into_iter().zip(outcomes).zip(spans) {
                    if !matches!(outcome, Outcome::Applied | Outcome::Duplicate) {
                        // This one goes elsewhere first, which takes its time; the others need not wait for it.
                        self.settle(std::mem::take(&mut done)).await;
                    }
                    self.consumer.end_span(span, &arrived, &outcome);
                    if self.consumer.carry_out(&arrived, &outcome, &self.stop).await.is_some() {
                        done.push((arrived.delivery.receipt, Verdict::Ack));
                    }
                }
                self.settle(done).await;
            }
            Tried::Failed(_) => {
                for arrived in batch {
                    if self.leaves_the_rest() {
                        return;
                    }
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
        self.settle(vec![(arrived.delivery.receipt, Verdict::Ack)]).await;
    }

    async fn settle(&self, ready: Ready) {
        let settled = lock(&self.settled).clone().filter(|_| !ready.is_empty());
        if let Some(settled) = settled {
            let _closing = settled.send(ready).await;
        }
    }

    fn gather(&self, number: usize, arrived: Arrived) -> usize {
        let mut batches = lock(&self.batches);
        let gathering = &mut batches.entry(number).or_default().gathering;
        gathering.push(arrived);
        gathering.len()
    }

    /// Begins what was gathered, if anything was.
    fn begin_batch(self: &Arc<Self>, number: usize) {
        let batch = {
            let mut batches = lock(&self.batches);
            let Some(batches) = batches.get_mut(&number).filter(|batches| !batches.gathering.is_empty())
            else {
                return;
            };
            batches.in_hand += 1;
            std::mem::take(&mut batches.gathering)
        };
        let place = Place { desk: self.clone(), number };
        self.begin(async move {
            let desk = place.desk.clone();
            desk.run_batch(number, batch).await;
            drop(place);
        });
    }

    /// Whatever was gathered by then goes; if the batch was full before, that is the beginning of the next one.
    fn flush_later(self: &Arc<Self>, number: usize) {
        let wait = match self.wait_of(number) {
            Duration::ZERO if self.has_batches(number) => BEHIND_OTHERS,
            Duration::ZERO => return,
            wait => wait,
        };
        let desk = self.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                () = desk.stop.cancelled() => {}
                () = desk.consumer.status.held_up() => desk.left.cancel(),
                () = desk.consumer.clock.sleep(wait) => desk.begin_batch(number),
            }
        });
    }

    fn has_batches(&self, number: usize) -> bool {
        lock(&self.batches).get(&number).is_some_and(|batches| batches.in_hand > 0)
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

/// A place among the batches of a handler. Given back, it goes to what has gathered, unless that waits for its time.
struct Place<S: ConsumerStore> {
    desk: Arc<Desk<S>>,
    number: usize,
}

impl<S: ConsumerStore> Drop for Place<S> {
    fn drop(&mut self) {
        let desk = &self.desk;
        if let Some(batches) = lock(&desk.batches).get_mut(&self.number) {
            batches.in_hand -= 1;
        }
        if desk.stop.is_cancelled() || desk.consumer.status.is_held_up() {
            // Even if the consumer goes on in the next moment: what has gathered comes back with another session.
            desk.left.cancel();
        } else if desk.wait_of(self.number).is_zero() {
            desk.begin_batch(self.number);
        }
    }
}

/// Settles whatever is ready in one go. A lost connection needs nothing: the broker delivers again.
async fn settle_in_batches(settler: Box<dyn Settler>, mut ready: mpsc::Receiver<Ready>) {
    const MOST: usize = 512;
    let mut batches = Vec::new();
    while ready.recv_many(&mut batches, MOST).await > 0 {
        if let Err(error) = settler.settle(batches.drain(..).flatten().collect()).await {
            tracing::warn!(%error, "deliveries could not be settled; the broker delivers them again");
        }
    }
}

#[cfg(test)]
mod tests;
