//! A flaky handler: tried again by a ladder of delays, and its effect happens once. Time is moved by hand.
//!
//! `cargo run -p postrider --example 02_retry`
#![allow(clippy::print_stdout, reason = "an example talks to people")]

use std::time::Duration;

use postrider::handler::handler_fn;
use postrider::harness::{Harness, HarnessError};
use postrider::registry::Registry;
use postrider::settlement::RetryPolicy;
use postrider::sqlite::Sqlite;
use postrider::{Event, Failure, Store as _};

#[tokio::main]
async fn main() -> Result<(), HarnessError> {
    // The mail server is down for the first two attempts. What was written before the failure is rolled back.
    let send_mail = handler_fn::<Sqlite, _>(|tx, event| {
        Box::pin(async move {
            sqlx::query("INSERT INTO mail VALUES (?)")
                .bind(event.envelope.id.as_str())
                .execute(tx.connection().await?)
                .await?;
            if event.attempt < 3 {
                return Err(Failure::transient("421 the mail server is busy").class("smtp"));
            }
            Ok(())
        })
    });
    let ladder = RetryPolicy::ladder(10, [Duration::from_secs(5), Duration::from_mins(1)]);
    let harness = Harness::new()
        .consumer("mail", "order.*", ladder, Registry::new().on("#", send_mail))?
        .start()
        .await?;
    let mut tx = harness.store().begin().await?;
    sqlx::query("CREATE TABLE mail (event_id TEXT)").execute(tx.connection().await?).await?;
    harness.store().commit(tx).await?;

    harness.publish(Event::new("order.placed")?).await?;
    harness.until_quiet().await?;
    println!("after the first attempt:  {}", summary(&harness).await?);
    harness.advance(Duration::from_secs(5)).await?;
    println!("after five seconds:       {}", summary(&harness).await?);
    harness.advance(Duration::from_mins(1)).await?;
    println!("after another minute:     {}", summary(&harness).await?);

    let account = harness.account("mail").await?;
    assert_eq!((account.applied, account.waiting, account.dead), (1, 0, 0));
    assert_eq!(mails(&harness).await?, 1, "the effect happened once");
    Ok(())
}

async fn summary(harness: &Harness) -> Result<String, HarnessError> {
    let account = harness.account("mail").await?;
    Ok(format!("{} applied, {} waiting, {} mails", account.applied, account.waiting, mails(harness).await?))
}

async fn mails(harness: &Harness) -> Result<i64, HarnessError> {
    let mut tx = harness.store().begin().await?;
    let count = sqlx::query_scalar("SELECT count(*) FROM mail").fetch_one(tx.connection().await?).await?;
    harness.store().rollback(tx).await?;
    Ok(count)
}
