//! A batch handler: many events in one transaction, and a bad one among them fails alone.
//!
//! `cargo run -p postrider --example 08_batch`
#![allow(clippy::print_stdout, reason = "an example talks to people")]

use postrider::handler::{BatchLimits, batch_handler_fn};
use postrider::harness::{Harness, HarnessError};
use postrider::registry::Registry;
use postrider::settlement::RetryPolicy;
use postrider::sqlite::Sqlite;
use postrider::{Event, Failure, Outbox as _, Store as _};

#[tokio::main]
async fn main() -> Result<(), HarnessError> {
    let count = batch_handler_fn::<Sqlite, _>(|tx, events| {
        Box::pin(async move {
            println!("a batch of {}", events.len());
            for event in events {
                let page = event.envelope.aggregate_id.as_ref().map(postrider::envelope::AggregateId::as_str);
                if page == Some("nowhere") {
                    return Err(Failure::permanent("there is no such page"));
                }
                sqlx::query("INSERT INTO hit VALUES (?)").bind(page).execute(tx.connection().await?).await?;
            }
            Ok(())
        })
    });
    let limits = BatchLimits { max_size: 50, ..BatchLimits::default() };
    let harness = Harness::new()
        .consumer(
            "statistics",
            "page.*",
            RetryPolicy::default(),
            Registry::new().on_batch("#", limits, count),
        )?
        .start()
        .await?;
    let mut tx = harness.store().begin().await?;
    sqlx::query("CREATE TABLE hit (page TEXT)").execute(tx.connection().await?).await?;
    let pages = ["home", "nowhere", "home", "about"].into_iter().cycle().take(40);
    let events: Result<Vec<_>, _> =
        pages.map(|page| Event::new("page.visited").and_then(|event| event.aggregate_id(page))).collect();
    harness.store().append(&mut tx, events?).await?;
    harness.store().commit(tx).await?;

    harness.until_quiet().await?;
    let account = harness.account("statistics").await?;
    println!("{} applied, {} dead", account.applied, account.dead);
    assert_eq!((account.applied, account.dead), (30, 10));
    Ok(())
}
