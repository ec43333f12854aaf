//! What an outbox says should be on both buses: every event that it published there, whether or not somebody recorded a copy.
//!
//! A mark and the record of its copy commit together, so a published row without a record was not copied: by a relay that does not
//! know of migrations, or by somebody's hand. A comparison that only asked for records would never miss it.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::parity::Expected;
use super::{Course, Definition, DeliveryResult, Phase};
use crate::envelope::Payload;
use crate::relay::RelayConfig;
use crate::store::{Outbox, OutboxRow, StoreError};

/// Rows that are read at a time.
const PAGE: usize = 1000;
/// So many positions before the window are looked at for events that were never copied.
const LOOKED_BACK: i64 = 100_000;
/// Confirmed copies are forgotten after a day: a row from before that says nothing.
const REMEMBERED: Duration = Duration::from_hours(23);

/// An outbox whose events go to the buses, and how its relay addresses them.
#[derive(Debug, Clone)]
pub struct Source<S> {
    /// Its database, at this outbox.
    pub store: S,
    /// What people call it.
    pub label: String,
    /// How its relay works.
    pub relay: Arc<RelayConfig>,
    /// How its database is called, where that is another than the one that keeps migrations.
    pub database: Option<String>,
}

impl<S> Source<S> {
    /// An outbox of this name.
    pub fn new(store: S, label: &str, relay: RelayConfig) -> Self {
        Self { store, label: label.to_owned(), relay: Arc::new(relay), database: None }
    }

    /// It is in another database than the one that keeps migrations; people know that one by this name.
    #[must_use]
    pub fn elsewhere(mut self, database: &str) -> Self {
        self.database = Some(database.to_owned());
        self
    }
}

/// A part of an outbox, from when the taps were bound until listening ended.
pub(super) struct Window<'a, S> {
    pub(super) source: &'a Source<S>,
    definition: &'a Definition,
    /// Since when the phase is obeyed in this outbox's database, by its clock; absent if it is not.
    since: Option<Timestamp>,
    after: i64,
    up_to: i64,
    /// Its events that were published, as far as they were read.
    pub(super) expected: Vec<Expected>,
    /// Events from before it that have no copy and should.
    pub(super) earlier: Vec<Expected>,
}

impl<'a, S: Outbox> Window<'a, S> {
    /// From now on.
    pub(super) async fn open(source: &'a Source<S>, course: &'a Course) -> Result<Self, StoreError> {
        let here = source.store.course().await?;
        let copied = |here: &Course| here.phase == Phase::Dual && here.definition == course.definition;
        let since = here.filter(copied).map(|here| here.since);
        let after = source.store.horizon().await?.position;
        Ok(Self {
            source,
            definition: &course.definition,
            since,
            after,
            up_to: after,
            expected: Vec::new(),
            earlier: Vec::new(),
        })
    }

    /// Until now.
    pub(super) async fn close(&mut self) -> Result<(), StoreError> {
        self.up_to = self.source.store.horizon().await?.position;
        Ok(())
    }

    /// Whether nothing was committed in it.
    pub(super) fn is_empty(&self) -> bool {
        self.up_to == self.after
    }

    /// Reads which of its events were published by now, and how each looks on either side.
    pub(super) async fn read(&mut self) -> Result<(), StoreError> {
        self.expected.clear();
        let mut after = self.after;
        loop {
            let page = self.source.store.published_rows(after, self.up_to, PAGE).await?;
            let Some((last, _)) = page.last() else { return Ok(()) };
            after = last.row.position;
            let covered: Vec<_> =
                page.iter().filter_map(|(row, copy)| self.expect(row, copy.as_ref())).collect();
            self.expected.extend(covered);
        }
    }

    /// Looks for events from before it that should have a copy, since the phase began: no tap could hear them.
    pub(super) async fn look_back(&mut self, now: Timestamp) -> Result<(), StoreError> {
        let Some(since) = self.since else { return Ok(()) };
        let remembered = now.checked_sub(REMEMBERED).unwrap_or(Timestamp::MIN);
        let mut after = self.after.saturating_sub(LOOKED_BACK);
        loop {
            let since = since.max(remembered);
            let page = self.source.store.uncopied_rows(since, after, self.after, PAGE).await?;
            let Some(last) = page.last() else { return Ok(()) };
            after = last.row.position;
            let covered: Vec<_> = page.iter().filter_map(|row| self.expect(row, None)).collect();
            self.earlier.extend(covered);
        }
    }

    /// Copies that no relay made are made now, by the relays. A crash before this leaves them to the next comparison.
    pub(super) async fn make_up(&self) -> Result<(), StoreError> {
        let all = self.expected.iter().chain(&self.earlier);
        let owed: Vec<_> = all.filter_map(|event| Some((event.owed?, event.event_id.clone()))).collect();
        if owed.is_empty() || self.since.is_none() {
            return Ok(());
        }
        tracing::warn!(
            outbox = self.source.label,
            events = owed.len(),
            "events were published without a copy for the old bus; copies are made now"
        );
        self.source.store.owe_copies(owed).await
    }

    /// What both sides should have of a row; nothing if it is none of the events that are copied.
    fn expect(&self, row: &OutboxRow, copy: Option<&DeliveryResult>) -> Option<Expected> {
        let legacy = self.source.relay.copy_of(row, self.definition)?.message.body;
        let error = match copy {
            Some(copy) => copy.error().map(str::to_owned),
            None if self.since.is_some() => Some("no relay made a copy of it; one is made now".to_owned()),
            None => Some(format!(
                "the outbox {} is in a database that does not follow this migration, so nothing of it is copied",
                self.source.label
            )),
        };
        Some(Expected {
            event_id: row.envelope.id.clone(),
            new: row.envelope.payload.hash(),
            legacy: Payload::new("", legacy).hash(),
            error,
            owed: copy.is_none().then_some(row.row.position),
        })
    }
}
