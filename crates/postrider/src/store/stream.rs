//! Committed rows as the database itself tells of them, where a store can do that: no row is looked for.

use async_trait::async_trait;

use super::{OutboxRow, RelayId, StoreError};
use crate::envelope::OrderingKey;

/// How many slots every outbox has. Who streams holds all of them.
pub const SLOTS: usize = 64;

/// A place in the database's log. All that is committed before it was told of before it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct LogPosition(pub u64);

/// What came of the wish to stream.
pub enum Opening {
    /// Everything that is committed from now on will come this way.
    Open(Box<dyn RowStream>),
    /// Another relay streams this outbox.
    Elsewhere,
    /// Something is missing: what, and how to mend it.
    Impossible(String),
    /// The store has no such thing.
    Unknown,
}

/// New rows of an outbox, in the order of their commits. Dropping it ends it; the database then keeps nothing for it.
///
/// Only rows that are due at once: those with a time of their own are found by that time.
#[async_trait]
pub trait RowStream: Send {
    /// Waits for rows, then takes what is there already, up to a limit. An error ends the stream.
    async fn next(&mut self, limit: StreamLimit) -> Result<Streamed, StoreError>;
}

/// How much to take at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamLimit {
    /// So many rows at most.
    pub rows: usize,
    /// No more rows once their payloads have so many bytes.
    pub bytes: usize,
}

/// What a stream brought.
#[derive(Debug, Default)]
pub struct Streamed {
    /// The rows. Their slots are not told.
    pub rows: Vec<OutboxRow>,
    /// Keys of new rows that failed elsewhere, or are dead: what follows of these is not to go before them.
    pub failing: Vec<OrderingKey>,
    /// The first row that could not be read: a claim will find out what is wrong with it.
    pub unreadable: Option<i64>,
    /// Everything committed before this has been told.
    pub told_to: LogPosition,
}

/// A stream that somebody reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamState {
    /// Who reads it.
    pub relay: RelayId,
    /// How much of its log the database keeps for it, in bytes: from where the oldest transaction began that was open when it was last told.
    pub lag_bytes: u64,
    /// How much of that was not told yet.
    pub untold_bytes: u64,
    /// Whether the database still tells of every new row: somebody may have changed what it publishes.
    pub tells: bool,
}
