//! Publishing: a batch goes out as one, is confirmed as one, and a message that RabbitMQ refuses fails alone.
//!
//! RabbitMQ answers a message it refuses (no such exchange, no right, too large) by closing the channel, which leaves
//! every unconfirmed neighbour in doubt. Those in doubt are then published again one by one, on a channel that nothing
//! else is on, so that the answer has one addressee. They may arrive twice; none is blamed for another.
//!
//! A crash at any point loses nothing: only what is answered [`Published::Confirmed`] counts as published.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use lapin::options::BasicPublishOptions;
use lapin::{Channel, Confirmation};
use tokio::time::timeout;

use super::confirms::Confirms;
use super::fault::{self, code};
use super::lanes::{Lane, Lanes};
use super::link::Link;
use super::values;
use crate::broker::{BrokerError, Outgoing, Published};
use crate::topology::{ExchangeName, RoutingKey};

/// Unconfirmed messages on one channel: the driver looks through all of them at each confirm.
const WINDOW: usize = 1024;
/// Unconfirmed bytes on one channel, so that large bodies do not fill the memory.
const WINDOW_BYTES: usize = 32 << 20;
/// From this size on a message goes alone, because it may be more than the broker takes.
const LARGE: usize = 4 << 20;

/// The publishing side of a broker.
pub(super) struct Publisher {
    link: Arc<Link>,
    lanes: Lanes,
    /// Exchanges that refused a message lately. Messages to them go alone until one is confirmed.
    suspects: Mutex<HashSet<ExchangeName>>,
}

/// A batch on its way.
struct Round {
    batch: Vec<Outgoing>,
    answers: Vec<Option<Published>>,
    /// The lane in use; still here afterwards means that it was not heard to its end.
    lane: Option<Lane>,
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
            Err(_) => self.why_late(&round),
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

    fn why_late(&self, round: &Round) -> String {
        let limit = self.link.settings().limits().confirm.as_secs_f32();
        match round.lane.as_ref().and_then(|lane| lane.line.blocked()) {
            Some(reason) => format!("RabbitMQ takes no messages for now ({reason}); publish it again later"),
            None => format!("no confirm from RabbitMQ within {limit} s; publish it again"),
        }
    }

    /// Fills in the answers. What is left without one when this returns, or is stopped, is in doubt.
    async fn run(&self, round: &mut Round) -> Result<(), BrokerError> {
        let (mut together, mut alone) = (Vec::new(), Vec::new());
        {
            let suspects = self.lock();
            for (index, outgoing) in round.batch.iter().enumerate() {
                let doubtful = outgoing.message.body.len() >= LARGE || suspects.contains(&outgoing.exchange);
                if doubtful { alone.push(index) } else { together.push(index) }
            }
        }
        if !together.is_empty() {
            let in_doubt = self.send_together(round, &together).await?;
            alone.extend(in_doubt);
        }
        self.send_alone(round, alone).await
    }

    /// Publishes these all at once. Returns those left in doubt because RabbitMQ closed the channel over one of them.
    async fn send_together(&self, round: &mut Round, indexes: &[usize]) -> Result<Vec<usize>, BrokerError> {
        let lane = round.lane.insert(self.lanes.take().await?);
        let frame_max = lane.line.frame_max();
        let channel = &lane.channel;
        let mut confirms = Confirms::default();
        let (mut sending, mut bytes) = (FuturesUnordered::new(), 0);
        let mut closed_over_a_message = false;
        let mut waiting = indexes.iter().copied();
        loop {
            while sending.len() < WINDOW && bytes < WINDOW_BYTES {
                let Some(index) = waiting.next() else { break };
                let outgoing = &round.batch[index];
                bytes += outgoing.message.body.len();
                sending.push(async move { (index, send(channel, outgoing, frame_max).await) });
            }
            let Some((index, sent)) = sending.next().await else { break };
            bytes -= round.batch[index].message.body.len();
            match sent {
                Ok(confirmation) => confirms.hear(index, confirmation),
                Err(NotSent::Refused(why)) => round.answers[index] = Some(Published::Refused(why)),
                Err(NotSent::Failed(error)) => {
                    closed_over_a_message |= fault::is_of_channel(&error);
                    confirms.hear_nothing(index);
                }
            }
        }
        drop(sending);
        let sound = confirms.channel_is_sound();
        let mut in_doubt = Vec::new();
        for (index, answer) in confirms.judge(&round.batch) {
            if answer.is_none() {
                in_doubt.push(index);
            }
            round.answers[index] = answer;
        }
        if let Some(lane) = round.lane.take() {
            if sound { self.lanes.give_back(lane) } else { self.lanes.retire(lane) }
        }
        if !closed_over_a_message {
            return Ok(Vec::new());
        }
        in_doubt.sort_unstable();
        Ok(in_doubt)
    }

    /// Publishes these one by one, so that a refusal has one addressee.
    async fn send_alone(&self, round: &mut Round, indexes: Vec<usize>) -> Result<(), BrokerError> {
        let mut refused = Refused::default();
        for index in indexes {
            let outgoing = &round.batch[index];
            if let Some(why) = refused.before(outgoing) {
                round.answers[index] = Some(Published::Refused(why));
                continue;
            }
            let lane = match round.lane.take() {
                Some(lane) if lane.channel.status().connected() => lane,
                _ => self.lanes.take().await?,
            };
            let frame_max = lane.line.frame_max();
            let lane = round.lane.insert(lane);
            match send(&lane.channel, outgoing, frame_max).await {
                Ok(confirmation) => {
                    let mut confirms = Confirms::default();
                    confirms.hear(index, confirmation);
                    let sound = confirms.channel_is_sound();
                    for (index, answer) in confirms.judge(&round.batch) {
                        round.answers[index] = answer;
                    }
                    if !sound && let Some(lane) = round.lane.take() {
                        self.lanes.retire(lane);
                    }
                    self.lock().remove(&round.batch[index].exchange);
                }
                Err(NotSent::Refused(why)) => round.answers[index] = Some(Published::Refused(why)),
                Err(NotSent::Failed(error)) => {
                    if let Some((code, why)) = fault::refusal(&error) {
                        if code != code::PRECONDITION_FAILED {
                            self.lock().insert(outgoing.exchange.clone());
                        }
                        refused.remember(code, outgoing, &why);
                        round.answers[index] = Some(Published::Refused(why));
                    } else if !fault::is_of_channel(&error) {
                        return Ok(());
                    }
                }
            }
        }
        if let Some(lane) = round.lane.take() {
            self.lanes.give_back(lane);
        }
        Ok(())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashSet<ExchangeName>> {
        self.suspects.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Refusals of one round that hold for other messages of it as well: no need to close a channel for each.
#[derive(Default)]
struct Refused {
    no_such_exchange: HashSet<ExchangeName>,
    no_right: HashSet<(ExchangeName, RoutingKey)>,
    why: String,
}

impl Refused {
    fn before(&self, outgoing: &Outgoing) -> Option<String> {
        let again = self.no_such_exchange.contains(&outgoing.exchange)
            || self.no_right.contains(&(outgoing.exchange.clone(), outgoing.routing_key.clone()));
        again.then(|| self.why.clone())
    }

    fn remember(&mut self, code: u16, outgoing: &Outgoing, why: &str) {
        match code {
            code::NOT_FOUND => self.no_such_exchange.insert(outgoing.exchange.clone()),
            code::ACCESS_REFUSED => {
                self.no_right.insert((outgoing.exchange.clone(), outgoing.routing_key.clone()))
            }
            _ => return,
        };
        why.clone_into(&mut self.why);
    }
}

enum NotSent {
    /// No broker would take it.
    Refused(String),
    /// What ended the channel or the connection.
    Failed(lapin::Error),
}

impl From<lapin::Error> for NotSent {
    fn from(error: lapin::Error) -> Self {
        Self::Failed(error)
    }
}

async fn send(channel: &Channel, outgoing: &Outgoing, frame_max: usize) -> Result<Confirmation, NotSent> {
    let properties = values::to_amqp(&outgoing.message, frame_max).map_err(NotSent::Refused)?;
    let exchange =
        values::short("the exchange name", outgoing.exchange.as_str()).map_err(NotSent::Refused)?;
    let key = values::short("the routing key", outgoing.routing_key.as_str()).map_err(NotSent::Refused)?;
    let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
    let confirm = channel.basic_publish(exchange, key, options, &outgoing.message.body, properties).await?;
    Ok(confirm.await?)
}
