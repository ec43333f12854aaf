//! Publishing: a batch goes out as one, is confirmed as one, and a message that RabbitMQ refuses fails alone.
//!
//! RabbitMQ answers a message it refuses (no such exchange, no right, too large) by closing the channel, which leaves
//! every unconfirmed neighbour in doubt. Those in doubt are then published again one by one, on a channel that nothing
//! else is on, so that the answer has one addressee. They may arrive twice; none is blamed for another.
//!
//! A crash at any point loses nothing: only what is answered [`Published::Confirmed`] counts as published.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::timeout;

use super::confirms::Confirms;
use super::fault;
use super::lanes::{Lane, Lanes};
use super::link::Link;
use crate::broker::{BrokerError, Outgoing, Published};
use crate::topology::ExchangeName;

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
pub(super) struct Round<'a> {
    pub(super) batch: Vec<Outgoing>,
    pub(super) answers: Vec<Option<Published>>,
    /// Those that went out on the lane in use, in their order.
    pub(super) sent: Vec<usize>,
    /// The lane in use; still here at the end means that it was not heard to its end.
    pub(super) lane: Option<Lane>,
    lanes: &'a Lanes,
}

impl Round<'_> {
    /// Takes what was heard on the lane in use before the time was up. What is confirmed need not go again: where the broker is slow, a
    /// batch that counted only as a whole might never do so.
    fn hear_so_far(&mut self) {
        let Some(lane) = &self.lane else { return };
        let (heard, returned) = lane.channel.told();
        for (index, answer) in (Confirms { heard, returned }).judge(&self.batch, &self.sent) {
            self.answers[index] = answer;
        }
    }

    /// Ends the lane in use, if there is one.
    pub(super) fn retire_lane(&mut self) {
        if let Some(lane) = self.lane.take() {
            self.lanes.retire(lane);
        }
    }
}

/// Also when the caller did not wait for the answers.
impl Drop for Round<'_> {
    fn drop(&mut self) {
        self.retire_lane();
    }
}

impl Publisher {
    pub(super) fn new(link: Arc<Link>) -> Self {
        Self { lanes: Lanes::new(Arc::clone(&link)), link, suspects: Mutex::default() }
    }

    pub(super) async fn publish(&self, batch: Vec<Outgoing>) -> Vec<Published> {
        let answers = vec![None; batch.len()];
        let mut round = Round { batch, answers, sent: Vec::new(), lane: None, lanes: &self.lanes };
        let limit = self.link.settings().limits().confirm;
        let doubt = match timeout(limit, self.run(&mut round)).await {
            Ok(Ok(())) => {
                "the connection to RabbitMQ was lost before the confirm; publish it again".to_owned()
            }
            Ok(Err(error)) => error.message,
            Err(_) => {
                round.hear_so_far();
                self.why_late()
            }
        };
        std::mem::take(&mut round.answers)
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
    async fn run(&self, round: &mut Round<'_>) -> Result<(), BrokerError> {
        let (mut together, mut alone) = (Vec::new(), Vec::new());
        {
            let suspects = self.suspects();
            for (index, outgoing) in round.batch.iter().enumerate() {
                let doubtful = outgoing.message.body.len() >= LARGE || suspects.contains(&outgoing.exchange);
                if doubtful { alone.push(index) } else { together.push(index) }
            }
        }
        if !together.is_empty() {
            alone.extend(self.send_together(round, &together).await?);
        }
        self.send_alone(round, alone).await
    }

    /// Publishes these all at once. Returns those left in doubt because RabbitMQ closed the channel over one of them.
    async fn send_together(
        &self,
        round: &mut Round<'_>,
        indexes: &[usize],
    ) -> Result<Vec<usize>, BrokerError> {
        let lane = &*round.lane.insert(self.lanes.take().await?);
        let mut sending = lane.begin();
        for index in indexes.iter().copied() {
            round.sent.push(index);
            if let Err(why) = sending.add(&round.batch[index]).await {
                round.sent.pop();
                round.answers[index] = Some(Published::Unfit(why));
            }
        }
        let (confirms, ended) = sending.finish().await;
        let closed_over_one = ended.is_some_and(|error| fault::is_of_channel(&error));
        for (index, answer) in confirms.judge(&round.batch, &round.sent) {
            round.answers[index] = answer;
        }
        if let Some(lane) = round.lane.take() {
            if confirms.channel_is_sound() { self.lanes.give_back(lane) } else { self.lanes.retire(lane) }
        }
        let in_doubt = indexes.iter().copied().filter(|index| round.answers[*index].is_none());
        Ok(if closed_over_one { in_doubt.collect() } else { Vec::new() })
    }

    /// The suspects.
    pub(super) fn suspects(&self) -> MutexGuard<'_, HashSet<ExchangeName>> {
        self.suspects.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
