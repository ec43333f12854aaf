//! The queues of the simulated broker: they route, expire and deliver by the same topology as the real ones.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use postrider::broker::{Message, Outgoing, Receipt, Verdict};
use postrider::topology::{ExchangeName, QueueName, RoutingKey, Topology};
use tokio::sync::Notify;

/// A message in a queue.
#[derive(Clone)]
pub(super) struct Stored {
    pub(super) message: Message,
    pub(super) exchange: ExchangeName,
    pub(super) routing_key: RoutingKey,
    pub(super) redelivered: bool,
    pub(super) since: Duration,
}

/// The name of a message in a history.
pub(super) fn shown(message: &Message) -> &str {
    message.properties.message_id.as_deref().unwrap_or("?")
}

/// What a subscriber has.
pub(super) struct Subscriber {
    pub(super) queue: QueueName,
    pub(super) process: usize,
    pub(super) epoch: u64,
    pub(super) tag: u64,
    /// Whose turn it is on a queue with a single active consumer: the least.
    pub(super) place: u64,
    pub(super) prefetch: usize,
    pub(super) unsettled: BTreeMap<u64, Stored>,
    /// Delivered, and not yet asked for.
    pub(super) arrived: VecDeque<u64>,
    /// A delivery is on its way.
    pub(super) offered: bool,
    pub(super) wake: Arc<Notify>,
}

/// All queues, and who subscribes.
pub(super) struct Queues {
    pub(super) topology: Topology,
    ready: BTreeMap<QueueName, VecDeque<Stored>>,
    /// What went back. As in RabbitMQ it comes before the others of its queue, but behind what went back earlier, wherever it stood
    /// at first.
    returned: BTreeMap<QueueName, VecDeque<Stored>>,
    pub(super) subscribers: BTreeMap<u64, Subscriber>,
    pub(super) last: u64,
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
            returned: BTreeMap::new(),
            subscribers: BTreeMap::new(),
            last: 0,
            unbound_until: Duration::ZERO,
            redelivered: 0,
        }
    }

    pub(super) fn put(&mut self, outgoing: Outgoing, now: Duration) -> bool {
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
            give_back(&mut self.returned, &subscriber.queue, back.into_values());
        }
        if dead {
            self.subscribers.retain(|_, subscriber| subscriber.process != process);
        }
    }

    /// Ends a subscription.
    pub(super) fn unsubscribe(&mut self, id: u64) {
        if let Some(subscriber) = self.subscribers.remove(&id) {
            give_back(&mut self.returned, &subscriber.queue, subscriber.unsettled.into_values());
        }
    }

    /// How many wait in a queue.
    pub(super) fn depth(&self, queue: &QueueName) -> usize {
        [&self.returned, &self.ready].into_iter().filter_map(|of| of.get(queue)).map(VecDeque::len).sum()
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
            let empty = self.subscribers.get(&id).is_none_or(|one| self.depth(&one.queue) == 0);
            let Some(subscriber) = self.subscribers.get_mut(&id) else { continue };
            let full = subscriber.unsettled.len() >= subscriber.prefetch;
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
    pub(super) fn deliver(&mut self, id: u64) -> Vec<String> {
        let mut delivered = Vec::new();
        let active = self.is_active(id);
        let Some(subscriber) = self.subscribers.get_mut(&id) else { return delivered };
        subscriber.offered = false;
        if !active {
            return delivered;
        }
        let returned = self.returned.entry(subscriber.queue.clone()).or_default();
        let ready = self.ready.entry(subscriber.queue.clone()).or_default();
        while subscriber.unsettled.len() < subscriber.prefetch
            && let Some(stored) = returned.pop_front().or_else(|| ready.pop_front())
        {
            self.redelivered += u64::from(stored.redelivered);
            subscriber.tag += 1;
            delivered.push(format!("{}/{}", subscriber.queue, shown(&stored.message)));
            subscriber.unsettled.insert(subscriber.tag, stored);
            subscriber.arrived.push_back(subscriber.tag);
        }
        subscriber.wake.notify_one();
        delivered
    }

    /// The delivery that was on its way got lost.
    pub(super) fn not_delivered(&mut self, id: u64) {
        if let Some(subscriber) = self.subscribers.get_mut(&id) {
            subscriber.offered = false;
        }
    }

    pub(super) fn settle(&mut self, id: u64, settled: Vec<(Receipt, Verdict)>, now: Duration) -> Vec<String> {
        let (mut rejected, mut done) = (Vec::new(), Vec::new());
        let Some(subscriber) = self.subscribers.get_mut(&id) else { return done };
        for (receipt, verdict) in settled {
            if receipt.epoch() != subscriber.epoch {
                continue;
            }
            let Some(stored) = subscriber.unsettled.remove(&receipt.tag()) else { continue };
            done.push(format!("{verdict:?} {}/{}", subscriber.queue, shown(&stored.message)));
            match verdict {
                Verdict::Ack => {}
                Verdict::Requeue => give_back(&mut self.returned, &subscriber.queue, [stored]),
                Verdict::Reject => rejected.push((subscriber.queue.clone(), stored)),
            }
        }
        for (queue, stored) in rejected {
            let target = self.topology.find_queue(&queue).and_then(|queue| queue.effective_dead_letter());
            let Some(target) = target.cloned() else { continue };
            let routing_key = target.routing_key.unwrap_or(stored.routing_key);
            self.put(Outgoing { exchange: target.exchange, routing_key, message: stored.message }, now);
        }
        done
    }

    /// Whether nothing is in any queue or in anybody's hands.
    pub(super) fn is_empty(&self) -> bool {
        self.ready.values().chain(self.returned.values()).all(VecDeque::is_empty)
            && self.subscribers.values().all(|subscriber| subscriber.unsettled.is_empty())
    }
}

fn give_back(
    returned: &mut BTreeMap<QueueName, VecDeque<Stored>>,
    queue: &QueueName,
    back: impl IntoIterator<Item = Stored>,
) {
    let back = back.into_iter().map(|stored| Stored { redelivered: true, ..stored });
    returned.entry(queue.clone()).or_default().extend(back);
}
