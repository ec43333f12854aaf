//! The outboxes: what waits, what stands still, and how it goes on.

use std::time::Duration;

use async_trait::async_trait;
use postrider::EventId;
use postrider::store::{
    self, Backlog, OutboxDesk, OutboxStatus, ParkedKey, RowFilter, RowPage, RowView, StoreError, StreamState,
    Unpark,
};
use serde::Serialize;

use super::{Answer, StoreDesk};
use crate::api::{Code, Problem};
use crate::outboxes::{self, OpenOutbox};
use crate::wiring::WholeStore;

/// A database that does not answer within this is away.
const PATIENCE: Duration = Duration::from_secs(3);
/// Dead events of a key that are looked at.
const LISTED: usize = 1000;
/// An event that could have been published for so long means that nobody keeps up.
const BEHIND: jiff::SignedDuration = jiff::SignedDuration::from_secs(60);

/// How an outbox stands.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct OutboxReport {
    pub(crate) due: u64,
    pub(crate) later: u64,
    pub(crate) dead: u64,
    pub(crate) parked_keys: u64,
    pub(crate) oldest_due: Option<jiff::Timestamp>,
    /// How rows are found now: `cdc` or `poll`.
    pub(crate) mode: &'static str,
    /// How much of its log the database keeps for the stream.
    pub(crate) stream_lag_bytes: Option<u64>,
    /// Which relay streams.
    pub(crate) streamed_by: Option<String>,
    pub(crate) parked: Vec<ParkedKey>,
}

/// How an outbox stands, with so many of its parked keys.
pub(crate) async fn report<S: store::Outbox + OutboxDesk>(
    store: &S,
    parked: usize,
) -> Result<OutboxReport, StoreError> {
    let stream: Option<StreamState> = store.stream_state().await?;
    let Backlog { due, later, dead, parked_keys, oldest_due } = store.backlog().await?;
    let mode = if stream.is_some() { "cdc" } else { "poll" };
    let (stream_lag_bytes, streamed_by) =
        stream.map(|stream| (stream.lag_bytes, stream.relay.to_string())).unzip();
    let parked = store.parked(parked).await?;
    Ok(OutboxReport {
        due,
        later,
        dead,
        parked_keys,
        oldest_due,
        mode,
        stream_lag_bytes,
        streamed_by,
        parked,
    })
}

/// How one outbox stands, or why that is not known.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Standing {
    /// What it is called.
    pub(crate) outbox: String,
    #[serde(flatten)]
    pub(crate) report: Option<OutboxReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
}

impl Standing {
    /// In a word: `ok`, `behind` (an event waits for a minute), or `unavailable` (its database is away).
    pub(crate) fn status(&self, now: jiff::Timestamp) -> &'static str {
        let Some(report) = &self.report else { return "unavailable" };
        let waits = |since: jiff::Timestamp| now.duration_since(since) > BEHIND;
        if report.oldest_due.is_some_and(waits) { "behind" } else { "ok" }
    }
}

/// How each stands, asked at the same time. A database that is away keeps nobody from seeing the others.
pub(crate) async fn standings<S: WholeStore>(
    outboxes: &[OpenOutbox<S>],
    parked: usize,
    patience: Duration,
) -> Vec<Standing> {
    let standing = async |outbox: &OpenOutbox<S>| {
        let found = tokio::time::timeout(patience, report(&outbox.store, parked)).await;
        let (report, error) = match found {
            Ok(Ok(report)) => (Some(report), None),
            Ok(Err(error)) => (None, Some(error.to_string())),
            Err(_) => (None, Some(format!("its database did not answer within {} s", patience.as_secs()))),
        };
        Standing { outbox: outbox.choice.label.clone(), report, error }
    };
    futures_util::future::join_all(outboxes.iter().map(standing)).await
}

/// The dead events that would get new attempts, by their ids; none where nothing is parked there.
pub(crate) async fn dead<S: OutboxDesk>(store: &S, target: &Unpark) -> Result<Vec<String>, StoreError> {
    let dead = OutboxStatus::Dead;
    let rows = match target {
        Unpark::Key(key) => {
            let filter = RowFilter { status: Some(dead), key: Some(key.clone()), ..RowFilter::default() };
            store.list(&filter, LISTED).await?.rows
        }
        Unpark::Event(id) => {
            store.find(id).await?.into_iter().filter(|row| row.status == dead.as_str()).collect()
        }
    };
    Ok(rows.into_iter().map(|row| row.id).collect())
}

/// That there is nothing to unpark, and where to look.
pub(crate) fn nothing_dead(target: &Unpark) -> String {
    match target {
        Unpark::Key(key) => {
            format!(
                "no event of the key {key} is dead; `postrider outbox status` lists the keys that are parked"
            )
        }
        Unpark::Event(id) => {
            format!("no event {id} is dead; `postrider outbox ls --status dead` lists those that are")
        }
    }
}

/// Outboxes are named by label or table; the default one is meant where none is named, and a name that there is not is a problem.
#[async_trait]
pub(crate) trait Outbox {
    /// How every one stands, the default one first.
    async fn outboxes(&self) -> Answer<Vec<Standing>>;
    /// How one stands.
    async fn outbox(&self, outbox: Option<&str>, parked: usize) -> Answer<OutboxReport>;
    /// A page of its events, the newest first.
    async fn rows(&self, outbox: Option<&str>, filter: &RowFilter, limit: usize) -> Answer<RowPage>;
    /// One event with its payload.
    async fn row(&self, outbox: Option<&str>, id: &EventId) -> Answer<Option<RowView>>;
    /// Gives dead events new attempts. A problem, and nothing in the audit log, where none is dead.
    async fn unpark(
        &self,
        outbox: Option<&str>,
        target: &Unpark,
        by: &str,
        reason: Option<&str>,
    ) -> Answer<Vec<EventId>>;
}

#[async_trait]
impl<S: WholeStore> Outbox for StoreDesk<S> {
    async fn outboxes(&self) -> Answer<Vec<Standing>> {
        Ok(standings(&self.outboxes, 0, PATIENCE).await)
    }

    async fn outbox(&self, outbox: Option<&str>, parked: usize) -> Answer<OutboxReport> {
        Ok(report(&self.named(outbox)?.store, parked).await?)
    }

    async fn rows(&self, outbox: Option<&str>, filter: &RowFilter, limit: usize) -> Answer<RowPage> {
        Ok(self.named(outbox)?.store.list(filter, limit).await?)
    }

    async fn row(&self, outbox: Option<&str>, id: &EventId) -> Answer<Option<RowView>> {
        Ok(self.named(outbox)?.store.find(id).await?)
    }

    async fn unpark(
        &self,
        outbox: Option<&str>,
        target: &Unpark,
        by: &str,
        reason: Option<&str>,
    ) -> Answer<Vec<EventId>> {
        let named = self.named(outbox)?;
        if dead(&named.store, target).await?.is_empty() {
            return Err(Problem::new(Code::NotFound, nothing_dead(target)));
        }
        self.record(by, "outbox.unparked", named.subject(target), reason).await?;
        Ok(named.store.unpark(target).await?)
    }
}

impl<S: WholeStore> StoreDesk<S> {
    /// The outbox of this name, or a problem that says which there are.
    pub(super) fn named(&self, outbox: Option<&str>) -> Answer<&OpenOutbox<S>> {
        outboxes::find(&self.outboxes, outbox).map_err(|told| Problem::new(Code::NotFound, told))
    }
}
