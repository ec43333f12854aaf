//! A dead letter read from the message that died: what our own marks tell, else what the broker's do.
//!
//! Others may have made it: a foreign consumer that rejected, or the broker itself. Then the story is in `x-death` and, on newer
//! servers, in `x-first-death-*` and `x-last-death-*`; every version of RabbitMQ and the embedded broker write at least the
//! first.

use std::collections::BTreeMap;

use bytes::Bytes;
use jiff::Timestamp;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::header as mark;
use crate::broker::{COUNTED, Delivery, HeaderValue, Headers, Message, Outgoing, Properties, Receipt};
use crate::clock::Clock;
use crate::envelope::EventId;
use crate::envelope::wire::{self, header};
use crate::settlement::DeadReason;
use crate::store::DeadLetter;
use crate::topology::{ConsumerName, ExchangeName, QueueName, RoutingKey, ServiceQueue};

/// A key longer than this is hashed: no index takes a text of any length.
const LONGEST_KEY: usize = 200;

/// Why a broker dead-lettered a message by itself, or for a foreign consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BrokerDeath {
    /// A consumer rejected it.
    Rejected,
    /// Its time was over.
    Expired,
    /// It was delivered too often.
    DeliveryLimit,
    /// The queue was full.
    MaxLength,
}

impl BrokerDeath {
    /// The word for it, in tables and on pages. `rejected` alone is what our own handlers say.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Rejected => "foreign_rejected",
            Self::Expired => "expired",
            Self::DeliveryLimit => "delivery_limit",
            Self::MaxLength => "maxlen",
        }
    }

    fn from_broker(word: &str) -> Option<Self> {
        match word {
            "rejected" => Some(Self::Rejected),
            "expired" => Some(Self::Expired),
            "delivery_limit" | "delivery-limit" => Some(Self::DeliveryLimit),
            "maxlen" => Some(Self::MaxLength),
            _ => None,
        }
    }
}

/// One entry of `x-death`.
struct BrokerEntry<'a> {
    reason: &'a str,
    queue: Option<&'a str>,
    exchange: Option<&'a str>,
    key: Option<&'a str>,
    count: i64,
    /// Whole seconds: when it died so for the first time.
    at: Option<Timestamp>,
}

/// The newest death that a broker wrote down.
fn broker_death(message: &Message) -> Option<BrokerEntry<'_>> {
    let HeaderValue::List(deaths) = message.headers.get("x-death")? else { return None };
    read_death(deaths.first()?)
}

/// All of them, the newest first.
fn broker_deaths(message: &Message) -> impl Iterator<Item = BrokerEntry<'_>> {
    let deaths = match message.headers.get("x-death") {
        Some(HeaderValue::List(deaths)) => &deaths[..],
        _ => &[],
    };
    deaths.iter().filter_map(read_death)
}

/// Says of a delivery that a retry loop of others brought back to this queue where it was published to first: their way back is the
/// default exchange and the queue's name, which tell nothing of the event. What our own ladder brings back remembers it by itself.
pub(crate) fn recall_origin(delivery: &mut Delivery, queue: &QueueName) {
    let message = &delivery.message;
    let brought_back = delivery.exchange.is_default() && delivery.routing_key.as_str() == queue.as_str();
    if !brought_back || message.headers.contains_key(header::ORIGINAL_ROUTING_KEY) {
        return;
    }
    let is_first = |death: &BrokerEntry<'_>| {
        death.queue == message.header("x-first-death-queue")
            && Some(death.reason) == message.header("x-first-death-reason")
    };
    let Some(first) = broker_deaths(message).find(is_first) else { return };
    let exchange = first.exchange.and_then(|name| ExchangeName::new(name).ok());
    let key = first.key.and_then(|key| RoutingKey::new(key).ok());
    if let (Some(exchange), Some(key)) = (exchange, key) {
        (delivery.exchange, delivery.routing_key) = (exchange, key);
    }
}

/// Whether it only came to the end of its time in a wait queue. That leads back to the queue, and never to the dead letters.
fn has_waited(death: &BrokerEntry<'_>, service: &ServiceQueue) -> bool {
    service.wait_queues.iter().any(|wait| Some(wait.name.as_str()) == death.queue)
}

fn read_death(death: &HeaderValue) -> Option<BrokerEntry<'_>> {
    let HeaderValue::Table(death) = death else { return None };
    let text = |name: &str| death.get(name).and_then(HeaderValue::as_str);
    let key = match death.get("routing-keys") {
        Some(HeaderValue::List(keys)) => keys.first().and_then(HeaderValue::as_str),
        _ => None,
    };
    let at = match death.get("time") {
        Some(HeaderValue::Timestamp(seconds)) => {
            i64::try_from(*seconds).ok().and_then(|at| Timestamp::from_second(at).ok())
        }
        _ => None,
    };
    let count = death.get("count").and_then(HeaderValue::as_int).unwrap_or(1);
    let reason = text("reason")?;
    Some(BrokerEntry { reason, queue: text("queue"), exchange: text("exchange"), key, count, at })
}

/// Whether our consumer's marks tell of this death. A message that was brought back by hand bears the marks of an earlier one:
/// then the broker's newer death counts. It is newer by its time, or, where our own ladder wrote into `x-death` meanwhile, by
/// having come from the service queue itself.
fn is_ours(message: &Message, service: &ServiceQueue) -> bool {
    let Some(failed) = message.header(mark::LAST_FAILED_AT) else {
        let marks = [mark::DEAD_REASON, mark::FINAL_RETRY_COUNT, mark::FINAL_ERROR];
        return marks.iter().any(|mark| message.headers.contains_key(*mark));
    };
    let Some(death) = broker_death(message) else { return true };
    if death.queue != Some(service.name().as_str()) {
        return true;
    }
    let (Ok(failed), Some(died)) = (failed.parse::<Timestamp>(), death.at) else { return true };
    died.as_second() <= failed.as_second()
}

/// Makes a dead letter of a delivery, whose receipt is left. `fresh` names a message that has no identity at all.
pub(crate) fn letter(
    delivery: Delivery,
    service: &ServiceQueue,
    now: Timestamp,
    fresh: Uuid,
) -> (Receipt, DeadLetter) {
    let mut letter = read(&delivery, service, now, fresh);
    let Message { properties, headers, body } = delivery.message;
    (letter.properties, letter.headers, letter.body) = (properties, headers, body);
    (delivery.receipt, letter)
}

/// The dead letter that a collector would make of this one, for one that no broker can carry to it.
pub fn uncarried(letter: Outgoing, service: &ServiceQueue, clock: &Clock) -> DeadLetter {
    let Outgoing { exchange, routing_key, message } = letter;
    let receipt = Receipt::void();
    let delivery = Delivery { message, exchange, routing_key, redelivered: false, receipt };
    self::letter(delivery, service, clock.now(), clock.new_id()).1
}

/// All but the message itself.
fn read(delivery: &Delivery, service: &ServiceQueue, now: Timestamp, fresh: Uuid) -> DeadLetter {
    let message = &delivery.message;
    let text = |name: &str| message.header(name).map(str::to_owned);
    let ours = is_ours(message, service);
    let died = broker_deaths(message).find(|death| !has_waited(death, service));
    let of_broker = |of: fn(&BrokerEntry<'_>) -> Option<String>| died.as_ref().and_then(of);
    let death = died.as_ref().filter(|_| !ours);

    let routing_key = text(header::ORIGINAL_ROUTING_KEY)
        .or_else(|| of_broker(|death| death.key.map(str::to_owned)))
        .unwrap_or_else(|| delivery.routing_key.to_string());
    // The key that it died with tells nothing of its type.
    let event = RoutingKey::new(&routing_key).ok();
    let event = event.and_then(|key| wire::decode(message, &key, &service.identity, now).ok());
    // Half an identity is what people look for it by: what is no event may have an id, or a type.
    let (event_id, event_type) = match &event {
        Some(event) => (Some(event.id.clone()), Some(event.event_type.clone())),
        None => wire::remains(message, &service.identity),
    };
    let queue =
        if ours { text(mark::ORIGINAL_QUEUE) } else { of_broker(|death| death.queue.map(str::to_owned)) };
    let time = |name: &str| message.header(name).filter(|_| ours).and_then(|time| time.parse().ok());
    // A clock that is ahead dates nothing ahead: a plan leaves out what dies after it.
    let dead_at = time(mark::LAST_FAILED_AT).or(death.and_then(|death| death.at));
    let dead_at = dead_at.unwrap_or(now).min(now);
    let attempts = if ours {
        let retries = message.headers.get(mark::FINAL_RETRY_COUNT).and_then(HeaderValue::as_int);
        retries.unwrap_or(0).saturating_add(1)
    } else {
        foreign_attempts(message, service)
    };
    let mut letter = DeadLetter {
        key: String::new(),
        event_id,
        event_type: event_type.map(|of| of.to_string()).or(Some(routing_key.clone())),
        tenant: event.as_ref().and_then(|envelope| envelope.tenant.group.clone()),
        aggregate_id: event.as_ref().and_then(|envelope| envelope.aggregate_id.clone()),
        ordering_key: event.as_ref().and_then(|envelope| envelope.ordering_key.clone()),
        consumer: text(mark::CONSUMER).filter(|_| ours).and_then(|name| ConsumerName::new(name).ok()),
        queue: queue.and_then(|queue| QueueName::new(queue).ok()).unwrap_or_else(|| service.name().clone()),
        exchange: text(header::ORIGINAL_EXCHANGE)
            .or_else(|| of_broker(|death| death.exchange.map(str::to_owned)))
            .unwrap_or_else(|| delivery.exchange.to_string()),
        routing_key,
        reason: reason(delivery, service, ours, death),
        error: text(mark::FINAL_ERROR).filter(|_| ours).unwrap_or_else(|| told(death)),
        error_class: text(mark::ERROR_CLASS).filter(|_| ours),
        attempts: u32::try_from(attempts).unwrap_or(1),
        first_failed_at: time(mark::FIRST_FAILED_AT).unwrap_or(dead_at).min(now),
        dead_at,
        properties: Properties::default(),
        headers: Headers::new(),
        body: Bytes::new(),
    };
    if letter.reason == DeadReason::Unroutable.as_str() && letter.error.is_empty() {
        letter.error = format!("no queue of {} wanted {}", letter.exchange, letter.routing_key);
    }
    letter.key = key(event.as_ref().map(|event| &event.id), message, service, ours, fresh);
    letter
}

/// How often others attempted it: by their own count of retries, else by how often it was rejected in its queue. What counts its
/// deliveries in the dead-letter queue says nothing of that.
fn foreign_attempts(message: &Message, service: &ServiceQueue) -> i64 {
    if let Some(retries) = message.headers.get(header::RETRY_COUNT).and_then(HeaderValue::as_int) {
        return retries.max(0).saturating_add(1);
    }
    let rejections = broker_deaths(message)
        .filter(|death| death.queue == Some(service.name().as_str()))
        .filter(|death| BrokerDeath::from_broker(death.reason) == Some(BrokerDeath::Rejected))
        .map(|death| death.count);
    let rejected = rejections.fold(0_i64, i64::saturating_add);
    if rejected > 0 { rejected } else { broker_death(message).map_or(1, |death| death.count) }
}

fn reason(
    delivery: &Delivery,
    service: &ServiceQueue,
    ours: bool,
    death: Option<&BrokerEntry<'_>>,
) -> String {
    let message = &delivery.message;
    if let Some(reason) = message.header(mark::DEAD_REASON).filter(|_| ours) {
        return reason.to_owned();
    }
    // A foreign consumer may follow the event-bus seed and say no more than that it gave up.
    if ours && message.headers.contains_key(mark::FINAL_RETRY_COUNT) {
        return DeadReason::RetriesExhausted.as_str().to_owned();
    }
    if let Some(death) = death.and_then(|death| BrokerDeath::from_broker(death.reason)) {
        return death.as_str().to_owned();
    }
    // What never died and was published to another exchange than that of the dead letters came through an alternate exchange,
    // which changes neither exchange nor key.
    let published_here = delivery.exchange.is_default() || delivery.exchange == service.dead_letter.exchange;
    if published_here || message.headers.contains_key("x-death") {
        DeadReason::Foreign.as_str().to_owned()
    } else {
        DeadReason::Unroutable.as_str().to_owned()
    }
}

/// What the broker's story says, for people.
fn told(death: Option<&BrokerEntry<'_>>) -> String {
    let Some(BrokerEntry { reason, queue, count, .. }) = death else { return String::new() };
    let from = queue.unwrap_or("its queue");
    match BrokerDeath::from_broker(reason) {
        Some(BrokerDeath::Rejected) => format!("a consumer of {from} rejected it ({count} times)"),
        Some(BrokerDeath::Expired) => format!("it waited in {from} longer than it may ({count} times)"),
        Some(BrokerDeath::DeliveryLimit) => format!("it was delivered from {from} too often"),
        Some(BrokerDeath::MaxLength) => format!("{from} was full"),
        None => format!("the broker says {reason}, in {from}"),
    }
}

/// What makes this death this one: the same when the broker delivers it again, and different for every other death.
///
/// A message without any id cannot be told from its twin, so each delivery of it is kept: at least once, and flagged by
/// having no event id. `event` is that of a message which is an event: the id of one that is none stays out of its key, so that keys
/// are what they ever were.
fn key(
    event: Option<&EventId>,
    message: &Message,
    service: &ServiceQueue,
    ours: bool,
    fresh: Uuid,
) -> String {
    let message_id = message.properties.message_id.as_deref();
    if event.is_none() && message_id.is_none() {
        return format!("unidentified/{fresh}");
    }
    if let Some(id) = message.header(mark::DEAD_LETTER_ID).filter(|_| ours) {
        return match (event, message_id) {
            (None, Some(message_id)) => bounded(format!("{id}/{message_id}")),
            _ => bounded(id.to_owned()),
        };
    }
    // Quorum queues count deliveries in headers, so they are others when this one is delivered again.
    let told: BTreeMap<_, _> =
        message.headers.iter().filter(|(name, _)| !COUNTED.contains(&name.as_str())).collect();
    let headers = serde_json::to_vec(&told).unwrap_or_default();
    let id = event.map_or("", EventId::as_str);
    let parts = [service.dead_letter_queue.as_str(), message_id.unwrap_or(""), id];
    let mut hash = Sha256::new();
    for part in parts.map(str::as_bytes).into_iter().chain([&headers[..], &message.body]) {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    hex(hash)
}

fn bounded(key: String) -> String {
    if key.len() <= LONGEST_KEY { key } else { hex(Sha256::new_with_prefix(key)) }
}

fn hex(hash: Sha256) -> String {
    use std::fmt::Write as _;

    hash.finalize().iter().fold(String::from("sha256:"), |mut key, byte| {
        // Writing to a String cannot fail.
        _ = write!(key, "{byte:02x}");
        key
    })
}

#[cfg(test)]
mod tests;
