//! Events of an ordered queue that wait for an earlier one of their key.

use std::collections::HashMap;
use std::future::Future;
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;

use super::{Store, StoreError, StoreErrorKind};
use crate::broker::Message;
use crate::envelope::{EventId, OrderingKey};
use crate::topology::{ConsumerName, ExchangeName, RoutingKey};

/// The table of held events. A key is held while it has rows; the first of them is its head.
///
/// An event is put here before its delivery is acked, and a second time changes nothing, so a crash in between loses and
/// doubles nothing. It leaves in the transaction that applies it. Who finds a key without rows may handle its next event
/// at once: everything before it is committed.
pub trait Held: Store {
    /// Holds events in this order, behind what is held already. Those that are there stay as they are.
    fn hold(
        &self,
        consumer: &ConsumerName,
        events: Vec<HeldEvent>,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Holds an event as the head of its key, or changes it if it is there: it waits for its next attempt, or is parked.
    /// Whatever lease it had ends.
    fn hold_head(
        &self,
        consumer: &ConsumerName,
        event: HeldEvent,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// The heads of those of the keys that are held.
    fn held_heads(
        &self,
        consumer: &ConsumerName,
        keys: &[OrderingKey],
    ) -> impl Future<Output = Result<HashMap<OrderingKey, HeldHead>, StoreError>> + Send;

    /// Those of these events that are held, in no order. How long they wait is not told.
    fn held_events(
        &self,
        consumer: &ConsumerName,
        events: &[EventId],
    ) -> impl Future<Output = Result<Vec<HeldEvent>, StoreError>> + Send;

    /// Leases heads that are due, at most one a key: nobody gets them again before the lease is over, or they are held anew.
    fn claim_held(
        &self,
        consumer: &ConsumerName,
        owner: &str,
        lease: Duration,
        limit: usize,
    ) -> impl Future<Output = Result<Vec<HeldEvent>, StoreError>> + Send;

    /// Lets a lease run for this long from now on. One that is over and was given to another is left alone.
    fn renew_held(
        &self,
        consumer: &ConsumerName,
        owner: &str,
        event: &EventId,
        lease: Duration,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Lets an event go, in the transaction that applies it.
    fn let_go(
        &self,
        tx: &mut Self::Tx,
        consumer: &ConsumerName,
        event: &EventId,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Ends the parking of a key: its head is let go, and what is behind it flows. Returns how many keys were parked.
    fn release_key(
        &self,
        consumer: &ConsumerName,
        key: &OrderingKey,
        by: &str,
        reason: &str,
    ) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// Ends the parking of every key whose head's dead letter was discarded, or sent elsewhere: the letter that the row names, or what a
    /// replay made of it since. Other letters under the head's id say nothing of it. Returns how many there were.
    fn release_discarded(
        &self,
        consumer: &ConsumerName,
    ) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// The held keys, of one consumer or of all, the longest held first.
    fn held_keys(
        &self,
        consumer: Option<&ConsumerName>,
        limit: usize,
    ) -> impl Future<Output = Result<Vec<HeldKey>, StoreError>> + Send;
}

/// An event that is held, with its message.
#[derive(Debug, Clone, PartialEq)]
pub struct HeldEvent {
    /// Which event.
    pub event_id: EventId,
    /// Its key.
    pub key: OrderingKey,
    /// Whether it waits or is parked.
    pub state: HeldState,
    /// The attempt it waits for, counted from 1.
    pub attempt: u32,
    /// How long it waits at least, from now on. What was claimed waits no longer.
    pub delay: Duration,
    /// Why its last attempt failed; empty for one that was not attempted.
    pub error: String,
    /// The key of its dead letter, if it is parked.
    pub letter: Option<String>,
    /// The exchange it was published to last.
    pub exchange: ExchangeName,
    /// The key it was published with last.
    pub routing_key: RoutingKey,
    /// The message.
    pub message: Message,
}

/// Why an event is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum HeldState {
    /// For its next attempt, or for those before it.
    Waiting,
    /// It is a dead letter, and its key goes on when that is replayed, discarded or released.
    Parked,
}

impl HeldState {
    /// The word for it, in tables and on pages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Parked => "parked",
        }
    }

    /// From the word for it.
    pub(crate) fn from_word(word: &str) -> Self {
        if word == Self::Parked.as_str() { Self::Parked } else { Self::Waiting }
    }
}

/// The head of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldHead {
    /// Which event.
    pub event_id: EventId,
    /// Why it is held.
    pub state: HeldState,
}

/// A key that is held.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HeldKey {
    /// By which consumer.
    pub consumer: ConsumerName,
    /// Which key.
    pub key: OrderingKey,
    /// How many events, the head included.
    pub events: u64,
    /// The head.
    pub head: EventId,
    /// Why the head is held.
    pub state: HeldState,
    /// The attempt it waits for.
    pub attempt: u32,
    /// When it is due.
    pub due_at: Timestamp,
    /// Since when the head is held.
    pub since: Timestamp,
    /// Why its last attempt failed.
    pub error: String,
}

/// Properties and headers as the table keeps them.
pub(crate) fn pack(message: &Message) -> Result<Vec<u8>, StoreError> {
    serde_json::to_vec(&(&message.properties, &message.headers)).map_err(|cause| {
        let text = "the headers of an event that has to wait cannot be written; it stays in its queue";
        StoreError::new(StoreErrorKind::Other, text).because(cause)
    })
}

/// And back.
pub(crate) fn unpack(head: &[u8], body: Vec<u8>) -> Result<Message, serde_json::Error> {
    let (properties, headers) = serde_json::from_slice(head)?;
    Ok(Message { properties, headers, body: body.into() })
}
