//! Exchanges, queues and consumers as the configuration writes them: short where the rest can be derived, long where wanted.

use std::collections::BTreeMap;

use postrider::envelope::EventType;
use postrider::envelope::WireFormat;
use postrider::envelope::wire::{Identity, Place};
use postrider::topology::{
    Argument, BindingKey, Consuming, DeadLetterTarget, DeliveryLimit, Exchange, ExchangeKind, ExchangeName,
    OnDead, Queue, QueueKind, QueueName, QueuePolicy, RoutingKey, ServiceQueue, WaitQueue,
};
use serde::{Deserialize, Deserializer, de::Error as _};

use crate::config::retry::{Delay, RetryShort};

/// `[[exchange]]`
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ExchangeForm {
    pub(super) name: ExchangeName,
    #[serde(default = "topic")]
    kind: ExchangeKind,
    /// Where it sends what no binding wants, by policy: absent is `NAME.unroutable`, made for it; empty is nowhere.
    pub(super) alternate: Option<ExchangeName>,
    /// The same as an argument, for exchanges that others declare so.
    alternate_argument: Option<ExchangeName>,
    /// How events are written here.
    pub(super) format: Option<WireFormat>,
}

/// `[[queue]]`
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(clippy::struct_excessive_bools, reason = "the settings are what they are")]
pub(crate) struct QueueForm {
    pub(super) name: QueueName,
    #[serde(default)]
    bind: Vec<BindForm>,
    #[serde(default)]
    retry: RetryShort,
    #[serde(default = "quorum")]
    kind: QueueKind,
    #[serde(default)]
    single_active_consumer: bool,
    #[serde(default)]
    ordered: bool,
    on_dead: Option<OnDead>,
    #[serde(default)]
    identity: IdentityForm,
    /// False: a plain queue, without wait queues and dead-letter queue.
    #[serde(default = "yes")]
    pub(super) consume: bool,
    /// False: dead letters stay in their queue.
    #[serde(default = "yes")]
    collect: bool,
    dead_letter: Option<DeadLetterForm>,
    dead_letters_to: Option<DeadLettersForm>,
    wait_queues: Option<Vec<WaitForm>>,
    message_ttl: Option<Delay>,
    delivery_limit: Option<LimitForm>,
    max_length: Option<u32>,
    max_length_bytes: Option<u64>,
    #[serde(default)]
    safe_dead_lettering: bool,
    #[serde(default)]
    arguments: BTreeMap<String, Argument>,
    /// Taken as it stands; absent, it is derived.
    policy: Option<PolicyForm>,
    prefetch: Option<u16>,
    concurrency: Option<u16>,
    max_concurrency: Option<u16>,
}

/// Where foreign producers put identity: `/pointer` into the body, `message_id`, or a header.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct IdentityForm {
    event_id: Vec<String>,
    tenant: Vec<String>,
    event_type: Vec<String>,
    aggregate_id: Vec<String>,
    /// The type of messages that name none.
    usual_type: Option<EventType>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct WaitForm {
    name: QueueName,
    delay: Delay,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct TargetForm {
    #[serde(default = "ExchangeName::default_exchange")]
    exchange: ExchangeName,
    key: Option<RoutingKey>,
}

/// Where our consumer publishes dead letters, and the queue in which they arrive.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct DeadLettersForm {
    #[serde(default = "ExchangeName::default_exchange")]
    exchange: ExchangeName,
    key: Option<RoutingKey>,
    queue: QueueName,
}

/// A target, or `"none"`.
#[derive(Debug, Clone)]
struct DeadLetterForm(Option<TargetForm>);

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct PolicyForm {
    dead_letter: Option<TargetForm>,
    #[serde(default)]
    safe_dead_lettering: bool,
    delivery_limit: Option<LimitForm>,
    max_length: Option<u64>,
    max_length_bytes: Option<u64>,
}

/// A number, or `"unlimited"`.
#[derive(Debug, Clone, Copy)]
struct LimitForm(DeliveryLimit);

/// `"exchange:key"`, `"key"` of the outbox's own exchange, or both in a table.
#[derive(Debug, Clone)]
struct BindForm(BindTable);

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct BindTable {
    exchange: Option<ExchangeName>,
    key: BindingKey,
}

fn yes() -> bool {
    true
}

fn topic() -> ExchangeKind {
    ExchangeKind::Topic
}

fn quorum() -> QueueKind {
    QueueKind::Quorum
}

impl<'de> Deserialize<'de> for LimitForm {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let limit = match toml::Value::deserialize(deserializer)? {
            toml::Value::String(text) if text == "unlimited" => Some(DeliveryLimit::Unlimited),
            toml::Value::Integer(times) => u32::try_from(times).ok().map(DeliveryLimit::Times),
            _ => None,
        };
        limit.map(Self).ok_or_else(|| D::Error::custom("a delivery limit is a whole number or \"unlimited\""))
    }
}

impl<'de> Deserialize<'de> for DeadLetterForm {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match toml::Value::deserialize(deserializer)? {
            toml::Value::String(text) if text == "none" => Ok(Self(None)),
            toml::Value::Table(table) => {
                let target =
                    table.try_into().map_err(|error: toml::de::Error| D::Error::custom(error.message()));
                target.map(|target| Self(Some(target)))
            }
            _ => {
                Err(D::Error::custom("a dead-letter target is { exchange = \"…\", key = \"…\" } or \"none\""))
            }
        }
    }
}

impl<'de> Deserialize<'de> for BindForm {
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
                table.try_into().map(Self).map_err(|e: toml::de::Error| D::Error::custom(e.message()))
            }
            _ => Err(D::Error::custom("a binding is \"exchange:key\" or { exchange = \"…\", key = \"…\" }")),
        }
    }
}

impl From<&TargetForm> for DeadLetterTarget {
    fn from(form: &TargetForm) -> Self {
        Self { exchange: form.exchange.clone(), routing_key: form.key.clone() }
    }
}

impl From<&IdentityForm> for Identity {
    fn from(form: &IdentityForm) -> Self {
        let places = |places: &[String]| places.iter().map(|place| Place::parse(place)).collect();
        Self {
            event_id: places(&form.event_id),
            tenant: places(&form.tenant),
            event_type: places(&form.event_type),
            aggregate_id: places(&form.aggregate_id),
            usual_type: form.usual_type.clone(),
        }
    }
}

impl ExchangeForm {
    /// The exchange; its policy is not decided here.
    pub(super) fn whole(&self) -> Exchange {
        Exchange { alternate: self.alternate_argument.clone(), ..Exchange::new(self.name.clone(), self.kind) }
    }
}

impl QueueForm {
    /// Whether its policy is to be derived.
    pub(super) fn is_protected(&self) -> bool {
        self.policy.is_none()
    }

    pub(super) fn consuming(&self) -> Option<Consuming> {
        let Self { prefetch, concurrency, max_concurrency, .. } = *self;
        let consuming = Consuming { prefetch, concurrency, max_concurrency };
        (consuming != Consuming::default()).then_some(consuming)
    }

    /// The queue with what belongs to it. A plain one has only its queue and its bindings.
    pub(super) fn whole(&self, own: &ExchangeName) -> Result<ServiceQueue, String> {
        let retry = self.retry.whole().map_err(|error| format!("{} {error}", self.name))?;
        let mut service = if self.consume {
            ServiceQueue::new(self.name.as_str(), retry).map_err(|error| error.to_string())?
        } else {
            ServiceQueue::of_dead_letters(&self.name)
        };
        if let Some(DeadLettersForm { exchange, key, queue }) = &self.dead_letters_to {
            service.dead_letter = DeadLetterTarget { exchange: exchange.clone(), routing_key: key.clone() };
            service.dead_letter_queue = queue.clone();
            service.queue.dead_letter = Some(service.dead_letter.clone());
        }
        if let Some(waits) = &self.wait_queues {
            let wait = |wait: &WaitForm| WaitQueue { name: wait.name.clone(), delay: wait.delay.0 };
            service.wait_queues = waits.iter().map(wait).collect();
            service.wait_queues.sort_by_key(|wait| wait.delay);
        }
        service.identity = Identity::from(&self.identity);
        service.collect = self.collect;
        service.queue = self.declared(service.queue);
        match (self.ordered, self.on_dead) {
            (true, on_dead) => service = service.ordered(on_dead.unwrap_or_default()),
            (false, None) => {}
            (false, Some(_)) => {
                return Err(format!("{} has on_dead, which says nothing without ordered = true", self.name));
            }
        }
        for BindForm(bind) in &self.bind {
            let exchange = bind.exchange.as_ref().unwrap_or(own);
            service = service.bind(exchange, bind.key.as_str()).map_err(|error| error.to_string())?;
        }
        Ok(service)
    }

    /// The queue itself, with everything that is said of it.
    fn declared(&self, mut queue: Queue) -> Queue {
        queue.kind = self.kind;
        queue.single_active_consumer = self.single_active_consumer;
        queue.message_ttl = self.message_ttl.map(|ttl| ttl.0);
        queue.safe_dead_lettering = self.safe_dead_lettering;
        if let Some(DeadLetterForm(target)) = &self.dead_letter {
            queue.dead_letter = target.as_ref().map(DeadLetterTarget::from);
        }
        queue.arguments.clone_from(&self.arguments);
        let bytes = self.max_length_bytes.map(|most| i64::try_from(most).unwrap_or(i64::MAX));
        let limits = [("x-max-length", self.max_length.map(i64::from)), ("x-max-length-bytes", bytes)];
        for (name, most) in limits.into_iter().filter_map(|(name, most)| Some((name, most?))) {
            queue.arguments.insert(name.to_owned(), Argument::Int(most));
            // Dropping the oldest would lose events: the publisher is told instead, and tries again.
            let refuse = || Argument::Text("reject-publish".to_owned());
            queue.arguments.entry("x-overflow".to_owned()).or_insert_with(refuse);
        }
        queue.policy = QueuePolicy::default();
        if let Some(policy) = &self.policy {
            queue.policy = QueuePolicy {
                dead_letter: policy.dead_letter.as_ref().map(DeadLetterTarget::from),
                safe_dead_lettering: policy.safe_dead_lettering,
                delivery_limit: policy.delivery_limit.map(|limit| limit.0),
                max_length: policy.max_length,
                max_length_bytes: policy.max_length_bytes,
            };
        }
        if let Some(LimitForm(limit)) = self.delivery_limit {
            queue.policy.delivery_limit = Some(limit);
        }
        queue
    }
}
