//! RabbitMQ: the networked broker.
//!
//! Publishing and consuming have a connection each, kept by a `link`. The rest is in the order a message meets it:
//! `publish` has batches go out (`sending`) over `lanes` and judges the `confirms`; `subscription` receives; `settle` acks;
//! `declare` makes the topology; `fault` says what to do about errors. `operator` looks at a whole virtual host through the
//! `management` API, applies plans, and has `replace` exchange a queue for one with other arguments. The protocol itself is in
//! `amqp`, a client of our own: a general one costs more per message than all the rest of a relay or of a consumer.

mod alone;
mod amqp;
mod config;
mod confirms;
mod declare;
mod desk;
mod dial;
mod fault;
mod lanes;
mod line;
mod link;
pub mod management;
mod operator;
mod publish;
mod replace;
mod sending;
mod settle;
mod subscription;

#[cfg(any(test, fuzzing))]
pub(crate) use amqp::trial::{headers_of, messages_of, there_and_back};
pub use config::{RabbitMqConfig, RabbitMqTls, url_of_each_node};
pub use operator::{ApplyError, Operator};
use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::OnceCell;

use self::link::{Link, Settings};
use self::management::Management;
use self::publish::Publisher;
use self::subscription::RabbitSubscription;
use crate::broker::{Broker, BrokerError, Outgoing, Published, Removal, Subscription};
use crate::clock::Clock;
use crate::topology::{Binding, QueueName, Topology};

/// A connection to RabbitMQ, or to a cluster of it. Dropping it closes the connections once no subscription uses them.
pub struct RabbitMq {
    publisher: Publisher,
    publishing: Arc<Link>,
    consuming: Arc<Link>,
    /// Made when it is first asked: most never ask.
    management: OnceCell<Management>,
}

impl RabbitMq {
    /// Connects, and says what to do if that is not possible within the time limit.
    pub async fn connect(config: RabbitMqConfig, clock: Clock) -> Result<Self, BrokerError> {
        let broker = Self::lazy(config, clock)?;
        broker.consuming.line().await?;
        Ok(broker)
    }

    /// Connects when first used. Only a URL that cannot be understood is an error here.
    pub fn lazy(config: RabbitMqConfig, clock: Clock) -> Result<Self, BrokerError> {
        let nodes = config.nodes()?;
        let settings = Arc::new(Settings { config, nodes, clock });
        let publishing = Arc::new(Link::new("publish", Arc::clone(&settings)));
        let consuming = Arc::new(Link::new("consume", settings));
        let publisher = Publisher::new(Arc::clone(&publishing));
        Ok(Self { publisher, publishing, consuming, management: OnceCell::new() })
    }
}

impl RabbitMq {
    /// Whether an exchange that is to go feeds others. Only the management API tells before anything is removed; where it cannot be asked,
    /// RabbitMQ keeps such an exchange when it is its turn.
    async fn look_who_is_fed(&self, removal: &Removal) -> Result<(), BrokerError> {
        let config = &self.consuming.settings().config;
        let Some(place) = &config.management else { return Ok(()) };
        if !removal.only_unused || removal.exchanges.is_empty() {
            return Ok(());
        }
        let management = self.management.get_or_try_init(async || Management::new(place)).await?;
        let Ok(bindings) = management.bindings(&config.vhost()?).await else { return Ok(()) };
        for exchange in &removal.exchanges {
            let own = |name: &str| removal.queues.iter().any(|queue| queue.as_str() == name);
            let mut of_it = bindings.iter().filter(|binding| binding.source == exchange.as_str());
            if let Some(other) = of_it.find(|binding| !own(&binding.destination)) {
                return Err(BrokerError::still_feeds(exchange.as_str(), Some(&other.destination)));
            }
        }
        Ok(())
    }
}

impl std::fmt::Debug for RabbitMq {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RabbitMq").field("config", &self.consuming.settings().config).finish_non_exhaustive()
    }
}

#[async_trait]
impl Broker for RabbitMq {
    // Questions go by the consuming connection: the other one is not read while RabbitMQ takes no messages.

    async fn declare(&self, topology: &Topology) -> Result<(), BrokerError> {
        let line = self.consuming.line().await?;
        declare::declare(&line, topology, self.consuming.settings().limits().call).await
    }

    async fn publish(&self, batch: Vec<Outgoing>) -> Vec<Published> {
        self.publisher.publish(batch).await
    }

    async fn subscribe(
        &self,
        queue: &QueueName,
        prefetch: u16,
    ) -> Result<Box<dyn Subscription>, BrokerError> {
        let link = Arc::clone(&self.consuming);
        Ok(Box::new(RabbitSubscription::start(link, queue.clone(), prefetch).await?))
    }

    async fn depth(&self, queue: &QueueName) -> Result<u64, BrokerError> {
        let line = self.consuming.line().await?;
        declare::depth(&line, queue, self.consuming.settings().limits().call).await
    }

    async fn is_attended(&self, queue: &QueueName) -> Result<Option<bool>, BrokerError> {
        let line = self.consuming.line().await?;
        declare::is_attended(&line, queue, self.consuming.settings().limits().call).await.map(Some)
    }

    /// As the management API says, which may be some seconds late; none without it.
    async fn unsettled(&self, queue: &QueueName) -> Result<u64, BrokerError> {
        let config = &self.consuming.settings().config;
        let Some(place) = &config.management else { return Ok(0) };
        let management = self.management.get_or_try_init(async || Management::new(place)).await?;
        let vhost = config.vhost()?;
        let seen = management.queue(&vhost, queue.as_str()).await?;
        Ok(seen.and_then(|queue| queue.messages_unacknowledged).unwrap_or(0))
    }

    async fn remove(&self, removal: &Removal) -> Result<(), BrokerError> {
        self.look_who_is_fed(removal).await?;
        let line = self.consuming.line().await?;
        declare::remove(&line, removal, self.consuming.settings().limits().call).await
    }

    async fn unbind(&self, bindings: &[Binding]) -> Result<(), BrokerError> {
        let line = self.consuming.line().await?;
        declare::unbind(&line, bindings, self.consuming.settings().limits().call).await
    }

    async fn ping(&self) -> Result<(), BrokerError> {
        let line = self.consuming.line().await?;
        let channel = line.channel(self.consuming.settings().limits().call).await?;
        lanes::close(&channel).await;
        Ok(())
    }

    async fn close(&self) {
        tokio::join!(self.publishing.close(), self.consuming.close());
    }
}
