//! The configuration: defaults, then a file, then the environment, then flags.
//!
//! Nothing is guessed: an unknown setting, a wrong type or a bad value is an error that says where it stands and what
//! is allowed, and nothing has been touched by then.

mod backends;
mod consumer;
mod environment;
mod layers;
mod ledger;
mod live;
mod migration;
mod observing;
mod outboxes;
mod partition;
mod push;
mod retry;
mod secret;
mod sections;
mod taking;
mod topology;
mod triage;

pub(crate) use backends::{Backends, Server};
pub(crate) use environment::Environment;
pub(crate) use layers::ConfigError;
pub(crate) use ledger::consumer as ledger_consumer;
pub(crate) use live::Live;
pub(crate) use observing::LogFormat;
pub(crate) use outboxes::OutboxChoice;
pub(crate) use partition::PartitionChoice;
pub(crate) use push::{OLD_SECRET_STAYS, PushForm, Pushed};
pub(crate) use secret::Secret;
pub(crate) use sections::{ArchiveChoice, Http, Limits, Settings, Tls};
pub(crate) use taking::takes_from;
pub(crate) use topology::{OwnTopology, check as check_topology, to_toml};

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use layers::Layers;
use postrider::consumer::ConsumerConfig;
use postrider::push::Subscription;
use postrider::store::StoredSubscription;
use postrider::topology::{ConsumerName, Layout, Topology};

/// Every setting with its default.
pub(crate) const DEFAULTS: &str = include_str!("../../../config.default.toml");

/// The file that is read when nobody names one.
const FILE: &str = "postrider.toml";

/// Everything that was set, checked.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    /// The settings as they are written.
    pub(crate) settings: Settings,
    /// Which servers they choose.
    pub(crate) backends: Backends,
    /// RabbitMQ's management API, where there is RabbitMQ.
    pub(crate) management: Option<Server>,
    /// Redis, where there is one.
    pub(crate) redis: Option<Server>,
    /// The topology they describe.
    pub(crate) own: OwnTopology,
    /// The outboxes, the default one first.
    pub(crate) outboxes: Vec<OutboxChoice>,
    /// The rules that replay dead letters by schedule.
    pub(crate) rules: Vec<postrider::triage::Rule>,
    /// The push subscriptions.
    pub(crate) push: Vec<Pushed>,
    /// The migration that can be started.
    pub(crate) migration: Option<postrider::migration::Definition>,
    /// Where requests of ours may go beside public https.
    pub(crate) allowed: postrider::push::Allowed,
    /// Every value as text, to tell what a reload changed.
    values: BTreeMap<String, Secret>,
}

/// What decides over the file and the environment.
#[derive(Debug, Clone, Default)]
pub(crate) struct Flags {
    /// `--config FILE`
    pub(crate) file: Option<PathBuf>,
    /// Settings that a flag gives: the flag, the setting, the value.
    pub(crate) values: Vec<(&'static str, &'static str, String)>,
    /// RabbitMQ without a database will do.
    pub(crate) broker_alone: bool,
}

impl Config {
    /// Reads all layers.
    pub(crate) fn load(flags: &Flags, environment: &Environment) -> Result<Self, ConfigError> {
        let file = flags.file.clone().or_else(|| environment.config_file());
        let text = read_file(file.as_deref())?;
        let defaults = Layers::new(DEFAULTS)?;
        let overrides = environment.overrides(&defaults)?;

        let mut layers = defaults;
        if let Some((name, text)) = &text {
            layers.file(name, text)?;
        }
        for set in &overrides {
            layers.set(&set.origin, &set.key, &set.value)?;
        }
        for (flag, key, value) in &flags.values {
            layers.set(flag, key, value)?;
        }
        Self::check(&layers, flags.broker_alone)
    }

    /// With this text for the file, and nothing else.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn of_text(text: &str) -> Result<Self, ConfigError> {
        let mut layers = Layers::new(DEFAULTS)?;
        layers.file("the text", text)?;
        Self::check(&layers, false)
    }

    fn check(layers: &Layers<'_>, broker_alone: bool) -> Result<Self, ConfigError> {
        let wrong = |(key, problem): (&str, String)| ConfigError {
            origin: layers.origin(key),
            key: key.to_owned(),
            problem,
        };
        let settings = layers.read().map_err(|error| wrong(("", error.message().to_owned())))?;
        if let Some(broken) = settings.broken_rules().into_iter().next() {
            return Err(wrong(broken));
        }
        let mut own = OwnTopology::of(&settings, layers.is_set("outbox.exchange")).map_err(wrong)?;
        let backends = Backends::of(&settings, own.layout.vhost.as_ref(), broker_alone).map_err(wrong)?;
        let management = match &backends {
            Backends::Embedded { .. } => None,
            Backends::Networked { broker, .. } | Backends::BrokerAlone { broker } => {
                Some(backends::management(&settings, broker).map_err(wrong)?)
            }
        };
        settings.ledger.fits(&own.layout, &settings.outbox.table).map_err(wrong)?;
        settings.ledger.join(&mut own).map_err(wrong)?;
        let outboxes = outboxes::all(&settings, &own.layout).map_err(wrong)?;
        let redis = backends::redis(&settings).map_err(wrong)?;
        let rules = settings.triage.rules().map_err(wrong)?;
        let allowed = postrider::push::Allowed::new(&settings.egress.allow);
        let allowed = allowed.map_err(|why| wrong(("egress.allow", why)))?;
        let push = push::all(&settings.push, &allowed).map_err(wrong)?;
        for (at, pushed) in push.iter().enumerate() {
            let before: Vec<_> = push[..at].iter().map(|pushed| &pushed.subscription).collect();
            let others = taking::Others {
                declared: &own.layout.topology,
                services: &own.layout.services,
                consumers: &own.consumers,
                subscriptions: &before,
                ledger: &settings.ledger.queue,
            };
            if let Some(why) = others.refusal(&pushed.subscription) {
                return Err(wrong(("push", why)));
            }
            let mut whole = own.layout.topology.clone();
            own.add_to(&mut whole, &pushed.subscription, settings.topology.strict)
                .map_err(|why| wrong(("push", why.to_string())))?;
            own.layout.topology = whole;
        }
        let partitioned = matches!(backends, Backends::Networked { .. });
        own.fits_the_inbox(&settings, &push, partitioned).map_err(wrong)?;
        let migration = settings.migration.definition(&own.layout, layers.is_set("migration.events"));
        let migration = migration.map_err(wrong)?;
        let values = layers.flat().into_iter().map(|(key, value)| (key, Secret::new(value))).collect();
        Ok(Self {
            settings,
            backends,
            management,
            redis,
            own,
            outboxes,
            rules,
            push,
            migration,
            allowed,
            values,
        })
    }

    /// The topology, and the queue that one more push subscription has of its own.
    pub(crate) fn topology_with(&self, subscription: &Subscription) -> Topology {
        let mut topology = self.own.layout.topology.clone();
        // What cannot be was refused when the subscription was made.
        let _refused = self.own.add_to(&mut topology, subscription, self.settings.topology.strict);
        topology
    }

    /// The layout with the queues that push subscriptions of the store have of their own, as a process that pushes declares them.
    pub(crate) fn layout_with(&self, stored: &[StoredSubscription]) -> Layout {
        let mut layout = self.own.layout.clone();
        for StoredSubscription { subscription, .. } in stored {
            let configured = self.push.iter().any(|pushed| pushed.subscription.name == subscription.name);
            if configured || self.refusal(subscription, &[], &[]).is_some() {
                continue;
            }
            let _refused = self.own.add_to(&mut layout.topology, subscription, self.settings.topology.strict);
        }
        layout
    }

    /// Why nobody pushes to a subscription of the store as the configuration is now, if nobody does. Its events wait.
    pub(crate) fn keeps_from(&self, subscription: &Subscription) -> Option<String> {
        let unfit = subscription.check(&self.allowed).err();
        let unfit = unfit.map(|why| format!("{}: {why}", subscription.name));
        unfit.or_else(|| self.refusal(subscription, &[], &[]))
    }

    /// Why the inbox would forget events of one more push subscription before their last retry, if it would.
    pub(crate) fn forgets_too_soon(&self, pushed: &Pushed) -> Option<String> {
        let partitioned = matches!(self.backends, Backends::Networked { .. });
        let fits = self.own.fits_the_inbox(&self.settings, std::slice::from_ref(pushed), partitioned);
        fits.err().map(|(setting, why)| format!("{}: {setting} {why}", pushed.subscription.name))
    }

    /// How a push subscription's consumer works: as the subscription says, but for what a [[consumer]] of its name says.
    pub(crate) fn push_consumer(&self, subscription: &Subscription) -> ConsumerConfig {
        self.consumer_over(&subscription.name, subscription.consumer_config())
    }

    /// How those who pull are a consumer: as `usual`, under the inbox and the keys that a [[consumer]] of this name says. Its limits are
    /// not theirs: what they take is out for as long as their lease.
    pub(crate) fn pull_consumer(&self, name: &ConsumerName, usual: ConsumerConfig) -> ConsumerConfig {
        let ConsumerConfig { inbox, key_prefix, .. } = self.consumer_over(name, usual.clone());
        ConsumerConfig { inbox, key_prefix, ..usual }
    }

    fn consumer_over(&self, name: &ConsumerName, usual: ConsumerConfig) -> ConsumerConfig {
        let usual = ConsumerConfig { inbox: self.inbox_of(name), ..usual };
        let named = self.settings.consumer.iter().find(|consumer| consumer.name == *name);
        let said = named.map(|consumer| consumer.over(usual.clone()));
        // What cannot be was refused when the configuration was read.
        said.and_then(Result::ok).unwrap_or(usual)
    }

    /// The inbox that a consumer shares with others, if it does. Whoever's inbox another consumer shares, shares it too.
    pub(crate) fn inbox_of(&self, name: &ConsumerName) -> Option<ConsumerName> {
        let consumers = &self.settings.consumer;
        let own = consumers.iter().find(|consumer| consumer.name == *name);
        let lent = consumers.iter().any(|consumer| consumer.inbox.as_ref() == Some(name));
        own.and_then(|own| own.inbox.clone()).or_else(|| lent.then(|| name.clone()))
    }

    /// The settings that differ between two readings, by name.
    fn changed<'a>(&'a self, other: &'a Self) -> Vec<&'a str> {
        let differs =
            |key: &&String| self.values.get(*key).map(Secret::get) != other.values.get(*key).map(Secret::get);
        let mut all: Vec<&String> = self.values.keys().chain(other.values.keys()).filter(differs).collect();
        all.sort();
        all.dedup();
        all.into_iter().map(String::as_str).collect()
    }
}

/// The file that was named must be there; the one that was not need not.
fn read_file(named: Option<&Path>) -> Result<Option<(String, String)>, ConfigError> {
    let path = named.unwrap_or(Path::new(FILE));
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some((path.display().to_string(), text))),
        Err(error) if error.kind() == ErrorKind::NotFound && named.is_none() => Ok(None),
        Err(error) => Err(ConfigError {
            origin: path.display().to_string(),
            key: String::new(),
            problem: format!("cannot read the configuration: {error}"),
        }),
    }
}

#[cfg(test)]
mod hostile;
#[cfg(test)]
mod tests;
