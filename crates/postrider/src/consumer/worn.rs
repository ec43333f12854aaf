//! Deliveries that went back to their queue so often that the broker is about to give them up.
//!
//! A quorum queue counts how often each message came back, and makes a dead letter of it at its limit, which is meant for messages that kill
//! their consumers. But most brokers count what goes back in peace as well: at a stop, at a pause, whenever the breaker opens, and, on an
//! ordered queue, with every probe. So an endpoint that is down for twenty minutes would make dead letters of events that were never
//! sent to it, and those of their keys that come later would overtake them. The consumer counts crashes by itself (`crash`), so what has
//! come back a quarter as often as it may is brought to where nobody counts: to the end of its queue as a new message, or, where order
//! matters, to those that are held.
//!
//! A crash between that and the ack leaves it in both places; the inbox knows the one that was applied, and to hold it again changes nothing.

use super::Consumer;
use super::arrived::{Arrived, Errand};
use super::settle::mark_passed_on;
use crate::broker::{DELIVERY_COUNT, HeaderValue, Outgoing, Published};
use crate::store::ConsumerStore;
use crate::topology::{DeliveryLimit, Queue, REDELIVERIES};

impl<S: ConsumerStore> Consumer<S> {
    /// Whether it has come back so often that it should not go back once more. Who handles events in this process and counts no crashes leaves
    /// those that kill it to the broker's limit.
    pub(super) fn is_worn(&self, arrived: &Arrived) -> bool {
        if !arrived.delivery.redelivered || !self.is_guarded(arrived) {
            return false;
        }
        let count = arrived.delivery.message.headers.get(DELIVERY_COUNT).and_then(HeaderValue::as_int);
        count.is_some_and(|count| count >= i64::from(worn_after(&self.service.queue)))
    }

    /// Whether it cannot take the process down over and over: its crashes are counted, or nobody handles it here.
    fn is_guarded(&self, arrived: &Arrived) -> bool {
        if self.config.max_crashes > 0 {
            return true;
        }
        match self.errand(arrived) {
            Errand::Handle(number) => {
                self.registry.entry(number).is_some_and(|entry| entry.handler.outside().is_some())
            }
            Errand::Known(_) => true,
        }
    }

    /// Whether it is worn and belongs with those that are held.
    pub(super) fn is_worn_in_order(&self, arrived: &Arrived) -> bool {
        self.has_place(arrived) && self.is_worn(arrived)
    }

    /// Whether it has a place in an order, and must not go to the end of its queue.
    pub(super) fn has_place(&self, arrived: &Arrived) -> bool {
        self.service.order.is_some() && arrived.key().is_some()
    }

    /// Sends it to the end of its queue, as the same attempt. False where that is not possible now: it goes back as it came, once more.
    pub(super) async fn renewed(&self, arrived: &Arrived) -> bool {
        let mut message = arrived.delivery.message.clone();
        mark_passed_on(&mut message, arrived, arrived.attempt - 1);
        let outgoing = Outgoing::to_queue(self.service.name(), message);
        let sent = self.broker.publish(vec![outgoing]).await.pop() == Some(Published::Confirmed);
        if sent {
            tracing::debug!(consumer = %self.name, event = ?arrived.event_id(),
                "it came back so often that the broker would soon give it up; it goes on as a new message");
        }
        sent
    }
}

/// A quarter of what the queue allows: a session that is cut off at once looks at little of what it was handed. Where nobody said anything,
/// RabbitMQ 4 has a limit of its own.
fn worn_after(queue: &Queue) -> u32 {
    let limit = match queue.policy.delivery_limit {
        Some(DeliveryLimit::Times(times)) => times.min(REDELIVERIES),
        Some(DeliveryLimit::Unlimited) | None => REDELIVERIES,
    };
    (limit / 4).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::QueueName;

    #[test]
    fn a_quarter_of_the_limit_is_enough() {
        let mut queue = Queue::quorum(QueueName::new("billing").unwrap());
        assert_eq!(worn_after(&queue), 5);
        for (times, worn) in [(1, 1), (2, 1), (8, 2), (20, 5), (1000, 5)] {
            queue.policy.delivery_limit = Some(DeliveryLimit::Times(times));
            assert_eq!(worn_after(&queue), worn, "{times}");
        }
    }
}
