//! PostgreSQL under the store suite: a database of the shared server, or a server of the case's own where it is crashed.

use postrider::postgres::{Postgres, PostgresConfig, PostgresTx};
use postrider::store::{StoreError, StoreErrorKind};
use postrider::{Clock, EventId};
use postrider_testkit::conformance::Crash;
use postrider_testkit::conformance::store::StoreFixture;
use postrider_testkit::servers::{self, TestDatabase, shared};

postrider_testkit::store_conformance!(Database::new(), Server::new());

async fn connect(url: &str) -> Postgres {
    let store = Postgres::connect(PostgresConfig::new(url), Clock::system()).await.unwrap();
    store.migrate().await.unwrap();
    let effects =
        "CREATE TABLE IF NOT EXISTS effects (n bigserial, consumer text NOT NULL, event_id text NOT NULL)";
    sqlx::query(effects).execute(store.pool()).await.unwrap();
    store
}

async fn insert_effect(tx: &mut PostgresTx, consumer: &str, event: &EventId) -> Result<(), StoreError> {
    let insert = sqlx::query("INSERT INTO effects (consumer, event_id) VALUES ($1, $2)");
    let done = insert.bind(consumer).bind(event.as_str()).execute(tx.connection()).await;
    done.map(|_| ()).map_err(|error| StoreError::new(StoreErrorKind::Other, error.to_string()))
}

async fn effects(store: &Postgres) -> Vec<(String, EventId)> {
    let all = sqlx::query_as("SELECT consumer, event_id FROM effects ORDER BY n");
    let rows: Vec<(String, String)> = all.fetch_all(store.pool()).await.unwrap();
    rows.into_iter().map(|(consumer, event)| (consumer, EventId::new(event).unwrap())).collect()
}

pub(super) struct Database {
    store: Postgres,
    _ends_with_the_case: TestDatabase,
}

impl Database {
    pub(super) async fn new() -> Self {
        let database = shared().unwrap().migrated_database().await.unwrap();
        Self { store: connect(&database.url).await, _ends_with_the_case: database }
    }
}

impl StoreFixture for Database {
    type Store = Postgres;

    async fn store(&self) -> Postgres {
        self.store.clone()
    }

    async fn insert_effect(
        &self,
        tx: &mut PostgresTx,
        consumer: &str,
        event: &EventId,
    ) -> Result<(), StoreError> {
        insert_effect(tx, consumer, event).await
    }

    async fn effects(&self) -> Vec<(String, EventId)> {
        effects(&self.store).await
    }
}

/// The store stays the same through a crash: its connections come back by themselves.
struct Server {
    store: Postgres,
    server: servers::Postgres,
}

impl Server {
    async fn new() -> Self {
        let server = servers::Postgres::start().await.unwrap();
        Self { store: connect(&server.url()).await, server }
    }
}

impl StoreFixture for Server {
    type Store = Postgres;

    async fn store(&self) -> Postgres {
        self.store.clone()
    }

    async fn insert_effect(
        &self,
        tx: &mut PostgresTx,
        consumer: &str,
        event: &EventId,
    ) -> Result<(), StoreError> {
        insert_effect(tx, consumer, event).await
    }

    async fn effects(&self) -> Vec<(String, EventId)> {
        effects(&self.store).await
    }
}

impl Crash for Server {
    async fn restart(&self) {
        self.server.kill().unwrap();
        self.server.restart().await.unwrap();
    }
}
