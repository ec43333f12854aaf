//! What a channel in confirm mode has heard about the messages of one batch.
//!
//! RabbitMQ numbers the messages of a channel from 1, and confirms one or all up to one. A message that no queue wants is sent
//! back before it is confirmed, so with its confirm we have its return.

use super::wire::{Malformed, Reader, text};

/// What was heard about one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::rabbitmq) enum Heard {
    /// Nothing yet.
    Nothing,
    /// Confirmed.
    Ack,
    /// The broker could not take it.
    Nack,
}

/// A message that no queue wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::rabbitmq) struct Returned {
    pub(in crate::rabbitmq) code: u16,
    pub(in crate::rabbitmq) text: String,
    pub(in crate::rabbitmq) exchange: String,
    pub(in crate::rabbitmq) routing_key: String,
    pub(in crate::rabbitmq) message_id: Option<String>,
}

impl Returned {
    /// Reads the method; the message's id comes with its properties.
    pub(super) fn read(mut arguments: Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            code: arguments.u16()?,
            text: text(arguments.short()?),
            exchange: text(arguments.short()?),
            routing_key: text(arguments.short()?),
            message_id: None,
        })
    }
}

/// The messages of the present batch.
#[derive(Debug, Default)]
pub(super) struct Confirms {
    /// How many messages were published before this batch.
    before: u64,
    heard: Vec<Heard>,
    /// Up to here everything was heard: a confirm of all up to one need not look at those again.
    settled: usize,
    unheard: usize,
    returned: Vec<Returned>,
    /// Whoever waits is woken when so few are unheard.
    pub(super) wake_at: usize,
}

impl Confirms {
    /// Begins with the next batch. What is heard of an earlier one from now on is of no interest.
    pub(super) fn begin(&mut self) {
        *self = Self { before: self.before + self.heard.len() as u64, ..Self::default() };
    }

    /// So many messages are on their way.
    pub(super) fn expect(&mut self, messages: usize) {
        self.heard.resize(self.heard.len() + messages, Heard::Nothing);
        self.unheard += messages;
    }

    pub(super) fn unheard(&self) -> usize {
        self.unheard
    }

    /// Hears about one message, or all up to one.
    pub(super) fn hear(&mut self, tag: u64, multiple: bool, what: Heard) {
        let Some(at) = tag.checked_sub(self.before + 1) else { return };
        let at = usize::try_from(at).unwrap_or(usize::MAX).min(self.heard.len());
        let from = if multiple { self.settled } else { at };
        for heard in self.heard.iter_mut().take(at + 1).skip(from) {
            if *heard == Heard::Nothing {
                *heard = what;
                self.unheard -= 1;
            }
        }
        while self.heard.get(self.settled).is_some_and(|heard| *heard != Heard::Nothing) {
            self.settled += 1;
        }
    }

    pub(super) fn send_back(&mut self, returned: Returned) {
        self.returned.push(returned);
    }

    /// What was heard of this batch, a word for each message in their order, and what came back.
    pub(super) fn told(&self) -> (Vec<Heard>, Vec<Returned>) {
        (self.heard.clone(), self.returned.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Heard::{Ack, Nack, Nothing};

    #[test]
    fn one_or_all_up_to_one() {
        let mut confirms = Confirms::default();
        confirms.expect(5);
        confirms.hear(2, false, Ack);
        confirms.hear(4, true, Nack);
        assert_eq!(confirms.told().0, [Nack, Ack, Nack, Nack, Nothing]);
        assert_eq!(confirms.unheard(), 1);
        confirms.hear(9, true, Ack);
        assert_eq!(confirms.unheard(), 0);
    }

    #[test]
    fn what_was_of_an_earlier_batch_is_not_taken_for_one_of_this() {
        let mut confirms = Confirms::default();
        confirms.expect(3);
        confirms.hear(3, true, Ack);
        confirms.begin();
        confirms.expect(2);
        confirms.hear(3, true, Nack);
        confirms.hear(4, false, Ack);
        assert_eq!(confirms.told().0, [Ack, Nothing]);
    }
}
