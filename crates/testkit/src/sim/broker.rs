//! The simulated broker: queues in memory that route, expire and deliver by the same topology as the real ones.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use postrider::broker::{
    Broker, BrokerError, BrokerErrorKind, Delivery, Message, Outgoing, Published, Receipt, Settler,
    Subscription, Verdict,
};
use postrider::topology::{ExchangeName, QueueName, RoutingKey, Topology};
use tokio::sync::Notify;

use super::flaw::Flaw;
use super::world::{Fate, Port, Server, World};

/// A message in a queue.
#[derive(Clone)]
struct Stored {
    message: Message,
    exchange: ExchangeName,
    routing_key: RoutingKey,
    redelivered: bool,
    since: Duration,
}

/// What a subscriber has.
struct Subscriber {
    queue: QueueName,
    process: usize,
    epoch: u64,
    tag: u64,
    /// Whose turn it is on a queue with a single active consumer: the least.
    place: u64,
    prefetch: usize,
    unsettled: BTreeMap<u64, Stored>,
    /// Delivered, and not yet asked for.
    arrived: VecDeque<u64>,
    /// A delivery is on its way.
    offered: bool,
    wake: Arc<Notify>,
}

/// All queues, and who subscribes.
pub(super) struct Queues {
    topology: Topology,
    ready: BTreeMap<QueueName, VecDeque<Stored>>,
    subscribers: BTreeMap<u64, Subscriber>,
    last: u64,
    /// No binding holds until then.
    pub(super) unbound_until: Duration,
    /// Deliveries of messages that were delivered before.
    pub(super) redelivered: u64,
}

impl Queues {
    pub(super) fn new(topology: Topology) -> Self {
        let ready = topology.queues.iter().map(|queue| (queue.name.clone(), VecDeque::new())).collect();
        Self {
            topology,
            ready,
            subscribers: BTreeMap::new(),
            last: 0,
            unbound_until: Duration::ZERO,
            redelivered: 0,
        }
    }

    fn put(&mut self, outgoing: Outgoing, now: Duration) -> bool {
        let Outgoing { exchange, routing_key, message } = outgoing;
        if !exchange.is_default() && now < self.unbound_until {
            return false;
        }
        let reached: Vec<_> = self.topology.route(&exchange, &routing_key).into_iter().cloned().collect();
        for queue in &reached {
            let stored = Stored {
                message: message.clone(),
                exchange: exchange.clone(),
                routing_key: routing_key.clone(),
                redelivered: false,
                since: now,
            };
            self.ready.entry(queue.clone()).or_default().push_back(stored);
        }
        !reached.is_empty()
    }

    /// Moves what has waited long enough on to the dead-letter target of its queue.
    pub(super) fn expire(&mut self, now: Duration) {
        let timed: Vec<_> = self.topology.queues.iter().filter(|queue| queue.message_ttl.is_some()).collect();
        let mut moved = Vec::new();
        for queue in timed {
            let (Some(ttl), Some(target)) = (queue.message_ttl, queue.effective_dead_letter()) else {
                continue;
            };
            let Some(ready) = self.ready.get_mut(&queue.name) else { continue };
            while let Some(stored) = ready.pop_front_if(|stored| stored.since + ttl <= now) {
                let routing_key = target.routing_key.clone().unwrap_or(stored.routing_key);
                moved.push(Outgoing {
                    exchange: target.exchange.clone(),
                    routing_key,
                    message: stored.message,
                });
            }
        }
        for outgoing in moved {
            self.put(outgoing, now);
        }
    }

    /// When the next message expires.
    pub(super) fn next_expiry(&self) -> Option<Duration> {
        let timed = self.topology.queues.iter().filter_map(|queue| {
            let first = self.ready.get(&queue.name)?.front()?;
            Some(first.since + queue.message_ttl?)
        });
        timed.min()
    }

    /// Closes the connections of a process: its deliveries go back, in their order, and its receipts are void. With the process
    /// itself its subscriptions end.
    pub(super) fn cut(&mut self, process: usize, dead: bool) {
        for subscriber in self.subscribers.values_mut().filter(|one| one.process == process) {
            subscriber.epoch += 1;
            self.last += 1;
            subscriber.place = self.last;
            subscriber.arrived.clear();
            let back = std::mem::take(&mut subscriber.unsettled);
            let ready = self.ready.entry(subscriber.queue.clone()).or_default();
            for (_, mut stored) in back.into_iter().rev() {
                stored.redelivered = true;
                ready.push_front(stored);
            }
        }
        if dead {
            self.subscribers.retain(|_, subscriber| subscriber.process != process);
        }
    }

    /// A message somewhere is there twice.
    pub(super) fn duplicate(&mut self, pick: u64) {
        let filled: Vec<_> = self.ready.values_mut().filter(|queue| !queue.is_empty()).collect();
        let count = filled.len().max(1) as u64;
        let place = usize::try_from(pick % count).unwrap_or(0);
        if let Some(queue) = filled.into_iter().nth(place)
            && let Some(first) = queue.front().cloned()
        {
            queue.push_back(first);
        }
    }

    /// Those who should be given something now, and are not yet.
    pub(super) fn offer(&mut self) -> Vec<(u64, usize)> {
        let mut offers = Vec::new();
        let ids: Vec<_> = self.subscribers.keys().copied().collect();
        for id in ids {
            let active = self.is_active(id);
            let Some(subscriber) = self.subscribers.get_mut(&id) else { continue };
            let full = subscriber.unsettled.len() >= subscriber.prefetch;
            let empty = self.ready.get(&subscriber.queue).is_none_or(VecDeque::is_empty);
            if subscriber.offered || full || empty || !active {
                continue;
            }
            subscriber.offered = true;
            offers.push((id, subscriber.process));
        }
        offers
    }

    /// On a queue with a single active consumer, whether this is the one.
    fn is_active(&self, id: u64) -> bool {
        let Some(asked) = self.subscribers.get(&id) else { return false };
        let alone = self.topology.find_queue(&asked.queue).is_some_and(|queue| queue.single_active_consumer);
        let others = self.subscribers.values().filter(|other| other.queue == asked.queue);
        !alone || others.map(|other| other.place).min() == Some(asked.place)
    }

    /// Hands out what there is.
    pub(super) fn deliver(&mut self, id: u64) {
        let active = self.is_active(id);
        let Some(subscriber) = self.subscribers.get_mut(&id) else { return };
        subscriber.offered = false;
        if !active {
            return;
        }
        let ready = self.ready.entry(subscriber.queue.clone()).or_default();
        while subscriber.unsettled.len() < subscriber.prefetch
            && let Some(stored) = ready.pop_front()
        {
            self.redelivered += u64::from(stored.redelivered);
            subscriber.tag += 1;
            subscriber.unsettled.insert(subscriber.tag, stored);
            subscriber.arrived.push_back(subscriber.tag);
        }
        subscriber.wake.notify_one();
    }

    /// The delivery that was on its way got lost.
    pub(super) fn not_delivered(&mut self, id: u64) {
        if let Some(subscriber) = self.subscribers.get_mut(&id) {
            subscriber.offered = false;
        }
    }

    fn settle(&mut self, id: u64, settled: Vec<(Receipt, Verdict)>, now: Duration) {
        let mut rejected = Vec::new();
        let Some(subscriber) = self.subscribers.get_mut(&id) else { return };
        for (receipt, verdict) in settled {
            if receipt.epoch() != subscriber.epoch {
                continue;
            }
            let Some(mut stored) = subscriber.unsettled.remove(&receipt.tag()) else { continue };
            match verdict {
                Verdict::Ack => {}
                Verdict::Requeue => {
                    stored.redelivered = true;
                    self.ready.entry(subscriber.queue.clone()).or_default().push_front(stored);
                }
                Verdict::Reject => rejected.push((subscriber.queue.clone(), stored)),
            }
        }
        for (queue, stored) in rejected {
            let target = self.topology.find_queue(&queue).and_then(|queue| queue.effective_dead_letter());
            let Some(target) = target.cloned() else { continue };
            let routing_key = target.routing_key.unwrap_or(stored.routing_key);
            self.put(Outgoing { exchange: target.exchange, routing_key, message: stored.message }, now);
        }
    }

    /// Whether nothing is in any queue or in anybody's hands.
    pub(super) fn is_empty(&self) -> bool {
        self.ready.values().all(VecDeque::is_empty)
            && self.subscribers.values().all(|subscriber| subscriber.unsettled.is_empty())
    }
}

/// One process's connection to the broker.
#[derive(Clone)]
pub(super) struct SimBroker(pub(super) Port);

fn away() -> BrokerError {
    BrokerError::new(BrokerErrorKind::Unavailable, "the simulated broker does not answer")
}

fn take_in(world: &mut World, outgoing: Outgoing) -> Published {
    let now = world.now;
    match world.queues.put(outgoing, now) {
        true => Published::Confirmed,
        false if world.flaw == Some(Flaw::NotMandatory) => Published::Confirmed,
        false => Published::Returned("no queue wanted it".to_owned()),
    }
}

impl SimBroker {
    async fn publish_one(&self, outgoing: Outgoing) -> Published {
        let flaw = self.0.world().flaw;
        let unconfirmed = match flaw {
            Some(Flaw::MarkBeforeConfirm) => !outgoing.exchange.is_default(),
            Some(Flaw::RetryUnconfirmed) => outgoing.exchange.is_default(),
            _ => false,
        };
        if unconfirmed {
            self.0.send(Server::Broker, "publish", move |world, fate| {
                if fate != Fate::LostRequest {
                    take_in(world, outgoing);
                }
                Box::new(|| ())
            });
            return Published::Confirmed;
        }
        let answer = self.0.call(Server::Broker, "publish", move |world| take_in(world, outgoing)).await;
        let lost = "the connection was lost".to_owned();
        let counts = flaw == Some(Flaw::OutageCounts);
        answer.unwrap_or_else(|| if counts { Published::Refused(lost) } else { Published::Unknown(lost) })
    }
}

#[async_trait]
impl Broker for SimBroker {
    async fn declare(&self, _topology: &Topology) -> Result<(), BrokerError> {
        Ok(())
    }

    /// Each message is a call of its own, so a batch may be lost in part.
    async fn publish(&self, batch: Vec<Outgoing>) -> Vec<Published> {
        join_all(batch.into_iter().map(|outgoing| self.publish_one(outgoing))).await
    }

    async fn subscribe(
        &self,
        queue: &QueueName,
        prefetch: u16,
    ) -> Result<Box<dyn Subscription>, BrokerError> {
        let (queue, process, wake) = (queue.clone(), self.0.process, Arc::new(Notify::new()));
        let waker = wake.clone();
        let subscribed = self.0.call(Server::Broker, "subscribe", move |world| {
            let queues = &mut world.queues;
            queues.last += 1;
            let subscriber = Subscriber {
                queue,
                process,
                epoch: 1,
                tag: 0,
                place: queues.last,
                prefetch: usize::from(prefetch),
                unsettled: BTreeMap::new(),
                arrived: VecDeque::new(),
                offered: false,
                wake: waker,
            };
            queues.subscribers.insert(queues.last, subscriber);
            queues.last
        });
        let id = subscribed.await.ok_or_else(away)?;
        Ok(Box::new(SimSubscription { id, port: self.0.clone(), wake }))
    }

    async fn depth(&self, queue: &QueueName) -> Result<u64, BrokerError> {
        Ok(self.0.world().queues.ready.get(queue).map_or(0, |ready| ready.len() as u64))
    }

    async fn ping(&self) -> Result<(), BrokerError> {
        Ok(())
    }

    async fn close(&self) {}
}

struct SimSubscription {
    id: u64,
    port: Port,
    wake: Arc<Notify>,
}

impl SimSubscription {
    fn arrived(&self, max: usize) -> Vec<Delivery> {
        let mut world = self.port.world();
        let acked = world.flaw == Some(Flaw::AckBeforeCommit);
        let Some(subscriber) = world.queues.subscribers.get_mut(&self.id) else { return Vec::new() };
        let mut deliveries = Vec::new();
        while deliveries.len() < max
            && let Some(tag) = subscriber.arrived.pop_front()
        {
            let Some(stored) = subscriber.unsettled.get(&tag).cloned() else { continue };
            if acked {
                subscriber.unsettled.remove(&tag);
            }
            deliveries.push(Delivery {
                message: stored.message,
                exchange: stored.exchange,
                routing_key: stored.routing_key,
                redelivered: stored.redelivered,
                receipt: Receipt::new(subscriber.epoch, tag),
            });
        }
        deliveries
    }
}

impl Drop for SimSubscription {
    fn drop(&mut self) {
        let mut world = self.port.world();
        let queues = &mut world.queues;
        if let Some(mut subscriber) = queues.subscribers.remove(&self.id) {
            let ready = queues.ready.entry(subscriber.queue).or_default();
            while let Some((_, mut stored)) = subscriber.unsettled.pop_last() {
                stored.redelivered = true;
                ready.push_front(stored);
            }
        }
    }
}

#[async_trait]
impl Subscription for SimSubscription {
    async fn next(&mut self, max: usize) -> Result<Vec<Delivery>, BrokerError> {
        loop {
            let deliveries = self.arrived(max);
            if !deliveries.is_empty() {
                return Ok(deliveries);
            }
            self.wake.notified().await;
        }
    }

    fn settler(&self) -> Box<dyn Settler> {
        Box::new(SimSettler { id: self.id, port: self.port.clone() })
    }
}

struct SimSettler {
    id: u64,
    port: Port,
}

#[async_trait]
impl Settler for SimSettler {
    async fn settle(&self, settled: Vec<(Receipt, Verdict)>) -> Result<(), BrokerError> {
        let id = self.id;
        let settling = self.port.call(Server::Broker, "settle", move |world| {
            let now = world.now;
            world.queues.settle(id, settled, now);
        });
        settling.await.ok_or_else(away)
    }
}
