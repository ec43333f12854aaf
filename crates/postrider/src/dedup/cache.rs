//! The port to a cache: a few bytes by key, which may vanish at any moment.

use std::sync::Arc;

use async_trait::async_trait;

use crate::envelope::TenantId;

/// A cache. It may forget anything, and be away; it must never make up what was not written.
#[async_trait]
pub trait Cache: Send + Sync + 'static {
    /// Writes each entry whose key is not there, and says what is there already. One round trip, however many.
    async fn first_sight(&self, entries: &[Entry]) -> Result<Vec<Found>, CacheError>;

    /// Replaces the values of those keys that are still there. One round trip, however many.
    async fn replace(&self, entries: &[Entry]) -> Result<(), CacheError>;

    /// Leaves the connection there is, which may be a dead one, and makes another.
    async fn connect(&self) -> Result<(), CacheError>;

    /// How many entries it has refused so far, over all connections, because there is no room for them.
    fn refused(&self) -> u64 {
        0
    }
}

/// Which event, in whose space.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CacheKey {
    /// Whose keys they are: a consumer's name, or the prefix it was given.
    pub space: Arc<str>,
    /// Whose event it is.
    pub tenant: Option<TenantId>,
    /// The event's id, or any other name of what happens once.
    pub id: String,
}

/// A key and its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The key.
    pub key: CacheKey,
    /// The value, a [`Record`](super::Record).
    pub value: Vec<u8>,
}

/// What was there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// Nothing: the entry is written now, if there was room.
    Nothing,
    /// This value.
    Value(Vec<u8>),
    /// Something that is no value.
    Unreadable,
}

/// Why a cache did not answer. Nothing is lost by it: the store is asked instead.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct CacheError {
    /// What happened and what to do. No credentials.
    pub message: String,
    /// What was behind it.
    #[source]
    pub source: Option<Box<dyn std::error::Error + Send + Sync>>,
}
