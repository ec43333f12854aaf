//! The simulated cache: forgets everything when it is flushed, and answers nobody while it is away.

use async_trait::async_trait;
use postrider::dedup::{Cache, CacheError, CacheKey, Entry, Found};

use super::world::{Port, Server};

/// One process's connection to the cache.
pub(super) struct SimCache(pub(super) Port);

fn name(key: &CacheKey) -> String {
    format!("{}/{}", key.space, key.id)
}

fn away() -> CacheError {
    CacheError { message: "the simulated cache does not answer".to_owned(), source: None }
}

#[async_trait]
impl Cache for SimCache {
    async fn first_sight(&self, entries: &[Entry]) -> Result<Vec<Found>, CacheError> {
        let entries = entries.to_vec();
        let looked = self.0.call(Server::Cache, "first sight", move |world| {
            let look = |entry: Entry| {
                if let Some(value) = world.cache.get(&name(&entry.key)) {
                    return Found::Value(value.clone());
                }
                world.cache.insert(name(&entry.key), entry.value);
                Found::Nothing
            };
            entries.into_iter().map(look).collect()
        });
        looked.await.ok_or_else(away)
    }

    async fn replace(&self, entries: &[Entry]) -> Result<(), CacheError> {
        let entries = entries.to_vec();
        let replaced = self.0.call(Server::Cache, "replace", move |world| {
            for entry in entries {
                if let Some(value) = world.cache.get_mut(&name(&entry.key)) {
                    *value = entry.value;
                }
            }
        });
        replaced.await.ok_or_else(away)
    }

    async fn connect(&self) -> Result<(), CacheError> {
        self.0.call(Server::Cache, "connect", |_| ()).await.ok_or_else(away)
    }
}
