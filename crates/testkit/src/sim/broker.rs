//! The simulated broker behind the real port. Every message published and every settlement is one call.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::future::join_all;
use postrider::broker::{
    Broker, BrokerError, BrokerErrorKind, Delivery, Outgoing, Published, Receipt, Settler, Subscription,
    Verdict,
};
use postrider::topology::{QueueName, Topology};
use tokio::sync::Notify;

use super::flaw::Flaw;
use super::queues::{Subscriber, shown};
use super::world::{Fate, Port, Server, World};

/// One process's connection to the broker.
#[derive(Clone)]
pub(super) struct SimBroker(pub(super) Port);

fn away() -> BrokerError {
    BrokerError::new(BrokerErrorKind::Unavailable, "the simulated broker does not answer")
}

fn take_in(world: &mut World, outgoing: Outgoing) -> Published {
    let now = world.now;
    world.note(|| {
        format!(
            "    {} to {:?} {}",
            shown(&outgoing.message),
            outgoing.exchange.as_str(),
            outgoing.routing_key
        )
    });
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
        answer.unwrap_or(if counts { Published::Refused(lost) } else { Published::Unknown(lost) })
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
        Ok(self.0.world().queues.depth(queue) as u64)
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
        self.port.world().queues.unsubscribe(self.id);
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
            let done = world.queues.settle(id, settled, now);
            world.note_ids(&done);
        });
        settling.await.ok_or_else(away)
    }
}
