//! Every version of RabbitMQ under the broker suite: a vhost of the shared server, or a server of the case's own where it is crashed.

use std::sync::Arc;
use std::time::Duration;

use postrider::rabbitmq::management::ManagementConfig;
use postrider::rabbitmq::{RabbitMq, RabbitMqConfig, RabbitMqTls};
use postrider::topology::Topology;
use postrider::{Broker, Clock};
use postrider_testkit::conformance::Crash;
use postrider_testkit::conformance::broker::{BrokerFixture, PolicedFixture};
use postrider_testkit::servers::{self, RabbitVersion, TestVhost, shared};

mod packaged {
    use super::*;
    postrider_testkit::broker_conformance!(
        Vhost::new(RabbitVersion::Packaged),
        Server::new(RabbitVersion::Packaged)
    );
}

mod newer {
    use super::*;
    postrider_testkit::broker_conformance!(
        Vhost::new(RabbitVersion::Newer),
        Server::new(RabbitVersion::Newer)
    );
}

async fn connect(url: &str, management: &str) -> Arc<dyn Broker> {
    let management = ManagementConfig {
        url: management.into(),
        tls: RabbitMqTls::default(),
        limit: Duration::from_secs(10),
    };
    let config = RabbitMqConfig { management: Some(management), ..RabbitMqConfig::new(url) };
    Arc::new(RabbitMq::connect(config, Clock::system()).await.unwrap())
}

struct Vhost(TestVhost);

impl Vhost {
    async fn new(version: RabbitVersion) -> Self {
        Self(shared().unwrap().vhost_on(version).await.unwrap())
    }
}

impl BrokerFixture for Vhost {
    async fn broker(&self) -> Arc<dyn Broker> {
        connect(&self.0.amqp_url, &self.0.management_url).await
    }
}

impl PolicedFixture for Vhost {
    async fn apply(&self, broker: &dyn Broker, topology: &Topology) {
        broker.declare(topology).await.unwrap();
        self.0.set_policies(topology).await.unwrap();
    }
}

struct Server(servers::RabbitMq);

impl Server {
    async fn new(version: RabbitVersion) -> Self {
        Self(servers::RabbitMq::start_version(version).await.unwrap())
    }
}

/// A case that failed says what its server knew.
impl Drop for Server {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.0.testimony());
        }
    }
}

impl BrokerFixture for Server {
    async fn broker(&self) -> Arc<dyn Broker> {
        connect(&self.0.amqp_url(), &self.0.management_url()).await
    }
}

impl Crash for Server {
    async fn restart(&self) {
        for queue in self.0.ctl(&["list_queues", "--no-table-headers", "name"]).await.unwrap().lines() {
            self.0.wait_registered(queue).await.unwrap();
        }
        self.0.kill().unwrap();
        self.0.restart().await.unwrap();
    }
}
