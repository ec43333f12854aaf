//! How long publishes to either bus of a migration take, as its standing tells it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use postrider::broker::{BrokerError, Outgoing, Published, Removal, Subscription};
use postrider::envelope::WireFormat;
use postrider::migration::{self, Databases, P99, Taken};
use postrider::relay::RelayConfig;
use postrider::runtime::Runtime;
use postrider::settlement::RetryPolicy;
use postrider::topology::{ExchangeKind, ExchangeName, QueueName, ServiceQueue, Topology};
use postrider::{Broker, Clock};
use postrider_testkit::effects::Effects;
use postrider_testkit::worker::mailer;

use super::stage::Stage;

const TO_NEW: Duration = Duration::from_millis(20);
const TO_OLD: Duration = Duration::from_millis(60);

/// A broker that takes its time: so long for one exchange, and so long for any other.
struct Slow {
    broker: Arc<dyn Broker>,
    clock: Clock,
    new: ExchangeName,
}

#[async_trait]
impl Broker for Slow {
    async fn declare(&self, topology: &Topology) -> Result<(), BrokerError> {
        self.broker.declare(topology).await
    }

    async fn publish(&self, batch: Vec<Outgoing>) -> Vec<Published> {
        let to_new = batch.iter().any(|outgoing| outgoing.exchange == self.new);
        self.clock.sleep(if to_new { TO_NEW } else { TO_OLD }).await;
        self.broker.publish(batch).await
    }

    async fn subscribe(
        &self,
        queue: &QueueName,
        prefetch: u16,
    ) -> Result<Box<dyn Subscription>, BrokerError> {
        self.broker.subscribe(queue, prefetch).await
    }

    async fn depth(&self, queue: &QueueName) -> Result<u64, BrokerError> {
        self.broker.depth(queue).await
    }

    async fn remove(&self, removal: &Removal) -> Result<(), BrokerError> {
        self.broker.remove(removal).await
    }

    async fn ping(&self) -> Result<(), BrokerError> {
        self.broker.ping().await
    }

    async fn close(&self) {}
}

/// In milliseconds, each path for itself: not less than it takes, and nothing that another unit would make of it.
pub(super) async fn the_slowest_publish_of_each_bus_is_told<S: Effects>(stage: Stage<S>) {
    let definition = mailer::definition().unwrap();
    let (store, clock, new) = (&stage.store, &stage.clock, definition.exchange.clone());
    let service = |queue: &str| ServiceQueue::new(queue, RetryPolicy::default()).unwrap();
    let topology = Topology::default()
        .exchange(new.clone(), ExchangeKind::Topic)
        .exchange(definition.legacy.exchange.clone(), ExchangeKind::Fanout)
        .service(&service("smtp_send_email").bind(&definition.legacy.exchange, "").unwrap())
        .service(&service("smtp_send_email_v2").bind(&new, "email.#").unwrap());
    let relay = RelayConfig {
        exchange: new.clone(),
        formats: [(new.clone(), WireFormat::Smap)].into(),
        ..RelayConfig::default()
    };
    let slow = Slow { broker: stage.broker.clone(), clock: clock.clone(), new };
    let running = Runtime::new(store.clone(), Arc::new(slow), clock.clone())
        .topology(topology)
        .relay(Some(relay))
        .start()
        .await
        .unwrap();
    let why = Taken { by: "ann".to_owned(), reason: "the plan".to_owned(), forced: false };
    let databases = Databases::new(store.clone(), clock.clone());
    migration::start(&databases, &definition, &why).await.unwrap();
    assert!(migration::settled(&databases, Duration::from_mins(1)).await.unwrap());
    // One batch each, and as many as it takes to say something.
    let relay = running.relay().unwrap();
    for number in 0..25 {
        stage.commit(mailer::email(number).unwrap()).await;
        stage.until(async || relay.published() > number as u64).await;
    }
    // A relay tells it about every ten seconds.
    let mut told = P99::default();
    stage
        .until(async || {
            told = store.migrations_of_buses().await.unwrap().remove(0).slowest();
            told.new.is_some() && told.legacy.is_some()
        })
        .await;
    let plausible = |ms: Option<f64>, least: Duration| {
        ms.is_some_and(|ms| (least.as_secs_f64() * 1000.0..10_000.0).contains(&ms))
    };
    assert!(plausible(told.new, TO_NEW) && plausible(told.legacy, TO_OLD), "{told:?}");
    running.stop(Duration::from_secs(10)).await;
}
