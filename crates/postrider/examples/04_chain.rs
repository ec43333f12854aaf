//! An event caused by an event: the invoice and the event that tells of it commit with the mark that the order is billed.
//!
//! `cargo run -p postrider --example 04_chain`
#![allow(clippy::print_stdout, reason = "an example talks to people")]

use postrider::handler::handler_fn;
use postrider::harness::{Harness, HarnessError};
use postrider::registry::Registry;
use postrider::settlement::RetryPolicy;
use postrider::sqlite::{Sqlite, SqliteTx};
use postrider::{Event, Failure, Handler, Incoming};

/// A handler may be a type of its own, with what it needs inside.
struct Billing {
    currency: &'static str,
}

impl Handler<Sqlite> for Billing {
    async fn handle(&self, tx: &mut SqliteTx, event: &Incoming) -> Result<(), Failure> {
        let invoice = serde_json::json!({ "order": event.envelope.aggregate_id, "currency": self.currency });
        let issued = Event::new("invoice.issued")?.aggregate_id("invoice-1")?.json(&invoice)?;
        tx.append(vec![issued.caused_by(&event.envelope)]).await?;
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<(), HarnessError> {
    let (seen, mut events) = tokio::sync::mpsc::unbounded_channel();
    let analytics = handler_fn::<Sqlite, _>(move |_tx, event| {
        let seen = seen.clone();
        Box::pin(async move {
            seen.send(event.envelope.clone())?;
            Ok(())
        })
    });
    let billing = Registry::new().on("order.placed", Billing { currency: "NGN" });
    let harness = Harness::new()
        .consumer("billing", "order.*", RetryPolicy::default(), billing)?
        .consumer("analytics", "#", RetryPolicy::default(), Registry::new().on("#", analytics))?
        .start()
        .await?;

    let order = harness.publish(Event::new("order.placed")?.aggregate_id("order-42")?).await?;
    harness.until_quiet().await?;

    let (first, second) = (events.recv().await.ok_or("no order")?, events.recv().await.ok_or("no invoice")?);
    println!("{} caused {}", first.event_type, second.event_type);
    assert_eq!(second.causation_id, Some(order));
    assert_eq!(harness.account("analytics").await?.applied, 2);
    Ok(())
}
