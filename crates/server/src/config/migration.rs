//! `[migration]`: from an old bus to a new one.

use postrider::migration::{
    Definition, LatencyRule, Legacy, LegacyFormat, MigrationName, OnLatency, Template,
};
use postrider::topology::{BindingKey, ExchangeName, Layout, QueueName, RoutingKey};
use serde::Deserialize;

/// From an old bus to a new one. Read when a migration is started; from then on the store has it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Migration {
    pub(crate) dual_publish: bool,
    name: String,
    legacy_exchange: String,
    legacy_queue: String,
    legacy_routing_key: String,
    legacy_template: String,
    events: Vec<String>,
    block_on_legacy: bool,
    warn_ms: u64,
    limit_ms: u64,
    on_latency: OnLatency,
}

/// What the SMAP design migrates from: exchange, queue and events.
const SMAP: (&str, &str, &str) = ("smtp_send_email_exc", "smtp_send_email", "email.#");

impl Migration {
    /// The migration that can be started; none where no old exchange is named. The preset `smap` brings its own along, but for what
    /// is said here. `chosen`: somebody set `migration.events`.
    pub(super) fn definition(
        &self,
        layout: &Layout,
        chosen: bool,
    ) -> Result<Option<Definition>, (&'static str, String)> {
        let smap = self.legacy_exchange.is_empty()
            && layout.exchange.as_str() == "smap.events"
            && layout.topology.exchanges.iter().any(|exchange| exchange.name.as_str() == SMAP.0);
        if self.legacy_exchange.is_empty() && !smap {
            return Ok(None);
        }
        let or_smap = |said: &str, known: &str| if smap && said.is_empty() { known } else { said }.to_owned();
        let (exchange, queue) = (or_smap(&self.legacy_exchange, SMAP.0), or_smap(&self.legacy_queue, SMAP.1));
        let events = if smap && !chosen { vec![SMAP.2.to_owned()] } else { self.events.clone() };
        if events.is_empty() {
            return Err(("migration.events", "must have a pattern; [\"#\"] is every event".to_owned()));
        }
        let format = if self.legacy_template.is_empty() {
            LegacyFormat::Bare
        } else {
            let template =
                serde_json::from_str(&self.legacy_template).map_err(wrong("migration.legacy_template"))?;
            LegacyFormat::Template(Template::new(template).map_err(wrong("migration.legacy_template"))?)
        };
        let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        let exchange = ExchangeName::new(exchange).map_err(wrong("migration.legacy_exchange"))?;
        if exchange == layout.exchange {
            return Err((
                "migration.legacy_exchange",
                "is the exchange of the new bus; name the old one".to_owned(),
            ));
        }
        let queue = some(&queue).map(QueueName::new).transpose().map_err(wrong("migration.legacy_queue"))?;
        let consumed = layout.services.iter().find(|service| Some(service.name()) == queue.as_ref());
        let waits = consumed.into_iter().flat_map(|service| &service.wait_queues);
        Ok(Some(Definition {
            name: MigrationName::new(&self.name).map_err(wrong("migration.name"))?,
            exchange: layout.exchange.clone(),
            events: events
                .iter()
                .map(BindingKey::new)
                .collect::<Result<_, _>>()
                .map_err(wrong("migration.events"))?,
            legacy: Legacy {
                exchange,
                waits: waits.map(|wait| wait.name.clone()).collect(),
                queue,
                routing_key: some(&self.legacy_routing_key)
                    .map(RoutingKey::new)
                    .transpose()
                    .map_err(wrong("migration.legacy_routing_key"))?,
                format,
            },
            block_on_legacy: self.block_on_legacy,
            latency: LatencyRule {
                warn_ms: self.warn_ms,
                limit_ms: self.limit_ms,
                on_latency: self.on_latency,
            },
        }))
    }
}

/// An error of this setting.
fn wrong<E: std::fmt::Display>(key: &'static str) -> impl Fn(E) -> (&'static str, String) {
    move |error| (key, error.to_string())
}
