//! Consumers: what waits for each, whether it is paused, and the keys it holds.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use postrider::broker::{Broker, BrokerError, BrokerErrorKind};
use postrider::envelope::OrderingKey;
use postrider::rabbitmq::management::Traffic;
use postrider::store::{Controls, Held, HeldKey, HeldState, Pause, Registration, Registrations, StoreError};
use postrider::topology::ConsumerName;
use serde::Serialize;

use super::{Answer, StoreDesk};
use crate::api::{Code, Problem};
use crate::wiring::WholeStore;

/// List at most so many held keys.
pub(crate) const LISTED: usize = 1000;
/// A broker and its statistics are waited for this long; without them a page shows what is known here.
const PATIENCE: Duration = Duration::from_secs(2);

/// A consumer as it is listed.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct ConsumerRow {
    pub(crate) name: String,
    pub(crate) queue: String,
    /// `active`, `paused`, `tripped`: everything failed, so it leaves its queue alone for a moment; or `unsubscribed`: the broker hands
    /// nothing out to it at the moment, as when no process runs it.
    pub(crate) state: &'static str,
    pub(crate) pause: Option<Pause>,
    pub(crate) ordered: bool,
    /// In its queue; absent where the broker cannot be asked.
    pub(crate) ready: Option<u64>,
    /// In its wait queues.
    pub(crate) waiting: Option<u64>,
    /// Delivered and not settled yet: wherever it runs by RabbitMQ's statistics, else in this process; absent where neither knows.
    pub(crate) in_flight: Option<u64>,
    /// Settled a second, by RabbitMQ's statistics.
    pub(crate) settled_per_second: Option<f64>,
    /// Behind an earlier event of their key.
    pub(crate) held: u64,
    /// Keys that wait for somebody to replay, discard or release.
    pub(crate) parked_keys: usize,
}

#[async_trait]
pub(crate) trait Consumers {
    /// All of them.
    async fn consumers(&self) -> Answer<Vec<ConsumerRow>>;
    /// The same, with what RabbitMQ knows of those that run in other processes.
    async fn consumers_closely(&self) -> Answer<Vec<ConsumerRow>>;
    /// The keys that one of them, or all, hold.
    async fn held(&self, name: Option<&ConsumerName>) -> Answer<Vec<HeldKey>>;
    /// Pauses one wherever it runs. False if it was paused before.
    async fn pause(&self, name: &ConsumerName, by: &str, reason: &str) -> Answer<bool>;
    /// Lets one go on. False if it was not paused.
    async fn resume(&self, name: &ConsumerName, by: &str, reason: &str) -> Answer<bool>;
    /// Lets the events behind a parked one go on without it.
    async fn release(&self, name: &ConsumerName, key: &OrderingKey, by: &str, reason: &str) -> Answer<()>;
}

#[async_trait]
impl<S: WholeStore> Consumers for StoreDesk<S> {
    async fn consumers(&self) -> Answer<Vec<ConsumerRow>> {
        let mut rows = rows(&self.store, Some(&self.broker), &self.config.own.consumers).await?;
        for row in &mut rows {
            let Ok(name) = ConsumerName::new(&row.name) else { continue };
            row.in_flight = self.at_work.in_flight(&name);
            row.state = self.at_work.state(&name, row.pause.is_some()).unwrap_or(row.state);
        }
        Ok(rows)
    }

    async fn consumers_closely(&self) -> Answer<Vec<ConsumerRow>> {
        let (rows, traffic) = tokio::join!(self.consumers(), self.traffic());
        let mut rows = rows?;
        for row in &mut rows {
            let Some(seen) = traffic.iter().find(|seen| seen.name == row.queue) else { continue };
            row.in_flight = seen.messages_unacknowledged.or(row.in_flight);
            row.settled_per_second = seen.acked_per_second();
        }
        Ok(rows)
    }

    async fn held(&self, name: Option<&ConsumerName>) -> Answer<Vec<HeldKey>> {
        let keys = self.store.held_keys(name, LISTED).await?;
        // A name that nobody knows any more may still hold keys.
        if let Some(name) = name.filter(|_| keys.is_empty()) {
            self.expect(name).await?;
        }
        Ok(keys)
    }

    async fn pause(&self, name: &ConsumerName, by: &str, reason: &str) -> Answer<bool> {
        self.expect(name).await?;
        Ok(self.store.pause(name, by, reason).await?)
    }

    async fn resume(&self, name: &ConsumerName, by: &str, reason: &str) -> Answer<bool> {
        // A name that nobody knows any more may still be paused.
        let resumed = self.store.resume(name, by, reason).await?;
        if !resumed {
            self.expect(name).await?;
        }
        Ok(resumed)
    }

    async fn release(&self, name: &ConsumerName, key: &OrderingKey, by: &str, reason: &str) -> Answer<()> {
        if self.store.release_key(name, key, by, reason).await? == 0 {
            return Err(Problem::new(
                Code::NotFound,
                format!("{name} has no parked key {key}; GET /v1/consumers/{name}/held lists those it holds"),
            ));
        }
        Ok(())
    }
}

impl<S: WholeStore> StoreDesk<S> {
    /// What RabbitMQ says of its queues, if it says so soon.
    async fn traffic(&self) -> Vec<Traffic> {
        let Some(operator) = &self.operator else { return Vec::new() };
        let asked = operator.management().traffic(operator.vhost());
        tokio::time::timeout(PATIENCE, asked).await.ok().and_then(Result::ok).unwrap_or_default()
    }

    async fn expect(&self, name: &ConsumerName) -> Answer<()> {
        let known = known(&self.store, &self.config.own.consumers).await?;
        if known.iter().any(|consumer| consumer.name == *name) {
            return Ok(());
        }
        Err(Problem::new(
            Code::NotFound,
            format!("there is no consumer {name}; GET /v1/consumers lists them"),
        ))
    }
}

/// The consumers that are known here, each with what waits for it.
pub(crate) async fn rows<S: Registrations + Controls + Held>(
    store: &S,
    broker: Option<&Arc<dyn Broker>>,
    configured: &[Registration],
) -> Result<Vec<ConsumerRow>, StoreError> {
    let (pauses, held) = (store.pauses().await?, store.held_keys(None, LISTED).await?);
    let (mut rows, mut broker) = (Vec::new(), broker);
    for consumer in known(store, configured).await? {
        let mut queues = Queues::default();
        if let Some(asked) = broker {
            match tokio::time::timeout(PATIENCE, Queues::look(asked, &consumer)).await {
                Ok(Ok(seen)) => queues = seen,
                // One that did not answer is not waited for again.
                Ok(Err(_)) | Err(_) => broker = None,
            }
        }
        let pause = pauses.iter().find(|pause| pause.consumer == consumer.name).cloned();
        let keys: Vec<_> = held.iter().filter(|key| key.consumer == consumer.name).collect();
        rows.push(ConsumerRow {
            name: consumer.name.to_string(),
            queue: consumer.service.name().to_string(),
            state: match (pause.is_some(), queues.attended) {
                (true, _) => "paused",
                (false, Some(false)) => "unsubscribed",
                (false, _) => "active",
            },
            pause,
            ordered: consumer.service.order.is_some(),
            ready: queues.ready,
            waiting: queues.waiting,
            in_flight: None,
            settled_per_second: None,
            held: keys.iter().map(|key| key.events).sum(),
            parked_keys: keys.iter().filter(|key| is_parked(key)).count(),
        });
    }
    Ok(rows)
}

/// Whether a key waits for somebody.
pub(crate) fn is_parked(key: &HeldKey) -> bool {
    key.state == HeldState::Parked
}

/// Those that registered themselves, and those of the configuration that did not.
pub(crate) async fn known<S: Registrations>(
    store: &S,
    configured: &[Registration],
) -> Result<Vec<Registration>, StoreError> {
    let mut known = store.registrations().await?;
    for consumer in configured {
        if !known.iter().any(|other| other.name == consumer.name) {
            known.push(consumer.clone());
        }
    }
    Ok(known)
}

/// What a broker says of a consumer's queues; nothing of those that are not there.
#[derive(Default)]
struct Queues {
    ready: Option<u64>,
    waiting: Option<u64>,
    /// Whether anybody receives from it. Without its queue nobody does.
    attended: Option<bool>,
}

impl Queues {
    async fn look(broker: &Arc<dyn Broker>, consumer: &Registration) -> Result<Self, BrokerError> {
        let name = consumer.service.name();
        let ready = if_there(broker.depth(name).await)?;
        let attended = if_there(broker.is_attended(name).await)?.unwrap_or(Some(false));
        let mut waiting = Some(0);
        for wait in &consumer.service.wait_queues {
            let depth = if_there(broker.depth(&wait.name).await)?;
            waiting = waiting.zip(depth).map(|(all, depth)| all + depth);
        }
        Ok(Self { ready, waiting, attended })
    }
}

fn if_there<T>(answer: Result<T, BrokerError>) -> Result<Option<T>, BrokerError> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(error) if error.kind == BrokerErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
