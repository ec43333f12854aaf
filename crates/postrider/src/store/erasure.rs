//! Erasing what events say, where a person has a right to it. What happened stays: ids, types, times, hashes and counts.

use std::future::Future;

use serde::Serialize;

use super::{Store, StoreError};
use crate::envelope::{AggregateId, EventId};

/// Takes payloads out of everything that the store keeps.
pub trait Erasure: Store {
    /// Puts a note in the place of the payloads of these events, in one transaction: in the outbox and its archive table, in
    /// dead letters (open ones are discarded), and forgets what handlers and endpoints answered. The note has the payload's hash, so that
    /// repeats and conflicts are told as before. Every event is in the audit log. Doing it again changes nothing.
    ///
    /// What is not published yet is left, and named: its consumers have not seen it.
    fn erase(
        &self,
        which: &Erase,
        by: &str,
        reason: &str,
    ) -> impl Future<Output = Result<Erased, StoreError>> + Send;

    /// What would be erased. Changes nothing.
    fn would_erase(&self, which: &Erase) -> impl Future<Output = Result<Erased, StoreError>> + Send;
}

/// Whose payloads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Erase {
    /// Of one event.
    Event(EventId),
    /// Of everything that happened to an entity.
    Aggregate {
        /// All words of the type but the last: `shop.order`.
        kind: String,
        /// Which one.
        id: AggregateId,
    },
}

/// What was erased.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Erased {
    /// The events, by id.
    pub events: Vec<String>,
    /// Rows of the outbox and its archive table, those that sent an event again too.
    pub rows: u64,
    /// Dead letters.
    pub dead_letters: u64,
    /// Answers of handlers and endpoints.
    pub answers: u64,
    /// Events that are not published yet, and were left.
    pub unpublished: Vec<String>,
    /// Deliveries that wait in the database behind an earlier event of their key, and were left.
    pub held: u64,
    /// Events that an unfinished replay has taken along from the archive and still sends, and were left.
    pub replaying: u64,
}
