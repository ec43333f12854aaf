//! A backend in memory, which fails as it is told.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use postrider::broker::{BrokerError, BrokerErrorKind};
use postrider::store::{Committed, StoreError, StoreErrorKind, Token, TokenHash};
use postrider::{Clock, Event, EventId};
use tokio::sync::Notify;

use crate::api::{ApiBackend, Backlogs};

#[derive(Default)]
pub(super) struct Memory {
    pub(super) events: Arc<Mutex<Vec<Event>>>,
    pub(super) tokens: Vec<Token>,
    pub(super) store_is_down: bool,
    /// Nobody can be asked for tokens any more.
    pub(super) away: Arc<AtomicBool>,
    /// The first event that comes alone waits to be told to go on.
    pub(super) hangs: AtomicBool,
    pub(super) go_on: Arc<Notify>,
    /// How many times it commits and does not learn that it did.
    pub(super) doubts: AtomicUsize,
    /// How many times it was asked to commit something, or what it has.
    pub(super) asked: Arc<AtomicUsize>,
}

impl Memory {
    fn doubt(&self) -> Result<(), StoreError> {
        let doubts = self.doubts.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        doubts.map_or(Ok(()), |_| Err(StoreError::new(StoreErrorKind::Unavailable, "cut off at the commit")))
    }

    fn take(&self, event: Event) -> Result<EventId, StoreError> {
        assert!(event.event_type.as_str() != "test.panic", "asked to");
        let mut events = self.events.lock().unwrap();
        if event.id.is_some() && events.iter().any(|other| other.id == event.id) {
            return Err(StoreError::new(StoreErrorKind::Duplicate, "again"));
        }
        let id = event.id.clone().unwrap_or_else(|| EventId::new("fresh").unwrap());
        events.push(event);
        Ok(id)
    }
}

#[async_trait]
impl ApiBackend for Memory {
    async fn append(&self, event: Event) -> Result<EventId, StoreError> {
        if self.hangs.swap(false, Ordering::SeqCst) {
            self.go_on.notified().await;
        }
        self.check_store().await?;
        self.asked.fetch_add(1, Ordering::SeqCst);
        let id = self.take(event)?;
        self.doubt().map(|()| id)
    }
    async fn append_all(&self, all: Vec<Event>) -> Result<Vec<EventId>, StoreError> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let before = self.events.lock().unwrap().clone();
        let mut ids = Vec::new();
        for event in all {
            match self.take(event) {
                Ok(id) => ids.push(id),
                Err(error) => {
                    *self.events.lock().unwrap() = before;
                    return Err(error);
                }
            }
        }
        self.doubt().map(|()| ids)
    }
    async fn committed(&self, ids: &[EventId]) -> Result<HashMap<EventId, Committed>, StoreError> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let events = self.events.lock().unwrap();
        let said = |event: &Event| Committed {
            event_type: event.event_type.to_string(),
            payload_hash: event.payload.hash(),
            tenant: event.tenant.group.as_ref().map(ToString::to_string),
            aggregate_id: event.aggregate_id.as_ref().map(ToString::to_string),
        };
        let found = events.iter().filter_map(|event| Some((event.id.clone()?, said(event))));
        Ok(found.filter(|(id, _)| ids.contains(id)).collect())
    }
    async fn token(&self, hash: &TokenHash) -> Result<Option<Token>, StoreError> {
        if self.away.load(Ordering::SeqCst) {
            return Err(StoreError::new(StoreErrorKind::Unavailable, "away"));
        }
        Ok(self.tokens.iter().find(|token| token.hash == *hash).cloned())
    }
    async fn record(&self, _: postrider::store::LogEntry) -> Result<(), StoreError> {
        Ok(())
    }
    async fn has_tokens(&self) -> Result<bool, StoreError> {
        if self.away.load(Ordering::SeqCst) {
            return Err(StoreError::new(StoreErrorKind::Unavailable, "away"));
        }
        Ok(!self.tokens.is_empty())
    }
    async fn check_store(&self) -> Result<(), StoreError> {
        if self.store_is_down {
            return Err(StoreError::new(StoreErrorKind::Unavailable, "down, password hunter2"));
        }
        Ok(())
    }
    async fn outbox(&self) -> Result<Backlogs, StoreError> {
        self.check_store().await.map(|()| Backlogs::default())
    }
    async fn store_time(&self) -> Result<jiff::Timestamp, StoreError> {
        self.check_store().await.map(|()| Clock::system().now())
    }

    async fn check_broker(&self) -> Result<(), BrokerError> {
        Err(BrokerError::new(BrokerErrorKind::Unavailable, "away"))
    }
}
