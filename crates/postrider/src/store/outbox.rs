//! Events that are committed and have to be published.

use std::future::Future;
use std::time::Duration;

use jiff::Timestamp;
use sha2::Digest as _;

use super::{DualPublishing, LetterId, LogPosition, Opening, StoreError, StreamState};
use crate::broker::Message;
use crate::envelope::{Envelope, Event, EventId, EventType, OrderingKey, TenantId};
use crate::migration::Delivered;
use crate::topology::{ExchangeName, QueueName, RoutingKey};

/// The outbox: appended to in the caller's transaction, emptied by relays.
///
/// Relays share the work by leasing **slots**: every ordering key belongs to one slot, a slot to one relay at a time, so
/// the order of a key holds however many relays run, and claiming a row writes nothing. A relay that lost its lease
/// (paused, cut off) cannot mark what another took over.
pub trait Outbox: DualPublishing {
    /// What it is called in figures: its table.
    fn outbox_name(&self) -> String {
        "event_outbox".to_owned()
    }

    /// Commits events with whatever else `tx` writes. Returns their ids, in order.
    ///
    /// An id that was committed before is [`Duplicate`](super::StoreErrorKind::Duplicate), and the transaction cannot go on.
    fn append(
        &self,
        tx: &mut Self::Tx,
        events: Vec<Event>,
    ) -> impl Future<Output = Result<Vec<EventId>, StoreError>> + Send;

    /// Commits messages that are to be sent again as they were. A row id that was committed before is
    /// [`Duplicate`](super::StoreErrorKind::Duplicate), and the transaction cannot go on.
    fn append_verbatim(
        &self,
        tx: &mut Self::Tx,
        messages: Vec<Verbatim>,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Takes or renews this relay's fair share of the slots, for this long. Returns those it holds now.
    fn lease(
        &self,
        relay: &RelayId,
        lease: Duration,
    ) -> impl Future<Output = Result<Vec<SlotLease>, StoreError>> + Send;

    /// Gives the slots back, so that others need not wait for the lease to end.
    fn release(&self, relay: &RelayId) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Rows of the relay's slots that are due, in the order of their positions. Rows behind a failed or dead row of the
    /// same key are left out until that one is published.
    ///
    /// Claiming writes nothing: a row is claimed again until it is settled, unless the relay says that it has it in hand.
    fn claim(
        &self,
        relay: &RelayId,
        ask: Ask,
    ) -> impl Future<Output = Result<Vec<OutboxRow>, StoreError>> + Send;

    /// Whether a row is never committed behind one of a higher position, because only one transaction writes at a time.
    fn is_in_commit_order(&self) -> bool {
        false
    }

    /// How far the outbox is written, and who may still commit something before that point.
    fn horizon(&self) -> impl Future<Output = Result<Horizon, StoreError>> + Send;

    /// Records what became of claimed rows. The replay of a dead letter that dies here opens its letter again, in the
    /// same transaction, and holds up nobody. Rows whose slot has another owner by now are left to that owner; returns how
    /// many were recorded.
    fn settle(
        &self,
        relay: &RelayId,
        results: Vec<RowResult>,
    ) -> impl Future<Output = Result<usize, StoreError>> + Send;

    /// What has not been published.
    fn backlog(&self) -> impl Future<Output = Result<Backlog, StoreError>> + Send;

    /// Waits until something may have been appended, or for this long at most.
    fn wait(&self, at_most: Duration) -> impl Future<Output = ()> + Send;

    /// Opens a stream of the rows that are committed from now on. From then on this relay's share is all slots, and nobody
    /// else's is any: others give theirs back when they renew their leases. Renewed with [`Outbox::lease`].
    fn open_stream(
        &self,
        _relay: &RelayId,
        _lease: Duration,
    ) -> impl Future<Output = Result<Opening, StoreError>> + Send {
        std::future::ready(Ok(Opening::Unknown))
    }

    /// Shares the slots again. The stream itself ends when it is dropped.
    fn close_stream(&self, _relay: &RelayId) -> impl Future<Output = Result<(), StoreError>> + Send {
        std::future::ready(Ok(()))
    }

    /// Who streams this outbox, if anybody does, and how far behind.
    fn stream_state(&self) -> impl Future<Output = Result<Option<StreamState>, StoreError>> + Send {
        std::future::ready(Ok(None))
    }

    /// The keys that stand still behind a failed or dead row.
    fn failing_keys(&self) -> impl Future<Output = Result<Vec<OrderingKey>, StoreError>> + Send {
        std::future::ready(Ok(Vec::new()))
    }
}

/// What has not been published.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Rows that could be published now.
    pub due: u64,
    /// Rows whose time has not come: scheduled, or failed and waiting to be tried again.
    pub later: u64,
    /// Rows that are dead.
    pub dead: u64,
    /// Keys that stand still behind one of those.
    pub parked_keys: u64,
    /// When the oldest due row was written.
    pub oldest_due: Option<Timestamp>,
}

/// A slot that a relay holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotLease {
    /// Which one.
    pub slot: i16,
    /// How often it changed hands. Whoever finds another number than it knew must look at the whole slot again.
    pub epoch: i64,
}

/// What a relay asks for, and what to leave out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ask {
    /// So many rows at most.
    pub limit: usize,
    /// Which rows.
    pub wanted: Wanted,
    /// Only of these slots, and only while they have not changed hands; absent: of all that the relay holds. A relay that was
    /// given a slot a moment ago must not take rows from its middle.
    pub held: Option<Vec<SlotLease>>,
    /// Positions that the relay has in hand.
    pub in_hand: Vec<i64>,
    /// Keys of which it has enough in hand.
    pub without: Vec<OrderingKey>,
}

/// Which rows a relay asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// Those that were never tried and have no time of their own.
    New {
        /// Only those after this position.
        after: i64,
        /// Only what was written since; spares a look into old partitions.
        since: Option<Timestamp>,
    },
    /// Those that have a time of their own, scheduled or failed, when it has come.
    Timed,
    /// Both.
    All,
}

impl Ask {
    /// Everything that is due, up to this many rows.
    pub fn everything(limit: usize) -> Self {
        Self { limit, wanted: Wanted::All, held: None, in_hand: Vec::new(), without: Vec::new() }
    }
}

/// A point in the outbox. Once every one of `writers` has ended, all that will ever be committed at or before `position`
/// is visible.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Horizon {
    /// The last position that was given to anybody.
    pub position: i64,
    /// The store's own time.
    pub at: Timestamp,
    /// How far the store's log goes, where it has streams.
    pub log: LogPosition,
    /// The transactions that were writing to the outbox, by any name that is unique.
    pub writers: Vec<String>,
}

crate::text::text_newtype!(
    /// The name of a running relay, unique among all that run.
    RelayId, "a relay id", 1..=128
);

impl RelayId {
    /// A name for a relay of this process: the host, if it says its name, and a new id.
    pub fn of_process(clock: &crate::clock::Clock) -> Self {
        let host = crate::host::name();
        Self(format!("{}/{}", &host[..host.floor_char_boundary(80)], clock.new_id()).into())
    }
}

/// A message that is sent again as it was, byte for byte. It need not be an event.
#[derive(Debug, Clone, PartialEq)]
pub struct Verbatim {
    /// The row's own id, unique among all ids of the outbox: the event's id is taken by the event.
    pub row_id: EventId,
    /// The event that the message carries, if it carries one: where the audit looks for it.
    pub event_id: Option<EventId>,
    /// Its type, for people who look at the outbox.
    pub event_type: Option<EventType>,
    /// Whose it is.
    pub tenant: Option<TenantId>,
    /// What it keeps its order with: among the messages that are sent again to the same place, and with nothing else.
    pub ordering_key: Option<OrderingKey>,
    /// Where it goes.
    pub to: Destination,
    /// Properties, headers and body, as they will be published.
    pub message: Message,
    /// The dead letter it was, opened again should this row die.
    pub dead_letter: Option<LetterId>,
}

/// Where a message is sent again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Destination {
    /// One queue alone.
    Queue(QueueName),
    /// An exchange, and from there to whoever is bound by this key.
    Exchange(ExchangeName, RoutingKey),
}

impl Destination {
    /// The name of the queue or exchange.
    pub fn name(&self) -> &str {
        match self {
            Self::Queue(queue) => queue.as_str(),
            Self::Exchange(exchange, _) => exchange.as_str(),
        }
    }

    /// What a row says of it: exchange, routing key and queue.
    pub(crate) fn columns(&self) -> (Option<&str>, Option<&str>, Option<&str>) {
        match self {
            Self::Queue(queue) => (None, None, Some(queue.as_str())),
            Self::Exchange(exchange, key) => (Some(exchange.as_str()), Some(key.as_str()), None),
        }
    }
}

/// The type of a row whose message names none.
pub(crate) const UNTYPED: (&str, &str) = ("postrider.message", "resent");

impl Verbatim {
    /// The key of its row. Live events of the same key must not wait for what is sent again, so the key is another one.
    pub(crate) fn row_key(&self) -> String {
        const LONGEST: usize = 600;
        let Some(key) = &self.ordering_key else { return String::new() };
        let text = format!("again/{}/{key}", self.to.name());
        if text.len() <= LONGEST {
            return text;
        }
        let hash = sha2::Sha256::digest(text.as_bytes());
        hash.iter().fold("again/".to_owned(), |text, byte| format!("{text}{byte:02x}"))
    }
}

/// Properties and headers as a row keeps them beside the body.
#[derive(serde::Serialize, serde::Deserialize)]
struct Head<'a> {
    properties: std::borrow::Cow<'a, crate::broker::Properties>,
    headers: std::borrow::Cow<'a, crate::broker::Headers>,
}

/// Writes what a row keeps of a message beside its body.
pub(crate) fn write_head(message: &Message) -> Result<Vec<u8>, StoreError> {
    use std::borrow::Cow::Borrowed;
    let head = Head { properties: Borrowed(&message.properties), headers: Borrowed(&message.headers) };
    serde_json::to_vec(&head).map_err(|error| {
        let text = "the headers of a message cannot be written as JSON; it was not sent again";
        StoreError::new(super::StoreErrorKind::Invalid, text).because(error)
    })
}

/// Reads it back.
pub(crate) fn read_head(head: &[u8], body: bytes::Bytes) -> Result<Message, serde_json::Error> {
    let head: Head<'_> = serde_json::from_slice(head)?;
    Ok(Message { properties: head.properties.into_owned(), headers: head.headers.into_owned(), body })
}

/// Where a row is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowId {
    /// Its place in the order of the outbox.
    pub position: i64,
    /// When it was written; tells the partition.
    pub created_at: Timestamp,
}

/// A row that is due.
#[derive(Debug, Clone)]
pub struct OutboxRow {
    /// Where it is.
    pub row: RowId,
    /// The slot it belongs to; not told of rows that came by a stream, to a relay that holds them all.
    pub slot: Option<i16>,
    /// The event.
    pub envelope: Envelope,
    /// Where it goes, if not to the outbox's own exchange.
    pub exchange: Option<ExchangeName>,
    /// How it is routed, if not by its type.
    pub routing_key: Option<RoutingKey>,
    /// One queue alone, past the exchange.
    pub target_queue: Option<QueueName>,
    /// Failed attempts to publish it so far.
    pub attempts: u32,
    /// What is published instead of the envelope, where a message is sent again as it was.
    pub verbatim: Option<Message>,
    /// The dead letter it was.
    pub dead_letter: Option<LetterId>,
}

/// The states of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OutboxStatus {
    /// Not tried yet.
    Pending,
    /// Confirmed by the broker.
    Published,
    /// Failed at least once, still claimable.
    Failed,
    /// Failed too often; its key is parked behind it.
    Dead,
}

impl OutboxStatus {
    /// The status with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Pending, Self::Published, Self::Failed, Self::Dead]
            .into_iter()
            .find(|status| status.as_str() == name)
    }

    /// The word for it, in tables, metrics and on pages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Published => "published",
            Self::Failed => "failed",
            Self::Dead => "dead",
        }
    }
}

/// What became of one row.
#[derive(Debug, Clone)]
pub struct RowResult {
    /// Which row.
    pub row: RowId,
    /// What the broker said of it.
    pub result: PublishResult,
    /// What became of it at both destinations, where a migration has it copied. Recorded with the mark.
    pub delivered: Option<Delivered>,
}

impl RowResult {
    /// Of a row that is not copied.
    pub fn new(row: RowId, result: PublishResult) -> Self {
        Self { row, result, delivered: None }
    }
}

/// What the broker said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PublishResult {
    /// It is confirmed.
    Published,
    /// It failed by its own fault and is tried again after a while, or is dead when there is none.
    Failed {
        /// What the broker said.
        error: String,
        /// How long it waits, from when the store hears of it: the store's clock says when that is over, not the relay's.
        retry_after: Option<Duration>,
    },
    /// It was not taken, by no fault of its own: it waits as one that failed does, and no attempt is counted beyond the first.
    Postponed {
        /// What the broker said.
        error: String,
        /// As above.
        retry_after: Duration,
    },
}
