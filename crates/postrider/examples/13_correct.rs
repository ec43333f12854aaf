//! Dead letters with the same mistake are corrected by one patch and sent as new events; what it does not fit stays.
//!
//! `cargo run -p postrider --example 13_correct`
#![allow(clippy::print_stdout, reason = "an example talks to people")]

use postrider::dead_letter::Correction;
use postrider::handler::handler_fn;
use postrider::harness::{Harness, HarnessError};
use postrider::operation::{EditWork, LetterPlan, LetterWork, Runner, RunnerConfig, plan, start};
use postrider::registry::Registry;
use postrider::settlement::RetryPolicy;
use postrider::sqlite::Sqlite;
use postrider::store::{LetterFilter, OperationKind};
use postrider::{Clock, Event, Failure};
use tokio_util::sync::CancellationToken;

#[tokio::main]
async fn main() -> Result<(), HarnessError> {
    let charge = handler_fn::<Sqlite, _>(|_tx, event| {
        Box::pin(async move {
            let order: serde_json::Value = event.parse()?;
            match order["currency"].as_str() {
                Some("EUR") => Ok(()),
                other => {
                    Err(Failure::permanent(format_args!("no such currency: {other:?}")).class("currency"))
                }
            }
        })
    });
    let harness = Harness::new()
        .consumer("billing", "order.#", RetryPolicy::default(), Registry::new().on("order.placed", charge))?
        .start()
        .await?;
    for currency in ["EURO", "EURO", "gold", "EUR"] {
        let order = serde_json::json!({ "total": "12.00", "currency": currency });
        harness.publish(Event::new("order.placed")?.json(&order)?).await?;
    }
    harness.until_quiet().await?;

    // RFC 6902: only where it says EURO. `Correction::merge` takes a merge patch (RFC 7396).
    let patch = r#"[{"op": "test", "path": "/currency", "value": "EURO"},
                    {"op": "replace", "path": "/currency", "value": "EUR"}]"#;
    let edit = Correction::patch(patch)?;
    let filter = LetterFilter { error_class: Some("currency".to_owned()), ..LetterFilter::open() };
    let letters = LetterPlan { filter: filter.clone(), edit: Some(edit), ..LetterPlan::default() };

    // The plan changes nothing and shows what would become of one of them.
    let (store, clock) = (harness.store(), Clock::system());
    let drawn = plan(store, None, &letters, None).await?;
    let trial = drawn.trial.unwrap_or_default();
    println!("{} match; of {} tried {} do not fit", drawn.total, trial.tried, trial.unfit.len());
    if let Some(example) = trial.example {
        println!("- {}\n+ {}", example.before, example.after);
    }

    let runner = Runner::new(store.clone(), clock.clone(), RunnerConfig::default());
    let stop = CancellationToken::new();
    let kind = OperationKind::EditLetters;
    if let Some(id) = start(store, &clock, kind, &letters, None, "example", Some("EURO is EUR")).await? {
        runner.run(id, &EditWork::new(clock.clone()), &stop).await?;
    }
    harness.until_quiet().await?;
    let account = harness.account("billing").await?;
    println!("applied: {}, dead: {}", account.applied, account.dead);
    assert_eq!(account.applied, 3);

    // What is left nobody wants.
    let letters = LetterPlan { filter, ..LetterPlan::default() };
    let kind = OperationKind::DiscardLetters;
    if let Some(id) = start(store, &clock, kind, &letters, None, "example", Some("no gold")).await? {
        runner.run(id, &LetterWork::new(clock.clone()), &stop).await?;
    }
    assert_eq!(plan(store, None, &letters, None).await?.total, 0);
    Ok(())
}
