//! Events that could not be handled, kept with their reason and their history.

use std::future::Future;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{LetterId, Store, StoreError};
use crate::broker::{HeaderValue, Headers, Properties};
use crate::dead_letter::header;
use crate::envelope::{AggregateId, EventId, OrderingKey, TenantId};
use crate::topology::{ConsumerName, QueueName};

/// The table of dead letters.
pub trait DeadLetters: Store {
    /// Stores dead letters, each [`DeadLetter::key`] once: what a crash made the broker deliver again is stored already.
    fn collect(&self, letters: Vec<DeadLetter>) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// The newest open dead letters first.
    fn dead_letters(&self, limit: usize) -> impl Future<Output = Result<Vec<DeadLetter>, StoreError>> + Send;
}

/// A message that nobody could handle. Its JSON is what is exported and imported: nothing of it is lost there.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeadLetter {
    /// Unique for this death; the same when the broker delivers it again.
    pub key: String,
    /// The event, or the id that a message has which is none. Absent: flagged, and kept at least once.
    pub event_id: Option<EventId>,
    /// Its type, or what the routing key says of it.
    pub event_type: Option<String>,
    /// Whose it is.
    pub tenant: Option<TenantId>,
    /// The entity it happened to.
    pub aggregate_id: Option<AggregateId>,
    /// What it keeps its order with, also when it is sent again.
    pub ordering_key: Option<OrderingKey>,
    /// Who could not handle it.
    pub consumer: Option<ConsumerName>,
    /// The queue it was consumed from.
    pub queue: QueueName,
    /// The exchange it was first published to.
    pub exchange: String,
    /// The key it was first published with.
    pub routing_key: String,
    /// One of the words of [`DeadReason`](crate::settlement::DeadReason), or of the broker:
    /// [`BrokerDeath`](crate::dead_letter::BrokerDeath).
    pub reason: String,
    /// What went wrong, for people.
    pub error: String,
    /// A stable word for the kind of error.
    pub error_class: Option<String>,
    /// How often it was attempted.
    pub attempts: u32,
    /// When it first failed.
    pub first_failed_at: Timestamp,
    /// When it became a dead letter.
    pub dead_at: Timestamp,
    /// Everything else the message had.
    pub properties: Properties,
    /// Its headers.
    pub headers: Headers,
    /// Its body, byte for byte.
    #[serde(with = "base64_body")]
    pub body: bytes::Bytes,
}

impl DeadLetter {
    /// The dead letter whose replay died here, by the mark that the replay bore.
    pub fn replay_of(&self) -> Option<LetterId> {
        let mark = self.headers.get(header::REPLAY_ID).and_then(HeaderValue::as_str)?;
        mark.rsplit_once('/')?.1.parse().ok()
    }

    /// How often it was replayed before it died here.
    pub fn replays(&self) -> u32 {
        let count = self.headers.get(header::REPLAY_COUNT).and_then(HeaderValue::as_int);
        count.and_then(|count| u32::try_from(count).ok()).unwrap_or(0)
    }
}

/// Bytes as base64, which any JSON carries.
mod base64_body {
    use base64::Engine as _;
    use base64::prelude::BASE64_STANDARD;
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    pub(super) fn serialize<S: Serializer>(body: &bytes::Bytes, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&BASE64_STANDARD.encode(body))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bytes::Bytes, D::Error> {
        let text = String::deserialize(deserializer)?;
        BASE64_STANDARD.decode(text).map(Into::into).map_err(D::Error::custom)
    }
}
