//! The outboxes, open: each in its database, with how it is relayed and kept.

use std::collections::BTreeMap;
use std::time::Duration;

use postrider::Clock;
use postrider::archive::Shelf;
use postrider::audit::Source;
use postrider::migration::{self, Databases};
use postrider::operation::{EventPlan, shelf};
use postrider::postgres::Postgres;
use postrider::relay::{Backoff, RelayConfig};
use postrider::runtime::FurtherOutbox;
use postrider::sqlite::Sqlite;
use postrider::store::{
    Archive, Backend, EventFilter, HouseRules, PartitionSpan, StoreError, StoreErrorKind, Unpark,
};

use crate::config::{ArchiveChoice, Config, OutboxChoice, PartitionChoice, Server};
use crate::exit::absent;
use crate::wiring::{self, WholeStore};

/// One outbox.
#[derive(Clone)]
pub(crate) struct OpenOutbox<S> {
    /// Its database, at this outbox.
    pub(crate) store: S,
    /// How it is called, relayed and kept.
    pub(crate) choice: OutboxChoice,
}

/// A store that can be opened at another place.
pub(crate) trait Elsewhere: Sized {
    /// The database there. Connects when it is used: one that is away holds up no other.
    fn at(config: &Config, database: &Server, clock: Clock) -> Result<Self, StoreError>;
}

impl Elsewhere for Postgres {
    fn at(config: &Config, database: &Server, clock: Clock) -> Result<Self, StoreError> {
        Self::lazy(&wiring::postgres(config, database), clock)
    }
}

impl Elsewhere for Sqlite {
    fn at(_config: &Config, database: &Server, _clock: Clock) -> Result<Self, StoreError> {
        let text =
            format!("the embedded default has one outbox and cannot relay {}; set store.url", database.shown);
        Err(StoreError::new(StoreErrorKind::Invalid, text))
    }
}

/// All outboxes of the configuration, the default one first.
pub(crate) fn open<S: WholeStore>(
    store: &S,
    config: &Config,
    clock: &Clock,
) -> Result<Vec<OpenOutbox<S>>, StoreError> {
    let mut databases: BTreeMap<&str, S> = BTreeMap::new();
    let mut open = Vec::new();
    for choice in &config.outboxes {
        let database = match &choice.database {
            None => store.clone(),
            Some(server) => {
                if !databases.contains_key(server.shown.as_str()) {
                    databases.insert(&server.shown, S::at(config, server, clock.clone())?);
                }
                databases[server.shown.as_str()].clone()
            }
        };
        let store = match &choice.table {
            Some(table) => database.outbox(table)?,
            None => database,
        };
        open.push(OpenOutbox { store, choice: choice.clone() });
    }
    Ok(open)
}

/// The one that somebody names by its label or its table, or the default one. If there is none, which there are.
pub(crate) fn find<'a, S>(
    open: &'a [OpenOutbox<S>],
    name: Option<&str>,
) -> Result<&'a OpenOutbox<S>, String> {
    let found = match name {
        Some(name) => {
            let by_label = open.iter().find(|outbox| outbox.choice.label == name);
            by_label.or_else(|| open.iter().find(|outbox| outbox.choice.table.as_deref() == Some(name)))
        }
        None => open.first(),
    };
    found.ok_or_else(|| {
        let known: Vec<_> = open.iter().map(|outbox| outbox.choice.label.as_str()).collect();
        format!("there is no outbox {}; there are: {}", name.unwrap_or_default(), known.join(", "))
    })
}

/// The same, for a command.
pub(crate) fn named<S: Clone>(open: &[OpenOutbox<S>], name: Option<&str>) -> anyhow::Result<OpenOutbox<S>> {
    find(open, name).cloned().map_err(absent)
}

/// Every database, the store's own first, each at the first of its outboxes.
pub(crate) fn databases<S: Clone>(open: Vec<OpenOutbox<S>>) -> Vec<OpenOutbox<S>> {
    let mut databases: Vec<OpenOutbox<S>> = Vec::new();
    for outbox in open {
        if !databases.iter().any(|known| known.choice.place() == outbox.choice.place()) {
            databases.push(outbox);
        }
    }
    databases
}

/// Every database, for a migration between buses: the store's own keeps it, the others follow.
pub(crate) fn buses<S: WholeStore>(store: &S, open: &[OpenOutbox<S>], clock: &Clock) -> Databases<S> {
    let elsewhere = open.iter().filter_map(|outbox| Some((outbox.choice.place()?, &outbox.store)));
    let main = Databases::new(store.clone(), clock.clone());
    elsewhere.fold(main, |all, (database, store)| all.and(database, store.clone()))
}

impl<S> OpenOutbox<S> {
    /// What is unparked in it, for the audit log.
    pub(crate) fn subject(&self, target: &Unpark) -> String {
        let what = match target {
            Unpark::Key(key) => format!("ordering_key/{key}"),
            Unpark::Event(id) => format!("event/{id}"),
        };
        let is_default = self.choice.table.is_none();
        if is_default { what } else { format!("outbox/{}/{what}", self.choice.label) }
    }
}

impl<S: WholeStore> OpenOutbox<S> {
    /// Says in the log if it cannot be read: its relay finds nothing to do then, and says nothing. Not waited for, so that a database that
    /// is away holds up no other.
    pub(crate) fn tell_if_unreadable(&self) {
        let (store, label) = (self.store.clone(), self.choice.label.clone());
        tokio::spawn(async move {
            if let Err(error) = store.backlog().await {
                tracing::warn!(outbox = %label, %error, "an outbox cannot be read, and nothing of it is published meanwhile");
            }
        });
    }
}

impl<S: Backend> OpenOutbox<S> {
    /// How its relay works.
    pub(crate) fn relay(&self, config: &Config) -> RelayConfig {
        let mut relay = relay(config);
        relay.exchange = self.choice.exchange.clone();
        relay.routing_key.clone_from(&self.choice.routing_key);
        if let Some(format) = self.choice.format {
            relay.format = format;
            relay.formats.remove(&relay.exchange);
        }
        relay
    }

    /// How long it keeps what is published.
    pub(crate) fn house(&self, config: &Config) -> HouseRules {
        let mut house = house(config);
        if let Archive::Files(folder) = &mut house.archive {
            folder.clone_from(&self.choice.archive_dir);
        }
        house
    }

    /// For the runtime.
    pub(crate) fn further(self, config: &Config) -> FurtherOutbox<S> {
        FurtherOutbox {
            relay: self.relay(config),
            house: self.house(config),
            database: self.choice.place().map(str::to_owned),
            label: self.choice.label,
            store: self.store,
        }
    }

    /// For a comparison of both buses.
    pub(crate) fn publishing(self, config: &Config) -> migration::Source<S> {
        let source = migration::Source::new(self.store.clone(), &self.choice.label, self.relay(config));
        match self.choice.place() {
            Some(database) => source.elsewhere(database),
            None => source,
        }
    }

    /// For the audit.
    pub(crate) fn source(self) -> Source<S> {
        let is_default = self.choice.table.is_none() && self.choice.database.is_none();
        Source {
            store: self.store,
            exchange: (!is_default).then_some(self.choice.exchange),
            routing_key: self.choice.routing_key,
            elsewhere: self.choice.database.is_some(),
            until: i64::MAX,
        }
    }

    /// A plan to send its events again: where each went, as it was written.
    pub(crate) fn replay(&self, config: &Config, filter: EventFilter) -> EventPlan {
        let relay = self.relay(config);
        EventPlan {
            filter,
            limit: None,
            to_queue: None,
            reapply: false,
            exchange: relay.exchange,
            format: relay.format,
            formats: relay.formats,
            outbox: self.choice.table.clone(),
            routing_key: relay.routing_key,
        }
    }

    /// Its archive files, if there is a folder of them.
    pub(crate) fn files(&self, plan: &EventPlan) -> Result<Option<Shelf>, StoreError> {
        let folder = &self.choice.archive_dir;
        folder.is_dir().then(|| shelf(&self.store, plan, folder)).transpose()
    }
}

pub(crate) fn relay(config: &Config) -> RelayConfig {
    let relay = &config.settings.relay;
    RelayConfig {
        exchange: config.own.layout.exchange.clone(),
        formats: config.own.layout.formats.clone(),
        batch_size: usize::try_from(relay.batch_size).unwrap_or(usize::MAX),
        lanes: relay.lanes,
        poll_interval: Duration::from_millis(relay.poll_interval_ms),
        lease: Duration::from_millis(relay.lease_ms),
        mode: relay.mode,
        max_lag_bytes: relay.max_lag_bytes,
        max_attempts: relay.max_attempts,
        backoff: Backoff {
            base: Duration::from_millis(relay.backoff_base_ms),
            max: Duration::from_millis(relay.backoff_max_ms),
        },
        ..RelayConfig::default()
    }
}

/// How long the outbox keeps what is published.
pub(crate) fn house(config: &Config) -> HouseRules {
    let outbox = &config.settings.outbox;
    HouseRules {
        keep: Duration::from_hours(24 * u64::from(outbox.retention_days)),
        archive: match outbox.archive {
            ArchiveChoice::None => Archive::Nowhere,
            ArchiveChoice::Table => Archive::Table,
            ArchiveChoice::Files => Archive::Files(outbox.archive_dir.clone()),
        },
        partition: match outbox.partition {
            PartitionChoice::Day => PartitionSpan::Day,
            PartitionChoice::Week => PartitionSpan::Week,
            PartitionChoice::Month => PartitionSpan::Month,
        },
        ahead: outbox.partitions_ahead,
    }
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::config::{Environment, Flags};

    #[test]
    fn the_binary_and_the_library_have_the_same_defaults() {
        let config = Config::load(&Flags::default(), &Environment::default()).unwrap();
        let ours = relay(&config);
        let theirs = RelayConfig { exchange: ours.exchange.clone(), ..RelayConfig::default() };
        assert_eq!(format!("{ours:?}"), format!("{theirs:?}"));
        assert_eq!(house(&config), HouseRules::default());
        assert_eq!(config.settings.inbox.keep(), postrider::runtime::INBOX_KEEPS);
    }
}
