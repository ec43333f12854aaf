//! Settling deliveries, always on the channel they came by.
//!
//! Acks that cover every unsettled delivery up to one are sent as a single multiple ack. A crash before an ack reaches
//! RabbitMQ means that the message is delivered again.

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use lapin::Channel;
use lapin::options::{BasicAckOptions, BasicNackOptions, BasicRejectOptions};
use tokio::time::timeout;

use crate::broker::{BrokerError, BrokerErrorKind, Delivery, Receipt, Settler, Verdict};

/// What was handed out and not yet settled, in the present epoch.
#[derive(Default)]
pub(super) struct Unsettled(Mutex<Book>);

#[derive(Default)]
struct Book {
    epoch: u64,
    channel: Option<Channel>,
    tags: BTreeSet<u64>,
}

impl Unsettled {
    /// Starts a new epoch on a new channel.
    pub(super) fn start(&self, channel: Channel) -> u64 {
        let mut book = self.lock();
        book.epoch += 1;
        book.channel = Some(channel);
        book.tags.clear();
        book.epoch
    }

    /// Ends the epoch: all its receipts are void.
    pub(super) fn stop(&self) {
        let mut book = self.lock();
        book.epoch += 1;
        book.channel = None;
        book.tags.clear();
    }

    /// Notes that these are with the consumer now. Tags only grow, so everything below a noted one has been noted.
    pub(super) fn hand_out(&self, epoch: u64, deliveries: &[Delivery]) {
        let mut book = self.lock();
        if book.epoch == epoch {
            book.tags.extend(deliveries.iter().map(|delivery| delivery.receipt.tag));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Book> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The settling end of a subscription.
pub(super) struct RabbitSettler {
    unsettled: Arc<Unsettled>,
    limit: Duration,
}

impl RabbitSettler {
    pub(super) fn new(unsettled: Arc<Unsettled>, limit: Duration) -> Self {
        Self { unsettled, limit }
    }
}

#[async_trait]
impl Settler for RabbitSettler {
    async fn settle(&self, settled: Vec<(Receipt, Verdict)>) -> Result<(), BrokerError> {
        let sending = self.unsettled.lock().send(settled);
        // A failed one means that the channel is gone, and that the broker delivers the message again.
        match timeout(self.limit, join_all(sending)).await {
            Ok(_sent_or_void) => Ok(()),
            Err(_) => Err(BrokerError::new(
                BrokerErrorKind::Unavailable,
                format!(
                    "RabbitMQ read no settlements within {} s; nothing is lost, the deliveries may come again",
                    self.limit.as_secs_f32()
                ),
            )),
        }
    }
}

type Sending = Pin<Box<dyn Future<Output = lapin::Result<()>> + Send>>;

impl Book {
    /// Hands the frames to the driver in one go. Order matters: a multiple ack that overtook an earlier settlement would
    /// settle that one too, and RabbitMQ closes the channel over a delivery that is settled twice.
    fn send(&mut self, settled: Vec<(Receipt, Verdict)>) -> Vec<Sending> {
        let Some(channel) = self.channel.clone() else { return Vec::new() };
        let mut current: Vec<(u64, Verdict)> = settled
            .into_iter()
            .filter(|(receipt, _)| receipt.epoch == self.epoch && self.tags.contains(&receipt.tag))
            .map(|(receipt, verdict)| (receipt.tag, verdict))
            .collect();
        current.sort_unstable_by_key(|(tag, _)| *tag);
        let plan = plan(&self.tags, &current);
        for (tag, _) in &current {
            self.tags.remove(tag);
        }
        plan.into_iter().map(|frame| started(frame.send(channel.clone()))).collect()
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Frame {
    AckUpTo(u64),
    Ack(u64),
    Requeue(u64),
    Reject(u64),
}

impl Frame {
    async fn send(self, channel: Channel) -> lapin::Result<()> {
        match self {
            Self::AckUpTo(tag) => channel.basic_ack(tag, BasicAckOptions { multiple: true }).await,
            Self::Ack(tag) => channel.basic_ack(tag, BasicAckOptions::default()).await,
            // Not a reject: on RabbitMQ 4.3 a requeueing nack does not count towards the delivery limit, a reject does.
            Self::Requeue(tag) => {
                channel.basic_nack(tag, BasicNackOptions { requeue: true, multiple: false }).await
            }
            Self::Reject(tag) => channel.basic_reject(tag, BasicRejectOptions { requeue: false }).await,
        }
    }
}

/// The frames for these settlements, sorted by tag: one multiple ack for the acks at the very front, one frame for each of
/// the rest.
fn plan(unsettled: &BTreeSet<u64>, settled: &[(u64, Verdict)]) -> Vec<Frame> {
    let front = unsettled
        .iter()
        .zip(settled)
        .take_while(|(unsettled, (tag, verdict))| *unsettled == tag && *verdict == Verdict::Ack)
        .count();
    let (front, rest) = if front > 1 { settled.split_at(front) } else { settled.split_at(0) };
    let all_at_once = front.last().map(|(tag, _)| Frame::AckUpTo(*tag));
    let one_by_one = rest.iter().map(|(tag, verdict)| match verdict {
        Verdict::Ack => Frame::Ack(*tag),
        Verdict::Requeue => Frame::Requeue(*tag),
        Verdict::Reject => Frame::Reject(*tag),
    });
    all_at_once.into_iter().chain(one_by_one).collect()
}

/// Polls once, which hands the frame to the driver; what is left is to wait until it is written.
fn started(sending: impl Future<Output = lapin::Result<()>> + Send + 'static) -> Sending {
    let mut sending: Sending = Box::pin(sending);
    match sending.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        std::task::Poll::Ready(done) => Box::pin(std::future::ready(done)),
        std::task::Poll::Pending => sending,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Verdict::{Ack, Reject, Requeue};

    #[test]
    fn acks_at_the_front_go_as_one() {
        let unsettled = BTreeSet::from([3, 4, 5, 7, 9]);
        assert_eq!(plan(&unsettled, &[(3, Ack), (4, Ack), (5, Ack)]), [Frame::AckUpTo(5)]);
        assert_eq!(
            plan(&unsettled, &[(3, Ack), (4, Ack), (7, Ack), (9, Reject)]),
            [Frame::AckUpTo(4), Frame::Ack(7), Frame::Reject(9)]
        );
        assert_eq!(plan(&unsettled, &[(4, Ack), (5, Ack)]), [Frame::Ack(4), Frame::Ack(5)]);
        assert_eq!(plan(&unsettled, &[(3, Requeue), (4, Ack)]), [Frame::Requeue(3), Frame::Ack(4)]);
        assert_eq!(plan(&unsettled, &[(3, Ack)]), [Frame::Ack(3)]);
    }
}
