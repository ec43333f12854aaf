//! What cannot be handled becomes a dead letter with its reason: poison, a panic, no handler, no event at all.
//!
//! `cargo run -p postrider --example 03_dead_letters`
#![allow(clippy::print_stdout, reason = "an example talks to people")]

use std::time::Duration;

use postrider::broker::Message;
use postrider::handler::handler_fn;
use postrider::harness::{Harness, HarnessError};
use postrider::registry::Registry;
use postrider::settlement::RetryPolicy;
use postrider::sqlite::Sqlite;
use postrider::{Event, Failure};

#[tokio::main]
async fn main() -> Result<(), HarnessError> {
    let ship = handler_fn::<Sqlite, _>(|_tx, event| {
        Box::pin(async move {
            let order: serde_json::Value = event.parse()?;
            match order["quantity"].as_i64() {
                Some(quantity) if quantity > 0 => Ok(()),
                Some(quantity) => Err(Failure::permanent(format_args!("cannot ship {quantity} pieces"))),
                None => panic!("an order without a quantity"),
            }
        })
    });
    let twice = RetryPolicy::fixed(2, Duration::from_secs(1));
    let harness = Harness::new()
        .consumer("warehouse", "order.#", twice, Registry::new().on("order.placed", ship))?
        .start()
        .await?;

    for order in [r#"{"quantity":3}"#, r#"{"quantity":-1}"#, "{}"] {
        let order: serde_json::Value = serde_json::from_str(order)?;
        harness.publish(Event::new("order.placed")?.json(&order)?).await?;
    }
    harness.publish(Event::new("order.cancelled")?).await?;
    harness.deliver("warehouse", Message { body: "not an event".into(), ..Message::default() }).await?;
    harness.until_quiet().await?;
    // The panic is tried twice more before it is given up.
    harness.advance(Duration::from_secs(1)).await?;
    harness.advance(Duration::from_secs(1)).await?;

    let mut reasons = Vec::new();
    for letter in harness.dead_letters().await? {
        println!("{:<18} after {} attempts: {}", letter.reason, letter.attempts, letter.error);
        reasons.push(letter.reason);
    }
    reasons.sort();
    assert_eq!(reasons, ["malformed", "no_handler", "rejected", "retries_exhausted"]);
    Ok(())
}
