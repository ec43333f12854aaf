//! Operations on dead letters: planned and frozen here; sent again, or discarded. Correcting them is in `edits.rs`.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::json;
use uuid::Uuid;

use super::edits::{self, Trial};
use super::{Chunk, Work};
use crate::broker::{Broker, BrokerErrorKind};
use crate::clock::Clock;
use crate::dead_letter::{Correction, HeaderEdit, replay};
use crate::envelope::wire::Identity;
use crate::store::{
    Backend, LetterFilter, LetterId, LetterStatus, LogEntry, NewOperation, Operation, OperationKind,
    Resolution, StoreError, StoreErrorKind, StoredLetter, Survey,
};
use crate::topology::QueueName;

/// What is to be done, and to which letters: the filter of an operation, and how it works.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LetterPlan {
    /// Which letters. Only open ones are ever touched.
    pub filter: LetterFilter,
    /// At most so many, those first that failed first: a canary.
    pub limit: Option<u64>,
    /// Another queue than the one each came from.
    pub to_queue: Option<QueueName>,
    /// Go on with the old count of attempts, instead of a fresh budget.
    pub keep_count: bool,
    /// What is corrected, where letters are edited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub edit: Option<Correction>,
    /// Which headers are corrected, where letters are edited; the payload may stay as it is then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub headers: Option<HeaderEdit>,
    /// Where the events of a queue have their identity, for queues that no consumer registered.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub identities: BTreeMap<QueueName, Identity>,
    /// How many the plan came to when it was looked at. Should more match when it is frozen, nothing is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expects: Option<u64>,
}

impl LetterPlan {
    /// Whether it corrects anything.
    pub fn corrects(&self) -> bool {
        self.edit.is_some() || self.headers.is_some()
    }
}

/// What a plan comes to, before anything is changed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Plan {
    /// What the filter matches now.
    pub survey: Survey,
    /// How many an operation would take.
    pub total: u64,
    /// How long that takes at its rate, at least.
    pub takes: Option<Duration>,
    /// Queues that do not exist: what is sent there comes back.
    pub missing_queues: Vec<QueueName>,
    /// How the correction fares with some of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trial: Option<Trial>,
}

/// Draws up a plan and changes nothing.
pub async fn plan<S: Backend>(
    store: &S,
    broker: Option<&dyn Broker>,
    plan: &LetterPlan,
    rate: Option<f64>,
) -> Result<Plan, StoreError> {
    let survey = store.survey(&open(&plan.filter)).await?;
    let total = plan.limit.map_or(survey.letters, |limit| survey.letters.min(limit));
    let mut missing_queues = Vec::new();
    if let Some(broker) = broker {
        let own = survey.queues.iter().filter_map(|(queue, _)| QueueName::new(queue).ok());
        let queues = plan.to_queue.as_ref().map_or_else(|| own.collect(), |queue| vec![queue.clone()]);
        for queue in queues {
            // Whether a broker that is away has the queue shows when the relay gets there.
            let depth = broker.depth(&queue).await;
            if depth.is_err_and(|error| error.kind == BrokerErrorKind::NotFound) {
                missing_queues.push(queue);
            }
        }
    }
    let trial = edits::try_out(store, &LetterPlan { filter: open(&plan.filter), ..plan.clone() }).await?;
    Ok(Plan { survey, total, takes: rate.and_then(|rate| takes(total, rate)), missing_queues, trial })
}

#[expect(clippy::cast_precision_loss, reason = "an estimate for people")]
pub(super) fn takes(total: u64, rate: f64) -> Option<Duration> {
    Duration::try_from_secs_f64(total as f64 / rate).ok()
}

/// Freezes a plan as an operation, with who asked for it and why. Nothing if no letter matches. An error, and nothing changed, if
/// more match than the plan expects.
pub async fn start<S: Backend>(
    store: &S,
    clock: &Clock,
    kind: OperationKind,
    plan: &LetterPlan,
    rate: Option<f64>,
    by: &str,
    reason: Option<&str>,
) -> Result<Option<Uuid>, StoreError> {
    start_as(store, clock.new_id(), kind, plan, rate, by, reason).await
}

/// The same under an id that the caller gives it. Of two with the same id there is one: the second is refused as a duplicate.
pub async fn start_as<S: Backend>(
    store: &S,
    id: Uuid,
    kind: OperationKind,
    plan: &LetterPlan,
    rate: Option<f64>,
    by: &str,
    reason: Option<&str>,
) -> Result<Option<Uuid>, StoreError> {
    if (kind == OperationKind::EditLetters) != plan.corrects() {
        let told = "letters are edited by a correction, and by nothing else; nothing was changed";
        return Err(StoreError::new(StoreErrorKind::Invalid, told));
    }
    let plan = &edits::with_identities(store, plan).await?;
    let mut tx = store.begin().await?;
    match start_in(store, &mut tx, id, kind, plan, rate, by, reason).await {
        Ok(Some(id)) => {
            store.commit(tx).await?;
            Ok(Some(id))
        }
        nothing => {
            store.rollback(tx).await?;
            nothing
        }
    }
}

/// The same in the caller's own transaction, which he rolls back when nothing matches.
#[expect(clippy::too_many_arguments, reason = "each is one thing a person decides")]
pub(crate) async fn start_in<S: Backend>(
    store: &S,
    tx: &mut S::Tx,
    id: Uuid,
    kind: OperationKind,
    plan: &LetterPlan,
    rate: Option<f64>,
    by: &str,
    reason: Option<&str>,
) -> Result<Option<Uuid>, StoreError> {
    let plan = LetterPlan { filter: open(&plan.filter), ..plan.clone() };
    let operation = NewOperation {
        id,
        kind,
        plan: serde_json::to_value(&plan).map_err(unwritable)?,
        rate,
        created_by: by.to_owned(),
        reason: reason.map(str::to_owned),
    };
    store.create_operation(tx, &operation).await?;
    let frozen = store.freeze(tx, operation.id, &plan.filter, plan.limit).await?;
    if let Some(expected) = plan.expects.filter(|expected| frozen > *expected) {
        let told = format!(
            "the plan came to {expected}, and by now it is {frozen}; nothing was changed. Plan again"
        );
        return Err(StoreError::new(StoreErrorKind::Invalid, told));
    }
    Ok((frozen > 0).then_some(operation.id))
}

fn open(filter: &LetterFilter) -> LetterFilter {
    LetterFilter { status: Some(LetterStatus::Open), ..filter.clone() }
}

pub(super) fn unwritable(error: serde_json::Error) -> StoreError {
    StoreError::new(StoreErrorKind::Other, "the plan of an operation cannot be written or read as JSON")
        .because(error)
}

/// Sends dead letters again, or discards them: marked as resolved and appended to the outbox in one transaction, so that a
/// letter is never both open and on its way. Letters that somebody else resolved meanwhile are skipped.
#[derive(Debug, Clone)]
pub struct LetterWork {
    clock: Clock,
}

impl LetterWork {
    /// The work of these two kinds.
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
        let plan: LetterPlan = serde_json::from_value(operation.plan.clone()).map_err(unwritable)?;
        let ids: Vec<LetterId> = items.iter().filter_map(|item| item.parse().ok()).collect();
        let letters = store.take_open(tx, &ids).await?;
        let (status, action) = match operation.kind {
            OperationKind::DiscardLetters => (LetterStatus::Discarded, "dead_letter.discarded"),
            _ => (LetterStatus::Replayed, "dead_letter.replayed"),
        };
        if status == LetterStatus::Replayed {
            let messages = letters.iter().map(|letter| replay::again(letter, operation.id, &plan));
            store.append_verbatim(tx, messages.collect::<Result<_, _>>()?).await?;
        }
        let resolved: Vec<Resolution> =
            letters.iter().map(|letter| Resolution::plain(letter.summary.id, status)).collect();
        store.resolve(tx, operation.id, &resolved).await?;
        store
            .record(tx, letters.iter().map(|letter| entry(&self.clock, letter, operation, action)).collect())
            .await?;
        let done = letters.len() as u64;
        Ok(Chunk { done, skipped: items.len() as u64 - done })
    }
}

impl<S: Backend> Work<S> for LetterWork {
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

/// What is written down of a letter that an operation dealt with.
pub(super) fn entry(clock: &Clock, letter: &StoredLetter, operation: &Operation, action: &str) -> LogEntry {
    let summary = &letter.summary;
    LogEntry {
        at: clock.now(),
        actor: operation.created_by.clone(),
        action: action.to_owned(),
        subject: format!("dead_letter/{}", summary.id),
        reason: operation.reason.clone(),
        detail: Some(
            json!({ "operation": operation.id, "event_id": summary.event_id, "queue": summary.queue }),
        ),
    }
}
