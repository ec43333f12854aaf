//! An event for later: it waits in the broker, takes no place among those in hand, and is handled once, when it is due.
//!
//! `cargo run -p postrider --example 06_defer`
#![allow(clippy::print_stdout, reason = "an example talks to people")]

use std::time::Duration;

use postrider::Event;
use postrider::handler::handler_fn;
use postrider::harness::{Harness, HarnessError};
use postrider::registry::Registry;
use postrider::settlement::RetryPolicy;
use postrider::sqlite::Sqlite;

#[tokio::main]
async fn main() -> Result<(), HarnessError> {
    let remind = handler_fn::<Sqlite, _>(|_tx, event| {
        Box::pin(async move {
            println!("reminding {:?}, attempt {}", event.envelope.aggregate_id, event.attempt);
            Ok(())
        })
    });
    // Besides the ladder of retries, a wait queue of ten seconds: what waits longer goes round in it.
    let policy = RetryPolicy { defer: vec![Duration::from_secs(10)], ..RetryPolicy::default() };
    let harness = Harness::new()
        .consumer("reminder", "cart.*", policy, Registry::new().on("cart.abandoned", remind))?
        .start()
        .await?;
    let in_a_minute = serde_json::json!({ "processAfterDelayMs": 60_000 });
    harness.publish(Event::new("cart.abandoned")?.aggregate_id("cart-7")?.json(&in_a_minute)?).await?;
    harness.until_quiet().await?;
    for _ in 0..5 {
        harness.advance(Duration::from_secs(10)).await?;
        assert_eq!(harness.account("reminder").await?.waiting, 1);
    }
    println!("50 s later it still waits");
    harness.advance(Duration::from_secs(10)).await?;
    assert_eq!(harness.account("reminder").await?.applied, 1);
    Ok(())
}
