//! Outboxes beside the first.

use crate::migration::Source;
use crate::relay::RelayConfig;
use crate::store::HouseRules;

/// An outbox beside the first: another table, in the same database or in one of its own.
pub struct FurtherOutbox<S> {
    /// Its database, at this outbox.
    pub store: S,
    /// What metrics call it.
    pub label: String,
    /// How its relay works.
    pub relay: RelayConfig,
    /// How long it keeps what is published.
    pub house: HouseRules,
    /// How its database is called, where that is another than the first one's.
    pub database: Option<String>,
}

impl<S: Clone> FurtherOutbox<S> {
    /// For a comparison of both buses.
    pub(super) fn source(&self) -> Source<S> {
        let source = Source::new(self.store.clone(), &self.label, self.relay.clone());
        match &self.database {
            Some(database) => source.elsewhere(database),
            None => source,
        }
    }
}
