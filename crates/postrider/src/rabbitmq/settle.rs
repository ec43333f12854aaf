//! Settling deliveries, always on the channel they came by.
//!
//! Acks that cover every unsettled delivery up to one are sent as a single multiple ack, which costs RabbitMQ a fraction of as
//! many single ones: each is an entry in the log of a quorum queue. So acks wait a few milliseconds for company, unless nothing else is
//! with the consumer, and those of later deliveries a few more for those before them. A crash before an ack reaches RabbitMQ means
//! that the message is delivered again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::timeout;

use super::amqp::{Channel, Settlement};
use crate::broker::{BrokerError, BrokerErrorKind, Delivery, Receipt, Settler, Verdict};
use crate::clock::Clock;

/// How long an ack waits for others.
const COMPANY: Duration = Duration::from_millis(5);
/// So many times that long for those before it.
const PATIENCE: u8 = 3;

/// What was handed out and not yet settled, in the present epoch.
pub(super) struct Unsettled {
    book: Mutex<Book>,
    room: Mutex<Room>,
}

/// How many acks may wait: they take room that RabbitMQ could fill with new deliveries.
#[derive(Debug, Clone, Copy)]
struct Room {
    /// So many that can go as one do.
    enough: usize,
    /// When there are more that cannot, they go one by one.
    most: usize,
}

impl Room {
    fn of(prefetch: u16) -> Self {
        let prefetch = usize::from(prefetch);
        Self { enough: (prefetch / 8).max(1), most: prefetch / 2 }
    }
}

#[derive(Default)]
struct Book {
    epoch: u64,
    channel: Option<Channel>,
    /// Handed out and not settled, as RabbitMQ knows it.
    tags: BTreeSet<u64>,
    /// Those of them that wait to be acked, and how often they were left waiting.
    acked: BTreeMap<u64, u8>,
    /// Somebody will see to it that they are, in a moment.
    watched: bool,
}

impl Unsettled {
    pub(super) fn new(prefetch: u16) -> Self {
        Self { book: Mutex::default(), room: Mutex::new(Room::of(prefetch)) }
    }

    /// So many are handed out from now on.
    pub(super) fn allow(&self, prefetch: u16) {
        *self.room.lock().unwrap_or_else(PoisonError::into_inner) = Room::of(prefetch);
    }

    fn room(&self) -> Room {
        *self.room.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a new epoch on a new channel.
    pub(super) fn start(&self, channel: Channel) -> u64 {
        let mut book = self.lock();
        book.begin(Some(channel));
        book.epoch
    }

    /// Ends the epoch: all its receipts are void. Acks that waited go, if the channel is there.
    pub(super) fn stop(&self) {
        let mut book = self.lock();
        let mut settlements = book.front();
        settlements.extend(book.one_by_one(0));
        book.hand_over(settlements);
        book.begin(None);
    }

    /// Notes that these are with the consumer now. Tags only grow, so everything below a noted one has been noted.
    pub(super) fn hand_out(&self, epoch: u64, deliveries: &[Delivery]) {
        let mut book = self.lock();
        if book.epoch == epoch {
            book.tags.extend(deliveries.iter().map(|delivery| delivery.receipt.tag));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The settling end of a subscription.
pub(super) struct RabbitSettler {
    unsettled: Arc<Unsettled>,
    clock: Clock,
    limit: Duration,
}

impl RabbitSettler {
    pub(super) fn new(unsettled: Arc<Unsettled>, clock: Clock, limit: Duration) -> Self {
        Self { unsettled, clock, limit }
    }
}

#[async_trait]
impl Settler for RabbitSettler {
    async fn settle(&self, settled: Vec<(Receipt, Verdict)>) -> Result<(), BrokerError> {
        let (channel, watch) = {
            let mut book = self.unsettled.lock();
            book.send(settled, self.unsettled.room());
            let waits = !book.acked.is_empty() && !book.watched;
            book.watched |= waits;
            (book.channel.clone(), waits.then_some(book.epoch))
        };
        if let Some(epoch) = watch {
            tokio::spawn(flush_soon(Arc::clone(&self.unsettled), epoch, self.clock.clone()));
        }
        // Without a channel the broker delivers the messages again.
        let Some(channel) = channel else { return Ok(()) };
        match timeout(self.limit, channel.until_written()).await {
            Ok(()) => Ok(()),
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

/// Sends acks that have waited long enough, until none waits.
async fn flush_soon(unsettled: Arc<Unsettled>, epoch: u64, clock: Clock) {
    loop {
        clock.sleep(COMPANY).await;
        let mut book = unsettled.lock();
        if book.epoch != epoch {
            return;
        }
        book.flush();
        if book.acked.is_empty() {
            book.watched = false;
            return;
        }
    }
}

impl Book {
    fn begin(&mut self, channel: Option<Channel>) {
        *self = Self { epoch: self.epoch + 1, channel, ..Self::default() };
    }

    /// Hands all to the connection in one go. Order matters: a multiple ack that overtook an earlier settlement would
    /// settle that one too, and RabbitMQ closes the channel over a delivery that is settled twice.
    fn send(&mut self, settled: Vec<(Receipt, Verdict)>, room: Room) {
        let epoch = self.epoch;
        let current = settled.into_iter().filter(|(receipt, _)| receipt.epoch == epoch);
        let settlements = self.plan(current.map(|(receipt, verdict)| (receipt.tag, verdict)), room);
        self.hand_over(settlements);
    }

    /// Sends what can go as one, and one by one what has waited for long.
    fn flush(&mut self) {
        let settlements = self.after_a_while();
        self.hand_over(settlements);
    }

    fn hand_over(&self, settlements: Vec<Settlement>) {
        if let Some(channel) = self.channel.as_ref().filter(|_| !settlements.is_empty()) {
            channel.settle(settlements.into_iter());
        }
    }

    /// What to say now: a word for each that is not acked; and one ack for all up to the first that is with the consumer still, if
    /// they are enough or nothing else is with it.
    fn plan(&mut self, settled: impl Iterator<Item = (u64, Verdict)>, room: Room) -> Vec<Settlement> {
        let mut settlements = Vec::new();
        for (tag, verdict) in settled {
            if !self.tags.contains(&tag) || self.acked.contains_key(&tag) {
                continue;
            }
            let settlement = match verdict {
                Verdict::Ack => {
                    self.acked.insert(tag, 0);
                    continue;
                }
                Verdict::Requeue => Settlement::Requeue(tag),
                Verdict::Reject => Settlement::Reject(tag),
            };
            self.tags.remove(&tag);
            settlements.push(settlement);
        }
        let idle = self.acked.len() == self.tags.len();
        if idle || self.acked.len() > room.most || self.in_front().count() >= room.enough {
            settlements.extend(self.front());
        }
        if self.acked.len() > room.most {
            settlements.extend(self.one_by_one(0));
        }
        settlements
    }

    fn after_a_while(&mut self) -> Vec<Settlement> {
        let mut settlements = self.front();
        self.acked.values_mut().for_each(|left| *left += 1);
        settlements.extend(self.one_by_one(PATIENCE));
        settlements
    }

    /// The acks that can go as one.
    fn in_front(&self) -> impl Iterator<Item = u64> {
        self.tags.iter().zip(self.acked.keys()).take_while(|(tag, acked)| tag == acked).map(|(tag, _)| *tag)
    }

    /// Takes them.
    fn front(&mut self) -> Vec<Settlement> {
        let Some(last) = self.in_front().last() else { return Vec::new() };
        self.tags = self.tags.split_off(&(last + 1));
        self.acked = self.acked.split_off(&(last + 1));
        vec![Settlement::AckUpTo(last)]
    }

    /// Takes those that were left waiting so often.
    fn one_by_one(&mut self, often: u8) -> Vec<Settlement> {
        let gone: Vec<u64> =
            self.acked.extract_if(.., |_, left| *left >= often).map(|(tag, _)| tag).collect();
        for tag in &gone {
            self.tags.remove(tag);
        }
        gone.into_iter().map(Settlement::Ack).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Verdict::{Ack, Reject, Requeue};

    fn book(tags: &[u64]) -> Book {
        Book { tags: tags.iter().copied().collect(), ..Book::default() }
    }

    fn plan(book: &mut Book, settled: &[(u64, Verdict)]) -> Vec<Settlement> {
        book.plan(settled.iter().copied(), Room { enough: 2, most: 2 })
    }

    #[test]
    fn acks_at_the_front_go_as_one() {
        let mut book = book(&[3, 4, 5, 7, 9]);
        assert_eq!(plan(&mut book, &[(5, Ack), (3, Ack), (4, Ack)]), [Settlement::AckUpTo(5)]);
        assert_eq!(
            plan(&mut book, &[(7, Reject), (9, Ack)]),
            [Settlement::Reject(7), Settlement::AckUpTo(9)]
        );
        assert!(book.tags.is_empty());
    }

    #[test]
    fn one_ack_waits_for_company_unless_nothing_else_is_with_the_consumer() {
        let mut book = book(&[1, 2, 3]);
        assert_eq!(plan(&mut book, &[(1, Ack)]), []);
        assert_eq!(plan(&mut book, &[(2, Ack)]), [Settlement::AckUpTo(2)]);
        assert_eq!(plan(&mut book, &[(3, Ack)]), [Settlement::AckUpTo(3)]);
    }

    #[test]
    fn acks_behind_an_unsettled_one_wait_for_it() {
        let mut book = book(&[1, 2, 3, 4]);
        assert_eq!(plan(&mut book, &[(2, Ack), (3, Ack)]), []);
        assert_eq!(plan(&mut book, &[(3, Requeue)]), [], "it is acked already");
        assert_eq!(plan(&mut book, &[(1, Requeue)]), [Settlement::Requeue(1), Settlement::AckUpTo(3)]);
        assert_eq!(book.tags, BTreeSet::from([4]));
    }

    #[test]
    fn they_do_not_wait_for_ever() {
        let mut book = book(&[1, 2, 3, 4]);
        assert_eq!(plan(&mut book, &[(2, Ack)]), []);
        assert_eq!((book.after_a_while(), book.after_a_while()), (Vec::new(), Vec::new()));
        assert_eq!(plan(&mut book, &[(3, Ack)]), []);
        assert_eq!(book.after_a_while(), [Settlement::Ack(2)]);
        assert_eq!(
            plan(&mut book, &[(1, Ack)]),
            [Settlement::AckUpTo(3)],
            "what is settled is not in the way"
        );
        assert_eq!(book.tags, BTreeSet::from([4]));
    }

    #[test]
    fn when_too_many_wait_they_go_one_by_one() {
        let mut book = book(&[1, 2, 3, 4, 5]);
        assert_eq!(
            plan(&mut book, &[(2, Ack), (4, Ack), (5, Ack)]),
            [Settlement::Ack(2), Settlement::Ack(4), Settlement::Ack(5)]
        );
        assert_eq!(plan(&mut book, &[(4, Ack), (9, Ack)]), [], "settled before, and never handed out");
        assert_eq!(plan(&mut book, &[(3, Ack)]), []);
        assert_eq!(book.one_by_one(0), [Settlement::Ack(3)]);
        assert_eq!(book.tags, BTreeSet::from([1]));
    }
}
