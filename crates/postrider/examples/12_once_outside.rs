//! An effect outside the database, done once: claim, act, complete. Whoever comes later gets the first answer.
//!
//! `cargo run -p postrider --example 12_once_outside`
#![allow(clippy::print_stdout, reason = "an example talks to people")]

use postrider::dedup::Standing;
use postrider::sqlite::{Sqlite, SqliteConfig};
use postrider::{Clock, Deduplicator, Payload};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (clock, folder) = (Clock::system(), tempfile::tempdir()?);
    let store = Sqlite::open(SqliteConfig::new(folder.path().join("shop.db")), clock.clone()).await?;
    let payments = Deduplicator::new(store, clock, "payments");
    for (order, amount) in [("order-1", "5.00"), ("order-1", "5.00"), ("order-1", "500.00")] {
        let payload = Payload::json(&amount)?;
        match payments.claim(order, payload.hash()).await? {
            Standing::Yours(claim) => {
                // Here the card would be charged, with the claim's token as the fence.
                println!("charging {amount} for {order}");
                payments.complete(claim, "receipt 4711".into()).await?;
            }
            Standing::Done(answer) => println!("{order} was charged: {}", String::from_utf8_lossy(&answer)),
            Standing::Conflict => println!("{order} was charged with another amount, and nothing is done"),
            Standing::InFlight(until) => println!("somebody is charging {order}, until {until} at most"),
        }
    }
    Ok(())
}
