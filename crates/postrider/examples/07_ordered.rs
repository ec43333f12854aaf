//! Order per key: while one event of an account waits for its retry, those behind it are held, and others flow.
//!
//! `cargo run -p postrider --example 07_ordered`
#![allow(clippy::print_stdout, reason = "an example talks to people")]

use std::time::Duration;

use postrider::handler::handler_fn;
use postrider::harness::{Harness, HarnessError};
use postrider::registry::Registry;
use postrider::settlement::RetryPolicy;
use postrider::sqlite::Sqlite;
use postrider::store::Held as _;
use postrider::topology::OnDead;
use postrider::{Event, Failure, Store as _};

#[tokio::main]
async fn main() -> Result<(), HarnessError> {
    let book = handler_fn::<Sqlite, _>(|tx, event| {
        Box::pin(async move {
            let (account, what) = (event.envelope.aggregate_id.as_ref(), event.envelope.event_type.action());
            if what == "opened" && account.is_some_and(|id| id.as_str() == "acme") && event.attempt == 1 {
                return Err(Failure::transient("the ledger is locked"));
            }
            sqlx::query("INSERT INTO booking VALUES (?, ?)")
                .bind(account.map(postrider::envelope::AggregateId::as_str))
                .bind(what)
                .execute(tx.connection().await?)
                .await?;
            Ok(())
        })
    });
    let harness = Harness::new()
        .ordered(
            "ledger",
            "account.*",
            RetryPolicy::fixed(3, Duration::from_secs(5)),
            OnDead::Park,
            Registry::new().on("#", book),
        )?
        .start()
        .await?;
    let mut tx = harness.store().begin().await?;
    sqlx::query("CREATE TABLE booking (account TEXT, what TEXT)").execute(tx.connection().await?).await?;
    harness.store().commit(tx).await?;

    for what in ["account.opened", "account.credited", "account.closed"] {
        for account in ["acme", "other"] {
            harness.publish(Event::new(what)?.aggregate_id(account)?).await?;
        }
    }
    harness.until_quiet().await?;
    for key in harness.store().held_keys(None, 10).await? {
        println!("{} events of {} are held: {}", key.events, key.key, key.error);
    }
    assert_eq!(harness.account("ledger").await?.waiting, 3);

    harness.advance(Duration::from_secs(5)).await?;
    let mut tx = harness.store().begin().await?;
    let booked: Vec<String> = sqlx::query_scalar("SELECT what FROM booking WHERE account = 'acme'")
        .fetch_all(tx.connection().await?)
        .await?;
    harness.store().rollback(tx).await?;
    println!("acme: {}", booked.join(", "));
    assert_eq!(booked, ["opened", "credited", "closed"]);
    Ok(())
}
