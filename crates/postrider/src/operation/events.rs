//! Published events sent again: from the outbox, its archive table or its archive files, to where they went or to one queue alone.
//!
//! What is in files is read once, when the plan is frozen: each event that matches becomes an item with all of its document. So an
//! operation goes on wherever it is run, also where the files are not, and a crash leaves exactly the items that were not done.
//!
//! An event that is sent again keeps its id, so whoever has applied it skips it. To have it applied once more, its marks in the
//! inboxes of the consumers it reaches are removed in the transaction that appends it. So each of them applies it exactly once
//! more: a late repeat of the first delivery may be the one that is applied, and then the replay is the repeat. A header that
//! told consumers to look away would be obeyed again at every redelivery, and by whoever else can write one.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::json;
use uuid::Uuid;

use super::letters::{takes, unwritable};
use super::{Chunk, Work};
use crate::archive::{Shelf, Unreadable, read_document};
use crate::clock::Clock;
use crate::dead_letter::header as mark;
use crate::envelope::wire;
use crate::envelope::{EventId, WireFormat};
use crate::store::{
    AppliedIn, Backend, Destination, EventFilter, Found, LogEntry, NewOperation, Operation, OperationKind,
    OutboxRow, Registration, StoreError, StoreErrorKind, Verbatim,
};
use crate::topology::{ConsumerName, ExchangeName, KeyTemplate, QueueName, RoutingKey, routing_key};

/// Documents of archive files that are frozen at a time.
const STEP: usize = 500;

/// Which events are sent again, where to, and how they are written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EventPlan {
    /// Which events.
    pub filter: EventFilter,
    /// At most so many, the oldest first: a canary.
    pub limit: Option<u64>,
    /// One queue alone, instead of where each event went.
    pub to_queue: Option<QueueName>,
    /// Consumers that have applied an event apply it once more.
    pub reapply: bool,
    /// The exchange of rows that name none.
    pub exchange: ExchangeName,
    /// How events are written where `formats` says nothing else.
    pub format: WireFormat,
    /// How the events of an exchange are written.
    pub formats: BTreeMap<ExchangeName, WireFormat>,
    /// Another outbox of the database than the one that the operation is started on, by its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outbox: Option<String>,
    /// How events are routed whose rows say nothing; by their type, without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub routing_key: Option<KeyTemplate>,
}

/// What a plan comes to, before anything is changed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EventSurvey {
    /// What the filter matches now.
    pub events: u64,
    /// Of these, in the outbox.
    pub live: u64,
    /// In its archive table.
    pub archived: u64,
    /// In its archive files.
    pub in_files: u64,
    /// How many an operation would take.
    pub total: u64,
    /// How long that takes at its rate, at least.
    pub takes: Option<Duration>,
    /// Consumers that may have applied some of them and forgotten it: these would be applied again.
    pub forgotten: Vec<Forgetful>,
}

/// A consumer whose inbox does not remember that far back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Forgetful {
    /// The consumer.
    pub consumer: ConsumerName,
    /// Events of the plan that are older than all it remembers.
    pub events: u64,
}

/// The archive files of the outbox that a plan is about, in a folder.
pub fn shelf<S: Backend>(store: &S, plan: &EventPlan, folder: &Path) -> Result<Shelf, StoreError> {
    Ok(Shelf::new(folder, &outbox_of(store, plan)?.archive_name()))
}

/// Draws up a plan and changes nothing. Files are read where there is a shelf of them.
pub async fn plan_events<S: Backend>(
    store: &S,
    plan: &EventPlan,
    files: Option<&Shelf>,
    rate: Option<f64>,
) -> Result<EventSurvey, StoreError> {
    let store = &outbox_of(store, plan)?;
    let mut filters = vec![plan.filter.clone()];
    let mut consumers = Vec::new();
    for consumer in store.registrations().await?.into_iter().filter(|consumer| may_reach(plan, consumer)) {
        // Books never forget.
        if consumer.applied_in == AppliedIn::Books {
            continue;
        }
        let Some(before) = store.forgotten_before(consumer.inbox()).await? else { continue };
        filters.push(EventFilter { to: plan.filter.to.min(before), ..plan.filter.clone() });
        consumers.push(consumer.name);
    }
    let in_files = match files {
        Some(files) => files.count(filters.clone()).await.map_err(not_read)?,
        None => vec![0; filters.len()],
    };
    let mut found = Vec::new();
    for filter in &filters {
        found.push(store.count_events(filter).await?);
    }
    let mut counts = found.iter().zip(in_files).map(|(found, in_files)| (*found, in_files));
    let (Found { live, archived }, in_files) = counts.next().unwrap_or_default();
    let forgotten = consumers.into_iter().zip(counts).filter_map(|(consumer, (found, in_files))| {
        let events = found.live + found.archived + in_files;
        (events > 0).then_some(Forgetful { consumer, events })
    });
    let forgotten = forgotten.collect();
    let events = live + archived + in_files;
    let total = plan.limit.map_or(events, |limit| events.min(limit));
    let takes = rate.and_then(|rate| takes(total, rate));
    Ok(EventSurvey { events, live, archived, in_files, total, takes, forgotten })
}

/// Freezes a plan as an operation, with who asked for it and why. Nothing if no event matches. A file that cannot be read is an
/// error, and then nothing was changed.
pub async fn start_events<S: Backend>(
    store: &S,
    clock: &Clock,
    plan: &EventPlan,
    files: Option<&Shelf>,
    rate: Option<f64>,
    by: &str,
    reason: Option<&str>,
) -> Result<Option<Uuid>, StoreError> {
    start_events_as(store, clock.new_id(), plan, files, rate, by, reason).await
}

/// The same under an id that the caller gives it. Of two with the same id there is one: the second is refused as a duplicate.
pub async fn start_events_as<S: Backend>(
    store: &S,
    id: Uuid,
    plan: &EventPlan,
    files: Option<&Shelf>,
    rate: Option<f64>,
    by: &str,
    reason: Option<&str>,
) -> Result<Option<Uuid>, StoreError> {
    let store = &outbox_of(store, plan)?;
    let operation = NewOperation {
        id,
        kind: OperationKind::ReplayOutbox,
        plan: serde_json::to_value(plan).map_err(unwritable)?,
        rate,
        created_by: by.to_owned(),
        reason: reason.map(str::to_owned),
    };
    let mut tx = store.begin().await?;
    store.create_operation(&mut tx, &operation).await?;
    let mut total = store.freeze_events(&mut tx, operation.id, &plan.filter, plan.limit).await?;
    if let Some(files) = files {
        match freeze_files(store, &mut tx, operation.id, plan, files, total).await {
            Ok(frozen) => total = frozen,
            Err(error) => {
                store.rollback(tx).await?;
                return Err(error);
            }
        }
    }
    if total == 0 {
        store.rollback(tx).await?;
        return Ok(None);
    }
    store.commit(tx).await?;
    Ok(Some(operation.id))
}

/// Adds what is in files to an operation that has so many items, and says how many it has then.
async fn freeze_files<S: Backend>(
    store: &S,
    tx: &mut S::Tx,
    operation: Uuid,
    plan: &EventPlan,
    files: &Shelf,
    mut total: u64,
) -> Result<u64, StoreError> {
    let mut up_to = i64::MAX;
    let mut search = files.search(plan.filter.clone(), STEP);
    while let Some(documents) = search.recv().await {
        let documents = documents.map_err(not_read)?;
        let wanted = documents.into_iter().filter(|document| document.position < up_to);
        let wanted: Vec<_> = wanted.map(|document| (document.position, document.json)).collect();
        if !wanted.is_empty() {
            let frozen = store.freeze_documents(tx, operation, wanted, plan.limit).await?;
            total = frozen.total;
            up_to = frozen.up_to.unwrap_or(up_to);
        }
    }
    Ok(total)
}

/// The outbox that a plan is about.
fn outbox_of<S: Backend>(store: &S, plan: &EventPlan) -> Result<S, StoreError> {
    plan.outbox.as_deref().map_or_else(|| Ok(store.clone()), |name| store.outbox(name))
}

fn not_read(unreadable: Unreadable) -> StoreError {
    StoreError::new(StoreErrorKind::Invalid, unreadable.to_string()).because(unreadable)
}

/// Sends published events again. Those that are kept nowhere any more are skipped.
#[derive(Debug, Clone)]
pub struct EventWork {
    clock: Clock,
}

impl EventWork {
    /// The work of this kind.
    pub fn new(clock: Clock) -> Self {
        Self { clock }
    }

    async fn carry_out<S: Backend>(
        &self,
        store: &S,
        tx: &mut S::Tx,
        operation: &Operation,
        items: Vec<String>,
    ) -> Result<Chunk, StoreError> {
        let plan: EventPlan = serde_json::from_value(operation.plan.clone()).map_err(unwritable)?;
        let store = &outbox_of(store, &plan)?;
        let consumers = if plan.reapply { store.registrations().await? } else { Vec::new() };
        let rows = rows_of(store, tx, &items).await?;
        let messages =
            rows.iter().map(|row| again(row, operation.id, &plan)).collect::<Result<Vec<_>, _>>()?;
        for consumer in consumers {
            let reached = messages.iter().filter(|message| reaches(&message.to, &consumer));
            let events: Vec<EventId> = reached.filter_map(|message| message.event_id.clone()).collect();
            if !events.is_empty() {
                store.forget_events(tx, consumer.inbox(), &events).await?;
            }
        }
        let entries = messages.iter().map(|message| self.entry(message, operation, &plan)).collect();
        store.append_verbatim(tx, messages).await?;
        store.record(tx, entries).await?;
        let done = rows.len() as u64;
        Ok(Chunk { done, skipped: (items.len() as u64).saturating_sub(done) })
    }

    fn entry(&self, message: &Verbatim, operation: &Operation, plan: &EventPlan) -> LogEntry {
        let event = message.event_id.as_ref().map_or("", AsRef::as_ref);
        LogEntry {
            at: self.clock.now(),
            actor: operation.created_by.clone(),
            action: "event.replayed".to_owned(),
            subject: format!("event/{event}"),
            reason: operation.reason.clone(),
            detail: Some(
                json!({ "operation": operation.id, "to": message.to.name(), "reapply": plan.reapply }),
            ),
        }
    }
}

impl<S: Backend> Work<S> for EventWork {
    fn chunk<'a>(
        &'a self,
        store: &'a S,
        tx: &'a mut S::Tx,
        operation: &'a Operation,
        items: Vec<String>,
    ) -> BoxFuture<'a, Result<Chunk, StoreError>> {
        self.carry_out(store, tx, operation, items).boxed()
    }
}

/// What the items stand for, in the order of the outbox: rows that are kept in a table, and documents.
async fn rows_of<S: Backend>(
    store: &S,
    tx: &mut S::Tx,
    items: &[String],
) -> Result<Vec<OutboxRow>, StoreError> {
    let (documents, kept): (Vec<_>, Vec<_>) = items.iter().cloned().partition(|item| item.starts_with('{'));
    let mut rows = store.take_events(tx, &kept).await?;
    for document in &documents {
        rows.push(read_document(document).map_err(|error| {
            let text =
                format!("an archived event cannot be read back ({error}); nothing of this step was sent");
            StoreError::new(StoreErrorKind::Other, text)
        })?);
    }
    rows.sort_by_key(|row| row.row.position);
    Ok(rows)
}

/// The event as it goes out again: under its id, with a mark by which Redis lets it through to the inbox.
fn again(row: &OutboxRow, operation: Uuid, plan: &EventPlan) -> Result<Verbatim, StoreError> {
    let envelope = &row.envelope;
    let exchange = row.exchange.as_ref().unwrap_or(&plan.exchange);
    let format = plan.formats.get(exchange).copied().unwrap_or(plan.format);
    // No number of a dead letter, so that nobody takes it for one.
    let replay = format!("{operation}/outbox-{}", row.row.position);
    let mut message = wire::encode(envelope, format, 0);
    message.headers.insert(mark::REPLAY_ID.to_owned(), replay.as_str().into());
    let to = match plan.to_queue.as_ref().or(row.target_queue.as_ref()) {
        Some(queue) => Destination::Queue(queue.clone()),
        None => Destination::Exchange(
            exchange.clone(),
            row.routing_key.clone().unwrap_or_else(|| routing_key(plan.routing_key.as_ref(), envelope)),
        ),
    };
    let row_id = EventId::new(format!("replay/{replay}")).map_err(|error| {
        StoreError::new(StoreErrorKind::Other, format!("a replay has no usable id: {error}")).because(error)
    })?;
    Ok(Verbatim {
        row_id,
        event_id: Some(envelope.id.clone()),
        event_type: Some(envelope.event_type.clone()),
        tenant: envelope.tenant.group.clone(),
        ordering_key: envelope.ordering_key.clone(),
        to,
        message,
        dead_letter: None,
    })
}

fn reaches(to: &Destination, consumer: &Registration) -> bool {
    let queue = consumer.service.name();
    match to {
        Destination::Queue(to) => to == queue,
        Destination::Exchange(exchange, key) => consumer.topology.route(exchange, key).contains(&queue),
    }
}

/// Whether any event of a plan may come to a consumer, as far as the plan itself tells.
fn may_reach(plan: &EventPlan, consumer: &Registration) -> bool {
    let EventFilter { aggregate_type, event_type, .. } = &plan.filter;
    match (&plan.to_queue, aggregate_type, event_type) {
        (Some(queue), ..) => queue == consumer.service.name(),
        (None, Some(aggregate), Some(event)) if plan.routing_key.is_none() => {
            RoutingKey::new(format!("{aggregate}.{event}"))
                .is_ok_and(|key| reaches(&Destination::Exchange(plan.exchange.clone(), key), consumer))
        }
        _ => true,
    }
}
