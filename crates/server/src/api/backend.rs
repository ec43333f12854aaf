//! What the API needs of a backend, type-erased once.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use postrider::broker::{Broker, BrokerError};
use postrider::store::{
    Backlog, Committed, LogEntry, Operations, Outbox, OutboxDesk, Store, StoreError, Token, TokenHash,
    Tokens, Upkeep,
};
use postrider::{Event, EventId};

use crate::desk::write_down;

/// A further database that does not answer within this is away; who asks waits a little longer.
const PATIENCE: Duration = Duration::from_secs(2);

/// A backend as the routes see it.
#[async_trait]
pub(crate) trait ApiBackend: Send + Sync {
    /// Commits an event to the outbox.
    async fn append(&self, event: Event) -> Result<EventId, StoreError>;

    /// Commits events to the outbox together: all of them or none.
    async fn append_all(&self, events: Vec<Event>) -> Result<Vec<EventId>, StoreError>;

    /// What those events say that were committed under these ids, as far as the outbox still has them.
    async fn committed(&self, ids: &[EventId]) -> Result<HashMap<EventId, Committed>, StoreError>;

    /// The token with this hash.
    async fn token(&self, hash: &TokenHash) -> Result<Option<Token>, StoreError>;

    /// Writes down who did what.
    async fn record(&self, entry: LogEntry) -> Result<(), StoreError>;

    /// Whether there is a token that nobody revoked. One that has ended counts: no door opens by itself, as time goes by.
    async fn has_tokens(&self) -> Result<bool, StoreError>;

    /// Whether the store works.
    async fn check_store(&self) -> Result<(), StoreError>;

    /// Whether the broker works.
    async fn check_broker(&self) -> Result<(), BrokerError>;

    /// What waits in all outboxes.
    async fn outbox(&self) -> Result<Backlogs, StoreError>;

    /// The time by the store's own clock.
    async fn store_time(&self) -> Result<Timestamp, StoreError>;
}

/// What waits in the outboxes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Backlogs {
    /// In those that answer.
    pub(crate) together: Backlog,
    /// In each, the first one first; nothing is known of one whose database is away.
    pub(crate) each: Vec<Option<Backlog>>,
    /// Whether a relay streams the first; else relays poll it.
    pub(crate) streamed: bool,
}

impl Backlogs {
    fn of(each: Vec<Option<Backlog>>, streamed: bool) -> Self {
        let mut together = Backlog::default();
        for Backlog { due, later, dead, parked_keys, oldest_due } in each.iter().flatten() {
            together.due += due;
            together.later += later;
            together.dead += dead;
            together.parked_keys += parked_keys;
            together.oldest_due = together.oldest_due.into_iter().chain(*oldest_due).min();
        }
        Self { together, each, streamed }
    }
}

/// A store and a broker, their types forgotten.
pub(crate) struct Erased<S> {
    pub(crate) store: S,
    /// The outboxes beside the first.
    pub(crate) further: Vec<S>,
    pub(crate) broker: Arc<dyn Broker>,
}

#[async_trait]
impl<S: Store + Outbox + OutboxDesk + Operations + Tokens + Upkeep> ApiBackend for Erased<S> {
    async fn append(&self, event: Event) -> Result<EventId, StoreError> {
        append(&self.store, event).await
    }

    async fn append_all(&self, events: Vec<Event>) -> Result<Vec<EventId>, StoreError> {
        append_all(&self.store, events).await
    }

    async fn committed(&self, ids: &[EventId]) -> Result<HashMap<EventId, Committed>, StoreError> {
        self.store.committed(ids).await
    }

    async fn token(&self, hash: &TokenHash) -> Result<Option<Token>, StoreError> {
        self.store.token(hash).await
    }

    async fn record(&self, entry: LogEntry) -> Result<(), StoreError> {
        write_down(&self.store, entry).await
    }

    async fn has_tokens(&self) -> Result<bool, StoreError> {
        Ok(self.store.tokens().await?.iter().any(|token| token.revoked_at.is_none()))
    }

    async fn check_store(&self) -> Result<(), StoreError> {
        self.store.check().await
    }

    async fn check_broker(&self) -> Result<(), BrokerError> {
        self.broker.ping().await
    }

    async fn outbox(&self) -> Result<Backlogs, StoreError> {
        let further = self.further.iter().map(async |store| {
            let found = tokio::time::timeout(PATIENCE, store.backlog()).await;
            found.ok().and_then(Result::ok)
        });
        let (first, further) = tokio::join!(self.store.backlog(), futures_util::future::join_all(further));
        let each = std::iter::once(Some(first?)).chain(further).collect();
        Ok(Backlogs::of(each, self.store.stream_state().await?.is_some()))
    }

    async fn store_time(&self) -> Result<Timestamp, StoreError> {
        Ok(self.store.facts().await?.now)
    }
}

/// Commits one event in a transaction of its own.
pub(crate) async fn append<S: Outbox>(store: &S, event: Event) -> Result<EventId, StoreError> {
    let mut ids = append_all(store, vec![event]).await?;
    ids.pop().ok_or_else(|| {
        StoreError::new(
            postrider::store::StoreErrorKind::Other,
            "the outbox returned no id for the event it took",
        )
    })
}

/// Commits events in one transaction. Their ids, in order.
async fn append_all<S: Outbox>(store: &S, events: Vec<Event>) -> Result<Vec<EventId>, StoreError> {
    let mut tx = store.begin().await?;
    let ids = store.append(&mut tx, events).await?;
    store.commit(tx).await?;
    Ok(ids)
}
