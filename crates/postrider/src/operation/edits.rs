//! Dead letters corrected and sent as new events, many at a time.
//!
//! Each is one transaction's work with its neighbours: the new event is appended, the letter names it and is resolved, and the
//! log says so. So a crash leaves a letter either open or replaced, and never replaced twice. A letter that the correction does
//! not fit stays open; it is counted as skipped, and the log says why, under the letter and under the operation.

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use serde::Serialize;
use serde_json::json;

use super::letters::{entry, unwritable};
use super::{Chunk, LetterPlan, Work};
use crate::clock::Clock;
use crate::dead_letter::{HeaderChange, Misfit, replay};
use crate::envelope::wire::Identity;
use crate::envelope::{EventId, erased_hash};
use crate::store::{
    Backend, Destination, LetterId, LetterStatus, LogEntry, Operation, Resolution, StoreError, StoredLetter,
    Verbatim,
};

/// A plan tries its correction on so many letters, those that are taken first.
const TRIED: usize = 20;
/// And shows so much of one.
const SHOWN: usize = 2000;

/// How a correction fares with some of the letters it is meant for. Nothing was changed.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Trial {
    /// Letters it was tried on, those that are taken first.
    pub tried: usize,
    /// Those that it does not fit, and that would stay open.
    pub unfit: Vec<Unfit>,
    /// One that it fits.
    pub example: Option<Example>,
}

/// A letter that a correction does not fit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Unfit {
    /// Which one.
    pub letter: LetterId,
    /// Why.
    pub why: String,
}

/// A payload before a correction and after it; of a long one, the beginning.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Example {
    /// Whose it is.
    pub letter: LetterId,
    /// As it is.
    pub before: String,
    /// As it would be sent.
    pub after: String,
    /// The headers that would be others.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<HeaderChange>,
}

/// What a plan makes of a letter.
struct Corrected {
    before: bytes::Bytes,
    after: bytes::Bytes,
    headers: Vec<HeaderChange>,
}

/// Tries the correction of a plan, if it has one.
pub(super) async fn try_out<S: Backend>(store: &S, plan: &LetterPlan) -> Result<Option<Trial>, StoreError> {
    if !plan.corrects() {
        return Ok(None);
    }
    let plan = with_identities(store, plan).await?;
    let limit = plan.limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(TRIED).min(TRIED);
    let mut trial = Trial::default();
    for id in store.foremost(&plan.filter, limit).await? {
        let Some(letter) = store.letter(id).await? else { continue };
        trial.tried += 1;
        match corrected(&letter, &plan) {
            Err(Misfit(why)) => trial.unfit.push(Unfit { letter: id, why }),
            Ok(Corrected { before, after, headers }) => {
                let shown = |bytes: &[u8]| crate::dead_letter::cut(&String::from_utf8_lossy(bytes), SHOWN);
                let (before, after) = (shown(&before), shown(&after));
                trial.example.get_or_insert(Example { letter: id, before, after, headers });
            }
        }
    }
    Ok(Some(trial))
}

/// A plan that says where the events of every queue have their identity, as the consumers registered it: so whoever carries it
/// out reads them alike.
pub(super) async fn with_identities<S: Backend>(
    store: &S,
    plan: &LetterPlan,
) -> Result<LetterPlan, StoreError> {
    let mut plan = plan.clone();
    if plan.corrects() {
        let services = store.registrations().await?.into_iter().map(|registration| registration.service);
        for service in services.filter(|service| service.identity != Identity::default()) {
            plan.identities.entry(service.name().clone()).or_insert(service.identity);
        }
    }
    Ok(plan)
}

/// The payload of a letter, as the plan makes it, and what becomes of its headers. With a correction of the payload it is that
/// which has to fit.
fn corrected(letter: &StoredLetter, plan: &LetterPlan) -> Result<Corrected, Misfit> {
    let identity = plan.identities.get(&letter.letter.queue).cloned().unwrap_or_default();
    let before = replay::editable(letter, &identity);
    let after = match &plan.edit {
        Some(correction) => correction.apply(&before)?.into(),
        None if erased_hash(&before).is_some() => return Err(Misfit("its payload was erased".to_owned())),
        None => before.clone(),
    };
    let headers = plan.headers.as_ref().map(|edit| edit.changes(&letter.letter.headers, &identity));
    let headers = headers.transpose()?.unwrap_or_default();
    if plan.edit.is_none() && headers.is_empty() {
        return Err(Misfit("its headers are like that already".to_owned()));
    }
    Ok(Corrected { before, after, headers })
}

/// Corrects dead letters and sends them as new events, each with a link to the one it replaces. Letters that somebody else
/// resolved meanwhile are skipped.
#[derive(Debug, Clone)]
pub struct EditWork {
    clock: Clock,
}

impl EditWork {
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
        let plan: LetterPlan = serde_json::from_value(operation.plan.clone()).map_err(unwritable)?;
        let ids: Vec<LetterId> = items.iter().filter_map(|item| item.parse().ok()).collect();
        let (mut messages, mut resolved, mut log) = (Vec::new(), Vec::new(), Vec::new());
        for letter in store.take_open(tx, &ids).await? {
            match self.replacement(&letter, &plan) {
                Ok((new, message)) => {
                    let elsewhere = plan.to_queue.as_ref().is_some_and(|to| *to != letter.letter.queue);
                    log.push(self.edited(&letter, operation, &plan, &new));
                    resolved.push(Resolution {
                        letter: letter.summary.id,
                        status: LetterStatus::Discarded,
                        replaced_by: Some(new),
                        keeps_its_place: !elsewhere,
                    });
                    messages.push(message);
                }
                Err(Misfit(why)) => log.extend(self.left(&letter, operation, &why)),
            }
        }
        store.append_verbatim(tx, messages).await?;
        store.resolve(tx, operation.id, &resolved).await?;
        store.record(tx, log).await?;
        let done = resolved.len() as u64;
        Ok(Chunk { done, skipped: items.len() as u64 - done })
    }

    fn replacement(&self, letter: &StoredLetter, plan: &LetterPlan) -> Result<(EventId, Verbatim), Misfit> {
        if !plan.corrects() {
            return Err(Misfit("the plan has no correction".to_owned()));
        }
        let Corrected { after, .. } = corrected(letter, plan)?;
        let identity = plan.identities.get(&letter.letter.queue).cloned().unwrap_or_default();
        let new = EventId::from_uuid(self.clock.new_id());
        let mut message = replay::edited(&letter.letter, &identity, new.clone(), after, &self.clock);
        if let Some(headers) = &plan.headers {
            headers.apply(&mut message.message.headers);
        }
        if let Some(queue) = &plan.to_queue {
            message.to = Destination::Queue(queue.clone());
        }
        Ok((new, message))
    }

    /// With the names of the headers that were edited; the operation's plan has their values.
    fn edited(
        &self,
        letter: &StoredLetter,
        operation: &Operation,
        plan: &LetterPlan,
        new: &EventId,
    ) -> LogEntry {
        let mut entry = entry(&self.clock, letter, operation, "dead_letter.edited");
        if let Some(detail) = entry.detail.as_mut() {
            detail["replaced_by"] = json!(new);
            if let Some(headers) = &plan.headers {
                detail["headers"] = headers.names().collect();
            }
        }
        entry
    }

    /// That a letter was left as it is: found by who looks at it, and by who looks at the operation.
    fn left(&self, letter: &StoredLetter, operation: &Operation, why: &str) -> [LogEntry; 2] {
        let mut of_letter = entry(&self.clock, letter, operation, "dead_letter.left");
        if let Some(detail) = of_letter.detail.as_mut() {
            detail["why"] = json!(why);
        }
        let of_operation = LogEntry {
            action: "operation.item_left".to_owned(),
            subject: format!("operation/{}", operation.id),
            detail: Some(json!({ "item": letter.summary.id, "error": why })),
            ..of_letter.clone()
        };
        [of_letter, of_operation]
    }
}

impl<S: Backend> Work<S> for EditWork {
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
