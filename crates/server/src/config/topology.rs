//! A topology in the short form of the configuration, and the whole one it stands for.

use std::collections::BTreeSet;
use std::time::Duration;

use postrider::envelope::wire::{Identity, Place};
use postrider::settlement::RetryPolicy;
use postrider::store::Registration;
use postrider::topology::{
    BindingKey, ConsumerName, Exchange, ExchangeKind, ExchangeName, QueueKind, QueueName, ServiceQueue,
    Topology,
};
use serde::{Deserialize, Deserializer, de::Error as _};

use super::sections::Settings;

/// `[[exchange]]`
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ExchangeShort {
    name: ExchangeName,
    #[serde(default)]
    kind: ExchangeWord,
    alternate: Option<ExchangeName>,
}

/// `[[queue]]`
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct QueueShort {
    name: QueueName,
    #[serde(default)]
    bind: Vec<BindShort>,
    #[serde(default)]
    retry: RetryShort,
    #[serde(default)]
    kind: QueueWord,
    #[serde(default)]
    single_active_consumer: bool,
    #[serde(default)]
    identity: IdentityShort,
    #[serde(default = "collected")]
    collect: bool,
}

fn collected() -> bool {
    true
}

/// Where foreign producers put identity: `/pointer` into the body, `message_id`, or a header.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct IdentityShort {
    event_id: Vec<String>,
    tenant: Vec<String>,
    event_type: Vec<String>,
    aggregate_id: Vec<String>,
}

impl From<&IdentityShort> for Identity {
    fn from(short: &IdentityShort) -> Self {
        let places = |places: &[String]| places.iter().map(|place| Place::parse(place)).collect();
        Self {
            event_id: places(&short.event_id),
            tenant: places(&short.tenant),
            event_type: places(&short.event_type),
            aggregate_id: places(&short.aggregate_id),
        }
    }
}

/// `[[consumer]]`
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ConsumerShort {
    name: ConsumerName,
    queue: Option<QueueName>,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ExchangeWord {
    #[default]
    Topic,
    Fanout,
    Direct,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum QueueWord {
    #[default]
    Quorum,
    Classic,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct RetryShort {
    #[serde(default = "max_retries")]
    max_retries: u32,
    #[serde(default = "delays")]
    delays: Vec<Delay>,
}

/// A time such as `5s`, `1m 30s` or `2h`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Delay(pub(super) Duration);

/// `"exchange:key"`, `"key"` of the outbox's own exchange, or both in a table.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct BindTable {
    exchange: Option<ExchangeName>,
    key: BindingKey,
}

#[derive(Debug, Clone)]
struct BindShort(BindTable);

fn max_retries() -> u32 {
    RetryPolicy::default().max_retries
}

fn delays() -> Vec<Delay> {
    RetryPolicy::default().delays.into_iter().map(Delay).collect()
}

impl Default for RetryShort {
    fn default() -> Self {
        Self { max_retries: max_retries(), delays: delays() }
    }
}

impl<'de> Deserialize<'de> for Delay {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let wrong =
            || D::Error::custom("a delay is text with a unit, such as \"500ms\", \"5s\", \"15m\" or \"2h\"");
        let toml::Value::String(text) = toml::Value::deserialize(deserializer)? else { return Err(wrong()) };
        let delay = text.parse::<jiff::SignedDuration>().map_err(|_| wrong())?;
        Duration::try_from(delay).map(Self).map_err(|_| wrong())
    }
}

impl<'de> Deserialize<'de> for BindShort {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match toml::Value::deserialize(deserializer)? {
            toml::Value::String(text) => {
                let (exchange, key) = match text.split_once(':') {
                    Some((exchange, key)) => {
                        (Some(ExchangeName::new(exchange).map_err(D::Error::custom)?), key)
                    }
                    None => (None, text.as_str()),
                };
                Ok(Self(BindTable { exchange, key: BindingKey::new(key).map_err(D::Error::custom)? }))
            }
            toml::Value::Table(table) => {
                table.try_into().map(Self).map_err(|e| D::Error::custom(e.message()))
            }
            _ => Err(D::Error::custom("a binding is \"exchange:key\" or { exchange = \"…\", key = \"…\" }")),
        }
    }
}

/// The topology that the settings stand for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OwnTopology {
    /// Everything to declare.
    pub(crate) topology: Topology,
    /// The queues that are consumed, each with its ladder and its dead-letter queue.
    pub(crate) services: Vec<ServiceQueue>,
    /// The consumers that are named, as the store would know them had they registered themselves.
    pub(crate) consumers: Vec<Registration>,
    /// The exchange of events that name no other.
    pub(crate) exchange: ExchangeName,
}

impl OwnTopology {
    /// Writes the short form out. An error names the setting and what is wrong with it.
    pub(super) fn of(settings: &Settings) -> Result<Self, (&'static str, String)> {
        let exchange =
            ExchangeName::new(&settings.outbox.exchange).map_err(|e| ("outbox.exchange", e.to_string()))?;
        if exchange.is_default() {
            return Err(("outbox.exchange", "must name an exchange".to_owned()));
        }
        let mut exchanges: Vec<_> = settings.exchange.iter().map(ExchangeShort::whole).collect();
        if !exchanges.iter().any(|other| other.name == exchange) {
            exchanges
                .insert(0, Exchange { name: exchange.clone(), kind: ExchangeKind::Topic, alternate: None });
        }
        let services = settings.queue.iter().map(|queue| queue.whole(&exchange));
        let services = services.collect::<Result<Vec<_>, _>>().map_err(|error| ("queue", error))?;
        let consumers = consumers(settings)?;
        let own = services.iter().fold(Topology { exchanges, ..Topology::default() }, Topology::service);
        check(&own)?;
        let registration = |(name, queue): (ConsumerName, QueueName)| {
            let service = services.iter().find(|service| *service.name() == queue)?.clone();
            Some(Registration { name, service, topology: own.clone(), exchange: exchange.clone() })
        };
        let consumers = consumers.into_iter().filter_map(registration).collect();
        Ok(Self { topology: own, services, consumers, exchange })
    }
}

impl ExchangeShort {
    fn whole(&self) -> Exchange {
        let kind = match self.kind {
            ExchangeWord::Topic => ExchangeKind::Topic,
            ExchangeWord::Fanout => ExchangeKind::Fanout,
            ExchangeWord::Direct => ExchangeKind::Direct,
        };
        Exchange { name: self.name.clone(), kind, alternate: self.alternate.clone() }
    }
}

impl QueueShort {
    fn whole(&self, own: &ExchangeName) -> Result<ServiceQueue, String> {
        if self.retry.max_retries > 0 && self.retry.delays.is_empty() {
            return Err(format!("{} retries without delays; give delays, or max_retries = 0", self.name));
        }
        let delays = self.retry.delays.iter().map(|delay| delay.0).collect();
        let policy = RetryPolicy { max_retries: self.retry.max_retries, delays };
        let mut service = ServiceQueue::new(self.name.as_str(), policy).map_err(|error| error.to_string())?;
        service = service.kind(match self.kind {
            QueueWord::Quorum => QueueKind::Quorum,
            QueueWord::Classic => QueueKind::Classic,
        });
        service.queue.single_active_consumer = self.single_active_consumer;
        service.identity = Identity::from(&self.identity);
        service.collect = self.collect;
        for BindShort(bind) in &self.bind {
            let exchange = bind.exchange.as_ref().unwrap_or(own);
            service = service.bind(exchange, bind.key.as_str()).map_err(|error| error.to_string())?;
        }
        Ok(service)
    }
}

/// The consumers that are named, each with its queue: the one of its own name, unless it says another.
fn consumers(settings: &Settings) -> Result<Vec<(ConsumerName, QueueName)>, (&'static str, String)> {
    let wrong = |error: String| ("consumer", error);
    let mut all = Vec::new();
    for consumer in &settings.consumer {
        let queue = match &consumer.queue {
            Some(queue) => queue.clone(),
            None => QueueName::new(consumer.name.as_str()).map_err(|error| wrong(error.to_string()))?,
        };
        if !settings.queue.iter().any(|known| known.name == queue) {
            return Err(wrong(format!("{} consumes {queue}, which no [[queue]] declares", consumer.name)));
        }
        all.push((consumer.name.clone(), queue));
    }
    let mut names = BTreeSet::new();
    match all.iter().find(|(name, _)| !names.insert(name)) {
        Some((name, _)) => Err(wrong(format!("{name} is there twice; a consumer's name is its own"))),
        None => Ok(all),
    }
}

/// Every name once, and nothing that leads nowhere.
fn check(topology: &Topology) -> Result<(), (&'static str, String)> {
    let mut exchanges = BTreeSet::new();
    for exchange in &topology.exchanges {
        if exchange.name.is_default() || exchange.name.as_str().starts_with("amq.") {
            return Err((
                "exchange",
                format!("{:?} is the broker's own; choose another name", exchange.name),
            ));
        }
        if !exchanges.insert(&exchange.name) {
            return Err(("exchange", format!("{} is declared twice", exchange.name)));
        }
    }
    for exchange in &topology.exchanges {
        if let Some(alternate) = exchange.alternate.as_ref().filter(|name| !exchanges.contains(name)) {
            return Err((
                "exchange",
                format!("{} has the alternate {alternate}, which is not declared", exchange.name),
            ));
        }
    }
    let mut queues = BTreeSet::new();
    if let Some(twice) = topology.queues.iter().find(|queue| !queues.insert(&queue.name)) {
        return Err((
            "queue",
            format!("{} is declared twice (NAME.wait.… and NAME.dlq are taken too)", twice.name),
        ));
    }
    match topology.bindings.iter().find(|binding| !exchanges.contains(&binding.exchange)) {
        Some(binding) => {
            let problem = format!(
                "{} is bound to {:?}, which no [[exchange]] declares",
                binding.queue, binding.exchange
            );
            Err(("queue", problem))
        }
        None => Ok(()),
    }
}
