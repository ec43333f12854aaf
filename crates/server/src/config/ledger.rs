//! `[ledger]`: where its events come from, and how it tells of its entries.

use std::path::PathBuf;
use std::time::Duration;

use postrider::InvalidText;
use postrider::envelope::TenantId;
use postrider::store::{AppliedIn, Registration};
use postrider::topology::{ConsumerName, ExchangeName, Layout, ServiceQueue};
use postrider_ledger::checkpoint::PublicKey;
use serde::Deserialize;

use super::outboxes::OutboxTable;
use super::topology::OwnTopology;

/// The consumer that the ledger is: listed, paused and accounted for under this name, which its dead letters have too.
pub(crate) const CONSUMER: &str = "ledger";

/// The financial ledger.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Ledger {
    pub(crate) queue: String,
    tenant: String,
    pub(crate) tenants_at_once: usize,
    pub(crate) announce_exchange: String,
    pub(crate) outbox: String,
    pub(crate) signing_key_file: PathBuf,
    trusted_keys: Vec<String>,
    checkpoint_minutes: u32,
}

impl Ledger {
    /// Whose events are those that name nobody.
    pub(crate) fn tenant(&self) -> Result<Option<TenantId>, InvalidText> {
        if self.tenant.is_empty() { Ok(None) } else { TenantId::new(&self.tenant).map(Some) }
    }

    /// Whose checkpoints count; anybody's when there are none.
    pub(crate) fn trusted_keys(&self) -> Result<Vec<PublicKey>, String> {
        self.trusted_keys.iter().map(|key| key.parse()).collect()
    }

    /// How often `serve` signs checkpoints; nothing if it does not.
    pub(crate) fn checkpoint_every(&self) -> Option<Duration> {
        (self.checkpoint_minutes > 0).then(|| Duration::from_mins(self.checkpoint_minutes.into()))
    }

    /// Its queue's consumer, if it has a queue: among those of the configuration, so that it is known before it first starts. A consumer of
    /// its name, or of its queue, would be taken for it.
    pub(super) fn join(&self, own: &mut OwnTopology) -> Result<(), (&'static str, String)> {
        let Some(service) = own.layout.services.iter().find(|service| self.takes_from(service)) else {
            return Ok(());
        };
        let takes = |other: &&Registration| other.service.name() == service.name();
        let named = |other: &&Registration| other.name.as_str() == CONSUMER;
        if let Some(other) = own.consumers.iter().find(|other| takes(other) || named(other)) {
            let problem = format!(
                "the ledger is the consumer {CONSUMER}, of the queue {}; remove the [[consumer]] {}, or give it another name and queue",
                service.name(),
                other.name
            );
            return Err(("consumer", problem));
        }
        own.consumers.push(Registration {
            name: consumer().map_err(|error| ("consumer", error.to_string()))?,
            inbox: None,
            applied_in: AppliedIn::Books,
            service: service.clone(),
            topology: own.layout.topology.clone(),
            exchange: own.layout.exchange.clone(),
            since: None,
            push: None,
        });
        Ok(())
    }

    fn takes_from(&self, service: &ServiceQueue) -> bool {
        !self.queue.is_empty() && service.name().as_str() == self.queue
    }

    /// Whether everything it names is there. An error names the setting and what is wrong with it.
    pub(super) fn fits(&self, layout: &Layout, tables: &[OutboxTable]) -> Result<(), (&'static str, String)> {
        let declared = layout.services.iter().any(|service| service.name().as_str() == self.queue);
        if !self.queue.is_empty() && !declared {
            let problem =
                format!("{} is no queue that is consumed here; declare it as [[queue]]", self.queue);
            return Err(("ledger.queue", problem));
        }
        // Entries and the events that tell of them commit together, so it must be in the same database.
        let here = |table: &OutboxTable| table.name == self.outbox && table.url.get().is_none();
        if !self.outbox.is_empty() && !tables.iter().any(here) {
            let problem = format!(
                "{} is no outbox of this database, so nobody would relay it; add [[outbox.table]]",
                self.outbox
            );
            return Err(("ledger.outbox", problem));
        }
        self.tenant().map_err(|error| ("ledger.tenant", error.to_string()))?;
        if !self.announce_exchange.is_empty() {
            let named = ExchangeName::new(&self.announce_exchange);
            named.map_err(|error| ("ledger.announce_exchange", error.to_string()))?;
        }
        self.trusted_keys().map_err(|problem| ("ledger.trusted_keys", problem))?;
        if !(1..=64).contains(&self.tenants_at_once) {
            return Err(("ledger.tenants_at_once", "must be from 1 to 64".to_owned()));
        }
        Ok(())
    }
}

/// The name of the ledger's consumer.
pub(crate) fn consumer() -> Result<ConsumerName, InvalidText> {
    ConsumerName::new(CONSUMER)
}
