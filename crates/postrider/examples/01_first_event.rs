//! The first event: an order and its event are committed together, and a mail is written for it once.
//!
//! Everything runs in this process, on one SQLite file: `cargo run -p postrider --example 01_first_event`. The README shows
//! these lines, and a test keeps them the same.
#![allow(clippy::print_stdout, reason = "an example talks to people")]

use std::sync::Arc;
use std::time::Duration;

use postrider::embedded::EmbeddedBroker;
use postrider::handler::handler_fn;
use postrider::registry::Registry;
use postrider::runtime::Runtime;
use postrider::settlement::RetryPolicy;
use postrider::sqlite::{Sqlite, SqliteConfig};
use postrider::topology::{ExchangeKind, ExchangeName, ServiceQueue};
use postrider::{Clock, Event, Store as _};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    std::env::set_current_dir(&folder)?;

    let clock = Clock::system();
    let store = Sqlite::open(SqliteConfig::new("shop.db"), clock.clone()).await?;
    let broker = EmbeddedBroker::open(store.clone(), clock.clone()).await?;

    // The tables of this shop, which it has already.
    let mut tx = store.begin().await?;
    sqlx::raw_sql("CREATE TABLE customer_order (id TEXT); CREATE TABLE mail (event_id TEXT)")
        .execute(tx.connection().await?)
        .await?;
    store.commit(tx).await?;

    // A consumer: its queue, the keys it wants, and what it does.
    let exchange = ExchangeName::new("shop.events")?;
    let queue = ServiceQueue::new("mail", RetryPolicy::default())?.bind(&exchange, "order.*")?;
    let send_mail = handler_fn::<Sqlite, _>(|tx, event| {
        Box::pin(async move {
            sqlx::query("INSERT INTO mail VALUES (?)")
                .bind(event.envelope.id.as_str())
                .execute(tx.connection().await?)
                .await?; // commits with the mark that this event is applied
            Ok(())
        })
    });
    let running = Runtime::new(store.clone(), Arc::new(broker), clock.clone())
        .exchange(exchange, ExchangeKind::Topic)
        .consumer("mail", queue, Registry::new().on("order.placed", send_mail))?
        .start()
        .await?;

    // A service: the order and the event that tells of it commit together, or not at all.
    let mut tx = store.begin().await?; // your own transaction
    sqlx::query("INSERT INTO customer_order VALUES ('order-42')").execute(tx.connection().await?).await?;
    tx.append(vec![Event::new("order.placed")?.aggregate_id("order-42")?]).await?;
    store.commit(tx).await?; // the order and its event, or neither

    loop {
        let mut tx = store.begin().await?;
        let mail: Option<String> =
            sqlx::query_scalar("SELECT event_id FROM mail").fetch_optional(tx.connection().await?).await?;
        store.rollback(tx).await?;
        if let Some(event) = mail {
            println!("a mail was written for event {event}");
            break;
        }
        clock.sleep(Duration::from_millis(20)).await;
    }
    running.stop(Duration::from_secs(5)).await;
    Ok(())
}
