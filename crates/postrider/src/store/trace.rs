//! Where one event went, as far as the store knows.

use std::future::Future;

use jiff::Timestamp;
use serde::Serialize;

use super::{LetterSummary, OutboxStatus, Store, StoreError, read_head};
use crate::dead_letter::header;
use crate::envelope::EventId;

/// Looking for one event.
pub trait Traces: Store {
    /// Everything the store knows of an event.
    fn trace(&self, event: &EventId) -> impl Future<Output = Result<Trace, StoreError>> + Send;
}

/// What the store knows of an event. All empty: it never was here.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Trace {
    /// Its row in the outbox, and the rows that sent it again.
    pub outbox: Vec<OutboxStep>,
    /// Who applied it.
    pub applied: Vec<AppliedStep>,
    /// Its dead letters, the oldest first.
    pub dead_letters: Vec<LetterSummary>,
    /// Which consumers hold it, to keep the order of its key.
    pub held: Vec<HeldStep>,
}

/// A consumer that holds an event: the first of its key waits for its next attempt, the others wait for the first.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HeldStep {
    /// Who holds it.
    pub consumer: String,
    /// The first of its key; the event itself, if nothing is before it.
    pub head: String,
}

/// A row of the outbox.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OutboxStep {
    /// The row's id: the event's own, or that of a row that sent it again.
    pub row_id: String,
    /// Whose it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Its type.
    pub event_type: String,
    /// Where it is.
    pub status: OutboxStatus,
    /// The one queue it goes to, if it is not routed.
    pub target_queue: Option<String>,
    /// The exchange that it is published to, where it names one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exchange: Option<String>,
    /// The key that it is published with, where that is not its type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub routing_key: Option<String>,
    /// When it was committed.
    pub created_at: Timestamp,
    /// When the broker confirmed it.
    pub published_at: Option<Timestamp>,
    /// Failed attempts to publish it.
    pub attempts: u32,
    /// Why the last of them failed.
    pub last_error: Option<String>,
    /// The event in whose place it was sent, corrected; the key of the dead letter, where that was no event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replaces: Option<String>,
}

impl OutboxStep {
    /// What the message of a row replaces, by the head that the row keeps of it.
    pub(crate) fn replaced(head: &[u8]) -> Option<String> {
        let message = read_head(head, bytes::Bytes::new()).ok()?;
        message.header(header::REPLACES).map(str::to_owned)
    }
}

/// A mark in an inbox.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AppliedStep {
    /// Who applied it.
    pub consumer: String,
    /// When.
    pub at: Timestamp,
}
