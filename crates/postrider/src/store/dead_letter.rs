//! Events that could not be handled, kept with their reason and their history.

use std::future::Future;

use jiff::Timestamp;
use sha2::{Digest as _, Sha256};

use super::{Store, StoreError};
use crate::broker::{Headers, Properties};
use crate::envelope::{EventId, TenantId};
use crate::topology::{ConsumerName, QueueName};

/// The table of dead letters.
pub trait DeadLetters: Store {
    /// Stores dead letters, each [`DeadLetter::key`] once: what a crash made the broker deliver again is stored already.
    fn collect(&self, letters: Vec<DeadLetter>) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// The newest dead letters first.
    fn dead_letters(&self, limit: usize) -> impl Future<Output = Result<Vec<DeadLetter>, StoreError>> + Send;
}

/// A message that nobody could handle.
#[derive(Debug, Clone, PartialEq)]
pub struct DeadLetter {
    /// Unique for this death; the same when the broker delivers it again.
    pub key: String,
    /// The event, if the message could be read as one. Absent: flagged, and kept at least once.
    pub event_id: Option<EventId>,
    /// Its type, or what the routing key says of it.
    pub event_type: Option<String>,
    /// Whose it is.
    pub tenant: Option<TenantId>,
    /// Who could not handle it.
    pub consumer: Option<ConsumerName>,
    /// The queue it was consumed from.
    pub queue: QueueName,
    /// The exchange it was first published to.
    pub exchange: String,
    /// The key it was first published with.
    pub routing_key: String,
    /// One of the words of [`DeadReason`](crate::settlement::DeadReason).
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
    pub body: bytes::Bytes,
}

impl DeadLetter {
    /// The same for what failed for the same reason: same queue, type, reason and error, numbers and ids left out.
    pub fn fingerprint(&self) -> String {
        let error = self.error_class.clone().unwrap_or_else(|| shape(&self.error));
        let event_type = self.event_type.as_deref().unwrap_or("");
        let text = [self.queue.as_str(), event_type, &self.reason, &error].join("\n");
        let digest = Sha256::digest(text.as_bytes());
        digest.iter().take(8).fold(String::new(), |hex, byte| format!("{hex}{byte:02x}"))
    }
}

/// The error without what differs from one event to the next: words with a digit in them.
fn shape(error: &str) -> String {
    let words = error.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    let has_digit = |word: &str| word.contains(|c: char| c.is_ascii_digit());
    let mut plain: Vec<_> = words.map(|word| if has_digit(word) { "#" } else { word }).collect();
    plain.dedup();
    plain.join(" ")
}

#[cfg(test)]
mod tests {
    use super::shape;

    #[test]
    fn ids_and_numbers_do_not_tell_errors_apart() {
        let one = shape("order 0199-ab3f not found after 12.5 s");
        assert_eq!(one, shape("order 42 not found after 3 s"));
        assert_ne!(one, shape("order 42 was paid after 3 s"));
    }
}
