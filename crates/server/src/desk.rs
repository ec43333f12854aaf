//! What people do with a running system, whoever asks: the command line, the HTTP API and the dashboard are faces of this.
//!
//! The functions here are written once for every store; [`Desk`] is the same with the store's type forgotten, for routes and
//! pages. Each trait is one thing that people look at.

pub(crate) mod buses;
pub(crate) mod consumers;
pub(crate) mod endpoints;
pub(crate) mod events;
pub(crate) mod jobs;
pub(crate) mod journal;
pub(crate) mod letters;
pub(crate) mod operations;
pub(crate) mod outbox;
pub(crate) mod payload;
pub(crate) mod pulse;
pub(crate) mod tokens;
pub(crate) mod topology;

use std::sync::Arc;

use postrider::Clock;
use postrider::broker::Broker;
use postrider::rabbitmq::Operator;
use postrider::store::{LogEntry, LogPage, LogQuery, Operations, StoreError};
use postrider_ledger::Ledger;

use crate::api::Problem;
use crate::at_work::AtWork;
use crate::config::{Config, Live};
use crate::outboxes::OpenOutbox;
use crate::wiring::WholeStore;

/// What is found, or the problem as every face tells it.
pub(crate) type Answer<T> = Result<T, Problem>;

/// Everything that people do.
pub(crate) trait Desk:
    letters::Letters
    + operations::Operations
    + events::Events
    + outbox::Outbox
    + consumers::Consumers
    + buses::Buses
    + topology::Topologies
    + endpoints::Endpoints
    + jobs::JobList
    + journal::Journal
    + tokens::TokenList
    + AuditLog
    + Send
    + Sync
{
}

impl<S: WholeStore> Desk for StoreDesk<S> {}

/// A desk over one store.
pub(crate) struct StoreDesk<S> {
    pub(crate) store: S,
    /// Every outbox, the default one first.
    pub(crate) outboxes: Vec<OpenOutbox<S>>,
    pub(crate) broker: Arc<dyn Broker>,
    pub(crate) config: Arc<Config>,
    /// The same, with what a reload changes.
    pub(crate) live: Live,
    pub(crate) clock: Clock,
    pub(crate) ledger: Ledger<S>,
    /// RabbitMQ's topology; none with the embedded broker, which has whatever is declared.
    pub(crate) operator: Option<Operator>,
    /// What runs in this process.
    pub(crate) at_work: Arc<AtWork>,
}

/// Who did what.
#[async_trait::async_trait]
pub(crate) trait AuditLog {
    /// A page of it, the newest first.
    async fn log(&self, query: &LogQuery) -> Answer<LogPage>;
}

#[async_trait::async_trait]
impl<S: WholeStore> AuditLog for StoreDesk<S> {
    async fn log(&self, query: &LogQuery) -> Answer<LogPage> {
        Ok(self.store.log(query).await?)
    }
}

impl<S: WholeStore> StoreDesk<S> {
    /// Writes down a change of which the store keeps no record of its own. Called before the change: a crash in between leaves an
    /// entry about something that was not done, and never a change that nobody wrote down.
    async fn record(&self, by: &str, action: &str, subject: String, reason: Option<&str>) -> Answer<()> {
        let entry = LogEntry {
            at: self.clock.now(),
            actor: by.to_owned(),
            action: action.to_owned(),
            subject,
            reason: reason.map(str::to_owned),
            detail: None,
        };
        Ok(write_down(&self.store, entry).await?)
    }
}

/// Writes down who did what, in a transaction of its own: before it is done.
pub(crate) async fn write_down<S: Operations>(store: &S, entry: LogEntry) -> Result<(), StoreError> {
    let mut tx = store.begin().await?;
    store.record(&mut tx, vec![entry]).await?;
    store.commit(tx).await
}
