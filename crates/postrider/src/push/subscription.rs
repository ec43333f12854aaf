//! A push subscription as data: which events, where to, and how.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use url::Url;

use super::answer::StatusTable;
use super::form::Form;
use super::safety::{Allowed, Names};
use super::sender::{Sender, SenderParts, own_headers};
use super::signing::SigningSecret;
use crate::clock::Clock;
use crate::consumer::{Concurrency, ConsumerConfig};
use crate::settlement::RetryPolicy;
use crate::topology::{ConsumerName, ExchangeName, OnDead, QueueName, ServiceQueue};

/// Deliveries in hand for each call at the same time …
const IN_HAND_PER_CALL: usize = 8;
/// … and where a call may take longer than this. What is in hand has to be over before the broker's patience is.
const IN_HAND_PER_LONG_CALL: usize = 2;
const LONG_CALL: Duration = Duration::from_mins(1);

/// Which events go where.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Subscription {
    /// Its name, which is that of its consumer: in the inbox, in metrics, for pausing.
    pub name: ConsumerName,
    /// Where its events come from.
    pub source: Source,
    /// Where they are POSTed to.
    pub url: Url,
    /// What the body is.
    pub form: Form,
    /// Headers of the operator's own. Lists show their names only: a value may be a secret.
    pub headers: BTreeMap<String, String>,
    /// How long one call may take.
    pub limit: Duration,
    /// How many calls are under way at the same time, at most.
    pub concurrency: usize,
    /// At most so many calls are begun each second; absent: no limit.
    pub max_rate: Option<f64>,
    /// Which status means what.
    pub status: StatusTable,
}

/// Where a subscription's events come from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// A queue that the configuration declares.
    Queue(QueueName),
    /// A queue of its own, named like the subscription, bound to the outbox's exchange by these keys.
    Keys {
        /// `shop.order.*`
        keys: Vec<String>,
        /// Whether events of one key are handed over in order, across retries.
        ordered: bool,
        /// When to retry and when to give up.
        retry: RetryPolicy,
    },
}

/// What is wrong with a subscription. Nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadSubscription(pub String);

impl From<crate::InvalidText> for BadSubscription {
    fn from(error: crate::InvalidText) -> Self {
        Self(error.to_string())
    }
}

impl Subscription {
    /// Calls at the same time, unless it says otherwise.
    pub const CONCURRENCY: usize = 16;

    /// How long a call may take, unless it says otherwise.
    pub const LIMIT: Duration = Duration::from_secs(10);

    /// One that says nothing but who, what and where.
    pub fn new(name: ConsumerName, source: Source, url: Url) -> Self {
        Self {
            name,
            source,
            url,
            form: Form::default(),
            headers: BTreeMap::new(),
            limit: Self::LIMIT,
            concurrency: Self::CONCURRENCY,
            max_rate: None,
            status: StatusTable::default(),
        }
    }

    /// The rules that a type cannot say.
    pub fn check(&self, allowed: &Allowed) -> Result<(), BadSubscription> {
        let rule =
            |holds: bool, rule: &str| if holds { Ok(()) } else { Err(BadSubscription(rule.to_owned())) };
        allowed
            .check_url(&self.url)
            .map_err(|why| BadSubscription(format!("{}: {why}", shown(&self.url))))?;
        rule((1..=1000).contains(&self.concurrency), "concurrency is from 1 to 1000")?;
        rule(
            (1..=600_000).contains(&self.limit.as_millis()),
            "the time limit of a call is from a millisecond to ten minutes",
        )?;
        let rate = self.max_rate.is_none_or(|rate| rate > 0.0 && rate.is_finite());
        rule(rate, "max_rate is a number above 0; leave it out for no limit")?;
        own_headers(&self.headers).map_err(BadSubscription)?;
        if let Source::Keys { keys, .. } = &self.source {
            rule(!keys.is_empty(), "give the queue it takes events from, or the keys it wants")?;
        }
        Ok(())
    }

    /// Its queue: one of those that are declared, or one of its own.
    pub fn service(
        &self,
        declared: &[ServiceQueue],
        exchange: &ExchangeName,
    ) -> Result<ServiceQueue, BadSubscription> {
        match &self.source {
            Source::Queue(name) => {
                let found = declared.iter().find(|service| service.name() == name);
                found.cloned().ok_or_else(|| {
                    BadSubscription(format!(
                        "there is no queue {name}; declare it as a [[queue]], or give keys instead"
                    ))
                })
            }
            Source::Keys { keys, ordered, retry } => {
                let mut service = ServiceQueue::new(self.name.as_str(), retry.clone())?;
                for key in keys {
                    service = service.bind(exchange, key)?;
                }
                Ok(if *ordered { service.ordered(OnDead::default()) } else { service })
            }
        }
    }

    /// How its consumer works. A call has its own time limit, so the consumer's comes a little later. Events are in hand before their
    /// call, while the inbox is asked, and after it, until their mark is committed and their ack has reached the broker; with
    /// a quick endpoint that takes longer than the call.
    pub fn consumer_config(&self) -> ConsumerConfig {
        let most = self.concurrency;
        let each = if self.limit > LONG_CALL { IN_HAND_PER_LONG_CALL } else { IN_HAND_PER_CALL };
        ConsumerConfig {
            prefetch: u16::try_from(most.saturating_mul(each)).unwrap_or(u16::MAX),
            concurrency: Concurrency { min: most, max: most },
            handler_limit: self.limit + Duration::from_secs(1),
            max_rate: self.max_rate,
            ..ConsumerConfig::default()
        }
    }

    /// Its url as people may see it: a query may have a key in it.
    pub fn shown_url(&self) -> String {
        shown(&self.url)
    }

    /// Who calls its endpoint.
    pub fn sender(
        &self,
        secrets: Vec<SigningSecret>,
        allowed: Allowed,
        names: Arc<dyn Names>,
        clock: Clock,
    ) -> Result<Sender, BadSubscription> {
        let (form, headers, limit) = (self.form, &self.headers, self.limit);
        let parts = SenderParts { form, headers, secrets, limit, allowed, names };
        Sender::new(self.url.clone(), parts, clock).map_err(BadSubscription)
    }
}

fn shown(url: &Url) -> String {
    let mut url = url.clone();
    if url.query().is_some() {
        url.set_query(Some("…"));
    }
    // A url that has no place for them has none.
    let _none = url.set_password(None).and_then(|()| url.set_username(""));
    url.to_string()
}
