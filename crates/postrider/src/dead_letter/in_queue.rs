//! Dead letters that are not collected: looked at and moved where they lie, in their own queue.
//!
//! Looking takes messages without settling them and gives them back. Every look counts as a delivery, and a broker with a
//! delivery limit drops what was delivered too often, so looking stops before that.
//!
//! What is taken away is written down in the audit log before it leaves the queue: no message is gone that nobody can name. What is
//! discarded, or sent to another queue, is kept in the table as well, as discarded, so that the account of its consumer finds it.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::json;
use uuid::Uuid;

use super::{header as mark, replay, story};
use crate::broker::{
    Broker, BrokerError, BrokerErrorKind, DELIVERY_COUNT, HeaderValue, Outgoing, Published, Receipt, Verdict,
};
use crate::clock::Clock;
use crate::store::{
    DeadLetter, Destination, LetterFilter, LetterId, LetterQuery, LetterStatus, LogEntry, Operations,
    Resolution, StoreError, Triage, Turn,
};
use crate::topology::{QueueName, ServiceQueue};

/// Messages held at a time.
const MOST: u16 = 10_000;
/// A queue that gives nothing for so long has no more for us: the rest is in other hands.
const QUIET: Duration = Duration::from_secs(2);
/// RabbitMQ 4 drops a message at the 21st delivery by default.
const MOST_LOOKS: i64 = 15;
/// Stored letters that are read at a time.
const PAGE: usize = 1000;
/// Times are stored with less precision than messages may have.
const ROUNDED: Duration = Duration::from_millis(1);

/// What was done to dead letters in their queue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Moved {
    /// Sent again, or discarded.
    pub moved: u64,
    /// That fit the filter and were given back, because they could not be sent.
    pub failed: u64,
    /// Not wanted, and given back.
    pub left: u64,
}

/// Which dead letters are taken out of their queue, and by whom.
#[derive(Debug, Clone, PartialEq)]
pub struct Taking {
    /// Those that fit.
    pub filter: LetterFilter,
    /// At most so many.
    pub limit: u64,
    /// Where they go.
    pub way: Way,
    /// Who wants it, for the audit log.
    pub by: String,
    /// Why.
    pub reason: Option<String>,
}

/// Where dead letters go from their queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Way {
    /// Back to the queue they came from, or to another. What no queue wanted goes to its exchange once more.
    Replay {
        /// Another one.
        to: Option<QueueName>,
    },
    /// Nowhere.
    Discard,
}

/// The dead letters in a queue, the oldest first. They stay where they are.
pub async fn look(
    broker: &Arc<dyn Broker>,
    clock: &Clock,
    service: &ServiceQueue,
    filter: &LetterFilter,
    limit: usize,
) -> Result<Vec<DeadLetter>, BrokerError> {
    let mut found = Vec::new();
    let mut hand = Hand::open(broker, clock, service).await?;
    while found.len() < limit
        && let Some(taken) = hand.next().await?
    {
        found.extend(taken.into_iter().map(|(letter, _)| letter).filter(|letter| fits(filter, letter)));
    }
    found.truncate(limit);
    // Dropping the subscription gives everything back.
    Ok(found)
}

/// Moves what fits out of the queue: published with confirm first, then written down, then acked. A crash in between leaves a
/// message in both places, and the inbox knows the one that was applied; the log may name it twice, and never not at all. One that is
/// discarded may then be open in the table and still in its queue: to discard it again resolves it.
pub async fn take_away<S: Triage + Operations>(
    store: &S,
    broker: &Arc<dyn Broker>,
    clock: &Clock,
    service: &ServiceQueue,
    taking: &Taking,
) -> Result<Moved, TakingError> {
    let mut moved = Moved::default();
    let id = clock.new_id();
    write_down(store, vec![begun(id, clock, service, taking)]).await?;
    let mut hand = Hand::open(broker, clock, service).await?;
    while moved.moved < taking.limit
        && let Some(taken) = hand.next().await?
    {
        let (mut gone, mut log, mut discarded) = (Vec::new(), Vec::new(), Vec::new());
        for (letter, receipt) in taken {
            if !fits(&taking.filter, &letter) || moved.moved >= taking.limit {
                moved.left += 1;
            } else if send(broker, clock, &letter, &taking.way).await {
                moved.moved += 1;
                log.push(taken_away(id, clock, service, taking, &letter));
                gone.push((receipt, Verdict::Ack));
                if taking.way.gives_up(&letter) {
                    discarded.push(letter);
                }
            } else {
                moved.failed += 1;
            }
        }
        if !discarded.is_empty() {
            keep(store, id, discarded, log).await?;
        } else if !log.is_empty() {
            write_down(store, log).await?;
        }
        hand.settler.settle(gone).await?;
    }
    Ok(moved)
}

/// Why messages were not taken out of their queue. What was not acked is still there.
#[derive(Debug, thiserror::Error)]
pub enum TakingError {
    /// The broker failed.
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// It could not be written down.
    #[error("what is taken out of a queue cannot be written down, so it stays there: {0}")]
    Log(#[from] StoreError),
}

async fn write_down<S: Operations>(store: &S, entries: Vec<LogEntry>) -> Result<(), StoreError> {
    let mut tx = store.begin().await?;
    store.record(&mut tx, entries).await?;
    store.commit(tx).await
}

/// Stores what is discarded, then marks it as that and writes it down, in one transaction.
async fn keep<S: Triage + Operations>(
    store: &S,
    operation: Uuid,
    letters: Vec<DeadLetter>,
    log: Vec<LogEntry>,
) -> Result<(), StoreError> {
    let keys: HashSet<String> = letters.iter().map(|letter| letter.key.clone()).collect();
    let wanted = Wanted::of(&letters);
    store.collect(letters).await?;
    let ids = wanted.find(store).await?;
    let mut tx = store.begin().await?;
    let open = store.take_open(&mut tx, &ids).await?;
    let ours = open.iter().filter(|stored| keys.contains(&stored.letter.key));
    let resolved: Vec<Resolution> =
        ours.map(|stored| Resolution::plain(stored.summary.id, LetterStatus::Discarded)).collect();
    store.resolve(&mut tx, operation, &resolved).await?;
    store.record(&mut tx, log).await?;
    store.commit(tx).await
}

/// Where letters that were just stored are found again: their numbers are the store's, and nothing finds them by their key.
struct Wanted {
    queues: BTreeSet<QueueName>,
    events: HashSet<Option<String>>,
    since: Option<Timestamp>,
    until: Option<Timestamp>,
}

impl Wanted {
    fn of(letters: &[DeadLetter]) -> Self {
        let times = || letters.iter().map(|letter| letter.dead_at);
        Self {
            queues: letters.iter().map(|letter| letter.queue.clone()).collect(),
            events: letters.iter().map(|letter| letter.event_id.as_ref().map(ToString::to_string)).collect(),
            since: times().min().and_then(|first| first.checked_sub(ROUNDED).ok()),
            until: times().max().and_then(|last| last.checked_add(ROUNDED).ok()),
        }
    }

    /// Open letters of these events. Others may be among them.
    async fn find<S: Triage>(self, store: &S) -> Result<Vec<LetterId>, StoreError> {
        let Self { queues, events, since, until } = self;
        let mut found = Vec::new();
        for queue in queues {
            let filter = LetterFilter { queue: Some(queue), since, until, ..LetterFilter::open() };
            let mut query = LetterQuery { filter, turn: Turn::Newest, limit: PAGE };
            loop {
                let page = store.letters(&query).await?;
                let ours = page.letters.iter().filter(|letter| events.contains(&letter.event_id));
                found.extend(ours.map(|letter| letter.id));
                let Some(next) = page.next else { break };
                query.turn = Turn::Before(next);
            }
        }
        Ok(found)
    }
}

/// The entry of the whole.
fn begun(id: Uuid, clock: &Clock, service: &ServiceQueue, taking: &Taking) -> LogEntry {
    let to = if let Way::Replay { to: Some(to) } = &taking.way { Some(to) } else { None };
    LogEntry {
        at: clock.now(),
        actor: taking.by.clone(),
        action: format!("dead_letter_queue.{}", taking.way.done()),
        subject: format!("queue/{}", service.dead_letter_queue),
        reason: taking.reason.clone(),
        detail: Some(
            json!({ "operation": id, "filter": taking.filter, "limit": taking.limit, "to_queue": to }),
        ),
    }
}

/// That of one message, under its event where it has one.
fn taken_away(
    id: Uuid,
    clock: &Clock,
    service: &ServiceQueue,
    taking: &Taking,
    letter: &DeadLetter,
) -> LogEntry {
    let queue = &service.dead_letter_queue;
    LogEntry {
        action: format!("dead_letter.{}", taking.way.done()),
        subject: letter
            .event_id
            .as_ref()
            .map_or_else(|| format!("queue/{queue}"), |event| format!("event/{event}")),
        detail: Some(json!({ "operation": id, "key": letter.key, "in_queue": queue, "queue": letter.queue })),
        ..begun(id, clock, service, taking)
    }
}

impl Way {
    fn done(&self) -> &'static str {
        match self {
            Self::Replay { .. } => "replayed",
            Self::Discard => "discarded",
        }
    }

    /// Whether the letter does not come back to its own queue, whose account has to find it.
    fn gives_up(&self, letter: &DeadLetter) -> bool {
        match self {
            Self::Replay { to } => to.as_ref().is_some_and(|to| *to != letter.queue),
            Self::Discard => true,
        }
    }
}

async fn send(broker: &Arc<dyn Broker>, clock: &Clock, letter: &DeadLetter, way: &Way) -> bool {
    let Way::Replay { to } = way else { return true };
    let mut message = replay::alive(letter);
    message.headers.insert(mark::REPLAY_ID.to_owned(), clock.new_id().to_string().into());
    message.headers.insert(mark::REPLAY_COUNT.to_owned(), letter.replays().saturating_add(1).into());
    let to = to.clone().map_or_else(|| replay::home(letter), Destination::Queue);
    let outgoing = match to.clone() {
        Destination::Queue(queue) => Outgoing::to_queue(&queue, message),
        Destination::Exchange(exchange, routing_key) => Outgoing { exchange, routing_key, message },
    };
    let answer = broker.publish(vec![outgoing]).await.pop();
    match answer {
        Some(Published::Confirmed) => true,
        Some(
            Published::Returned(why)
            | Published::Refused(why)
            | Published::Unfit(why)
            | Published::Declined(why)
            | Published::Unknown(why),
        ) => {
            tracing::warn!(to = to.name(), %why, "a dead letter could not be sent again; it stays in its queue");
            false
        }
        None => false,
    }
}

/// Messages taken and not settled.
struct Hand<'a> {
    subscription: Box<dyn crate::broker::Subscription>,
    settler: Box<dyn crate::broker::Settler>,
    service: &'a ServiceQueue,
    clock: &'a Clock,
    /// How many there were to begin with, less what was taken.
    more: u64,
}

impl<'a> Hand<'a> {
    async fn open(
        broker: &Arc<dyn Broker>,
        clock: &'a Clock,
        service: &'a ServiceQueue,
    ) -> Result<Self, BrokerError> {
        let queue = &service.dead_letter_queue;
        let more = broker.depth(queue).await?.min(u64::from(MOST));
        let prefetch = u16::try_from(more).unwrap_or(MOST).max(1);
        let subscription = broker.subscribe(queue, prefetch).await?;
        let settler = subscription.settler();
        Ok(Self { subscription, settler, service, clock, more })
    }

    async fn next(&mut self) -> Result<Option<Vec<(DeadLetter, Receipt)>>, BrokerError> {
        if self.more == 0 {
            return Ok(None);
        }
        let taken = tokio::select! {
            taken = self.subscription.next(500) => taken?,
            () = self.clock.sleep(QUIET) => return Ok(None),
        };
        self.more = self.more.saturating_sub(taken.len() as u64);
        let letters = taken.into_iter().map(|delivery| {
            let looks = delivery.message.headers.get(DELIVERY_COUNT).and_then(HeaderValue::as_int);
            if looks.unwrap_or(0) >= MOST_LOOKS {
                return Err(looked_too_often(&self.service.dead_letter_queue));
            }
            let (receipt, letter) =
                story::letter(delivery, self.service, self.clock.now(), self.clock.new_id());
            Ok((letter, receipt))
        });
        letters.collect::<Result<_, _>>().map(Some)
    }
}

fn looked_too_often(queue: &QueueName) -> BrokerError {
    let text = format!(
        "a dead letter in {queue} was looked at {MOST_LOOKS} times, and each look counts towards the delivery limit at which \
         the broker drops it; nothing was changed. Raise the limit of {queue} by a policy (delivery-limit), or let it be \
         collected (collect = true)"
    );
    BrokerError::new(BrokerErrorKind::Denied, text)
}

/// Whether a letter fits a filter: the same as the store's, for what is in no store.
fn fits(filter: &LetterFilter, letter: &DeadLetter) -> bool {
    fn is<T: PartialEq>(wanted: Option<&T>, found: Option<&T>) -> bool {
        wanted.is_none() || wanted == found
    }
    let text = |text: &String| {
        let error = letter.error.to_lowercase().contains(&text.to_lowercase());
        error || letter.body.windows(text.len().max(1)).any(|part| part == text.as_bytes())
    };
    is(filter.consumer.as_ref(), letter.consumer.as_ref())
        && is(filter.queue.as_ref(), Some(&letter.queue))
        && is(filter.event_type.as_ref(), letter.event_type.as_ref())
        && is(filter.event_id.as_ref(), letter.event_id.as_ref())
        && is(filter.reason.as_ref(), Some(&letter.reason))
        && is(filter.error_class.as_ref(), letter.error_class.as_ref())
        && is(filter.tenant.as_ref(), letter.tenant.as_ref())
        && is(filter.aggregate_id.as_ref(), letter.aggregate_id.as_ref())
        && filter.fingerprint.as_ref().is_none_or(|wanted| *wanted == letter.fingerprint())
        && filter.since.is_none_or(|since| letter.dead_at >= since)
        && filter.until.is_none_or(|until| letter.dead_at < until)
        && filter.min_attempts.is_none_or(|least| letter.attempts >= least)
        && filter.max_attempts.is_none_or(|most| letter.attempts <= most)
        && filter.max_replays.is_none_or(|most| letter.replays() <= most)
        && filter.text.as_ref().is_none_or(text)
}
