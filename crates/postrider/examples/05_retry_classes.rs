//! Retries that differ by what went wrong: a service that is busy is asked again when it said, a wrong address never.
//!
//! `cargo run -p postrider --example 05_retry_classes`
#![allow(clippy::print_stdout, reason = "an example talks to people")]

use std::time::Duration;

use postrider::handler::{handler_fn, retry_after};
use postrider::harness::{Harness, HarnessError};
use postrider::registry::Registry;
use postrider::settlement::{FailureMatch, RetryOverride, RetryPolicy};
use postrider::sqlite::Sqlite;
use postrider::{Event, Failure};

#[tokio::main]
async fn main() -> Result<(), HarnessError> {
    // 1 s, 4 s, 16 s, one minute and on; what times out is given up after one more try.
    let once_more = RetryOverride {
        max_retries: Some(1),
        ..RetryOverride::on(FailureMatch::Class("timeout".to_owned()))
    };
    let second = Duration::from_secs(1);
    let policy = RetryPolicy::exponential(10, second, 4.0, Duration::from_mins(1), 4).overriding(once_more);

    // Stands for a call over HTTP whose answer is a status and perhaps a Retry-After.
    let call = handler_fn::<Sqlite, _>(|_tx, event| {
        Box::pin(async move {
            let now = event.envelope.occurred_at;
            let customer = event.envelope.aggregate_id.as_ref().map_or("", |id| id.as_str());
            println!("  attempt {} at {customer}", event.attempt);
            let failure = match (customer, event.attempt) {
                ("busy", 1) => Failure::from_status(429, "slow down", retry_after("30", now), now),
                ("lost", _) => Failure::from_status(404, "no such customer", None, now),
                ("slow", _) => Some(Failure::transient("no answer in time").class("timeout")),
                _ => None,
            };
            failure.map_or(Ok(()), Err)
        })
    });
    let harness = Harness::new()
        .consumer("mail", "order.*", policy, Registry::new().on("order.placed", call))?
        .start()
        .await?;
    for customer in ["busy", "lost", "slow", "well"] {
        harness.publish(Event::new("order.placed")?.aggregate_id(customer)?).await?;
    }
    harness.until_quiet().await?;
    for seconds in [1, 4, 16, 16] {
        println!("{seconds} s later");
        harness.advance(Duration::from_secs(seconds)).await?;
    }
    let account = harness.account("mail").await?;
    println!("{} applied, {} waiting, {} dead", account.applied, account.waiting, account.dead);
    assert_eq!((account.applied, account.waiting, account.dead), (2, 0, 2));
    Ok(())
}
