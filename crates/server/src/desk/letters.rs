//! Dead letters: by group, one by one, and corrected.

use async_trait::async_trait;
use bytes::Bytes;
use jiff::Timestamp;
use postrider::EventId;
use postrider::dead_letter::replay::{edit_and_replay, editable};
use postrider::envelope::wire::Identity;
use postrider::push::Attempt;
use postrider::settlement::DeadReason;
use postrider::store::{
    GroupPage, GroupQuery, LetterId, LetterPage, LetterQuery, LetterStatus, LogEntry, Registrations,
    StoreError, StoredLetter,
};
use postrider::topology::QueueName;

use super::{Answer, StoreDesk};
use crate::api::{Code, Problem};
use crate::config::Config;
use crate::wiring::WholeStore;

/// Entries of the log that are shown with a letter.
const LOGGED: usize = 20;
/// And attempts.
const ATTEMPTS: u32 = 10;

/// A dead letter with all that is known of it.
pub(crate) struct Letter {
    pub(crate) stored: StoredLetter,
    pub(crate) log: Vec<LogEntry>,
    /// How its attempts went, where they were pushed to an endpoint: the newest first.
    pub(crate) attempts: Vec<Attempt>,
    /// What a person may correct: the payload of the event, or the whole body where it is none.
    pub(crate) editable: Bytes,
}

#[async_trait]
pub(crate) trait Letters {
    /// A page of groups.
    async fn groups(&self, query: &GroupQuery) -> Answer<GroupPage>;
    /// How many letters are open, and for how many reasons.
    async fn open_letters(&self) -> Answer<(u64, u64)>;
    /// A page of letters.
    async fn letters(&self, query: &LetterQuery) -> Answer<LetterPage>;
    /// One of them.
    async fn letter(&self, id: LetterId) -> Answer<Option<Letter>>;
    /// Sends a corrected event in the place of an open letter. Its new id.
    async fn edit(&self, id: LetterId, payload: Bytes, by: &str, reason: Option<&str>) -> Answer<EventId>;
}

#[async_trait]
impl<S: WholeStore> Letters for StoreDesk<S> {
    async fn groups(&self, query: &GroupQuery) -> Answer<GroupPage> {
        Ok(self.store.groups(query).await?)
    }

    async fn open_letters(&self) -> Answer<(u64, u64)> {
        let figures = self.store.figures().await?;
        let letters: u64 = figures.open_letters.iter().map(|(_, open)| open).sum();
        Ok((letters, figures.open_groups))
    }

    async fn letters(&self, query: &LetterQuery) -> Answer<LetterPage> {
        Ok(self.store.letters(query).await?)
    }

    async fn letter(&self, id: LetterId) -> Answer<Option<Letter>> {
        let Some(stored) = self.store.letter(id).await? else { return Ok(None) };
        let log = self.store.log_of(&format!("dead_letter/{id}"), LOGGED).await?;
        let identity = identity(&self.store, &self.config, &stored.letter.queue).await?;
        let editable = editable(&stored, &identity);
        let attempts = match (&stored.letter.consumer, &stored.letter.event_id) {
            // The endpoint was called with the other event of this id, which may be another tenant's, and not with this one.
            _ if stored.letter.reason == DeadReason::Conflict.as_str() => Vec::new(),
            (Some(consumer), Some(event)) => self.store.attempts(consumer, Some(event), ATTEMPTS).await?,
            _ => Vec::new(),
        };
        Ok(Some(Letter { stored, log, attempts, editable }))
    }

    async fn edit(&self, id: LetterId, payload: Bytes, by: &str, reason: Option<&str>) -> Answer<EventId> {
        let Some(stored) = self.store.letter(id).await? else { return Err(no_letter(id)) };
        if stored.summary.status != LetterStatus::Open {
            let status = stored.summary.status.as_str();
            let told = format!("dead letter {id} is {status} already; nothing was changed");
            return Err(Problem::new(Code::Conflict, told));
        }
        let identity = identity(&self.store, &self.config, &stored.letter.queue).await?;
        let before = editable(&stored, &identity);
        if payload == before {
            let told = "nothing was edited, so nothing was sent; a replay sends it as it is";
            return Err(Problem::new(Code::InvalidRequest, told));
        }
        let is_json = |bytes: &[u8]| serde_json::from_slice::<serde::de::IgnoredAny>(bytes);
        if is_json(&before).is_ok()
            && let Err(error) = is_json(&payload)
        {
            let told = format!("the edited payload is not JSON any more: {error}; nothing was sent");
            return Err(Problem::new(Code::InvalidRequest, told));
        }
        let new = edit_and_replay(&self.store, &self.clock, id, &identity, payload, by, reason).await?;
        new.ok_or_else(|| {
            let told = format!("somebody else resolved dead letter {id} meanwhile; nothing was sent");
            Problem::new(Code::Conflict, told)
        })
    }
}

/// That there is none of this number.
pub(crate) fn no_letter(id: LetterId) -> Problem {
    Problem::new(Code::NotFound, format!("there is no dead letter {id}"))
}

/// Where the events of a queue have their identity.
pub(crate) async fn identity<S: Registrations>(
    store: &S,
    config: &Config,
    queue: &QueueName,
) -> Result<Identity, StoreError> {
    let services = store.registrations().await?.into_iter().map(|one| one.service);
    let mut services = services.chain(config.own.layout.services.iter().cloned());
    let found = services.find(|service| service.name() == queue);
    Ok(found.map_or_else(Identity::default, |service| service.identity))
}

/// A place in the list of groups, as it is written down.
pub(crate) fn write_place((at, fingerprint): &(Timestamp, String)) -> String {
    format!("{}.{fingerprint}", at.as_microsecond())
}

/// And back.
pub(crate) fn read_place(text: &str) -> Option<(Timestamp, String)> {
    let (micros, fingerprint) = text.split_once('.')?;
    Some((Timestamp::from_microsecond(micros.parse().ok()?).ok()?, fingerprint.to_owned()))
}
