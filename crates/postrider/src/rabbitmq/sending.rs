//! A batch on its way: messages go out as they are added, a pile at a time, and their confirms are waited for at the end.

use super::amqp::confirms::Heard;
use super::amqp::content::Content;
use super::amqp::{Channel, Error, Pile};
use super::confirms::Confirms;
use crate::broker::Outgoing;

/// Unconfirmed messages on one channel.
const WINDOW: usize = 4096;
/// Unconfirmed bytes on one channel, so that large bodies do not fill the memory.
const WINDOW_BYTES: usize = 32 << 20;
/// What is handed to the connection at a time: enough to be worth it, and RabbitMQ can begin before the rest is written.
const PILE: usize = 64 << 10;

/// A batch on its way.
pub(super) struct Sending<'a> {
    channel: &'a Channel,
    pile: Pile,
    /// Messages that were handed over, and their bytes since all were confirmed.
    sent: usize,
    bytes: usize,
    ended: Option<Error>,
}

impl<'a> Sending<'a> {
    /// Begins, on a channel that nothing else is published on meanwhile.
    pub(super) fn begin(channel: &'a Channel) -> Self {
        channel.begin_batch();
        Self { channel, pile: Pile::default(), sent: 0, bytes: 0, ended: None }
    }

    /// Sends a message, in a while. An error says why no RabbitMQ would take it.
    pub(super) async fn add(&mut self, outgoing: &Outgoing) -> Result<(), String> {
        let Outgoing { exchange, routing_key, message } = outgoing;
        let to = (exchange.as_str().as_bytes(), routing_key.as_str().as_bytes());
        self.add_as_is(to, &Content::of(message), &message.body).await
    }

    /// The same with properties as they came; `to` is the exchange and the routing key.
    pub(super) async fn add_as_is(
        &mut self,
        to: (&[u8], &[u8]),
        content: &Content<'_>,
        body: &[u8],
    ) -> Result<(), String> {
        self.channel.pile(&mut self.pile, to, content, body)?;
        if self.pile.bytes() >= PILE {
            self.hand_over().await;
        }
        Ok(())
    }

    /// Waits for all confirms. Says what was heard, and what ended the channel if something did.
    pub(super) async fn finish(mut self) -> (Confirms, Option<Error>) {
        self.hand_over().await;
        self.until_unheard(0).await;
        let (mut heard, returned) = self.channel.told();
        // Of what was never handed over nothing was heard.
        heard.resize(self.sent, Heard::Nothing);
        (Confirms { heard, returned }, self.ended)
    }

    async fn hand_over(&mut self) {
        self.sent += self.pile.messages();
        self.bytes += self.pile.bytes();
        if self.ended.is_none() {
            self.ended = self.channel.publish(&self.pile).await.err();
        }
        self.pile.clear();
        if self.bytes >= WINDOW_BYTES {
            self.until_unheard(0).await;
            self.bytes = 0;
        } else {
            self.until_unheard(WINDOW).await;
        }
    }

    async fn until_unheard(&mut self, most: usize) {
        if self.ended.is_none() {
            self.ended = self.channel.until_unheard(most).await.err();
        }
    }
}
