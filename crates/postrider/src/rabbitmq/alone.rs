//! Publishing one by one: a refusal has one addressee.

use std::collections::HashSet;

use super::fault::{self, code};
use super::lanes::Lane;
use super::publish::{Publisher, Round};
use crate::broker::{BrokerError, Outgoing, Published};
use crate::topology::{ExchangeName, RoutingKey};

impl Publisher {
    /// Publishes these one by one, so that a refusal has one addressee.
    pub(super) async fn send_alone(
        &self,
        round: &mut Round<'_>,
        indexes: Vec<usize>,
    ) -> Result<(), BrokerError> {
        let mut refused = Refused::default();
        for index in indexes {
            let outgoing = &round.batch[index];
            if let Some(why) = refused.before(outgoing) {
                round.answers[index] = Some(Published::Refused(why));
                continue;
            }
            // An ended lane goes before another is asked for: held, they would wait for each other.
            let lane = match round.lane.take().filter(Lane::is_open) {
                Some(lane) => lane,
                None => self.lanes.take().await?,
            };
            let lane = round.lane.insert(lane);
            let mut sending = lane.begin();
            round.sent.clear();
            round.sent.push(index);
            if let Err(why) = sending.add(outgoing).await {
                round.answers[index] = Some(Published::Unfit(why));
                continue;
            }
            let (confirms, ended) = sending.finish().await;
            let answer = confirms.judge(&round.batch, &round.sent).pop().and_then(|(_, answer)| answer);
            match (answer, ended) {
                (Some(answer), _) => {
                    if !confirms.channel_is_sound() {
                        round.retire_lane();
                    }
                    self.suspects().remove(&round.batch[index].exchange);
                    round.answers[index] = Some(answer);
                }
                (None, Some(error)) => {
                    if let Some((code, why)) = fault::refusal(&error) {
                        if matches!(code, code::NOT_FOUND | code::ACCESS_REFUSED) {
                            self.suspects().insert(outgoing.exchange.clone());
                        }
                        refused.remember(code, outgoing, &why);
                        round.answers[index] = Some(Published::Refused(why));
                    } else if !fault::is_of_channel(&error) {
                        return Ok(());
                    }
                }
                (None, None) => return Ok(()),
            }
        }
        if let Some(lane) = round.lane.take() {
            self.lanes.give_back(lane);
        }
        Ok(())
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
