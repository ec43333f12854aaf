//! Publishing: a batch goes out as one, is confirmed as one, and a message that RabbitMQ refuses fails alone.
//!
//! RabbitMQ answers a message it refuses (no such exchange, no right, too large) by closing the channel, which leaves
//! every unconfirmed neighbour in doubt. Those in doubt are then published again one by one, on a channel that nothing
//! else is on, so that the answer has one addressee. They may arrive twice; none is blamed for another.
//!
//! A crash at any point loses nothing: only what is answered [`Published::Confirmed`] counts as published.

use std::collections::HashSet;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::time::timeout;

use super::confirms::Confirms;
use super::fault;
use super::lanes::{Lane, Lanes, NotSent};
use super::link::Link;
use crate::broker::{BrokerError, Outgoing, Published};
use crate::topology::ExchangeName;

/// Unconfirmed messages on one channel: the driver looks through all of them at each confirm.
const WINDOW: usize = 1024;
/// Unconfirmed bytes on one channel, so that large bodies do not fill the memory.
const WINDOW_BYTES: usize = 32 << 20;
/// From this size on a message goes alone, because it may be more than the broker takes.
const LARGE: usize = 4 << 20;

/// The publishing side of a broker.
pub(super) struct Publisher {
    link: Arc<Link>,
    pub(super) lanes: Lanes,
    /// Exchanges that refused a message lately. Messages to them go alone until one is confirmed.
    suspects: Mutex<HashSet<ExchangeName>>,
}

/// A batch on its way.
pub(super) struct Round {
    pub(super) batch: Vec<Outgoing>,
    pub(super) answers: Vec<Option<Published>>,
    /// The lane in use; still here afterwards means that it was not heard to its end.
    pub(super) lane: Option<Lane>,
}

impl Publisher {
    pub(super) fn new(link: Arc<Link>) -> Self {
        Self { lanes: Lanes::new(Arc::clone(&link)), link, suspects: Mutex::default() }
    }

    pub(super) async fn publish(&self, batch: Vec<Outgoing>) -> Vec<Published> {
        let answers = vec![None; batch.len()];
        let mut round = Round { batch, answers, lane: None };
        let limit = self.link.settings().limits().confirm;
        let doubt = match timeout(limit, self.run(&mut round)).await {
            Ok(Ok(())) => {
                "the connection to RabbitMQ was lost before the confirm; publish it again".to_owned()
            }
            Ok(Err(error)) => error.message,
            Err(_) => self.why_late(),
        };
        if let Some(lane) = round.lane.take() {
            self.lanes.retire(lane);
        }
        round
            .answers
            .into_iter()
            .map(|answer| answer.unwrap_or_else(|| Published::Unknown(doubt.clone())))
            .collect()
    }

    fn why_late(&self) -> String {
        let limit = self.link.settings().limits().confirm.as_secs_f32();
        match self.link.blocked() {
            Some(reason) => format!("RabbitMQ takes no messages for now ({reason}); publish it again later"),
            None => format!("no confirm from RabbitMQ within {limit} s; publish it again"),
        }
    }

    /// Fills in the answers. What is left without one when this returns, or is stopped, is in doubt.
    async fn run(&self, round: &mut Round) -> Result<(), BrokerError> {
        let (mut together, mut alone) = (Vec::new(), Vec::new());
        {
            let suspects = self.suspects();
            for (index, outgoing) in round.batch.iter().enumerate() {
                let doubtful = outgoing.message.body.len() >= LARGE || suspects.contains(&outgoing.exchange);
                if doubtful { alone.push(index) } else { together.push(index) }
            }
        }
        while !together.is_empty() {
            match self.send_together(round, &together).await? {
                Sent::Heard => break,
                Sent::Stalled(in_doubt) => together = in_doubt,
                Sent::ClosedOver(in_doubt) => {
                    alone.extend(in_doubt);
                    break;
                }
            }
        }
        self.send_alone(round, alone).await
    }

    /// Publishes these all at once.
    async fn send_together(&self, round: &mut Round, indexes: &[usize]) -> Result<Sent, BrokerError> {
        let lane = round.lane.insert(self.lanes.take().await?);
        let lane = &*lane;
        let mut confirms = Confirms::default();
        let (mut sending, mut bytes) = (FuturesUnordered::new(), 0);
        let (mut closed_over_one, mut stalled) = (false, false);
        let mut waiting = indexes.iter().copied();
        loop {
            while sending.len() < WINDOW && bytes < WINDOW_BYTES {
                let Some(index) = waiting.next() else { break };
                let outgoing = &round.batch[index];
                bytes += outgoing.message.body.len();
                sending.push(async move { (index, lane.send(outgoing).await) });
            }
            let (index, sent) = match self.unless_stalled(lane, sending.next()).await {
                Some(Some(sent)) => sent,
                Some(None) => break,
                None => {
                    stalled = true;
                    break;
                }
            };
            bytes -= round.batch[index].message.body.len();
            match sent {
                Ok(confirmation) => confirms.hear(index, confirmation),
                Err(NotSent::Refused(why)) => round.answers[index] = Some(Published::Refused(why)),
                Err(NotSent::Failed(error)) => {
                    closed_over_one |= fault::is_of_channel(&error);
                    confirms.hear_nothing(index);
                }
            }
        }
        drop(sending);
        if stalled {
            confirms.is_cut_short();
        }
        let sound = confirms.channel_is_sound();
        for (index, answer) in confirms.judge(&round.batch) {
            round.answers[index] = answer;
        }
        if let Some(lane) = round.lane.take() {
            if sound { self.lanes.give_back(lane) } else { self.lanes.retire(lane) }
        }
        let in_doubt = indexes.iter().copied().filter(|index| round.answers[*index].is_none());
        Ok(match (closed_over_one, stalled) {
            (true, _) => Sent::ClosedOver(in_doubt.collect()),
            (false, true) => Sent::Stalled(in_doubt.collect()),
            (false, false) => Sent::Heard,
        })
    }

    /// Ends the lane in use, if there is one.
    pub(super) fn retire(&self, round: &mut Round) {
        if let Some(lane) = round.lane.take() {
            self.lanes.retire(lane);
        }
    }

    /// Waits for something on a lane; nothing if the lane has stalled.
    ///
    /// A queue that has just come back after a crash may never confirm what was sent before it was ready, and confirms at once
    /// what is sent again on another channel. A lane that RabbitMQ does not read for lack of memory has not stalled.
    pub(super) async fn unless_stalled<T>(&self, lane: &Lane, coming: impl Future<Output = T>) -> Option<T> {
        let patience = self.link.settings().limits().confirm / 3;
        let mut coming = pin!(coming);
        loop {
            match timeout(patience, &mut coming).await {
                Ok(came) => return Some(came),
                Err(_) if lane.line.blocked().is_some() => {}
                Err(_) => return None,
            }
        }
    }

    /// The suspects.
    pub(super) fn suspects(&self) -> MutexGuard<'_, HashSet<ExchangeName>> {
        self.suspects.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What became of messages that were published together.
enum Sent {
    /// All that will be heard was heard.
    Heard,
    /// RabbitMQ closed the channel over one of these.
    ClosedOver(Vec<usize>),
    /// Nothing more was heard, and these have no answer.
    Stalled(Vec<usize>),
}
