//! What was heard about a batch, and what it means for each message.
//!
//! RabbitMQ says of a returned message what it was, not which of the batch. So returns are told apart by exchange, key and message
//! id; one batch has its channel to itself meanwhile, or returns would mix.

use std::collections::HashMap;

use super::amqp::confirms::{Heard, Returned};
use crate::broker::{Outgoing, Published};

/// What tells one message of a batch from another. Messages that share all three are routed alike, so they share the verdict.
type Identity<'a> = (&'a str, &'a str, Option<&'a str>);

/// What was heard about the messages that were sent on one channel.
pub(super) struct Confirms {
    pub(super) heard: Vec<Heard>,
    pub(super) returned: Vec<Returned>,
}

impl Confirms {
    /// Whether the channel can be used again. RabbitMQ 3.10 nacks everything on a channel that first met a quorum queue during
    /// an election, long after the queue has a leader.
    pub(super) fn channel_is_sound(&self) -> bool {
        self.heard.iter().all(|heard| *heard == Heard::Ack)
    }

    /// The answer for every message that has one; those without are in doubt. `sent` are the messages in the order in which they
    /// went out.
    pub(super) fn judge(&self, batch: &[Outgoing], sent: &[usize]) -> Vec<(usize, Option<Published>)> {
        let returned: HashMap<Identity<'_>, &Returned> =
            self.returned.iter().map(|returned| (identity_of_return(returned), returned)).collect();
        let answer = |index: usize, heard| match heard {
            // A return precedes its confirm.
            Heard::Ack if returned.is_empty() => Some(Published::Confirmed),
            Heard::Ack => Some(match returned.get(&identity(&batch[index])) {
                Some(returned) => Published::Returned(reason(returned)),
                None => Published::Confirmed,
            }),
            Heard::Nack => Some(Published::Declined(declined(&batch[index]))),
            Heard::Nothing => None,
        };
        sent.iter().zip(&self.heard).map(|(index, heard)| (*index, answer(*index, *heard))).collect()
    }
}

fn identity(outgoing: &Outgoing) -> Identity<'_> {
    (
        outgoing.exchange.as_str(),
        outgoing.routing_key.as_str(),
        outgoing.message.properties.message_id.as_deref(),
    )
}

fn identity_of_return(returned: &Returned) -> Identity<'_> {
    (&returned.exchange, &returned.routing_key, returned.message_id.as_deref())
}

fn declined(outgoing: &Outgoing) -> String {
    let (exchange, key) = (outgoing.exchange.as_str(), outgoing.routing_key.as_str());
    let target = if exchange.is_empty() {
        format!("the queue {key:?} is full, or has")
    } else {
        format!("a queue that exchange {exchange:?} leads to for the key {key:?} is full, or has")
    };
    format!(
        "RabbitMQ did not take the message (nack): {target} no leader for a moment; it is published again"
    )
}

fn reason(returned: &Returned) -> String {
    if returned.exchange.is_empty() {
        return crate::broker::no_such_queue(&returned.routing_key);
    }
    format!(
        "no queue is bound to exchange {:?} for the key {:?} ({} {}); bind one, or give the exchange an alternate",
        returned.exchange, returned.routing_key, returned.code, returned.text
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::Message;
    use crate::topology::{ExchangeName, RoutingKey};

    fn outgoing(id: &str, key: &str) -> Outgoing {
        let mut message = Message::default();
        message.properties.message_id = Some(id.to_owned());
        Outgoing {
            exchange: ExchangeName::new("x").unwrap(),
            routing_key: RoutingKey::new(key).unwrap(),
            message,
        }
    }

    fn returned(id: &str, key: &str) -> Returned {
        Returned {
            code: 312,
            text: "NO_ROUTE".to_owned(),
            exchange: "x".to_owned(),
            routing_key: key.to_owned(),
            message_id: Some(id.to_owned()),
        }
    }

    #[test]
    fn a_return_is_charged_to_the_message_that_was_returned() {
        let batch = [outgoing("a", "good"), outgoing("b", "bad"), outgoing("c", "good")];
        let confirms = Confirms { heard: vec![Heard::Ack; 3], returned: vec![returned("b", "bad")] };
        let answers = confirms.judge(&batch, &[2, 1, 0]);
        assert_eq!(answers[0], (2, Some(Published::Confirmed)));
        assert!(matches!(answers[1], (1, Some(Published::Returned(_)))));
        assert_eq!(answers[2], (0, Some(Published::Confirmed)));
        assert!(confirms.channel_is_sound());
    }

    #[test]
    fn what_was_not_heard_to_its_end_is_in_doubt() {
        let batch = [outgoing("a", "bad"), outgoing("b", "good"), outgoing("c", "good")];
        let heard = vec![Heard::Nothing, Heard::Nack, Heard::Ack];
        let confirms = Confirms { heard, returned: vec![returned("a", "bad")] };
        let answers = confirms.judge(&batch, &[0, 1, 2]);
        assert_eq!(answers[0].1, None);
        assert!(matches!(answers[1].1, Some(Published::Declined(_))));
        assert_eq!(answers[2].1, Some(Published::Confirmed));
        assert!(!confirms.channel_is_sound());
    }
}
