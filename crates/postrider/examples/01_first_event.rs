//! The first event: an order and its event are committed together, and a mail is sent for it once.
//!
//! Everything runs in this process, on one SQLite file: `cargo run -p postrider --example 01_first_event`
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
use postrider::{Clock, Event, Outbox as _, Store as _};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let clock = Clock::system();
    let store = Sqlite::open(SqliteConfig::new(folder.path().join("shop.db")), clock.clone()).await?;
    let broker = EmbeddedBroker::open(store.clone(), clock.clone()).await?;

    // A consumer: its queue, the keys it wants, and what it does.
    let exchange = ExchangeName::new("shop.events")?;
    let queue = ServiceQueue::new("mail", RetryPolicy::default())?.bind(&exchange, "order.*")?;
    let (sent, mut mails) = tokio::sync::mpsc::unbounded_channel();
    let send_mail = handler_fn::<Sqlite, _>(move |_tx, event| {
        let sent = sent.clone();
        Box::pin(async move {
            sent.send(event.envelope.clone())?;
            Ok(())
        })
    });
    let running = Runtime::new(store.clone(), Arc::new(broker), clock)
        .exchange(exchange, ExchangeKind::Topic)
        .consumer("mail", queue, Registry::new().on("order.placed", send_mail))?
        .start()
        .await?;

    // A service: the order and the event that tells of it commit together, or not at all.
    let mut tx = store.begin().await?;
    sqlx::raw_sql("CREATE TABLE customer_order (id TEXT); INSERT INTO customer_order VALUES ('order-42')")
        .execute(tx.connection().await?)
        .await?;
    let placed = Event::new("order.placed")?
        .aggregate_id("order-42")?
        .json(&serde_json::json!({ "total": "125000.00", "currency": "NGN" }))?;
    store.append(&mut tx, vec![placed]).await?;
    store.commit(tx).await?;

    let mail = mails.recv().await.ok_or("nobody sends mails")?;
    println!("a mail for {} about event {}", mail.aggregate_id.ok_or("which order?")?, mail.id);
    running.stop(Duration::from_secs(5)).await;
    Ok(())
}
