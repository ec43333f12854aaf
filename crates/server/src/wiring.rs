//! Which backends are in use: chosen here, in one `match`, and nothing else knows.

mod cache;

#[cfg(test)]
pub(crate) use cache::state_redis;
pub(crate) use cache::{JobView, RedisFacts, accelerator, job_view, jobs_in_redis, redis_facts};

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use postrider::broker::{Broker, BrokerError, BrokerLimits};
use postrider::embedded::{EmbeddedBroker, EmbeddedView};
use postrider::postgres::{Postgres, PostgresConfig};
use postrider::rabbitmq::management::ManagementConfig;
use postrider::rabbitmq::{Operator, RabbitMq, RabbitMqConfig, RabbitMqTls};
use postrider::sqlite::{ServeLock, Sqlite, SqliteConfig};
use postrider::store::{
    Backend, Erasure, Jobs, Outboxes, PullWords, StoreError, Subscriptions, Tokens, Upkeep,
};
use postrider::topology::{ExchangeName, VhostName};
use postrider_ledger::Ledger;
use postrider_ledger::books::Books;

use crate::commands::Context;
use crate::config::{Backends, Config, Server, Settings};
use crate::demo::ShopStore;
use crate::exit::{Exit, usage};
use crate::outboxes::Elsewhere;

/// All that commands ask of a store.
pub(crate) trait WholeStore:
    Backend + Books + Elsewhere + Erasure + Jobs + PullWords + Subscriptions + Tokens + Upkeep + ShopStore
{
}

impl<S> WholeStore for S where
    S: Backend + Books + Elsewhere + Erasure + Jobs + PullWords + Subscriptions + Tokens + Upkeep + ShopStore
{
}

/// A command, written once for every store.
pub(crate) trait OnStore {
    /// Runs on the store that was opened.
    fn run<S: WholeStore>(self, wired: Wired<S>) -> impl Future<Output = anyhow::Result<Exit>>;
}

/// An open store, and the way to its broker.
pub(crate) struct Wired<S> {
    /// The store.
    pub(crate) store: S,
    /// The broker, for who needs it.
    pub(crate) broker: BrokerDoor,
    /// The file of the embedded default, which one `serve` at a time may have.
    file: Option<std::path::PathBuf>,
}

/// How to reach the broker. Opened only by who needs it: an event can be committed while the broker is down.
pub(crate) enum BrokerDoor {
    /// In the SQLite file.
    Embedded(Sqlite, postrider::Clock),
    /// A server.
    RabbitMq(Box<RabbitMqConfig>, postrider::Clock),
}

/// Opens the store that the configuration chooses and runs a command on it.
pub(crate) async fn open<C: OnStore>(context: &Context, command: C) -> anyhow::Result<Exit> {
    let (config, clock) = (&context.config, context.clock.clone());
    match &config.backends {
        Backends::Embedded { path } => {
            let max_payload_bytes = largest_payload(&config.settings);
            let file = SqliteConfig { max_payload_bytes, ..SqliteConfig::new(path) };
            let store = Sqlite::open(file, clock.clone()).await?;
            let broker = BrokerDoor::Embedded(store.clone(), clock);
            let wired = Wired { store: store.clone(), broker, file: Some(path.clone()) };
            let ended = command.run(wired).await;
            // Whoever copies the file when nothing runs takes along all of it.
            store.write_back().await;
            ended
        }
        Backends::Networked { database, broker } => {
            let store = Postgres::connect(postgres(config, database), clock.clone()).await?;
            let broker = BrokerDoor::RabbitMq(Box::new(rabbitmq(config, broker)), clock);
            command.run(Wired { store, broker, file: None }).await
        }
        Backends::BrokerAlone { .. } => Err(usage("this needs a database; set DATABASE_URL (store.url)")),
    }
}

/// The broker without its store, where it can be reached so: when the store is down, for `doctor`.
pub(crate) fn broker_alone(context: &Context) -> Option<BrokerDoor> {
    match &context.config.backends {
        Backends::Embedded { .. } => None,
        Backends::Networked { broker, .. } | Backends::BrokerAlone { broker } => {
            Some(BrokerDoor::RabbitMq(Box::new(rabbitmq(&context.config, broker)), context.clock.clone()))
        }
    }
}

/// RabbitMQ's topology, to be looked at and changed, in a virtual host other than the connection's if one is given. None
/// with the embedded broker, whose topology is whatever is declared.
pub(crate) fn operator(
    context: &Context,
    vhost: Option<&VhostName>,
) -> Result<Option<Operator>, BrokerError> {
    let config = &context.config;
    let (Backends::Networked { broker, .. } | Backends::BrokerAlone { broker }) = &config.backends else {
        return Ok(None);
    };
    let mut connection = rabbitmq(config, broker);
    let Some(management) = connection.management.clone() else { return Ok(None) };
    if let Some(vhost) = vhost {
        connection = connection.in_vhost(vhost.as_str())?;
    }
    Operator::new(connection, &management, context.clock.clone()).map(Some)
}

/// RabbitMQ in the virtual host of a topology.
pub(crate) async fn topology_broker(
    context: &Context,
    vhost: Option<&VhostName>,
) -> anyhow::Result<Arc<dyn Broker>> {
    let Some(BrokerDoor::RabbitMq(config, clock)) = broker_alone(context) else {
        return Err(usage("no RabbitMQ is configured; set RABBITMQ_URL (broker.url)"));
    };
    let config = match vhost {
        Some(vhost) => config.in_vhost(vhost.as_str())?,
        None => *config,
    };
    Ok(Arc::new(RabbitMq::connect(config, clock).await?))
}

impl BrokerDoor {
    /// Opens the broker to work with it. A server that is away is waited for by every call, not here.
    pub(crate) async fn open(&self) -> Result<Arc<dyn Broker>, BrokerError> {
        Ok(match self {
            Self::Embedded(store, clock) => {
                Arc::new(EmbeddedBroker::open(store.clone(), clock.clone()).await?)
            }
            Self::RabbitMq(config, clock) => {
                Arc::new(RabbitMq::lazy(RabbitMqConfig::clone(config), clock.clone())?)
            }
        })
    }

    /// Opens the broker to ask it something. A server that is away is an error here; an embedded broker that another
    /// process serves is left to it.
    pub(crate) async fn look(&self) -> Result<Arc<dyn Broker>, BrokerError> {
        Ok(match self {
            Self::Embedded(store, _) => Arc::new(EmbeddedView::new(store.clone())),
            Self::RabbitMq(config, clock) => {
                Arc::new(RabbitMq::connect(RabbitMqConfig::clone(config), clock.clone()).await?)
            }
        })
    }
}

impl<S> Wired<S> {
    /// Keeps a second `serve` off the same file, for as long as the lock is held. Servers need none.
    pub(crate) fn serve_lock(&self) -> Result<Option<ServeLock>, StoreError> {
        self.file.as_deref().map(ServeLock::acquire).transpose()
    }
}

/// More than the ledger tells of an entry with a thousand lines.
const JOURNAL_EVENT_BYTES: usize = 1 << 20;

/// The largest payload that a store takes. Whoever publishes is held to `limits.max_payload_bytes` before; what the ledger tells of its
/// entries is not, because an entry that cannot be told of cannot be posted.
fn largest_payload(settings: &Settings) -> usize {
    settings.limits.max_payload_bytes.max(JOURNAL_EVENT_BYTES)
}

pub(crate) fn postgres(config: &Config, database: &Server) -> PostgresConfig {
    let store = &config.settings.store;
    PostgresConfig {
        url: database.url.to_secret_string(),
        max_connections: store.max_connections,
        acquire_limit: Duration::from_millis(store.connect_timeout_ms),
        max_payload_bytes: largest_payload(&config.settings),
        ..PostgresConfig::new("")
    }
}

pub(crate) fn rabbitmq(config: &Config, broker: &Server) -> RabbitMqConfig {
    let limits = limits(&config.settings);
    let files = &config.settings.broker.tls;
    let tls = RabbitMqTls {
        ca_file: files.ca_file(),
        client_cert_file: files.client_cert_file(),
        client_key_file: files.client_key_file(),
    };
    let management = config.management.as_ref().map(|server| ManagementConfig {
        url: server.url.to_secret_string(),
        tls: tls.clone(),
        limit: limits.call,
    });
    RabbitMqConfig { url: broker.url.to_secret_string(), limits, tls, management, ..RabbitMqConfig::new("") }
}

/// The ledger on a store, which tells of its entries through the outbox that the configuration names.
pub(crate) fn ledger<S: Books + Outboxes>(
    store: &S,
    config: &Config,
    clock: &postrider::Clock,
) -> anyhow::Result<Ledger<S>> {
    let settings = &config.settings.ledger;
    let books = match settings.outbox.as_str() {
        "" => store.clone(),
        table => store.outbox(table)?,
    };
    let trusted = settings.trusted_keys().map_err(anyhow::Error::msg)?;
    let ledger = Ledger::new(books, clock.clone()).trusting(trusted);
    Ok(match settings.announce_exchange.as_str() {
        "" => ledger,
        exchange => ledger.announcing(ExchangeName::new(exchange)?),
    })
}

fn limits(settings: &Settings) -> BrokerLimits {
    let broker = &settings.broker;
    BrokerLimits {
        connect: Duration::from_millis(broker.connect_timeout_ms),
        confirm: Duration::from_millis(broker.confirm_timeout_ms),
        call: Duration::from_millis(broker.call_timeout_ms),
    }
}
