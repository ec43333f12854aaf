//! What was heard about a batch, and what it means for each message.
//!
//! RabbitMQ sends a message that no queue wants back before it confirms it, but the driver hands the returned message to
//! whichever confirm comes next, which may be another message's. So returns are collected by what was returned, and judged
//! when the whole batch has been heard. One batch has its channel to itself meanwhile, or returns would mix.

use std::collections::HashMap;

use lapin::Confirmation;
use lapin::message::BasicReturnMessage;

use crate::broker::{Outgoing, Published};

/// What tells one message of a batch from another: exchange, key and message id. Messages that share all three are routed
/// alike, so they share the verdict.
type Identity = (String, String, Option<String>);

/// What was heard about one batch on one channel.
#[derive(Default)]
pub(super) struct Confirms {
    heard: Vec<(usize, Heard)>,
    cut_short: bool,
    returned: HashMap<Identity, String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Heard {
    /// Confirmed, and no returned message was waiting for its turn: if this one was returned, we have it.
    Ack,
    /// Confirmed while a returned message was handed over; this one's own may still have been waiting.
    AckWithReturn,
    /// The broker could not take it.
    Nack,
    /// Nothing, because the channel ended first.
    Nothing,
}

impl Confirms {
    /// Notes a confirm of the message at `index`.
    pub(super) fn hear(&mut self, index: usize, confirmation: Confirmation) {
        let heard = match &confirmation {
            Confirmation::Ack(None) => Heard::Ack,
            Confirmation::Ack(Some(_)) => Heard::AckWithReturn,
            Confirmation::Nack(_) => Heard::Nack,
            Confirmation::NotRequested => Heard::Nothing,
        };
        self.heard.push((index, heard));
        if let Some(returned) = confirmation.take_message() {
            self.returned.insert(identity_of_return(&returned), reason(&returned));
        }
    }

    /// Notes that the channel ended before the message at `index` was confirmed.
    pub(super) fn hear_nothing(&mut self, index: usize) {
        self.heard.push((index, Heard::Nothing));
    }

    /// Notes that some messages were not waited for.
    pub(super) fn is_cut_short(&mut self) {
        self.cut_short = true;
    }

    /// Whether the channel can be used again. RabbitMQ 3.10 nacks everything on a channel that first met a quorum queue during
    /// an election, long after the queue has a leader.
    pub(super) fn channel_is_sound(&self) -> bool {
        !self.cut_short
            && self.heard.iter().all(|(_, heard)| matches!(heard, Heard::Ack | Heard::AckWithReturn))
    }

    /// The answer for every message that has one; those without are in doubt.
    pub(super) fn judge(self, batch: &[Outgoing]) -> Vec<(usize, Option<Published>)> {
        // Every return precedes its own confirm, so when all confirms are in, so are all returns.
        let complete = !self.cut_short && self.heard.iter().all(|(_, heard)| *heard != Heard::Nothing);
        let answer = |index: usize, heard| {
            if !self.returned.is_empty()
                && let Some(reason) = self.returned.get(&identity(&batch[index]))
            {
                return Some(Published::Returned(reason.clone()));
            }
            match heard {
                Heard::Ack => Some(Published::Confirmed),
                Heard::AckWithReturn if complete => Some(Published::Confirmed),
                Heard::Nack => Some(Published::Unknown(
                    "RabbitMQ could not take the message (nack); publish it again".to_owned(),
                )),
                Heard::AckWithReturn | Heard::Nothing => None,
            }
        };
        self.heard.iter().map(|(index, heard)| (*index, answer(*index, *heard))).collect()
    }
}

fn identity(outgoing: &Outgoing) -> Identity {
    (
        outgoing.exchange.as_str().to_owned(),
        outgoing.routing_key.as_str().to_owned(),
        outgoing.message.properties.message_id.clone(),
    )
}

fn identity_of_return(returned: &BasicReturnMessage) -> Identity {
    (
        returned.exchange.to_string(),
        returned.routing_key.to_string(),
        returned.properties.message_id().as_ref().map(ToString::to_string),
    )
}

fn reason(returned: &BasicReturnMessage) -> String {
    format!(
        "no queue is bound to exchange {:?} for the key {:?} ({} {}); bind one, or give the exchange an alternate",
        returned.exchange.as_str(),
        returned.routing_key.as_str(),
        returned.reply_code,
        returned.reply_text
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::Message;
    use crate::topology::{ExchangeName, RoutingKey};
    use lapin::BasicProperties;
    use lapin::message::Delivery;

    fn outgoing(id: &str, key: &str) -> Outgoing {
        let mut message = Message::default();
        message.properties.message_id = Some(id.to_owned());
        Outgoing {
            exchange: ExchangeName::new("x").unwrap(),
            routing_key: RoutingKey::new(key).unwrap(),
            message,
        }
    }

    fn returned(id: &str, key: &str) -> BasicReturnMessage {
        let mut delivery = Delivery::mock(0, "x".into(), key.into(), false, Vec::new());
        delivery.properties = BasicProperties::default().with_message_id(id.into());
        BasicReturnMessage { delivery, reply_code: 312, reply_text: "NO_ROUTE".into() }
    }

    #[test]
    fn a_return_is_charged_to_the_message_that_was_returned() {
        let batch = [outgoing("a", "good"), outgoing("b", "bad"), outgoing("c", "good")];
        let mut confirms = Confirms::default();
        confirms.hear(0, Confirmation::Ack(Some(returned("b", "bad"))));
        confirms.hear(1, Confirmation::Ack(None));
        confirms.hear(2, Confirmation::Ack(None));
        let answers = confirms.judge(&batch);
        assert_eq!(answers[0].1, Some(Published::Confirmed));
        assert!(matches!(answers[1].1, Some(Published::Returned(_))));
        assert_eq!(answers[2].1, Some(Published::Confirmed));
    }

    #[test]
    fn an_unfinished_batch_leaves_in_doubt_whose_return_may_be_missing() {
        let batch =
            [outgoing("a", "bad"), outgoing("b", "bad"), outgoing("c", "good"), outgoing("d", "good")];
        let mut confirms = Confirms::default();
        // b's return was still waiting when the channel ended: b's confirm carried a's.
        confirms.hear(1, Confirmation::Ack(Some(returned("a", "bad"))));
        confirms.hear(2, Confirmation::Ack(None));
        confirms.hear(3, Confirmation::Nack(None));
        confirms.hear_nothing(0);
        let answers = confirms.judge(&batch);
        assert_eq!(answers[0], (1, None));
        assert_eq!(answers[1], (2, Some(Published::Confirmed)));
        assert!(matches!(answers[2].1, Some(Published::Unknown(_))));
        assert!(matches!(answers[3], (0, Some(Published::Returned(_)))));
    }
}
