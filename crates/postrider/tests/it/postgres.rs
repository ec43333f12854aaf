//! What only PostgreSQL has; what it shares with other stores is in the conformance suite.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod adopting;
mod audit;
mod connection;
mod house;
mod inbox;
mod leases;
mod migration;
mod plain_insert;
mod probing;
mod pull_words;
mod replaying;
mod rows;
mod tables;

use std::time::Duration;

use postrider::postgres::{Postgres, PostgresConfig};
use postrider::store::{Ask, OutboxRow, PublishResult, RelayId, RowResult, StoreErrorKind};
use postrider::{Clock, Event, Outbox, Store};
use postrider_testkit::servers::{TestDatabase, shared};

const LEASE: Duration = Duration::from_secs(30);

/// A migrated database of the test's own.
async fn store() -> (Postgres, TestDatabase) {
    let database = shared().unwrap().migrated_database().await.unwrap();
    let postgres = connect(&database).await;
    postgres.migrate().await.unwrap();
    (postgres, database)
}

async fn connect(database: &TestDatabase) -> Postgres {
    Postgres::connect(PostgresConfig::new(&database.url), Clock::system()).await.unwrap()
}

fn relay(name: &str) -> RelayId {
    RelayId::new(name).unwrap()
}

fn event(id: &str, aggregate: Option<&str>) -> Event {
    let event = Event::new("shop.order.placed").unwrap().id(id).unwrap();
    match aggregate {
        Some(aggregate) => event.aggregate_id(aggregate).unwrap(),
        None => event,
    }
}

async fn append(postgres: &Postgres, events: Vec<Event>) {
    let mut tx = postgres.begin().await.unwrap();
    postgres.append(&mut tx, events).await.unwrap();
    postgres.commit(tx).await.unwrap();
}

async fn execute(postgres: &Postgres, sql: &'static str) -> Result<u64, sqlx::Error> {
    sqlx::query(sql).execute(postgres.pool()).await.map(|done| done.rows_affected())
}

/// As it was before rows that are dated ahead were refused.
async fn let_rows_be_dated_ahead(postgres: &Postgres) {
    let off = "ALTER TABLE postrider.event_outbox DISABLE TRIGGER event_outbox_added";
    execute(postgres, off).await.unwrap();
}

async fn claim(postgres: &Postgres, relay: &RelayId) -> Vec<OutboxRow> {
    postgres.claim(relay, Ask::everything(100)).await.unwrap()
}

fn ids(rows: &[OutboxRow]) -> Vec<&str> {
    rows.iter().map(|row| row.envelope.id.as_str()).collect()
}

async fn settle(postgres: &Postgres, relay: &RelayId, rows: &[OutboxRow], result: &PublishResult) -> usize {
    let results = rows.iter().map(|row| RowResult::new(row.row, result.clone())).collect();
    postgres.settle(relay, results).await.unwrap()
}

fn kind<T: std::fmt::Debug>(result: Result<T, postrider::store::StoreError>) -> StoreErrorKind {
    result.unwrap_err().kind
}
