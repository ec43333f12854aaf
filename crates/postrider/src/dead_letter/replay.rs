//! A dead letter as it is sent again: byte for byte, without the marks of its death, with that of its replay.

use serde_json::json;
use uuid::Uuid;

use super::header as mark;
use crate::broker::{HeaderValue, Message};
use crate::clock::Clock;
use crate::envelope::wire::{self, Identity, header};
use crate::envelope::{EventId, EventType, Payload, WireFormat};
use crate::operation::LetterPlan;
use crate::settlement::DeadReason;
use crate::store::{
    Backend, DeadLetter, Destination, LetterId, LetterStatus, LogEntry, Resolution, StoreError,
    StoreErrorKind, StoredLetter, Verbatim,
};
use crate::topology::{ExchangeName, RoutingKey};

/// The marks of a death. `x-death` stays: it is history.
pub(super) const DEATH: [&str; 12] = [
    mark::ORIGINAL_QUEUE,
    mark::FINAL_STATUS_CODE,
    mark::FINAL_ERROR,
    mark::FINAL_RETRY_COUNT,
    mark::DEAD_REASON,
    mark::ERROR_CLASS,
    mark::FIRST_FAILED_AT,
    mark::LAST_FAILED_AT,
    mark::FAILED_ATTEMPTS,
    mark::CONSUMER,
    mark::HOST,
    mark::DEAD_LETTER_ID,
];

/// The message of a letter as it goes back to its queue.
///
/// It starts with a fresh budget of attempts unless `keep_count`; its replay is part of its identity, so that dying again is
/// another death.
pub(crate) fn again(
    letter: &StoredLetter,
    operation: Uuid,
    plan: &LetterPlan,
) -> Result<Verbatim, StoreError> {
    let (summary, dead) = (&letter.summary, &letter.letter);
    let mut message = alive(dead);
    let replay = format!("{operation}/{}", summary.id);
    let rounds = summary.replays.saturating_add(1);
    message.headers.insert(mark::REPLAY_ID.to_owned(), replay.as_str().into());
    message.headers.insert(mark::REPLAY_COUNT.to_owned(), rounds.into());
    if plan.keep_count {
        let retries = dead.attempts.saturating_sub(1);
        message.headers.insert(header::RETRY_COUNT.to_owned(), retries.into());
        let attempts = dead.headers.get(mark::FAILED_ATTEMPTS).cloned();
        message.headers.extend(attempts.map(|attempts| (mark::FAILED_ATTEMPTS.to_owned(), attempts)));
    }
    Ok(Verbatim {
        row_id: EventId::new(format!("replay/{replay}")).map_err(bug)?,
        event_id: dead.event_id.clone(),
        event_type: dead.event_type.as_deref().and_then(|of| EventType::new(of).ok()),
        tenant: dead.tenant.clone(),
        ordering_key: dead.ordering_key.clone(),
        to: plan.to_queue.clone().map_or_else(|| home(dead), Destination::Queue),
        message,
        dead_letter: Some(summary.id),
    })
}

/// Where it goes back to: the queue it died in, and no other. What no queue wanted has none, and goes to its exchange once more, for
/// whoever is bound there by now.
pub(super) fn home(dead: &DeadLetter) -> Destination {
    if dead.reason == DeadReason::Unroutable.as_str()
        && let (Ok(exchange), Ok(key)) =
            (ExchangeName::new(&dead.exchange), RoutingKey::new(&dead.routing_key))
    {
        return Destination::Exchange(exchange, key);
    }
    Destination::Queue(dead.queue.clone())
}

/// The message without the marks of its death. Where it was first published to stays known.
pub(super) fn alive(dead: &DeadLetter) -> Message {
    let mut message = Message {
        properties: dead.properties.clone(),
        headers: dead.headers.clone(),
        body: dead.body.clone(),
    };
    for name in DEATH.iter().chain([&header::RETRY_COUNT]) {
        message.headers.remove(*name);
    }
    message.forget_deliveries();
    message.ask_for_no_copies();
    let origin =
        [(header::ORIGINAL_EXCHANGE, &dead.exchange), (header::ORIGINAL_ROUTING_KEY, &dead.routing_key)];
    for (name, value) in origin {
        message.headers.entry(name.to_owned()).or_insert_with(|| value.as_str().into());
    }
    message
}

/// What a person sees of a letter to edit: the payload of the event, or the whole body where it is none.
pub fn editable(letter: &StoredLetter, identity: &Identity) -> bytes::Bytes {
    let decoded = decode(&letter.letter, identity);
    decoded.map_or_else(|| letter.letter.body.clone(), |(envelope, _)| envelope.payload.bytes().clone())
}

/// Sends an edited event in the place of a dead letter: a new id with a link to the one it replaces, to the letter's queue
/// alone, in one transaction with the letter being resolved. Nothing if somebody else resolved it meanwhile.
pub async fn edit_and_replay<S: Backend>(
    store: &S,
    clock: &Clock,
    id: LetterId,
    identity: &Identity,
    payload: bytes::Bytes,
    by: &str,
    reason: Option<&str>,
) -> Result<Option<EventId>, StoreError> {
    let mut tx = store.begin().await?;
    let Some(letter) = store.take_open(&mut tx, &[id]).await?.pop() else {
        store.rollback(tx).await?;
        return Ok(None);
    };
    let new = EventId::from_uuid(clock.new_id());
    let edited = edited(&letter.letter, identity, new.clone(), payload, clock);
    let operation = clock.new_id();
    let entry = LogEntry {
        at: clock.now(),
        actor: by.to_owned(),
        action: "dead_letter.edited".to_owned(),
        subject: format!("dead_letter/{id}"),
        reason: reason.map(str::to_owned),
        detail: Some(json!({ "event_id": letter.summary.event_id, "replaced_by": new })),
    };
    store.append_verbatim(&mut tx, vec![edited]).await?;
    let resolution = Resolution {
        replaced_by: Some(new.clone()),
        keeps_its_place: true,
        ..Resolution::plain(id, LetterStatus::Discarded)
    };
    store.resolve(&mut tx, operation, &[resolution]).await?;
    store.record(&mut tx, vec![entry]).await?;
    store.commit(tx).await?;
    Ok(Some(new))
}

/// A new event in the wire format of the old one. What was no event becomes one: its body, with an id.
pub(crate) fn edited(
    dead: &DeadLetter,
    identity: &Identity,
    id: EventId,
    payload: bytes::Bytes,
    clock: &Clock,
) -> Verbatim {
    let mut message = alive(dead);
    message.headers.remove(mark::REPLAY_ID);
    message.headers.remove(mark::REPLAY_COUNT);
    if let Some((mut envelope, format)) = decode(dead, identity) {
        let content_type = envelope.payload.content_type().to_owned();
        envelope.id = id.clone();
        envelope.occurred_at = clock.now();
        envelope.causation_id.clone_from(&dead.event_id);
        envelope.payload = Payload::new(content_type, payload);
        let encoded = wire::encode(&envelope, format, 0);
        message.headers.extend(encoded.headers);
        message.properties = encoded.properties;
        message.body = encoded.body;
    } else {
        message.properties.message_id = Some(id.to_string());
        message.headers.insert(header::EVENT_ID.to_owned(), id.as_str().into());
        message.headers.insert(header::WIRE_FORMAT.to_owned(), WireFormat::Bare.as_str().into());
        message.body = payload;
    }
    let replaced = dead.event_id.as_ref().map_or(dead.key.as_str(), AsRef::as_ref);
    message.headers.insert(mark::REPLACES.to_owned(), replaced.into());
    Verbatim {
        row_id: id.clone(),
        event_id: Some(id),
        event_type: dead.event_type.as_deref().and_then(|of| EventType::new(of).ok()),
        tenant: dead.tenant.clone(),
        ordering_key: dead.ordering_key.clone(),
        to: home(dead),
        message,
        dead_letter: None,
    }
}

/// The event and the format it came in. A foreign body that is the payload as a whole stays whole.
fn decode(dead: &DeadLetter, identity: &Identity) -> Option<(crate::Envelope, WireFormat)> {
    let message = Message {
        properties: dead.properties.clone(),
        headers: dead.headers.clone(),
        body: dead.body.clone(),
    };
    let key = RoutingKey::new(&dead.routing_key).ok()?;
    let envelope = wire::decode(&message, &key, identity, dead.dead_at).ok()?;
    let named = message.headers.get(header::WIRE_FORMAT).and_then(HeaderValue::as_str);
    let format = named.and_then(|name| name.parse().ok()).unwrap_or_else(|| {
        if *envelope.payload.bytes() == dead.body { WireFormat::Bare } else { WireFormat::Envelope }
    });
    Some((envelope, format))
}

fn bug(error: crate::InvalidText) -> StoreError {
    StoreError::new(StoreErrorKind::Other, format!("a replay has no usable id: {error}")).because(error)
}
