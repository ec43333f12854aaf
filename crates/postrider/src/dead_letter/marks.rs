//! The headers that tell a dead letter's story, as the event-bus seed names them and a few more.

use jiff::Timestamp;
use sha2::{Digest, Sha256};

use crate::broker::{Delivery, HeaderValue, Message, Outgoing};
use crate::envelope::EventId;
use crate::envelope::wire::header;
use crate::settlement::DeadReason;
use crate::topology::{ConsumerName, RoutingKey, ServiceQueue};

/// The names of the headers.
pub mod names {
    /// The queue the message was consumed from.
    pub const ORIGINAL_QUEUE: &str = "x-original-queue";
    /// The HTTP status of the last attempt, if there was one.
    pub const FINAL_STATUS_CODE: &str = "x-final-status-code";
    /// The error of the last attempt.
    pub const FINAL_ERROR: &str = "x-final-error";
    /// Retries before it was given up.
    pub const FINAL_RETRY_COUNT: &str = "x-final-retry-count";
    /// Why it is a dead letter: one of the words of [`DeadReason`](crate::settlement::DeadReason).
    pub const DEAD_REASON: &str = "x-dead-reason";
    /// The kind of error.
    pub const ERROR_CLASS: &str = "x-final-error-class";
    /// When it first failed.
    pub const FIRST_FAILED_AT: &str = "x-first-failed-at";
    /// When it failed last.
    pub const LAST_FAILED_AT: &str = "x-last-failed-at";
    /// The attempts before the last one, the newest ten: a list of tables with `attempt`, `at`, `class` and `error`.
    pub const FAILED_ATTEMPTS: &str = "x-failed-attempts";
    /// Who could not handle it.
    pub const CONSUMER: &str = "x-consumer";
    /// On which machine.
    pub const HOST: &str = "x-host";
    /// Unique for this death, and the same when a crash makes it die again.
    pub const DEAD_LETTER_ID: &str = "x-dead-letter-id";
    /// The replay that brought the message back, if one did: the operation and the number of the dead letter, with a slash
    /// between them, or the row of the outbox (`outbox-42`) for a published event. What dies after a replay dies anew.
    pub const REPLAY_ID: &str = "x-replay-id";
    /// The event, or the key of the dead letter, in whose place it was sent, edited.
    pub const REPLACES: &str = "x-replaces";
    /// How often it was replayed.
    pub const REPLAY_COUNT: &str = "x-replay-count";
}

/// An error text longer than this is cut: headers must fit into a frame.
pub(crate) const MAX_ERROR_BYTES: usize = 4096;
/// And so is the word for a kind of error.
const MAX_CLASS_BYTES: usize = 128;

/// How a delivery died.
pub struct Death<'a> {
    /// Who could not handle it.
    pub consumer: &'a ConsumerName,
    /// Why it was given up.
    pub reason: DeadReason,
    /// What went wrong, for people.
    pub error: &'a str,
    /// A stable word for the kind of error.
    pub class: Option<&'a str>,
    /// The HTTP status, where one was the answer.
    pub status: Option<u16>,
    /// The last attempt, counted from 1.
    pub attempt: u32,
    /// When it died.
    pub at: Timestamp,
    /// The event, if the message could be read as one.
    pub event_id: Option<&'a EventId>,
}

/// The dead letter, addressed to where the queue's dead letters go.
pub fn outgoing(delivery: &Delivery, service: &ServiceQueue, death: &Death<'_>) -> Outgoing {
    let mut message = delivery.message.clone();
    remember_origin(&mut message, delivery);
    remember_first_failure(&mut message, death.at);
    message.headers.remove(header::RETRY_COUNT);
    message.headers.remove(header::DUE_AT);
    message.ask_for_no_copies();
    let id = death_id(delivery, death);
    let mut set = |name: &str, value: HeaderValue| {
        message.headers.insert(name.to_owned(), value);
    };
    set(names::ORIGINAL_QUEUE, service.name().as_str().into());
    set(names::FINAL_ERROR, cut(death.error, MAX_ERROR_BYTES).into());
    set(names::FINAL_RETRY_COUNT, (death.attempt - 1).into());
    set(names::DEAD_REASON, death.reason.as_str().into());
    set(names::LAST_FAILED_AT, death.at.to_string().into());
    set(names::CONSUMER, death.consumer.as_str().into());
    set(names::HOST, crate::host::name().into());
    set(names::DEAD_LETTER_ID, id.into());
    if let Some(status) = death.status {
        set(names::FINAL_STATUS_CODE, u32::from(status).into());
    }
    if let Some(class) = death.class {
        set(names::ERROR_CLASS, cut(class, MAX_CLASS_BYTES).into());
    }
    let target = &service.dead_letter;
    let routing_key = target.routing_key.clone().unwrap_or_else(|| original_key(&message, delivery));
    Outgoing { exchange: target.exchange.clone(), routing_key, message }
}

/// Keeps the exchange and key of the first publish; a republish would hide them.
pub(crate) fn remember_origin(message: &mut Message, delivery: &Delivery) {
    let headers = &mut message.headers;
    if !headers.contains_key(header::ORIGINAL_ROUTING_KEY) {
        headers.insert(header::ORIGINAL_EXCHANGE.to_owned(), delivery.exchange.as_str().into());
        headers.insert(header::ORIGINAL_ROUTING_KEY.to_owned(), delivery.routing_key.as_str().into());
    }
}

/// Lets a dead letter that somebody moved back into its queue begin anew: what told of its death is taken away, so that its
/// retries are counted from the start and it does not bounce straight back. It is marked as a replay of that death,
/// so that the next one is another. `x-death`, the broker's own history, stays.
pub fn revive(message: &mut Message) {
    const TOLD: [&str; 11] = [
        names::ORIGINAL_QUEUE,
        names::FINAL_STATUS_CODE,
        names::FINAL_ERROR,
        names::FINAL_RETRY_COUNT,
        names::DEAD_REASON,
        names::ERROR_CLASS,
        names::FIRST_FAILED_AT,
        names::LAST_FAILED_AT,
        names::FAILED_ATTEMPTS,
        names::CONSUMER,
        names::HOST,
    ];
    let headers = &mut message.headers;
    let died = headers.contains_key(names::DEAD_LETTER_ID) || headers.contains_key(names::FINAL_RETRY_COUNT);
    if !died {
        return;
    }
    for name in TOLD {
        headers.remove(name);
    }
    headers.remove(header::RETRY_COUNT);
    headers.remove(header::DUE_AT);
    if let Some(HeaderValue::Text(death)) = headers.remove(names::DEAD_LETTER_ID) {
        headers.insert(names::REPLAY_ID.to_owned(), death.into());
    }
}

/// Keeps the time of the first failure.
pub(crate) fn remember_first_failure(message: &mut Message, now: Timestamp) {
    message.headers.entry(names::FIRST_FAILED_AT.to_owned()).or_insert_with(|| now.to_string().into());
}

/// Made of what makes this death this one: who, what, at which attempt, after which replay, and after which death, if the
/// message was brought back by hand. What it says and whose it is count too: two tenants may use the same id, and what contradicts
/// an event under its own id is kept beside it.
fn death_id(delivery: &Delivery, death: &Death<'_>) -> String {
    let message = &delivery.message;
    let body: [u8; 32] = Sha256::digest(&message.body).into();
    let event = death.event_id.map_or("", EventId::as_str);
    let tenant = message.header(header::GROUP_ID).unwrap_or_default();
    let replay = message.header(names::REPLAY_ID).unwrap_or_default();
    let before = message.header(names::DEAD_LETTER_ID).unwrap_or_default();
    let attempt = death.attempt.to_be_bytes();
    let texts = [death.consumer.as_str(), event, tenant, replay, before].map(str::as_bytes);
    let parts = texts.into_iter().chain([&body[..], &attempt]);
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    hash.finalize().iter().take(16).fold(String::new(), |id, byte| format!("{id}{byte:02x}"))
}

fn original_key(message: &Message, delivery: &Delivery) -> RoutingKey {
    let kept = message.header(header::ORIGINAL_ROUTING_KEY).and_then(|key| RoutingKey::new(key).ok());
    kept.unwrap_or_else(|| delivery.routing_key.clone())
}

pub(crate) fn cut(error: &str, most: usize) -> String {
    let end = error.floor_char_boundary(most);
    if end == error.len() {
        error.to_owned()
    } else {
        format!("{}… ({} bytes in all)", &error[..end], error.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::Receipt;
    use crate::topology::ExchangeName;

    fn id(tenant: &str, body: &'static str) -> String {
        let mut message = Message { body: body.as_bytes().into(), ..Message::default() };
        message.headers.insert(header::GROUP_ID.to_owned(), tenant.into());
        let delivery = Delivery {
            message,
            exchange: ExchangeName::default_exchange(),
            routing_key: RoutingKey::new("a.b").unwrap(),
            redelivered: false,
            receipt: Receipt::void(),
        };
        let death = Death {
            consumer: &ConsumerName::new("ledger").unwrap(),
            reason: DeadReason::Rejected,
            error: "no",
            class: None,
            status: None,
            attempt: 1,
            at: Timestamp::UNIX_EPOCH,
            event_id: Some(&EventId::new("evt_1").unwrap()),
        };
        death_id(&delivery, &death)
    }

    #[test]
    fn the_same_message_dies_once_and_another_one_under_its_id_beside_it() {
        assert_eq!(id("acme", "1"), id("acme", "1"));
        assert_ne!(id("acme", "1"), id("acme", "2"));
        assert_ne!(id("acme", "1"), id("other", "1"));
    }
}
